#include "runtime/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace isthmus::runtime {
namespace {

constexpr std::align_val_t kAlignment{64};

template <class Shape, class Plan>
const Plan& plan_of(const Shape& shape, std::vector<std::unique_ptr<Plan>>& plans,
                    kernels::GemmScratch& scratch) {
  for (const auto& plan : plans)
    if (plan->shape() == shape) return *plan;
  plans.push_back(std::make_unique<Plan>(shape, scratch));
  return *plans.back();
}

}  // namespace

AlignedMemory::AlignedMemory(std::size_t bytes)
    : data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))), bytes_(bytes) {
  std::memset(data_.get(), 0, bytes);
}

void AlignedMemory::Free::operator()(std::byte* data) const { ::operator delete(data, kAlignment); }

const kernels::GemmPlan& CpuDevice::gemm(const kernels::GemmShape& shape) {
  return plan_of(shape, plans_, gemm_scratch_);
}

const kernels::GroupedGemmPlan& CpuDevice::gemm(const kernels::GroupedGemmShape& shape) {
  return plan_of(shape, grouped_plans_, gemm_scratch_);
}

void CpuDevice::fill_zero(std::span<float> values) {
  constexpr std::size_t kBlock = 1 << 16;
  pool.parallel_for((values.size() + kBlock - 1) / kBlock, [&](std::size_t task, std::size_t) {
    const auto first = task * kBlock;
    std::fill_n(values.data() + first, std::min(kBlock, values.size() - first), 0.0F);
  });
}

void CpuDevice::reserve_scratch(std::size_t bytes) {
  if (bytes <= reserved_) return;
  reserved_ = bytes;
  if (!counted_) scratch_ = AlignedMemory(bytes);
}

}  // namespace isthmus::runtime
