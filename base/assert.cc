#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace isthmus {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "isthmus: bug: %s:%d: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace isthmus
