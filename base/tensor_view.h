// TensorView: a dense, row-major tensor that somebody else owns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/assert.h"
#include "base/dtype.h"

namespace isthmus {

// At most four dimensions: every tensor of a transformer fits, and a shape is a plain value.
class Shape {
 public:
  static constexpr std::size_t kRankMax = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes)
      : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes) : rank_(sizes.size()) {
    ISTHMUS_ASSERT(sizes.size() <= kRankMax);
    for (std::size_t i = 0; i < rank_; ++i) sizes_[i] = sizes[i];
  }
  std::size_t rank() const { return rank_; }
  std::int64_t operator[](std::size_t i) const { return sizes_[i]; }
  std::span<const std::int64_t> sizes() const { return {sizes_.data(), rank_}; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < rank_; ++i) n *= sizes_[i];
    return n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kRankMax> sizes_{};
  std::size_t rank_ = 0;
};

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  float* f32() const {
    ISTHMUS_ASSERT(dtype == DType::f32);
    return static_cast<float*>(data);
  }
  bf16_t* bf16() const {
    ISTHMUS_ASSERT(dtype == DType::bf16);
    return static_cast<bf16_t*>(data);
  }
  std::int32_t* i32() const {
    ISTHMUS_ASSERT(dtype == DType::i32);
    return static_cast<std::int32_t*>(data);
  }
};

}  // namespace isthmus
