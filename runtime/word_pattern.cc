#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/word_pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cctype>
#include <utility>

#include "base/printable.h"
#include "runtime/younger_characters.h"

namespace isthmus::runtime {
namespace {

constexpr std::size_t kPatternBytesMax = 4096;
constexpr std::uint32_t kMatchStepsMax = 10'000'000;  // of one match; a word takes a few
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d} \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// What \p{category} stands for inside [].
std::string members(char category) {
  std::string all = fmt::format(R"(\p{{{}}})", category);
  for (const auto& range : kYoungerThanPcre)
    if (range.category == category)
      all += fmt::format(R"(\x{{{:x}}}-\x{{{:x}}})", static_cast<std::uint32_t>(range.first),
                         static_cast<std::uint32_t>(range.last));
  return all;
}

Error unsupported(std::string_view what) {
  return {ErrorCode::unsupported,
          fmt::format("the pattern that parts words has {}, which is not understood here",
                      printable(what))};
}

// Reads a pattern from the left and writes it as PCRE2 takes it.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : rest_(pattern) {}

  Result<std::string> rewrite() {
    while (!rest_.empty()) {
      const char c = take();
      if (c == '\\') {
        ISTHMUS_CHECK(escape());
      } else if (c == '[') {
        ISTHMUS_CHECK(open_class());
      } else if (c == ']' && in_class_) {
        in_class_ = false;
        out_ += c;
      } else if (in_class_) {
        // Oniguruma intersects at "&&".
        if (c == '&' && rest_.starts_with('&')) return unsupported("&&");
        out_ += c;
      } else {
        ISTHMUS_CHECK(outside(c));
      }
    }
    return std::move(out_);
  }

 private:
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  bool take_if(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  Result<void> open_class() {
    if (in_class_) return unsupported("a [ inside []");
    in_class_ = true;
    out_ += '[';
    if (take_if("^")) out_ += '^';
    if (rest_.starts_with(']')) return unsupported("[]");
    return {};
  }

  // Anchors and the dot mean other things in Ruby's syntax, which Oniguruma reads.
  Result<void> outside(char c) {
    if (c == '^' || c == '$' || c == '.') return unsupported(std::string(1, c));
    if (c == '(' && rest_.starts_with('?')) return group();
    out_ += c;
    if (c == '}' && rest_.starts_with('+')) return unsupported("}+");
    return {};
  }

  Result<void> group() {
    for (const std::string_view known : {"?:", "?i:", "?=", "?!", "?<=", "?<!", "?>"})
      if (take_if(known)) {
        out_ += '(';
        out_ += known;
        return {};
      }
    return unsupported(fmt::format("({}", rest_.substr(0, 3)));
  }

  Result<void> escape() {
    if (rest_.empty()) return unsupported("a \\ at its end");
    const char c = take();
    if (c == 's') return put(kSpaces, /*negated=*/false);
    if (c == 'S') return put(kSpaces, /*negated=*/true);
    if (c == 'p' || c == 'P') return property(c == 'P');
    const bool is_letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_letter && c != 'r' && c != 'n' && c != 't') return unsupported(fmt::format("\\{}", c));
    out_ += '\\';
    out_ += c;
    return {};
  }

  Result<void> property(bool negated) {
    const auto end = rest_.find('}');
    if (!rest_.starts_with('{') || end != 2 ||
        std::string_view("LMNPS").find(rest_[1]) == std::string_view::npos)
      return unsupported(fmt::format("\\p{}", rest_.substr(0, end == rest_.npos ? 1 : end + 1)));
    const char category = rest_[1];
    rest_.remove_prefix(3);
    return put(members(category), negated);
  }

  Result<void> put(std::string_view in_brackets, bool negated) {
    if (in_class_ && negated) return unsupported("a negated class inside []");
    out_ += in_class_ ? std::string(in_brackets)
                      : fmt::format("[{}{}]", negated ? "^" : "", in_brackets);
    return {};
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

std::string message_of(int code) {
  std::string text(256, '\0');
  const int size =
      pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct WordPattern::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;

  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    pcre2_code_free(code);
    pcre2_match_context_free(limits);
  }
};

WordPattern::WordPattern(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
WordPattern::WordPattern(WordPattern&&) noexcept = default;
WordPattern& WordPattern::operator=(WordPattern&&) noexcept = default;
WordPattern::~WordPattern() = default;

Result<std::string> pattern_for_pcre(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax)
    return unsupported(fmt::format("more than {} bytes", kPatternBytesMax));
  return Rewriter(pattern).rewrite();
}

Result<WordPattern> WordPattern::compile(std::string_view pattern) {
  ISTHMUS_TRY(const auto written, pattern_for_pcre(pattern));
  auto compiled = std::make_unique<Compiled>();
  int code = 0;
  PCRE2_SIZE at = 0;
  compiled->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &code, &at, nullptr);
  if (compiled->code == nullptr)
    return Error{ErrorCode::corrupt,
                 fmt::format("\"{}\" is no regular expression: {}", pattern, message_of(code))};
  std::uint32_t matches_nothing = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0) return unsupported("matches of no characters");
  // Without it, as on machines that PCRE2 compiles for none, matching is only slower.
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  compiled->limits = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled->limits, kMatchStepsMax);
  return WordPattern(std::move(compiled));
}

Result<void> WordPattern::for_each(
    std::string_view text, Between between,
    const std::function<Result<void>(std::string_view)>& word) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr));
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    const auto find = [&](std::uint32_t options) {
      return pcre2_match(compiled_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | options,
                         match.get(), compiled_->limits);
    };
    int found = find(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = find(PCRE2_NO_JIT);
    std::size_t first = text.size(), last = text.size();
    if (found >= 0) {
      const auto* const ends = pcre2_get_ovector_pointer(match.get());
      first = ends[0];
      last = ends[1];
    } else if (found != PCRE2_ERROR_NOMATCH) {
      return Error{ErrorCode::too_large,
                   fmt::format("the pattern that parts words gave up on a text of {} bytes: {}",
                               text.size(), message_of(found))};
    }
    if (first > at && between == Between::is_word) ISTHMUS_CHECK(word(text.substr(at, first - at)));
    if (last > first) ISTHMUS_CHECK(word(text.substr(first, last - first)));
    at = last;
  }
  return {};
}

}  // namespace isthmus::runtime
