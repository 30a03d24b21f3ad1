#include "runtime/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/random.h"
#include "runtime/byte_tokenizer.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

class EvaluateTest : public testing::Test {
 protected:
  // The definition, from logits: mean over the first sequences of -log2 p(next byte).
  double bits_plainly(Model& model, std::string_view text, std::size_t sequences) {
    const auto n = static_cast<std::size_t>(model.shape().sequence);
    const auto vocabulary = static_cast<std::size_t>(model.config().vocabulary);
    std::vector<float> scores(n * vocabulary);
    double bits = 0;
    for (std::size_t s = 0; s < sequences; ++s) {
      std::vector<std::int32_t> tokens(n);
      for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<std::uint8_t>(text[s * n + i]);
      model.logits(tokens, scores);
      for (std::size_t i = 0; i < n; ++i) {
        double total = 0;
        for (std::size_t t = 0; t < vocabulary; ++t)
          total += std::exp(static_cast<double>(scores[i * vocabulary + t]));
        const auto target = static_cast<std::uint8_t>(text[s * n + i + 1]);
        bits +=
            std::log2(total) - static_cast<double>(scores[i * vocabulary + target]) / std::log(2.0);
      }
    }
    return bits / static_cast<double>(sequences * n);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  const std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
  ThreadPool pool_{{-1}};
};

TEST_F(EvaluateTest, IsTheMeanOverTheFirstSequences) {
  const auto text = sample_text(400, 3);
  write_contents(folder_ / "text", text);
  // Also where the last call is not full, and where rows do not divide the sequences.
  for (const std::int64_t rows : {1, 5, 24, 40}) {
    auto model = make_model(pool_, small_config(), {.micro_batch = rows, .sequence = 24});
    for (auto& x : model->parameters()) x *= 8;  // far from uniform
    model->parameters_changed();
    const auto loss = held_out_loss(*model, *bytes_, *disk_, folder_ / "text");
    ASSERT_TRUE(loss) << loss.error().text();
    EXPECT_EQ(loss->sequences, 24);
    ASSERT_TRUE(loss->bits_per_byte);
    EXPECT_NEAR(*loss->bits_per_byte, bits_plainly(*model, text, 24), 1e-4);
    EXPECT_NEAR(std::log2(loss->perplexity), *loss->bits_per_byte, 1e-9);
  }
}

TEST_F(EvaluateTest, TakesAsManySequencesAsThereAre) {
  auto model = make_small_model(pool_);
  for (const auto& [bytes, sequences] : {std::pair{25, 1}, {48, 1}, {49, 2}, {24 * 24 + 1, 24}}) {
    write_contents(folder_ / "text", std::string(static_cast<std::size_t>(bytes), 'a'));
    const auto loss = held_out_loss(*model, *bytes_, *disk_, folder_ / "text");
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->sequences, sequences) << bytes;
  }
}

// Bits are per byte of what the targets stand for, whatever a token is; a mask hides prompts.
TEST_F(EvaluateTest, TokensCountByTheirBytes) {
  const auto tokenizer =
      open_tokenizer(*disk_, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/qwen.json");
  ASSERT_TRUE(tokenizer);
  auto config = small_config();
  config.vocabulary = (*tokenizer)->vocabulary() + 1;
  auto model = make_model(pool_, config, {.micro_batch = 1, .sequence = 24});
  std::vector<std::int32_t> ids;
  ASSERT_TRUE((*tokenizer)->encode("The system, the packages and their configuration.\n", ids));
  for (int i = 0; i < 4; ++i) ids.insert(ids.end(), ids.begin(), ids.begin() + 20);
  std::string file, mask(ids.size(), '\1');
  for (const auto id : ids) file += {static_cast<char>(id), static_cast<char>(id >> 8)};
  write_contents(folder_ / "text", file);
  const HeldOutOptions options{.format = {TokenWidth::two, (*tokenizer)->vocabulary()},
                               .sequences_max = 2};
  const auto loss = held_out_loss(*model, **tokenizer, *disk_, folder_ / "text", options);
  ASSERT_TRUE(loss) << loss.error().text();
  std::uint64_t bytes = 0;
  for (std::size_t i = 1; i <= 48; ++i) bytes += (*tokenizer)->piece(ids[i]).size();
  ASSERT_TRUE(loss->bits_per_byte);
  EXPECT_NEAR(*loss->bits_per_byte, std::log2(loss->perplexity) * 48 / static_cast<double>(bytes),
              1e-9);

  std::fill(mask.begin(), mask.begin() + 30, '\0');
  write_contents(folder_ / "text.mask", mask);
  const auto masked = held_out_loss(*model, **tokenizer, *disk_, folder_ / "text", options);
  ASSERT_TRUE(masked) << masked.error().text();
  EXPECT_NE(masked->perplexity, loss->perplexity);
  write_contents(folder_ / "text.mask", std::string(ids.size(), '\0'));
  EXPECT_THAT(held_out_loss(*model, **tokenizer, *disk_, folder_ / "text", options).error().text(),
              testing::HasSubstr("mask hides"));
  std::filesystem::remove(folder_ / "text.mask");
  // Of tokens that were made elsewhere nobody says what they stand for.
  const auto unknown = held_out_loss(*model, *bytes_, *disk_, folder_ / "text", options);
  ASSERT_TRUE(unknown) << unknown.error().text();
  EXPECT_EQ(unknown->perplexity, loss->perplexity);
  EXPECT_FALSE(unknown->bits_per_byte);
  EXPECT_EQ(unknown->bits(), std::log2(unknown->perplexity));
  // One that is none of the tokenizer's was made with another one.
  const auto stranger = (*tokenizer)->vocabulary();
  file[10] = static_cast<char>(stranger);
  file[11] = static_cast<char>(stranger >> 8);
  write_contents(folder_ / "text", file);
  const HeldOutOptions more{.format = {TokenWidth::two, stranger + 1}, .sequences_max = 2};
  EXPECT_THAT(held_out_loss(*model, **tokenizer, *disk_, folder_ / "text", more).error().text(),
              testing::HasSubstr("model.tokenizer"));
}

// Bytes that were prepared as tokens, as JSON lines without a tokenizer are, are bytes.
TEST_F(EvaluateTest, PreparedTokensOfBytesCountAsBytes) {
  auto model = make_small_model(pool_);
  std::string file;
  for (const char c : sample_text(60, 4)) file += {c, '\0'};
  write_contents(folder_ / "text", file);
  const auto digest = bytes_->digest().hex();
  HeldOutOptions options{.format = {TokenWidth::two, 256, digest}, .sequences_max = 2};
  EXPECT_FALSE(held_out_loss(*model, *bytes_, *disk_, folder_ / "text", options)->bits_per_byte);
  write_contents(facts_path(folder_ / "text"), to_json({.width = TokenWidth::two,
                                                        .tokenizer = digest,
                                                        .tokens = file.size() / 2,
                                                        .targets = file.size() / 2}));
  const auto loss = held_out_loss(*model, *bytes_, *disk_, folder_ / "text", options);
  ASSERT_TRUE(loss) << loss.error().text();
  ASSERT_TRUE(loss->bits_per_byte);
  EXPECT_NEAR(*loss->bits_per_byte, std::log2(loss->perplexity), 1e-9);
}

// Of a model that predicts hidden tokens: the same ones each time, whatever a batch holds, and bits
// are per byte of those alone.
TEST_F(EvaluateTest, HiddenTokensAreTheSameEachTime) {
  const auto tokenizer =
      open_tokenizer(*disk_, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/qwen.json");
  ASSERT_TRUE(tokenizer);
  auto config = small_config();
  const auto vocabulary = (*tokenizer)->vocabulary();
  config.vocabulary = vocabulary;
  std::vector<std::int32_t> ids;
  ASSERT_TRUE((*tokenizer)->encode(sample_text(300, 3), ids));
  std::string file;
  for (const auto id : ids) file += {static_cast<char>(id), static_cast<char>(id >> 8)};
  write_contents(folder_ / "text", file);
  const std::int32_t mask = *(*tokenizer)->special("<|im_end|>");
  const Masking masking(
      {.token = mask, .vocabulary = vocabulary, .special = special_tokens(**tokenizer)});
  const HeldOutOptions options{
      .format = {TokenWidth::two, vocabulary}, .sequences_max = 8, .masking = &masking};
  // What is hidden, by the definition.
  std::size_t hidden = 0, bytes = 0;
  for (std::size_t s = 0; s < 8; ++s) {
    std::vector<std::int32_t> tokens(ids.begin() + static_cast<std::ptrdiff_t>(24 * s),
                                     ids.begin() + static_cast<std::ptrdiff_t>(24 * s + 24));
    std::vector<std::int32_t> targets(ids.begin() + static_cast<std::ptrdiff_t>(24 * s + 1),
                                      ids.begin() + static_cast<std::ptrdiff_t>(24 * s + 25));
    masking.hide(Random(0).split("held_out_rows").at(s), tokens, targets);
    for (const auto target : targets)
      if (target != kIgnoredTarget) ++hidden, bytes += (*tokenizer)->piece(target).size();
  }
  ASSERT_GT(hidden, 10U);
  std::optional<HeldOutLoss> first;
  for (const std::int64_t rows : {1, 1, 3, 8}) {
    auto model = make_model(pool_, config, {.micro_batch = rows, .sequence = 24});
    const auto loss = held_out_loss(*model, **tokenizer, *disk_, folder_ / "text", options);
    ASSERT_TRUE(loss) << loss.error().text();
    EXPECT_EQ(loss->objective, Objective::masked_tokens);
    ASSERT_TRUE(loss->bits_per_byte);
    EXPECT_NEAR(
        *loss->bits_per_byte,
        std::log2(loss->perplexity) * static_cast<double>(hidden) / static_cast<double>(bytes),
        1e-9);
    if (!first) first = *loss;
    if (rows == 1) {
      EXPECT_EQ(loss->bits_per_byte, first->bits_per_byte);
      EXPECT_EQ(loss->perplexity, first->perplexity);
    }
    EXPECT_NEAR(*loss->bits_per_byte, *first->bits_per_byte, 1e-6);
  }
}

TEST_F(EvaluateTest, SaysWhenNothingIsHidden) {
  write_contents(folder_ / "text", sample_text(20, 3));
  auto model = make_small_model(pool_);
  const Masking masking({.share = 1e-9, .token = 259, .vocabulary = 260});
  const auto loss = held_out_loss(*model, *bytes_, *disk_, folder_ / "text", {.masking = &masking});
  ASSERT_FALSE(loss);
  EXPECT_EQ(loss.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(loss.error().text(), testing::HasSubstr("none of so few tokens was chosen"));
}

TEST_F(EvaluateTest, SaysWhenThereIsTooLittleText) {
  auto model = make_small_model(pool_);
  for (const std::size_t bytes : {0, 1, 24}) {
    write_contents(folder_ / "text", std::string(bytes, 'a'));
    const auto loss = held_out_loss(*model, *bytes_, *disk_, folder_ / "text");
    ASSERT_FALSE(loss);
    EXPECT_EQ(loss.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(loss.error().text(), testing::HasSubstr("at least 25"));
  }
  EXPECT_EQ(held_out_loss(*model, *bytes_, *disk_, folder_ / "none").error().code,
            ErrorCode::not_found);
}

}  // namespace
}  // namespace isthmus::runtime
