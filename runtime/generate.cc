#include "runtime/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "runtime/text_tokens.h"
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

Result<void> check(const Model& model, const GenerateOptions& options) {
  if (model.config().vocabulary < kByteTokens)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model has {} tokens: fewer than bytes, so it writes no text",
                             model.config().vocabulary)};
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    return Error{ErrorCode::invalid_argument, "temperature must be 0 or more"};
  if (options.top_k < 0 || options.bytes_max < 0)
    return Error{ErrorCode::invalid_argument, "top_k and bytes_max must be 0 or more"};
  return {};
}

// The bytes that may follow, and the end where the text may end.
std::vector<Candidate> candidates(std::span<const float> scores, const Utf8State& state) {
  std::vector<Candidate> allowed;
  for (std::int32_t token = 0; token < kByteTokens; ++token)
    if (state.allows(static_cast<std::uint8_t>(token)))
      allowed.push_back({token, scores[static_cast<std::size_t>(token)]});
  if (state.complete() && scores.size() > static_cast<std::size_t>(kEndToken))
    allowed.push_back({kEndToken, scores[kEndToken]});
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
  double left = random.uniform() * total;
  for (const auto& candidate : allowed)
    if ((left -= candidate.score) < 0) return candidate.token;
  return allowed.front().token;  // rounding used up the last of the sum
}

}  // namespace

Result<std::string> generate(Model& model, std::string_view prompt,
                             const GenerateOptions& options) {
  ISTHMUS_CHECK(check(model, options));
  ISTHMUS_TRY(auto state, state_after(prompt));
  std::vector<std::int32_t> tokens;
  for (const char c : prompt.empty() ? std::string_view("\n") : prompt)
    tokens.push_back(static_cast<std::uint8_t>(c));
  const auto vocabulary = static_cast<std::size_t>(model.config().vocabulary);
  const auto window = static_cast<std::size_t>(model.shape().sequence);
  std::vector<float> scores(window * vocabulary);
  Random random = Random(options.seed).split("generate");
  std::string text;
  while (static_cast<std::int64_t>(text.size()) < options.bytes_max || !state.complete()) {
    const auto seen = std::span(tokens).last(std::min(tokens.size(), window));
    const auto out = std::span(scores).first(seen.size() * vocabulary);
    model.logits(seen, out);
    const auto row = out.last(vocabulary);
    if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }))
      return Error{ErrorCode::non_finite, "the model's scores are NaN or infinite"};
    const auto token = draw(candidates(row, state), options, random);
    if (token == kEndToken || (options.stop_at_newline && token == '\n')) break;
    state.take(static_cast<std::uint8_t>(token));
    text += static_cast<char>(token);
    tokens.push_back(token);
  }
  return text;
}

}  // namespace isthmus::runtime
