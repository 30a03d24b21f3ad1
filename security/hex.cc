#include "security/hex.h"

#include <sodium.h>

#include "security/sodium_ready.h"

namespace isthmus::security {

// sodium_bin2hex and sodium_hex2bin take the same time for all digits, so secrets may pass too.

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), octets(bytes.data()), bytes.size());
  text.pop_back();  // its terminating zero
  return text;
}

bool from_hex(std::string_view text, std::span<std::byte> out) {
  if (text.size() != 2 * out.size()) return false;
  std::size_t written = 0;
  return sodium_hex2bin(octets(out.data()), out.size(), text.data(), text.size(), nullptr, &written,
                        nullptr) == 0 &&
         written == out.size();
}

}  // namespace isthmus::security
