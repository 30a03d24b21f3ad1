// Permutation: a keyed shuffle of [0, size) that is computed per element and keeps no list, so that
// a data set of any size is shuffled in no memory and resumed at any position.
//
// A balanced Feistel network on the smallest even number of bits that holds `size`, walked until it
// lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Not for
// secrets.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace isthmus::runtime {

class Permutation {
 public:
  // size > 0; equal keys give equal shuffles.
  Permutation(std::uint64_t size, Random key);

  // Where `index` < size goes: each of [0, size) exactly once.
  std::uint64_t at(std::uint64_t index) const;

 private:
  std::uint64_t size_;
  Random key_;
  unsigned half_bits_;
};

}  // namespace isthmus::runtime
