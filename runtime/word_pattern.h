// WordPattern: the regular expression by which a tokenizer.json parts a text into words, matched by
// PCRE2 as `tokenizers` matches it with Oniguruma. The two read some patterns differently, so only
// what means the same in both is taken, and classes of characters are spelled out:
//
//   \s           the characters with White_Space (PCRE2 counts one more)
//   \p{L} …      PCRE2's table and the characters that Unicode has added since
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace isthmus::runtime {

class WordPattern {
 public:
  // Errors: unsupported (what is in it), corrupt (no pattern).
  static Result<WordPattern> compile(std::string_view pattern);

  WordPattern(WordPattern&&) noexcept;
  WordPattern& operator=(WordPattern&&) noexcept;
  ~WordPattern();

  enum class Between { is_word, is_dropped };  // what no match covers

  // Calls `word` for each part of `text`, which is UTF-8, in order. Errors: too_large (matching
  // took too long); those of `word`.
  Result<void> for_each(std::string_view text, Between between,
                        const std::function<Result<void>(std::string_view)>& word) const;

 private:
  struct Compiled;
  explicit WordPattern(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

// The same pattern in PCRE2's words. Errors: unsupported.
Result<std::string> pattern_for_pcre(std::string_view pattern);

}  // namespace isthmus::runtime
