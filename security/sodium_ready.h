// Initialises libsodium (random source, fastest implementations) before its first use. Every
// function of this folder that calls libsodium's cryptography calls require_sodium first.
#pragma once

#include <cstddef>

namespace isthmus::security {

// Any thread, any number of times; cheap after the first. Asserts that the system has a random
// source: nothing here may run without one.
void require_sodium();

// libsodium counts in unsigned char.
inline unsigned char* octets(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace isthmus::security
