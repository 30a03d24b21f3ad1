#include "runtime/document_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "runtime/byte_tokenizer.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::HasSubstr;

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "Yes."}]})";

// What the tokens are, those that are targets in [].
std::string shown(const Tokenizer& tokenizer, std::string_view line) {
  const auto record = parse_record(line);
  EXPECT_TRUE(record) << record.error().text();
  Tokens tokens;
  EXPECT_TRUE(lay_out(*record, tokenizer, tokens));
  EXPECT_EQ(tokens.ids.size(), tokens.targets.size());
  std::string text;
  bool inside = false;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    if ((tokens.targets[i] == std::byte{1}) != inside) text += (inside = !inside) ? "[" : "]";
    const auto piece = tokenizer.piece(tokens.ids[i]);
    text += piece;
    if (!piece.empty()) continue;
    std::string name = "#";
    for (const char* special : {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>",
                                "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"})
      if (tokenizer.special(special) == tokens.ids[i]) name = special;
    text += name;
  }
  return text + (inside ? "]" : "");
}

class DocumentLayoutTest : public testing::Test {
 protected:
  // One of the vectors' tokenizers with other special tokens, and what ends a text.
  std::unique_ptr<Tokenizer> with(const std::string& file, const std::vector<std::string>& specials,
                                  const std::string& end) {
    auto json = nlohmann::ordered_json::parse(
        contents_of(std::string(ISTHMUS_TOKENIZER_VECTORS) + "/" + file));
    json["added_tokens"] = nlohmann::ordered_json::array();
    auto id = json["model"]["vocab"].size();
    for (const auto& name : specials)
      json["added_tokens"].push_back(
          {{"id", id++}, {"content", name}, {"special", true}, {"normalized", false}});
    write_contents(folder_ / "tokenizer.json", json.dump());
    write_contents(folder_ / "tokenizer_config.json", "{\"eos_token\": \"" + end + "\"}");
    auto opened = open_tokenizer(*disk_, folder_.path());
    EXPECT_TRUE(opened) << opened.error().text();
    return std::move(*opened);
  }
  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(DocumentLayoutTest, TextsAndCompletions) {
  const auto bytes = make_byte_tokenizer();
  EXPECT_EQ(shown(*bytes, R"({"text": "all of it", "source": 5})"), "[all of it#]");
  EXPECT_EQ(shown(*bytes, R"({"prompt": "2 + 2 = ", "completion": "4"})"), "2 + 2 = [4#]");
}

TEST_F(DocumentLayoutTest, MessagesOfQwen) {
  const auto qwen =
      with("qwen.json", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, "<|im_end|>");
  EXPECT_EQ(shown(*qwen, kChat),
            "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n[Yes.<|im_end|>]\n");
}

TEST_F(DocumentLayoutTest, MessagesOfLlama3) {
  const auto llama = with("llama3.json",
                          {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                           "<|eot_id|>", "<|end_of_text|>"},
                          "<|eot_id|>");
  EXPECT_EQ(shown(*llama, kChat),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi <|im_end|><|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[Yes.<|eot_id|>]");
}

TEST_F(DocumentLayoutTest, MessagesOfAnyOther) {
  EXPECT_EQ(shown(*make_byte_tokenizer(), kChat),
            "user:\nHi <|im_end|>\n\nassistant:\n[Yes.#]\n\n");
}

// What a model is asked with is what it learnt from, up to the answer.
TEST_F(DocumentLayoutTest, AQuestionIsTheBeginningOfMessages) {
  const auto qwen =
      with("qwen.json", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, "<|endoftext|>");
  const auto bytes = make_byte_tokenizer();
  for (const auto* tokenizer : {qwen.get(), bytes.get()}) {
    Tokens learnt;
    ASSERT_TRUE(lay_out(*parse_record(kChat), *tokenizer, learnt));
    const auto question = lay_out_question("Hi <|im_end|>", *tokenizer);
    ASSERT_TRUE(question);
    const auto first = std::ranges::find(learnt.targets, std::byte{1});
    const auto answer = learnt.ids.begin() + (first - learnt.targets.begin());
    EXPECT_EQ(question->ids, std::vector<std::int32_t>(learnt.ids.begin(), answer));
    const auto last =
        std::ranges::find(learnt.targets.rbegin(), learnt.targets.rend(), std::byte{1});
    ASSERT_TRUE(question->answer_end);
    EXPECT_EQ(*question->answer_end,
              learnt.ids[static_cast<std::size_t>(learnt.targets.rend() - last) - 1]);
  }
}

TEST_F(DocumentLayoutTest, AnybodysLinesAreRecordsOrErrors) {
  for (const char* line :
       {"", "{}", "[]", "5", R"({"text": 5})", R"({"prompt": "a"})", R"({"messages": []})",
        R"({"messages": [5]})", R"({"messages": [{"role": "a", "content": [1]}]})"}) {
    const auto record = parse_record(line);
    ASSERT_FALSE(record) << line;
    EXPECT_EQ(record.error().code, ErrorCode::corrupt);
    EXPECT_THAT(record.error().text(), HasSubstr("a record is"));
  }
  EXPECT_FALSE(parse_record(std::string(100'000, '[')));
  const std::string chat = kChat;
  Random random(2);
  for (int i = 0; i < 2000; ++i) {
    auto damaged = chat;
    damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    (void)parse_record(damaged);
  }
}

}  // namespace
}  // namespace isthmus::runtime
