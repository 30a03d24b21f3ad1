#include "tests/bench/gemms_alone.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

constexpr std::size_t kColdBytes = std::size_t{256} << 20;  // more than any cache
constexpr std::size_t kAlignment = 4096;

std::size_t bytes_of(std::int64_t rows, std::int64_t columns, DType dtype) {
  return static_cast<std::size_t>(rows * columns) * size_of(dtype);
}

}  // namespace

GemmsAlone::GemmsAlone(std::vector<kernels::GemmShape> gemms, ThreadPool& pool)
    : gemms_(std::move(gemms)), device_(pool) {
  std::size_t largest = 0, result = 0;
  for (const auto& gemm : gemms_) {
    plans_.push_back(&device_.gemm(gemm));
    largest = std::max(
        {largest, bytes_of(gemm.m, gemm.k, gemm.input), bytes_of(gemm.k, gemm.n, gemm.input)});
    result = std::max(result, bytes_of(gemm.m, gemm.n, gemm.output));
  }
  operands_ = runtime::AlignedMemory(kColdBytes + largest);
  results_ = runtime::AlignedMemory(kColdBytes + result);
  // Of halves that are small numbers of bf16 each, so that any two are one of f32.
  Random random(1);
  for (auto& half : operands_.of<std::uint16_t>()) {
    const auto value = static_cast<float>(random.uniform() - 0.5);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    half = static_cast<std::uint16_t>(bits >> 16);
  }
}

std::byte* GemmsAlone::cold(runtime::AlignedMemory& memory, std::size_t& next, std::size_t bytes) {
  auto* at = memory.bytes().data() + next;
  next = (next + bytes + kAlignment - 1) / kAlignment * kAlignment % kColdBytes;
  return at;
}

double GemmsAlone::run() {
  const double began = wall_seconds();
  double before = began;
  for (std::size_t i = 0; i < gemms_.size(); ++i) {
    const auto& gemm = gemms_[i];
    const auto* a = cold(operands_, next_operand_, bytes_of(gemm.m, gemm.k, gemm.input));
    const auto* b = cold(operands_, next_operand_, bytes_of(gemm.k, gemm.n, gemm.input));
    auto* c = cold(results_, next_result_, bytes_of(gemm.m, gemm.n, gemm.output));
    plans_[i]->run(device_.pool, a, b, c);
    const double after = wall_seconds();
    best_ = std::max(best_, gemm.flops() / (after - before));
    before = after;
  }
  return before - began;
}

double GemmsAlone::flops() const {
  double sum = 0;
  for (const auto& gemm : gemms_) sum += gemm.flops();
  return sum;
}

}  // namespace isthmus::bench
