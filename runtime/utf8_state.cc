#include "runtime/utf8_state.h"

namespace isthmus::runtime {

bool Utf8State::allows(std::uint8_t byte) const {
  if (pending_ > 0) return byte >= low_ && byte <= high_;
  return byte < 0x80 || (byte >= 0xC2 && byte <= 0xF4);
}

bool Utf8State::take(std::uint8_t byte) {
  if (!allows(byte)) return false;
  low_ = 0x80;
  high_ = 0xBF;
  if (pending_ > 0) {
    --pending_;
  } else if (byte >= 0xC2) {
    pending_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    if (byte == 0xE0) low_ = 0xA0;   // no longer form than needed
    if (byte == 0xED) high_ = 0x9F;  // no surrogates
    if (byte == 0xF0) low_ = 0x90;
    if (byte == 0xF4) high_ = 0x8F;  // nothing above U+10FFFF
  }
  return true;
}

bool is_utf8(std::string_view text) {
  Utf8State state;
  for (const char c : text)
    if (!state.take(static_cast<std::uint8_t>(c))) return false;
  return state.complete();
}

}  // namespace isthmus::runtime
