#include "runtime/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "runtime/document_layout.h"
#include "runtime/family.h"
#include "runtime/utf8_state.h"

namespace isthmus::runtime {
namespace {

struct Candidate {
  std::int32_t token;
  double score;
};

Result<Utf8State> state_after(std::string_view text) {
  Utf8State state;
  for (const char c : text)
    if (!state.take(static_cast<std::uint8_t>(c)))
      return Error{ErrorCode::invalid_argument, "the prompt is not valid UTF-8"};
  if (!state.complete())
    return Error{ErrorCode::invalid_argument, "the prompt ends inside a UTF-8 character"};
  return state;
}

Result<void> check(const GenerateOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    return Error{ErrorCode::invalid_argument, "temperature must be 0 or more"};
  if (options.top_k < 0 || options.bytes_max < 0)
    return Error{ErrorCode::invalid_argument, "top_k and bytes_max must be 0 or more"};
  if (!(options.top_p > 0 && options.top_p <= 1))
    return Error{ErrorCode::invalid_argument, "top_p must be above 0 and at most 1"};
  return {};
}

// Whether a text in this state stays one with so many bytes more.
bool keeps_text(Utf8State state, std::string_view more) {
  return std::all_of(more.begin(), more.end(),
                     [&state](char c) { return state.take(static_cast<std::uint8_t>(c)); });
}

// The tokens that may follow, and the end where the text may end.
std::vector<Candidate> candidates(std::span<const float> scores, const Tokenizer& tokenizer,
                                  std::optional<std::int32_t> end, const Utf8State& state) {
  std::vector<Candidate> allowed;
  const auto count = std::min(scores.size(), static_cast<std::size_t>(tokenizer.vocabulary()));
  for (std::size_t i = 0; i < count; ++i) {
    const auto token = static_cast<std::int32_t>(i);
    const auto piece = tokenizer.piece(token);
    const bool may_follow =
        piece.empty() ? token == end && state.complete() : keeps_text(state, piece);
    if (may_follow) allowed.push_back({token, scores[i]});
  }
  // Likeliest first; of equals the lower token, so that the draw is the same everywhere.
  std::sort(allowed.begin(), allowed.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  });
  return allowed;
}

std::int32_t draw(std::vector<Candidate> allowed, const GenerateOptions& options, Random& random) {
  if (options.temperature == 0) return allowed.front().token;
  if (options.top_k > 0)
    allowed.resize(std::min(allowed.size(), static_cast<std::size_t>(options.top_k)));
  double total = 0;
  const double best = allowed.front().score;
  for (auto& candidate : allowed) {
    candidate.score = std::exp((candidate.score - best) / options.temperature);
    total += candidate.score;
  }
  // Likeliest first, so the fewest that have so much together are the first ones.
  double nucleus = 0;
  for (auto last = allowed.begin(); last != allowed.end() && options.top_p < 1; ++last)
    if ((nucleus += last->score) >= options.top_p * total) {
      allowed.erase(last + 1, allowed.end());
      total = nucleus;
      break;
    }
  double left = random.uniform() * total;
  for (const auto& candidate : allowed)
    if ((left -= candidate.score) < 0) return candidate.token;
  return allowed.front().token;  // rounding used up the last of the sum
}

// One of the texts that are continued.
struct Text {
  std::vector<std::int32_t> tokens = {};  // with its prompt
  std::optional<std::int32_t> end = {};   // the token that ends it
  std::size_t read = 0;                   // so many of them, by the model
  Utf8State state;
  Random random;
  std::string more = {};
  bool ended = false;
};

Result<Text> begin(const Model& model, const Tokenizer& tokenizer, std::string_view prompt,
                   bool answers, Random random) {
  ISTHMUS_TRY(const auto state, state_after(prompt));
  Text text{.end = tokenizer.end(), .state = state, .random = random};
  if (answers) {
    ISTHMUS_TRY(auto question, lay_out_question(prompt, tokenizer));
    text.tokens = std::move(question.ids);
    text.end = question.answer_end;
  } else {
    if (tokenizer.begin()) text.tokens.push_back(*tokenizer.begin());
    ISTHMUS_CHECK(tokenizer.encode(prompt, text.tokens));
    if (text.tokens.empty()) ISTHMUS_CHECK(tokenizer.encode("\n", text.tokens));
  }
  const auto largest = std::max_element(text.tokens.begin(), text.tokens.end());
  if (largest == text.tokens.end() || *largest >= model.config().vocabulary)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model has {} tokens: it was not trained with this tokenizer ({})",
                             model.config().vocabulary, tokenizer.description())};
  return text;
}

// So that only the last token is left to be read. A text that has outgrown what the model can keep
// is read again from the half of that on: each token is read twice at most in the long run.
void read_up(Decoding& decoding, std::size_t which, Text& text) {
  const auto length = static_cast<std::size_t>(decoding.length());
  const auto all = text.tokens.size();
  const bool begins = text.read == 0;
  if (static_cast<std::size_t>(decoding.tokens_read(which)) + all - text.read > length) {
    decoding.forget(which);
    text.read = all - std::min(all, begins ? length : (length + 1) / 2);
  }
  decoding.read(which, std::span(text.tokens).subspan(text.read, all - 1 - text.read));
  text.read = all;
}

// Takes what was drawn after the text.
void go_on(Text& text, std::int32_t token, const Tokenizer& tokenizer,
           const GenerateOptions& options) {
  auto piece = tokenizer.piece(token);
  const auto newline = options.stop_at_newline ? piece.find('\n') : std::string_view::npos;
  text.ended = piece.empty() || newline != std::string_view::npos;
  piece = piece.substr(0, newline);
  for (const char c : piece) text.state.take(static_cast<std::uint8_t>(c));
  text.more += piece;
  text.tokens.push_back(token);
}

bool is_done(const Text& text, const GenerateOptions& options) {
  return text.ended || (static_cast<std::int64_t>(text.more.size()) >= options.bytes_max &&
                        text.state.complete());
}

}  // namespace

Result<std::vector<std::string>> generate(Model& model, const Tokenizer& tokenizer,
                                          std::span<const std::string> prompts,
                                          const GenerateOptions& options) {
  ISTHMUS_CHECK(check(options));
  if (objective_of(model.config()) == Objective::masked_tokens)
    return Error{
        ErrorCode::unsupported,
        fmt::format("a {} predicts hidden tokens and continues no text", model.config().family)};
  ISTHMUS_TRY(const auto decoding,
              model.decoding(static_cast<std::int64_t>(prompts.size()), model.shape().sequence));
  std::vector<Text> texts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ISTHMUS_TRY(auto text, begin(model, tokenizer, prompts[i], options.answers,
                                 Random(options.seed).split("generate").split(i)));
    texts.push_back(std::move(text));
  }
  const auto vocabulary = static_cast<std::size_t>(model.config().vocabulary);
  std::vector<std::int32_t> last(texts.size());
  for (;;) {
    bool all_done = true;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      last[i] = kNoToken;
      if (is_done(texts[i], options)) continue;
      all_done = false;
      read_up(*decoding, i, texts[i]);
      last[i] = texts[i].tokens.back();
    }
    if (all_done) break;
    const auto scores = decoding->next(last);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (last[i] == kNoToken) continue;
      const auto row = scores.subspan(i * vocabulary, vocabulary);
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }))
        return Error{ErrorCode::non_finite, "the model's scores are NaN or infinite"};
      const auto token =
          draw(candidates(row, tokenizer, texts[i].end, texts[i].state), options, texts[i].random);
      go_on(texts[i], token, tokenizer, options);
    }
  }
  std::vector<std::string> all;
  for (auto& text : texts) all.push_back(std::move(text.more));
  return all;
}

}  // namespace isthmus::runtime
