// What a process takes of memory.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace isthmus::runtime {

// Bytes of this process that are in memory: now (VmRSS), or at most so far (VmHWM).
inline double resident(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kib = 0; word == key + ":" && status >> kib) return kib * 1024;
  ADD_FAILURE() << "no " << key;
  return 0;
}

}  // namespace isthmus::runtime
