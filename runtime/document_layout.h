// DocumentLayout: how one record of a data set becomes tokens, and which of them a model is to
// learn to say. A record is a line of JSON:
//
//   {"text": …}                                begin text end; all are targets
//   {"prompt": …, "completion": …}             begin prompt completion end; the last two are
//   {"messages": [{"role": …, "content": …}]}  what the assistant says, and what ends it, are
//
// Other keys are passed over. Messages are laid out as the model's family does it, which the
// special token in front of them tells:
//
//   Qwen      <|im_start|>ROLE\nCONTENT<|im_end|>\n …
//   Llama 3   begin <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> …
//   neither   begin ROLE:\nCONTENT\n\n …, and after an assistant's CONTENT end
//
// What is in a record is text: names of special tokens in it are no tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

enum class RecordKind : std::uint8_t { text, completion, messages };

struct Message {
  std::string role;
  std::string content;
};

struct Record {
  RecordKind kind = RecordKind::text;
  std::string text = {};        // of a text
  std::string prompt = {};      // of a completion
  std::string completion = {};  // of a completion
  std::vector<Message> messages = {};
};

// `line`: of anybody. Errors: corrupt (no JSON, none of the three kinds).
Result<Record> parse_record(std::string_view line);

struct Tokens {
  std::vector<std::int32_t> ids;
  std::vector<std::byte> targets;  // 1 where the token is one
};

// Appends the record's tokens. Errors: those of Tokenizer::encode.
Result<void> lay_out(const Record& record, const Tokenizer& tokenizer, Tokens& tokens);

// What a model that learnt from messages is asked with: one of a user, up to where the assistant's
// answer begins.
struct Question {
  std::vector<std::int32_t> ids;
  std::optional<std::int32_t> answer_end;  // nothing: no token ends an answer
};
Result<Question> lay_out_question(std::string_view content, const Tokenizer& tokenizer);

}  // namespace isthmus::runtime
