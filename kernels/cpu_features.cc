#include "kernels/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace isthmus::kernels {

#if defined(__x86_64__)

bool bf16_matrix_products_are_fast() {
  if (__builtin_cpu_supports("avx512bf16") == 0) return false;
  if (__builtin_cpu_is("intel") == 0) return true;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kAmxBf16 = 1U << 22;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
}

bool bf16_dot_products_are_fast() {
  return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_is("intel") == 0;
}

#else

bool bf16_matrix_products_are_fast() { return false; }
bool bf16_dot_products_are_fast() { return false; }

#endif

}  // namespace isthmus::kernels
