#include "launcher/site_masking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/batch_loss.h"
#include "runtime/byte_tokenizer.h"

namespace isthmus::launcher {
namespace {

using testing::HasSubstr;

// The bytes, with or without a name for the mask token.
class NamedTokenizer final : public runtime::Tokenizer {
 public:
  explicit NamedTokenizer(std::string name) : name_(std::move(name)) {}
  Result<void> encode(std::string_view text, std::vector<std::int32_t>& ids,
                      Specials specials) const override {
    return bytes_->encode(text, ids, specials);
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return bytes_->decode(ids);
  }
  std::string_view piece(std::int32_t id) const override { return bytes_->piece(id); }
  std::int32_t vocabulary() const override { return bytes_->vocabulary(); }
  std::optional<std::int32_t> begin() const override { return std::nullopt; }
  std::optional<std::int32_t> end() const override { return std::nullopt; }
  std::optional<std::int32_t> special(std::string_view name) const override {
    return name == name_ ? std::optional(258) : std::nullopt;
  }
  const security::Digest& digest() const override { return bytes_->digest(); }
  std::string description() const override { return "a test's"; }

 private:
  const std::string name_;
  const std::unique_ptr<Tokenizer> bytes_ = runtime::make_byte_tokenizer();
};

TEST(SiteMasking, TheMaskTokenIsTheTokenizersOrTheFiles) {
  const auto bytes = runtime::make_byte_tokenizer();
  EXPECT_EQ(masking_of({}, *bytes, 260)->token(), 259);
  EXPECT_EQ(masking_of({}, *bytes, 260)->share(), 0.15);
  EXPECT_EQ(masking_of({}, NamedTokenizer("[MASK]"), 260)->token(), 258);
  EXPECT_EQ(masking_of({}, NamedTokenizer("<mask>"), 260)->token(), 258);
  EXPECT_EQ(masking_of({.token = 300}, NamedTokenizer("<mask>"), 320)->token(), 300);
  EXPECT_EQ(masking_of({.token = 0}, NamedTokenizer(""), 260)->token(), 0);
}

TEST(SiteMasking, SaysWhatToDoWithoutOne) {
  const auto none = masking_of({}, NamedTokenizer("[CLS]"), 260);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(none.error().text(),
            "the model predicts hidden tokens, but its tokenizer (a test's) has no [MASK] or "
            "<mask> to hide them by: name an id that no text has in masking.token");
  const auto bytes = runtime::make_byte_tokenizer();
  EXPECT_THAT(masking_of({.token = 260}, *bytes, 260).error().text(),
              HasSubstr("masking.token = 260 is not below the model's vocabulary of 260"));
  EXPECT_THAT(masking_of({}, *bytes, 256).error().text(),
              HasSubstr("the tokenizer's mask token = 259 is not below the model's vocabulary of "
                        "256: raise model.vocabulary"));
}

// Nothing but text is hidden, and what comes in its place is a token of the tokenizer.
TEST(SiteMasking, KnowsTheTokenizersTokens) {
  const auto bytes = runtime::make_byte_tokenizer();
  const auto masking = masking_of({.share = 0.99}, *bytes, 260);
  ASSERT_TRUE(masking);
  std::vector<std::int32_t> tokens(4000, 'a'), targets(4000, 'a');
  for (std::size_t i = 0; i < tokens.size(); i += 2)
    tokens[i] = 256 + static_cast<std::int32_t>(i / 2 % 4);
  masking->hide(1, tokens, targets);
  for (std::size_t i = 0; i < tokens.size(); i += 2) EXPECT_EQ(targets[i], runtime::kIgnoredTarget);
  EXPECT_LT(std::ranges::max(tokens), 260);
  EXPECT_GT(std::ranges::count(targets, 'a'), 1900);
}

// Tokens of bytes' ids are words of theirs; all ids come in place of others.
TEST(SiteMasking, OfTokensMadeElsewhereKnowsTheMaskTokenAlone) {
  const auto bytes = runtime::make_byte_tokenizer();
  const auto masking = masking_of({.share = 0.99, .token = 103}, *bytes, 1000);
  ASSERT_TRUE(masking);
  std::vector<std::int32_t> tokens(4000, 257), targets(4000, 257);
  for (std::size_t i = 0; i < tokens.size(); i += 2) tokens[i] = 103;
  masking->hide(1, tokens, targets);
  for (std::size_t i = 0; i < tokens.size(); i += 2) EXPECT_EQ(targets[i], runtime::kIgnoredTarget);
  EXPECT_GT(std::ranges::max(tokens), 800);
  EXPECT_GT(std::ranges::count(targets, 257), 1900);
}

TEST(SiteMasking, IsOfModelsThatPredictHiddenTokensOnly) {
  SiteFile file;
  const auto masking = site_masking(file, NamedTokenizer(""), file.model.config);
  ASSERT_TRUE(masking);
  EXPECT_FALSE(masking->has_value());
  EXPECT_EQ(pointer_to(*masking), nullptr);
  EXPECT_EQ(masking_settings(*masking), "");
  const auto bytes = runtime::make_byte_tokenizer();
  EXPECT_EQ(masking_settings(*masking_of({.share = 0.3}, *bytes, 260)), ", hides 0.3 as 259");
}

}  // namespace
}  // namespace isthmus::launcher
