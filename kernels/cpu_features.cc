#include "kernels/cpu_features.h"

namespace isthmus::kernels {

#if defined(__x86_64__)

bool bf16_dot_products_are_fast() {
  return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_is("intel") == 0;
}

#else

bool bf16_dot_products_are_fast() { return false; }

#endif

}  // namespace isthmus::kernels
