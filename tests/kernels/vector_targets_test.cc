#include "kernels/vector_targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isthmus::kernels {
namespace {

// The targets that the build compiles (kernels/CMakeLists.txt) and this CPU has, found without
// Highway, so that a target which silently went missing is noticed.
std::size_t targets_expected() {
  std::size_t count = 1;  // the baseline
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0;
  count += avx2;
  const bool avx3_dl =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
      __builtin_cpu_supports("avx512vbmi2") != 0 && __builtin_cpu_supports("avx512bitalg") != 0 &&
      __builtin_cpu_supports("avx512vpopcntdq") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  count += avx3_dl;
  return std::min<std::size_t>(count, ISTHMUS_VECTOR_TARGETS_MAX);
}

TEST(VectorTargets, RunsOnEveryTargetTheCpuHas) {
  std::vector<VectorTarget> targets = vector_targets();
  std::string names;
  for (const auto& target : targets) names += target.name + " ";
  EXPECT_EQ(targets.size(), targets_expected()) << names;
}

}  // namespace
}  // namespace isthmus::kernels
