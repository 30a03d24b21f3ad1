#include "security/secret.h"

#include <sodium.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "security/sodium_ready.h"

namespace isthmus::security {

SecretBytes::SecretBytes(std::size_t size) {
  require_sodium();
  // Locks, excludes from dumps and guards; when locking fails it goes on (harden_process warns).
  auto* data = static_cast<std::byte*>(sodium_malloc(size));
  if (data == nullptr) throw std::bad_alloc();
  sodium_memzero(data, size);
  data_ = std::unique_ptr<std::byte, Free>(data, Free{size});
}

void SecretBytes::Free::operator()(std::byte* data) const { sodium_free(data); }  // wipes

std::vector<Error> harden_process() {
  std::vector<Error> refused;
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0)
    refused.push_back(error_of_errno(errno, "core dumps could not be switched off"));
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
    refused.push_back(error_of_errno(errno, "debuggers could not be kept out"));

  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* probe = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe != MAP_FAILED) {
    if (::mlock(probe, page) != 0)
      refused.push_back(error_of_errno(
          errno,
          "secret keys cannot be locked in memory and may reach the swap space: raise the "
          "limit of locked memory to at least 64 KiB (ulimit -l, RLIMIT_MEMLOCK)"));
    ::munmap(probe, page);
  }
  return refused;
}

}  // namespace isthmus::security
