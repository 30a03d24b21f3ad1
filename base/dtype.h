// DType: the element types of tensors, with the names and sizes that files use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isthmus {

enum class DType : std::uint8_t { f32 = 0, bf16 = 1, i32 = 2 };

// The upper half of an IEEE f32; a storage type, arithmetic happens in f32.
struct bf16_t {
  std::uint16_t bits = 0;
};

constexpr std::size_t size_of(DType dtype) { return dtype == DType::bf16 ? 2 : 4; }

constexpr std::string_view to_string(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "i32";
}

}  // namespace isthmus
