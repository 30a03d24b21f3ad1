// Memory for secret keys: locked against swapping, left out of core dumps, between guard pages,
// wiped when freed, and nothing prints it. And the process around it: no core dumps, no debugger.
// Copies that a library makes are outside of this promise (ZeroMQ keeps a socket's CURVE secret;
// OpenSSL's of the identity is held as well as these, by its secure heap).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace isthmus::security {

// Moves, never copies; a moved-from one is empty. Throws std::bad_alloc like any container.
class SecretBytes {
 public:
  SecretBytes() = default;
  // All zero. Takes whole pages, so meant for keys, not for data.
  explicit SecretBytes(std::size_t size);

  std::span<std::byte> bytes() { return {data_.get(), size()}; }
  std::span<const std::byte> bytes() const { return {data_.get(), size()}; }
  std::size_t size() const { return data_ ? data_.get_deleter().size : 0; }

 private:
  struct Free {
    std::size_t size;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

// For a process that will hold secrets, before it loads them: no core dump (also not of children),
// no ptrace by others of the same user. Returns what the system would not do, to be logged as
// warnings: a low RLIMIT_MEMLOCK is one, and does not keep the process from running.
//
// Side effects worth knowing: /proc/PID of the process belongs to root from here on, and a leak
// sanitizer cannot attach unless it runs as root. exec undoes the ptrace half.
std::vector<Error> harden_process();

}  // namespace isthmus::security
