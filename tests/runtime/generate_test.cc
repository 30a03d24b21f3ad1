#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "runtime/byte_tokenizer.h"
#include "runtime/text_tokens.h"
#include "runtime/utf8_state.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

bool is_utf8(std::string_view text) {
  Utf8State state;
  for (const char c : text)
    if (!state.take(static_cast<std::uint8_t>(c))) return false;
  return state.complete();
}

std::string encode(std::uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  if (c < 0x10000)
    return {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  return {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
          static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
}

TEST(Utf8State, TakesEveryCharacterAndNoSurrogate) {
  for (std::uint32_t c = 0; c < 0x110000; ++c)
    ASSERT_EQ(is_utf8(encode(c)), c < 0xD800 || c > 0xDFFF) << c;
}

TEST(Utf8State, TakesNothingElse) {
  EXPECT_FALSE(is_utf8(encode(0x110000)));
  EXPECT_FALSE(is_utf8("\xC0\xAF"));
  EXPECT_FALSE(is_utf8("\xE0\x80\xAF"));
  EXPECT_FALSE(is_utf8("\xF0\x80\x80\xAF"));
  EXPECT_FALSE(is_utf8("\x80"));
  EXPECT_FALSE(is_utf8("\xE2\x82"));
  // All texts of up to three bytes, counted: as many as there are sequences of characters.
  std::size_t valid = 0;
  for (std::uint32_t bytes = 0; bytes < 1U << 24; ++bytes) {
    const std::array<char, 3> text{static_cast<char>(bytes), static_cast<char>(bytes >> 8),
                                   static_cast<char>(bytes >> 16)};
    valid += is_utf8({text.data(), 3});
  }
  constexpr std::size_t kOne = 128, kTwo = 0x800 - 0x80, kThree = 0x10000 - 0x800 - 0x800;
  EXPECT_EQ(valid, kOne * kOne * kOne + 2 * kOne * kTwo + kThree);
}

Result<std::string> continued(Model& model, const std::string& prompt,
                              const GenerateOptions& options) {
  ISTHMUS_TRY(const auto texts,
              generate(model, *make_byte_tokenizer(), std::vector{prompt}, options));
  return texts.at(0);
}

class GenerateTest : public testing::Test {
 protected:
  // A model that favours one token after any text: its embedding, which is also the head, answers
  // what the last norm gives. Here: noise, so that all bytes come up.
  std::unique_ptr<Model> noisy_model(std::uint64_t seed) {
    auto model = make_small_model(pool_, seed);
    for (auto& x : model->parameters()) x *= 20;
    model->parameters_changed();
    return model;
  }
  const std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
  ThreadPool pool_{{-1}};
};

TEST_F(GenerateTest, IsAlwaysValidUtf8) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    auto model = noisy_model(seed);
    for (const double temperature : {0.0, 1.0, 5.0}) {
      const auto text =
          continued(*model, "地峡 ", {.bytes_max = 60, .temperature = temperature, .seed = seed});
      ASSERT_TRUE(text) << text.error().text();
      EXPECT_TRUE(is_utf8(*text));
      EXPECT_LE(text->size(), 63U);  // a character begun is finished
    }
  }
}

// Tokens of several bytes, and characters of several tokens.
TEST_F(GenerateTest, TokensMakeValidUtf8Too) {
  const auto disk = make_system_disk();
  for (const std::string name : {"llama3.json", "unigram.model"}) {
    const auto tokenizer =
        open_tokenizer(*disk, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/" + name);
    ASSERT_TRUE(tokenizer) << tokenizer.error().text();
    auto config = small_config();
    config.vocabulary = (*tokenizer)->vocabulary();
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      auto model = make_model(pool_, config, {.micro_batch = 1, .sequence = 24}, seed);
      for (auto& x : model->parameters()) x *= 20;
      model->parameters_changed();
      const auto texts = generate(*model, **tokenizer, std::vector<std::string>{"地峡 ", ""},
                                  {.bytes_max = 60, .temperature = 2, .seed = seed});
      ASSERT_TRUE(texts) << texts.error().text();
      for (const auto& text : *texts) EXPECT_TRUE(is_utf8(text)) << text;
    }
  }
  auto model = make_small_model(pool_);
  const auto large = open_tokenizer(*disk, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/qwen.json");
  EXPECT_EQ(generate(*model, **large, std::vector<std::string>{"the"}, {}).error().code,
            ErrorCode::invalid_argument);
}

TEST_F(GenerateTest, DependsOnTheSeedAlone) {
  auto model = noisy_model(1);
  const GenerateOptions options{.bytes_max = 40, .temperature = 2, .seed = 1};
  auto other = options;
  other.seed = 2;
  EXPECT_EQ(*continued(*model, "a", options), *continued(*model, "a", options));
  EXPECT_NE(*continued(*model, "a", options), *continued(*model, "a", other));
}

TEST_F(GenerateTest, GreedyIsTheLikeliestAndTopOneTheSame) {
  auto model = noisy_model(2);
  const auto greedy = continued(*model, "x", {.bytes_max = 30, .temperature = 0});
  EXPECT_EQ(*greedy, *continued(*model, "x", {.bytes_max = 30, .temperature = 3, .top_k = 1}));
  EXPECT_EQ(*greedy, *continued(*model, "x", {.bytes_max = 30, .temperature = 0, .seed = 9}));
}

TEST_F(GenerateTest, DrawsFromTheNucleusAlone) {
  auto model = noisy_model(2);
  const GenerateOptions greedy{.bytes_max = 30, .temperature = 0};
  EXPECT_EQ(*continued(*model, "x", greedy),
            *continued(*model, "x", {.bytes_max = 30, .temperature = 3, .top_p = 1e-9}));
  // With all scores equal, half of the probability is half of the bytes: of the first ones.
  for (auto& x : model->parameters()) x = 0.01F;
  model->parameters_changed();
  const auto bytes_drawn = [&](double top_p) {
    std::set<char> drawn;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
      const auto text = continued(*model, "x", {.bytes_max = 1, .top_p = top_p, .seed = seed});
      drawn.insert(text->begin(), text->end());
    }
    return drawn;
  };
  // Of 128 bytes that are characters, 51 that begin one, and the end.
  const auto half = bytes_drawn(0.25);
  EXPECT_GT(half.size(), 40U);
  for (const char c : half) EXPECT_LE(c, 0x2D) << "the first 45 of 180";
  EXPECT_GT(bytes_drawn(1).size(), 100U);
}

// Each as alone, to the byte: also where others end sooner, or have longer prompts.
TEST_F(GenerateTest, TextsSideBySideAreWhatTheyAreAlone) {
  auto model = noisy_model(5);
  const std::vector<std::string> prompts{"a", "", "isthmus joins two lands, and more", "über",
                                         std::string(90, 'b')};
  for (const double temperature : {0.0, 2.0}) {
    const GenerateOptions options{.bytes_max = 40, .temperature = temperature, .seed = 4};
    const auto together = generate(*model, *bytes_, prompts, options);
    ASSERT_TRUE(together);
    ASSERT_EQ(together->size(), prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      // Alone, but at the same place in the list, which its draws depend on; the others end at
      // once.
      auto others_shorter = prompts;
      for (std::size_t j = 0; j < prompts.size(); ++j)
        if (j != i) others_shorter[j] = "c";
      EXPECT_EQ((*generate(*model, *bytes_, others_shorter, options))[i], (*together)[i]) << i;
    }
    EXPECT_EQ(*continued(*model, prompts[0], options), (*together)[0]);
  }
}

TEST_F(GenerateTest, GoesOnPastTheSequenceOfTheModel) {
  auto model = noisy_model(3);
  for (std::uint64_t seed = 0;; ++seed) {
    ASSERT_LT(seed, 50U);
    const auto text =
        continued(*model, std::string(100, 'a'), {.bytes_max = 80, .temperature = 3, .seed = seed});
    ASSERT_TRUE(text);
    if (text->size() >= 80) break;  // the others drew the end
  }
}

// All scores equal but one: the last norm is made constant, the head picks a row.
void favour(Model& model, std::int32_t token) {
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    if (model.tensors()[i].name != "model.embed_tokens.weight") continue;
    auto rows = model.parameters(i);
    std::fill(rows.begin(), rows.end(), 0.01F);
    const auto width = static_cast<std::size_t>(model.config().hidden);
    for (std::size_t j = 0; j < width; ++j) rows[static_cast<std::size_t>(token) * width + j] = 1;
  }
  model.parameters_changed();
}

TEST_F(GenerateTest, StopsAtTheEndTokenAndAtANewline) {
  auto model = make_small_model(pool_);
  favour(*model, 'b');
  EXPECT_EQ(*continued(*model, "a", {.bytes_max = 5, .temperature = 0}), "bbbbb");
  favour(*model, kEndToken);
  EXPECT_EQ(*continued(*model, "a", {.bytes_max = 5, .temperature = 0}), "");
  favour(*model, '\n');
  EXPECT_EQ(*continued(*model, "a", {.bytes_max = 3, .temperature = 0}), "\n\n\n");
  EXPECT_EQ(*continued(*model, "a", {.bytes_max = 3, .temperature = 0, .stop_at_newline = true}),
            "");
  favour(*model, kPadToken);  // never text
  EXPECT_TRUE(is_utf8(*continued(*model, "a", {.bytes_max = 3, .temperature = 0})));
}

// An answer is what follows a question laid out as messages are: the same as of a text that is.
TEST_F(GenerateTest, AnswersFollowWhatIsLaidOut) {
  auto model = noisy_model(3);
  for (const std::string said : {"Is it so?", ""}) {
    GenerateOptions options{.bytes_max = 20, .temperature = 0};
    const auto text = continued(*model, "user:\n" + said + "\n\nassistant:\n", options);
    options.answers = true;
    const auto answer = continued(*model, said, options);
    ASSERT_TRUE(answer) << answer.error().text();
    EXPECT_EQ(*answer, *text);
    EXPECT_FALSE(answer->empty());
  }
}

// The token that ends a message ends an answer, whatever ends a text.
TEST_F(GenerateTest, AnAnswerEndsWhereItsMessageDoes) {
  const auto disk = make_system_disk();
  const auto qwen = open_tokenizer(*disk, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/qwen.json");
  ASSERT_TRUE(qwen) << qwen.error().text();
  const auto end = (*qwen)->special("<|im_end|>");
  ASSERT_TRUE(end);
  ASSERT_NE((*qwen)->end(), end);
  auto config = small_config();
  config.vocabulary = (*qwen)->vocabulary();
  auto model = make_model(pool_, config, {.micro_batch = 1, .sequence = 24});
  favour(*model, *end);
  GenerateOptions options{.bytes_max = 5, .temperature = 0};
  const std::vector<std::string> said = {"a"};
  EXPECT_EQ(generate(*model, **qwen, said, options)->front().size(), 5U);
  options.answers = true;
  EXPECT_EQ(generate(*model, **qwen, said, options)->front(), "");
}

TEST_F(GenerateTest, RefusesWhatItCannotContinue) {
  auto model = make_small_model(pool_);
  for (const char* prompt : {"\xFF", "\xE2\x82", "ok\x80"})
    EXPECT_EQ(continued(*model, prompt, {}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(continued(*model, "a", {.temperature = -1}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(continued(*model, "a", {.top_k = -1}).error().code, ErrorCode::invalid_argument);
  for (const double top_p : {0.0, 1.1, double{NAN}})
    EXPECT_EQ(continued(*model, "a", {.top_p = top_p}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(generate(*model, *bytes_, {}, {}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(*continued(*model, "a", {.bytes_max = 0}), "");
  EXPECT_TRUE(continued(*model, "", {.bytes_max = 4}));
  for (auto& x : model->parameters()) x = HUGE_VALF;
  model->parameters_changed();
  EXPECT_EQ(continued(*model, "a", {}).error().code, ErrorCode::non_finite);
}

}  // namespace
}  // namespace isthmus::runtime
