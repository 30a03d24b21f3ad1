#include "runtime/unicode_nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/assert.h"
#include "runtime/younger_characters.h"

namespace isthmus::runtime {
namespace {

struct NormalForm {
  char32_t first_changed;  // whatever is below is in this form, next to each other
  utf8proc_option_t how;
};
constexpr NormalForm kComposed = {0x300, UTF8PROC_COMPOSE};
constexpr NormalForm kDecomposed = {0xC0, UTF8PROC_DECOMPOSE};

bool is_younger(char32_t c) {
  const auto range = std::partition_point(std::begin(kYoungerThanNfc), std::end(kYoungerThanNfc),
                                          [c](const auto& r) { return r.last < c; });
  return range != std::end(kYoungerThanNfc) && range->first <= c;
}

struct Free {
  // A C library made it.
  void operator()(utf8proc_uint8_t* memory) const { std::free(memory); }
};

void add_in_form(std::string_view text, utf8proc_option_t how, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* made = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &made,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | how));
  const std::unique_ptr<utf8proc_uint8_t, Free> owned(made);
  ISTHMUS_ASSERT(size >= 0);  // UTF-8, as it was promised
  out.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
}

std::string to_form(std::string_view text, const NormalForm& form) {
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  bool is_changed = false;
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = 0;
    const auto size =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    ISTHMUS_ASSERT(size > 0);
    const auto length = static_cast<std::size_t>(size);
    is_changed = is_changed || static_cast<char32_t>(c) >= form.first_changed;
    if (is_younger(static_cast<char32_t>(c))) {
      add_in_form(text.substr(done, at - done), form.how, out);
      out += text.substr(at, length);
      done = at + length;
    }
    at += length;
  }
  if (!is_changed) return std::string(text);
  add_in_form(text.substr(done), form.how, out);
  return out;
}

}  // namespace

std::string to_nfc(std::string_view text) { return to_form(text, kComposed); }
std::string to_nfd(std::string_view text) { return to_form(text, kDecomposed); }

}  // namespace isthmus::runtime
