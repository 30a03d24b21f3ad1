// CoreLimits: what one core can do at most of what the stages of a gateway cannot do without,
// measured by the calling thread when it is asked, as the limits of a shared machine move.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/large_vector.h"

namespace isthmus::bench {

// Each in CPU-seconds, the least of a few looks.
class CoreLimits {
 public:
  CoreLimits();

  // Bytes that are read from memory, and others that are written past the caches.
  double memory(double read, double written);
  // What lies in the first-level cache: hashed, or sealed by AES-256-GCM as a record of TLS is and
  // opened again.
  double blake2s(double bytes);
  double xxh3(double bytes);
  double aes_gcm(double bytes);

 private:
  LargeVector<float> large_;
  std::vector<float> small_;
};

}  // namespace isthmus::bench
