// What this CPU is good at, beyond what Highway asks. Private to kernels/.
#pragma once

namespace isthmus::kernels {

// Intel's CPUs have AVX512_BF16 at half the speed of f32 (measured: 100 against 200 GFLOP/s per
// core), and are fast only through AMX, which we do not use.
bool bf16_dot_products_are_fast();  // AVX512_BF16 elsewhere

}  // namespace isthmus::kernels
