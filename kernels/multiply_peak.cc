#include "kernels/multiply_peak.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#ifndef ISTHMUS_KERNELS_MULTIPLY_PEAK_SUMS
#define ISTHMUS_KERNELS_MULTIPLY_PEAK_SUMS
namespace isthmus::kernels {
// As many sums as keep two units busy, each of which takes four or five steps for one.
constexpr int kSums = 12;
}  // namespace isthmus::kernels
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multiply_peak.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Floating-point operations done in so many rounds; `out` takes what was computed, so that it is.
double multiply_f32(std::int64_t rounds, float* out) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999F), y = hn::Set(d, 1e-3F);
  hn::Vec<decltype(d)> sums[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) sums[i] = hn::Set(d, static_cast<float>(i));  // or all were one
  for (std::int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (auto& sum : sums) sum = hn::MulAdd(sum, x, y);
#pragma GCC unroll 12
  for (int i = 1; i < kSums; ++i) sums[0] = hn::Add(sums[0], sums[i]);
  *out = hn::GetLane(sums[0]);
  return 2.0 * kSums * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace isthmus::kernels {

HWY_EXPORT(multiply_f32);

namespace {

constexpr std::int64_t kRounds = 1 << 18;

double multiply_f32(float* out) { return HWY_DYNAMIC_DISPATCH(multiply_f32)(kRounds, out); }

#if defined(__x86_64__)

// Highway's emulation would not tell what the CPU can do.
__attribute__((target("avx512f,avx512bf16"))) double multiply_bf16(float* out) {
  const auto x = _mm512_set1_ps(1e-3F);
  const auto pairs = _mm512_cvtne2ps_pbh(x, x);
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t round = 0; round < kRounds; ++round)
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
  for (int i = 1; i < kSums; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  *out = _mm512_cvtss_f32(sums[0]);
  return 2.0 * 32 * kSums * static_cast<double>(kRounds);
}
bool multiplies_bf16() { return __builtin_cpu_supports("avx512bf16") != 0; }

#else

double multiply_bf16(float*) { return 0; }
bool multiplies_bf16() { return false; }

#endif

}  // namespace

double multiply_peak(ThreadPool& pool, DType dtype, const Clock& clock, Nanoseconds time) {
  if (dtype == DType::bf16 && !multiplies_bf16()) return 0;
  const auto multiply = dtype == DType::bf16 ? multiply_bf16 : multiply_f32;
  std::vector<float> results(pool.workers());
  double best = 0;
  for (const Nanoseconds end = clock.now() + time; clock.now() < end;) {
    std::vector<double> flops(pool.workers());
    const Nanoseconds began = clock.now();
    pool.parallel_for(pool.workers(), [&](std::size_t task, std::size_t) {
      flops[task] = multiply(&results[task]);
    });
    const double took = std::max(1e-9, seconds_of(clock.now() - began));
    double sum = 0;
    for (const double count : flops) sum += count;
    best = std::max(best, sum / took);
  }
  // Somebody must want the results, or the loops would be left out.
  return *std::max_element(results.begin(), results.end()) == 0 ? 0 : best;
}

}  // namespace isthmus::kernels
#endif
