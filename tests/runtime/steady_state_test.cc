// What steps leave alone once training is under way: a step allocates nothing, on any thread, and
// what a model takes is what was planned. In a program of its own, as it replaces malloc.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>
#include <tuple>

#include "runtime/text_tokens.h"
#include "runtime/training_memory.h"
#include "tests/runtime/resident.h"
#include "tests/runtime/trainer_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ISTHMUS_OWN_MALLOC 0  // these have theirs
#else
#define ISTHMUS_OWN_MALLOC 1
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0}, mappings{0};

[[maybe_unused]] void count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if ISTHMUS_OWN_MALLOC

extern "C" {
// glibc's own, under the names that it keeps for those who replace the others.
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t n, std::size_t bytes) {
  count();
  return __libc_calloc(n, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  count();
  return __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** to, std::size_t alignment, std::size_t bytes) {
  *to = memalign(alignment, bytes);
  return *to == nullptr ? ENOMEM : 0;
}
void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  if (counting) ++mappings;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
}

#endif

namespace isthmus::runtime {
namespace {

class SteadyState
    : public TrainerTest,
      public testing::WithParamInterface<std::tuple<std::string, Precision, Recompute, Documents>> {
 protected:
  SteadyState() {
    options_.metrics_path = "";  // a line of it is no part of a step
    options_.checkpoint_steps = 1000;
    options_.micro_batches = 2;
    options_.steps = 20;
    std::ofstream list(documents_path(folder_ / "text"), std::ios::binary);
    for (std::uint64_t at = 0; at < 10'000; at += 1 + at % 40)
      list.write(reinterpret_cast<const char*>(&at), sizeof(at));
  }
};

TEST_P(SteadyState, AllocatesNothing) {
  if (!ISTHMUS_OWN_MALLOC) GTEST_SKIP() << "a sanitizer has malloc";
  counting = true;
  int* volatile made = new int;  // which may not be left out
  delete made;
  ::munmap(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
  counting = false;
  ASSERT_EQ(allocations, 1) << "this test counts nothing";
  ASSERT_EQ(mappings, 1) << "this test counts nothing";

  ThreadPool pool({-1, -1});
  auto shape = small_shape();
  std::string family;
  std::tie(family, shape.precision, shape.recompute, shape.documents) = GetParam();
  shape.router = {.capacity = 1.25, .balance = 0.01, .z = 0.001};
  if (family == "bert") masking_.emplace(MaskingOptions{.token = kMaskToken, .vocabulary = 260});
  const auto model = make_model(pool, small_config(family), shape);
  allocations = mappings = 0;
  int step = 0;
  world_.on_gradients = [&] { counting = ++step >= 2 && step < 20; };
  const auto outcome = run_well(*model);
  EXPECT_EQ(outcome.inner_step, 20);
  EXPECT_EQ(step, 20);
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(mappings, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SteadyState,
    testing::Combine(testing::Values("llama", "qwen2_moe", "qwen3_moe", "bert"),
                     testing::Values(Precision::f32, Precision::bf16),
                     testing::Values(Recompute::off, Recompute::all),
                     testing::Values(Documents::joined, Documents::apart)),
    [](const auto& tested) {
      return std::get<0>(tested.param) + "_" + std::string(to_string(std::get<1>(tested.param))) +
             "_recompute_" + std::string(to_string(std::get<2>(tested.param))) + "_" +
             std::string(to_string(std::get<3>(tested.param)));
    });

// A small model on so many tokens that its activations are a gigabyte.
TEST(PlannedMemory, IsWhatThePeakIs) {
  if (!ISTHMUS_OWN_MALLOC) GTEST_SKIP() << "a sanitizer has memory of its own";
  auto config = small_config();
  config.layers = 12;
  config.hidden = config.ffn_width = 48;
  config.heads = config.kv_heads = 1;
  config.vocabulary = 100;
  BatchShape shape{.micro_batch = 1, .sequence = 64};
  while (training_memory(config, shape, 2).total() < 1.0e9)
    shape.micro_batch += shape.micro_batch / 16 + 1;
  const auto plan = training_memory(config, shape, 2);
  ThreadPool pool({-1, -1});
  const double idle = resident("VmRSS");
  const auto model = make_model(pool, config, shape);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.tokens()), 65);
  const auto loss = model->forward_backward(tokens, tokens);
  EXPECT_TRUE(model->update({}, 1e-3, loss.counted).finite);
  EXPECT_LE(resident("VmHWM"), idle + 1.02 * plan.total());
  EXPECT_GE(resident("VmHWM"), idle + 0.98 * plan.total());
}

}  // namespace
}  // namespace isthmus::runtime
