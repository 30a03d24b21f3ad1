// Utf8State: which bytes may follow in well-formed UTF-8 (Unicode, table 3-7), byte by byte. What
// lets a byte-level model write text that is always valid.
#pragma once

#include <cstdint>
#include <string_view>

namespace isthmus::runtime {

class Utf8State {
 public:
  bool allows(std::uint8_t byte) const;
  // Takes the next byte; false, without a change, when it is not allowed.
  bool take(std::uint8_t byte);
  // Whether the text may end here.
  bool complete() const { return pending_ == 0; }

 private:
  int pending_ = 0;          // continuation bytes still due
  std::uint8_t low_ = 0x80;  // bounds of the next one
  std::uint8_t high_ = 0xBF;
};

bool is_utf8(std::string_view text);

}  // namespace isthmus::runtime
