// What drives fuzz targets without libFuzzer, with a target that has the faults it must notice; the
// first byte chooses.
#include <cstdlib>
#include <new>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  switch (size == 0 ? 0 : data[0]) {
    case 'a':
      std::abort();
    case 'b':
      *reinterpret_cast<volatile int*>(static_cast<std::uintptr_t>(size)) = 1;
      break;
    case 'l':
      for (volatile bool on = true; on;) {
      }
      break;
    case 'm':
      for (;;) *static_cast<volatile char*>(::operator new (std::size_t{1} << 30)) = 1;
    default:
      break;
  }
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() { return {Bytes(3)}; }

}  // namespace isthmus
