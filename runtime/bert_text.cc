#include "runtime/bert_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/assert.h"
#include "runtime/bert_characters.h"
#include "runtime/unicode_nfc.h"

namespace isthmus::runtime {
namespace {

constexpr CharacterSpan kHan[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
    {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
};
constexpr CharacterSpan kWhiteSpace[] = {
    {0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};

// The range of a sorted table that a character is in, or null.
template <class Ranges>
auto range_of(const Ranges& ranges, char32_t c) {
  const auto* const found = std::partition_point(std::begin(ranges), std::end(ranges),
                                                 [c](const auto& range) { return range.last < c; });
  return found != std::end(ranges) && found->first <= c ? found : nullptr;
}

bool is_white_space(char32_t c) { return range_of(kWhiteSpace, c) != nullptr; }
bool is_control(char32_t c) {
  if (c < 0x80) return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  return range_of(kBertControls, c) != nullptr;
}
bool is_punctuation(char32_t c) {
  if (c >= 0x80) return range_of(kBertPunctuation, c) != nullptr;
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}
bool is_mark(char32_t c) { return c >= 0x300 && range_of(kBertMarks, c) != nullptr; }

// The character that a text, which is not empty, begins with, and its bytes.
struct Character {
  char32_t c;
  std::size_t size;
};
Character character_of(std::string_view text) {
  if (const auto first = static_cast<std::uint8_t>(text.front()); first < 0x80) return {first, 1};
  utf8proc_int32_t c = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &c);
  ISTHMUS_ASSERT(size > 0);  // UTF-8, as it was promised
  return {static_cast<char32_t>(c), static_cast<std::size_t>(size)};
}

void put(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

void put_lower(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  } else if (c == 0x130) {  // the one that becomes two: i, and its dot
    out += "i\u0307";
  } else if (const auto* const younger = range_of(kYoungerLowercase, c)) {
    put(younger->lower + (c - younger->first), out);
  } else {
    put(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

template <class Each>
void for_each_character(std::string_view text, const Each& each) {
  while (!text.empty()) {
    const auto character = character_of(text);
    each(character.c, text.substr(0, character.size));
    text.remove_prefix(character.size);
  }
}

}  // namespace

std::string BertText::normalise(std::string_view text) const {
  std::string clean;
  clean.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (clean_text && is_control(c)) return;
    if (clean_text && is_white_space(c)) {
      clean += ' ';
    } else if (space_han && range_of(kHan, c) != nullptr) {
      clean.append(1, ' ').append(bytes).append(1, ' ');
    } else {
      clean += bytes;
    }
  });
  if (!strip_accents && !lowercase) return clean;
  std::string normal;
  normal.reserve(clean.size());
  for_each_character(strip_accents ? to_nfd(clean) : clean,
                     [&](char32_t c, std::string_view bytes) {
                       if (strip_accents && is_mark(c)) return;
                       if (lowercase)
                         put_lower(c, normal);
                       else
                         normal += bytes;
                     });
  return normal;
}

void for_each_bert_word(std::string_view text,
                        const std::function<void(std::string_view, std::size_t)>& word) {
  std::size_t first = 0, characters = 0, at = 0;
  const auto end_word = [&] {
    if (characters > 0) word(text.substr(first, at - first), characters);
    characters = 0;
  };
  while (at < text.size()) {
    const auto [c, size] = character_of(text.substr(at));
    if (is_white_space(c)) {
      end_word();
    } else if (is_punctuation(c)) {
      end_word();
      word(text.substr(at, size), 1);
    } else {
      if (characters == 0) first = at;
      ++characters;
    }
    at += size;
  }
  end_word();
}

}  // namespace isthmus::runtime
