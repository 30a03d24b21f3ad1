// What a fuzz target gives to whoever drives it: libFuzzer (clang++ -fsanitize=fuzzer with the
// target's file alone), or run_inputs.cc, which is what ctest runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/byte_stream.h"

// Aborts when it finds something.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace isthmus {

// Inputs that reach deep; mutation begins with them.
std::vector<Bytes> fuzz_corpus();

}  // namespace isthmus
