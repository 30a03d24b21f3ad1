# The instruction sets that Highway compiles code for: AVX2, AVX3_DL (Ice Lake, Zen 4 and later) and the baseline; each one
# more is compile time.
#
# `one` is for sanitizer builds, which look for what all have in common, and run where they were built: all code is
# compiled for a CPU with AVX2, which makes that the baseline. g++ 12's is one lane at a time otherwise, and takes two
# thirds of the time of the kernels' tests. Where the machine has no AVX2: both.
set(ISTHMUS_VECTOR_TARGETS_MAX 3)
if(NOT ISTHMUS_HIGHWAY_TARGETS STREQUAL "all")
  set(ISTHMUS_VECTOR_TARGETS_MAX 2)
endif()
if(ISTHMUS_HIGHWAY_TARGETS STREQUAL "one")
  include(CheckCXXSourceRuns)
  set(avx2 -march=x86-64-v3 -maes -mpclmul)
  list(JOIN avx2 " " CMAKE_REQUIRED_FLAGS)
  check_cxx_source_runs("int main() {
    const bool has = __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\") && __builtin_cpu_supports(\"bmi2\") &&
                     __builtin_cpu_supports(\"aes\") && __builtin_cpu_supports(\"pclmul\");
    return has ? 0 : 1;
  }" ISTHMUS_HAS_AVX2)
  unset(CMAKE_REQUIRED_FLAGS)
  if(ISTHMUS_HAS_AVX2)
    target_compile_options(isthmus_flags INTERFACE ${avx2})
    set(ISTHMUS_VECTOR_TARGETS_MAX 1)
  endif()
endif()

# For a target that compiles vector code of its own.
function(isthmus_vector_targets target)
  if(NOT ISTHMUS_HIGHWAY_TARGETS STREQUAL "all")
    target_compile_definitions(${target} PRIVATE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)")
  else()
    target_compile_definitions(${target} PRIVATE HWY_WANT_AVX3_DL "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3)")
  endif()
endfunction()
