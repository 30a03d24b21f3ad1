// OpTime: where the time of a kind of op went, summed since measuring began.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus::runtime {

struct OpTime {
  std::string name;  // "linear", "linear backward", …
  std::int64_t calls = 0;
  double seconds = 0;
  double flops = 0;        // floating-point operations done in these calls
  double bytes_moved = 0;  // read and written at least
};

}  // namespace isthmus::runtime
