#include "runtime/training_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/thread_pool.h"
#include "runtime/model.h"
#include "tests/runtime/resident.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

class PlannedTraining
    : public testing::TestWithParam<std::tuple<std::string, Precision, Recompute>> {};

TEST_P(PlannedTraining, IsToTheByteWhatAModelTakes) {
  auto shape = small_shape();
  std::string family;
  std::tie(family, shape.precision, shape.recompute) = GetParam();
  for (const std::size_t threads : {1, 3}) {
    ThreadPool pool(std::vector<int>(threads, -1));
    const auto config = small_config(family);
    const auto model = make_model(pool, config, shape);
    const auto plan = training_memory(config, shape, threads);
    EXPECT_GT(plan.working, 0);
    EXPECT_EQ(plan.total(), static_cast<double>(model->memory_bytes())) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlannedTraining,
                         testing::Combine(testing::Values("llama", "qwen2_moe", "qwen3_moe",
                                                          "bert"),
                                          testing::Values(Precision::f32, Precision::bf16),
                                          testing::Values(Recompute::off, Recompute::all)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" +
                                  std::string(to_string(std::get<1>(tested.param))) +
                                  "_recompute_" + std::string(to_string(std::get<2>(tested.param)));
                         });

// A thread keeps the keys and values of a head.
TEST(TrainingMemory, AttentionOfLongSequencesCountsOncePerThread) {
  auto config = small_config();
  config.sequence_max = 1 << 14;
  const auto working = [&](std::int64_t sequence, std::size_t threads) {
    return training_memory(config, {.micro_batch = 1, .sequence = sequence}, threads).working;
  };
  const auto of_a_thread = working(1 << 14, 9) - working(1 << 14, 8);
  EXPECT_NEAR(of_a_thread, working(1 << 14, 5) - working(1 << 14, 4), 1);
  EXPECT_GT(of_a_thread, 1.5 * (working(1 << 13, 9) - working(1 << 13, 8)));
}

// Of a batch by mistake as large as this nothing is allocated, to plan it.
TEST(TrainingMemory, IsKnownWithoutTakingIt) {
  auto config = small_config("qwen3_moe");
  config.experts = 1024;
  const double before = resident("VmHWM");
  const auto plan = training_memory(config, {.micro_batch = 1 << 16, .sequence = 8}, 2);
  EXPECT_GT(plan.total(), 4e9);
  EXPECT_LT(resident("VmHWM"), before + 1e8);
}

}  // namespace
}  // namespace isthmus::runtime
