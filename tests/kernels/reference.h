// What the kernel tests share: random inputs in both dtypes, read back as f64, and distances.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/bf16.h"
#include "kernels/rows.h"
#include "kernels/vector_targets.h"

namespace isthmus::kernels {

// A matrix with its memory; `padding` columns of a sentinel follow each row, to find stray writes.
class Matrix {
 public:
  static constexpr float kSentinel = 12345.0F;

  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t padding = 0)
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(columns + padding) {
    const auto size = static_cast<std::size_t>(rows * stride_);
    if (dtype == DType::f32)
      f32_.assign(size, kSentinel);
    else
      bf16_.assign(size, to_bf16(kSentinel));
  }
  static Matrix random(std::string_view name, DType dtype, std::int64_t rows, std::int64_t columns,
                       std::int64_t padding = 0, double deviation = 1.0) {
    Matrix made(dtype, rows, columns, padding);
    const Random random = Random(1).split(name);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        made.set(r, c, deviation * random.normal_at(static_cast<std::uint64_t>(r * columns + c)));
    return made;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }
  void* data() const {
    return dtype_ == DType::f32 ? static_cast<void*>(const_cast<float*>(f32_.data()))
                                : static_cast<void*>(const_cast<bf16_t*>(bf16_.data()));
  }
  Rows view() const { return {data(), dtype_, rows_, columns_, stride_}; }
  double at(std::int64_t r, std::int64_t c) const {
    const auto i = static_cast<std::size_t>(r * stride_ + c);
    return dtype_ == DType::f32 ? static_cast<double>(f32_[i])
                                : static_cast<double>(to_float(bf16_[i]));
  }
  void set(std::int64_t r, std::int64_t c, double value) {
    const auto i = static_cast<std::size_t>(r * stride_ + c);
    if (dtype_ == DType::f32)
      f32_[i] = static_cast<float>(value);
    else
      bf16_[i] = to_bf16(static_cast<float>(value));
  }
  std::vector<double> values() const {
    std::vector<double> all(static_cast<std::size_t>(rows_ * columns_));
    auto* value = all.data();
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < columns_; ++c) *value++ = at(r, c);
    return all;
  }
  bool padding_is_untouched() const {
    const double sentinel =
        dtype_ == DType::f32 ? kSentinel : static_cast<double>(to_float(to_bf16(kSentinel)));
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = columns_; c < stride_; ++c)
        if (at(r, c) != sentinel) return false;
    return true;
  }
  bool same_bits(const Matrix& other) const {
    const auto same = [](bf16_t x, bf16_t y) { return x.bits == y.bits; };
    const auto same_float = [](float x, float y) {
      return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    };
    return std::ranges::equal(f32_, other.f32_, same_float) &&
           std::ranges::equal(bf16_, other.bf16_, same);
  }

 private:
  DType dtype_;
  std::int64_t rows_, columns_, stride_;
  std::vector<float> f32_;
  std::vector<bf16_t> bf16_;
};

// ‖got - expected‖ / ‖expected‖; infinite if anything is not finite.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / (norm > 0 ? norm : 1.0));
}

// From `sum` on: of n products, which lie so many elements apart in x and in y.
inline double sum_of_products(double sum, std::int64_t n, const double* x, std::int64_t x_step,
                              const double* y, std::int64_t y_step) {
  for (std::int64_t i = 0; i < n; ++i) sum += x[i * x_step] * y[i * y_step];
  return sum;
}

// What rounding one result to `dtype` may cost, in L2: f32 sums, or half a unit of 8 bits.
constexpr double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-6 : 2.5e-3; }

inline std::vector<int> unpinned(std::size_t threads) { return std::vector<int>(threads, -1); }

// Calls body(pool) on every instruction set, with one thread and with three. It returns the
// matrices it made, which must not depend on the number of threads.
template <class Body>
void on_every_target_and_thread_count(const Body& body) {
  for (const VectorTarget& target : vector_targets()) {
    SCOPED_TRACE(target.name);
    const ForcedVectorTarget forced(target);
    ThreadPool one(unpinned(1));
    ThreadPool three(unpinned(3));
    const std::vector<Matrix> alone = body(one);
    const std::vector<Matrix> together = body(three);
    ASSERT_EQ(alone.size(), together.size());
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(alone[i].same_bits(together[i])) << "result " << i << " differs between threads";
  }
}

// The gradient of sum(weights * f(x)) by x, by central differences in f64.
template <class Function>
std::vector<double> numeric_gradient(std::vector<double> x, const std::vector<double>& weights,
                                     const Function& f) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient;
  for (double& value : x) {
    const double kept = value;
    value = kept + kStep;
    const std::vector<double> high = f(x);
    value = kept - kStep;
    const std::vector<double> low = f(x);
    value = kept;
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * (high[i] - low[i]);
    gradient.push_back(sum / (2 * kStep));
  }
  return gradient;
}

// Of the weight of an RMSNorm over the rows of x.
inline std::vector<double> norm_weight_gradient(const Matrix& x, const Matrix& dy, double epsilon) {
  std::vector<double> gradient(static_cast<std::size_t>(x.columns()));
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.columns(); ++i) sum += x.at(r, i) * x.at(r, i);
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(x.columns()) + epsilon);
    for (std::int64_t i = 0; i < x.columns(); ++i)
      gradient[static_cast<std::size_t>(i)] += dy.at(r, i) * x.at(r, i) * inverse;
  }
  return gradient;
}

inline std::span<float> floats(const Matrix& matrix) {
  return {static_cast<float*>(matrix.data()),
          static_cast<std::size_t>(matrix.rows() * matrix.columns())};
}

inline const std::array<DType, 2> kDTypes = {DType::f32, DType::bf16};

}  // namespace isthmus::kernels
