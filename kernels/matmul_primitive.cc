#include "kernels/matmul_primitive.h"

#include <omp.h>

#include <algorithm>
#include <span>

namespace isthmus::kernels {
namespace {

constexpr std::int64_t kConvertElements = 32768;  // per task

void set_handle(dnnl_memory_t memory, void* pointer) {
  const dnnl_status_t status = dnnl_memory_set_data_handle(memory, pointer);
  ISTHMUS_ASSERT(status == dnnl_success);
}

dnnl::primitive_attr with_own_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace

Cut cut_evenly(std::int64_t total, std::int64_t longest, std::int64_t step) {
  std::int64_t pieces = (total + longest - 1) / longest;
  if (pieces > 1) pieces += pieces % 2;
  const std::int64_t length = (total + pieces - 1) / pieces;
  return {total, std::min(total, (length + step - 1) / step * step)};
}

void convert_to_float(ThreadPool& pool, const bf16_t* in, std::int64_t count, float* out) {
  pool.parallel_for(static_cast<std::size_t>((count + kConvertElements - 1) / kConvertElements),
                    [&](std::size_t task, std::size_t) {
                      const std::int64_t first = static_cast<std::int64_t>(task) * kConvertElements;
                      const auto size =
                          static_cast<std::size_t>(std::min(kConvertElements, count - first));
                      bf16_to_float({in + first, size}, {out + first, size});
                    });
}

void round_tile(const float* tile, std::int64_t m, std::int64_t n, bf16_t* out,
                std::int64_t stride) {
  for (std::int64_t i = 0; i < m; ++i)
    float_to_bf16({tile + i * n, static_cast<std::size_t>(n)},
                  {out + i * stride, static_cast<std::size_t>(n)});
}

GemmScratch::GemmScratch(std::size_t workers) : memory_(std::make_unique<Memory>()) {
  for (std::size_t i = 0; i < workers; ++i)
    memory_->workers.push_back({dnnl::stream(memory_->engine), {}, {}, {}});
}
GemmScratch::~GemmScratch() = default;

BoundPrimitive BoundPrimitive::matmul(GemmScratch::Memory& scratch, const dnnl::memory::desc& a,
                                      const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                                      bool accumulate) {
  auto attributes = with_own_scratchpad();
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes,
                                                 scratch.engine);
  BoundPrimitive made;
  made.b_layout_ = description.weights_desc();
  made.bind(scratch, dnnl::matmul(description),
            {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, made.b_layout_}, {DNNL_ARG_DST, c}},
            description.scratchpad_desc());
  return made;
}

BoundPrimitive BoundPrimitive::reorder(GemmScratch::Memory& scratch, const dnnl::memory::desc& from,
                                       const dnnl::memory::desc& to) {
  const dnnl::reorder::primitive_desc description(scratch.engine, from, scratch.engine, to,
                                                  with_own_scratchpad());
  BoundPrimitive made;
  made.bind(scratch, dnnl::reorder(description), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}},
            description.scratchpad_desc());
  return made;
}

void BoundPrimitive::execute(const GemmScratch::Memory& scratch, std::size_t worker,
                             void* const* pointers, std::size_t count) const {
  omp_set_num_threads(1);
  const Bound& bound = bound_[worker];
  const auto& memory = scratch.workers[worker];
  for (std::size_t i = 0; i < count; ++i) set_handle(bound.arguments[i].memory, pointers[i]);
  set_handle(bound.arguments[count].memory, memory.scratchpad.data());
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), memory.stream.get(),
                             static_cast<int>(bound.arguments.size()), bound.arguments.data());
  ISTHMUS_ASSERT(status == dnnl_success);
}

void BoundPrimitive::bind(GemmScratch::Memory& scratch, dnnl::primitive primitive,
                          const std::vector<std::pair<int, dnnl::memory::desc>>& arguments,
                          const dnnl::memory::desc& scratchpad) {
  primitive_ = std::move(primitive);
  for (auto& worker : scratch.workers) {
    worker.scratchpad.grow(std::max<std::size_t>(scratchpad.get_size(), kGemmAlignment));
    Bound& bound = bound_.emplace_back();
    auto add = [&](int argument, const dnnl::memory::desc& layout) {
      bound.memories.push_back(dnnl::memory(layout, scratch.engine, DNNL_MEMORY_NONE));
      bound.arguments.push_back({argument, bound.memories.back().get()});
    };
    for (const auto& [argument, layout] : arguments) add(argument, layout);
    add(DNNL_ARG_SCRATCHPAD, scratchpad);
  }
}

}  // namespace isthmus::kernels
