#include "runtime/decoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "kernels/attention.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using TokenIds = std::vector<std::int32_t>;

TokenIds some_tokens(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  TokenIds tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(random.below(260)));
  return tokens;
}

double relative_distance(std::span<const float> x, std::span<const float> y) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(static_cast<double>(x[i]) - y[i], 2);
    norm += std::pow(static_cast<double>(y[i]), 2);
  }
  return std::sqrt(difference / norm);
}

using DecodedKind = std::tuple<std::string, Precision>;

class DecodingTest : public testing::TestWithParam<DecodedKind> {
 protected:
  static constexpr std::size_t kLength = 150;

  std::unique_ptr<Model> model(ThreadPool& pool) const {
    auto config = small_config(std::get<0>(GetParam()));
    config.head_dim = 10;  // no whole vector
    config.sequence_max = kLength;
    // Attention over a whole text then rounds its weights to bf16, and over a text so far it does
    // not: of experts that are all but equally likely, each may choose another, and scores are not
    // comparable. Where all are chosen they are.
    const bool rounds =
        std::get<1>(GetParam()) == Precision::bf16 && kernels::bf16_attention_is_native();
    if (rounds) config.experts_per_token = config.experts;
    const BatchShape shape{
        .micro_batch = 1, .sequence = kLength, .precision = std::get<1>(GetParam())};
    auto made = make_model(pool, config, shape, 3);
    // So that attention looks at something; weights of norms on heads make it sharper yet, and so
    // what is rounded grows.
    const float factor = config.family.starts_with("qwen3") || rounds ? 2 : 4;
    for (auto& x : made->parameters()) x *= factor;
    made->parameters_changed();
    return made;
  }
  std::unique_ptr<Decoding> decoding(Model& model, std::int64_t texts) const {
    auto made = model.decoding(texts, kLength);
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  double tolerance() const { return std::get<1>(GetParam()) == Precision::f32 ? 1e-5 : 3e-2; }
};

// The scores of the same model that sees the whole text at once, after a prompt of any length, and
// at each of the tokens after it.
TEST_P(DecodingTest, ScoresAreThoseOfTheWholeText) {
  ThreadPool pool({-1, -1});
  const auto model = this->model(pool);
  const auto tokens = some_tokens(kLength, 1);
  const auto vocabulary = static_cast<std::size_t>(model->config().vocabulary);
  std::vector<float> whole(kLength * vocabulary);
  model->logits(tokens, whole);
  const auto texts = decoding(*model, 1);
  // Prompts are read in chunks of 64.
  for (const std::size_t prompt : {0, 1, 63, 64, 65, 129, 149}) {
    texts->forget(0);
    texts->read(0, std::span(tokens).first(prompt / 2));
    texts->read(0, std::span(tokens).subspan(prompt / 2, prompt - prompt / 2));
    EXPECT_EQ(texts->tokens_read(0), static_cast<std::int64_t>(prompt));
    for (auto at = prompt; at < std::min(prompt + 30, kLength); ++at)
      EXPECT_LE(relative_distance(texts->next(std::span(tokens).subspan(at, 1)),
                                  std::span(whole).subspan(at * vocabulary, vocabulary)),
                tolerance())
          << "prompt " << prompt << ", token " << at;
  }
}

// Texts of several lengths, of which some rest now and then and one begins again.
TEST_P(DecodingTest, TextsAndThreadsDoNotChangeABit) {
  const auto vocabulary = static_cast<std::size_t>(small_config().vocabulary);
  std::vector<TokenIds> all;  // more than are computed at a time
  for (std::uint64_t text = 0; text < 11; ++text) all.push_back(some_tokens(120, text));
  // Scores by text and token, of the texts from `first` on.
  const auto scores_of = [&](std::size_t threads, std::size_t first, std::size_t count) {
    ThreadPool pool(std::vector<int>(threads, -1));
    const auto model = this->model(pool);
    const auto texts = decoding(*model, static_cast<std::int64_t>(count));
    std::map<std::pair<std::size_t, std::size_t>, std::vector<float>> scores;
    std::vector<std::size_t> at(count);
    for (std::size_t i = 0; i < count; ++i) {
      if ((first + i) % 2 == 1) {  // was another text before
        texts->read(i, all[0]);
        texts->forget(i);
      }
      at[i] = 7 * (first + i);
      texts->read(i, std::span(all[first + i]).first(at[i]));
    }
    for (std::size_t round = 0; round < 20; ++round) {
      TokenIds next(count, kNoToken);
      for (std::size_t i = 0; i < count; ++i)
        if ((round + first + i) % 3 != 0) next[i] = all[first + i][at[i]];
      const auto out = texts->next(next);
      for (std::size_t i = 0; i < count; ++i) {
        if (next[i] == kNoToken) continue;
        const auto row = out.subspan(i * vocabulary, vocabulary);
        scores[{first + i, at[i]++}] = {row.begin(), row.end()};
      }
    }
    return scores;
  };
  const auto together = scores_of(1, 0, all.size());
  for (const std::size_t threads : {2, 3, 5})
    EXPECT_EQ(scores_of(threads, 0, all.size()), together);
  for (std::size_t text = 0; text < all.size(); ++text)
    for (const auto& [at, scores] : scores_of(2, text, 1))
      ASSERT_EQ(scores, together.at(at)) << "text " << at.first << ", token " << at.second;
}

INSTANTIATE_TEST_SUITE_P(Of, DecodingTest,
                         testing::Combine(testing::Values("llama", "qwen3", "mixtral", "qwen3_moe"),
                                          testing::Values(Precision::f32, Precision::bf16)),
                         [](const auto& kind) {
                           return std::get<0>(kind.param) + "_" +
                                  std::string(to_string(std::get<1>(kind.param)));
                         });

TEST(Decoding, IsRefusedWhereThereIsNoRoom) {
  ThreadPool pool({-1});
  const auto model = make_small_model(pool);
  for (const auto& [texts, length] : {std::pair{0, 24}, {1, 0}, {1, 65}}) {
    const auto decoding = model->decoding(texts, length);
    ASSERT_FALSE(decoding);
    EXPECT_EQ(decoding.error().code, ErrorCode::invalid_argument);
  }
  const auto many = model->decoding(std::int64_t{1} << 40, 64);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code, ErrorCode::too_large);
}

}  // namespace
}  // namespace isthmus::runtime
