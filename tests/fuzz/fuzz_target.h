// What a fuzz target gives to whoever drives it: libFuzzer (the preset `fuzz`), or run_inputs.cc,
// an ordinary program, in every other preset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/byte_stream.h"

// Aborts when it finds something: ISTHMUS_ASSERT, or a sanitizer.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace isthmus {

// Inputs made from real messages and files, beside those that are kept in corpus/: mutation begins
// with both.
std::vector<Bytes> fuzz_seeds();

inline std::span<const std::byte> fuzz_input(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace isthmus
