#include "runtime/document_layout.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "runtime/shallow_json.h"

namespace isthmus::runtime {
namespace {

constexpr std::string_view kAssistant = "assistant", kUser = "user";

Error no_record(std::string_view what) {
  return {ErrorCode::corrupt,
          fmt::format("{}: a record is a JSON object with \"text\", with \"prompt\" and "
                      "\"completion\", or with \"messages\"",
                      what)};
}

std::optional<std::string> text_of_key(const nlohmann::json& json, const char* key) {
  const auto at = json.find(key);
  if (at == json.end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

Result<Record> parse_messages(const nlohmann::json& messages) {
  Record record{.kind = RecordKind::messages};
  if (!messages.is_array() || messages.empty()) return no_record("messages is no list");
  for (const auto& message : messages) {
    if (!message.is_object()) return no_record("a message is no object");
    auto role = text_of_key(message, "role"), content = text_of_key(message, "content");
    if (!role || !content) return no_record("a message has no role or no content of text");
    record.messages.push_back({std::move(*role), std::move(*content)});
  }
  return record;
}

// Adds text and special tokens, which are targets or not.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, Tokens& tokens) : tokenizer_(tokenizer), tokens_(tokens) {}

  Result<void> text(std::string_view text, bool is_target) {
    ISTHMUS_CHECK(tokenizer_.encode(text, tokens_.ids));
    mark(is_target);
    return {};
  }
  void token(std::optional<std::int32_t> id, bool is_target) {
    if (id) tokens_.ids.push_back(*id);
    mark(is_target);
  }

 private:
  void mark(bool is_target) { tokens_.targets.resize(tokens_.ids.size(), std::byte{is_target}); }
  const Tokenizer& tokenizer_;
  Tokens& tokens_;
};

// A family's way to write messages.
struct Template {
  std::optional<std::int32_t> header, header_end, message_end;
  std::string_view after_role, after_message;
  bool has_begin = true;
};

Template template_of(const Tokenizer& tokenizer) {
  const auto start = tokenizer.special("<|im_start|>"), end = tokenizer.special("<|im_end|>");
  if (start && end) return {start, {}, end, "\n", "\n", false};
  const auto header = tokenizer.special("<|start_header_id|>"),
             header_end = tokenizer.special("<|end_header_id|>"),
             turn_end = tokenizer.special("<|eot_id|>");
  if (header && header_end && turn_end) return {header, header_end, turn_end, "\n\n", ""};
  return {{}, {}, {}, ":\n", "\n\n"};
}

// What ends an assistant's message.
std::optional<std::int32_t> answer_end(const Template& form, const Tokenizer& tokenizer) {
  return form.message_end ? form.message_end : tokenizer.end();
}

Result<void> begin_message(std::string_view role, const Template& form, Writer& out) {
  out.token(form.header, false);
  ISTHMUS_CHECK(out.text(role, false));
  out.token(form.header_end, false);
  return out.text(form.after_role, false);
}

Result<void> lay_out_message(const Message& message, const Template& form,
                             const Tokenizer& tokenizer, Writer& out) {
  const bool is_target = message.role == kAssistant;
  ISTHMUS_CHECK(begin_message(message.role, form, out));
  ISTHMUS_CHECK(out.text(message.content, is_target));
  out.token(is_target ? answer_end(form, tokenizer) : form.message_end, is_target);
  return out.text(form.after_message, false);
}

Result<void> lay_out_messages(const Record& record, const Tokenizer& tokenizer, Writer& out) {
  const auto form = template_of(tokenizer);
  if (form.has_begin) out.token(tokenizer.begin(), false);
  for (const auto& message : record.messages)
    ISTHMUS_CHECK(lay_out_message(message, form, tokenizer, out));
  if (form.message_end && form.message_end != tokenizer.end()) out.token(tokenizer.end(), false);
  return {};
}

}  // namespace

Result<Record> parse_record(std::string_view line) {
  const auto json = parse_shallow_json(line);
  if (!json.is_object()) return no_record("it is no JSON object");
  if (json.contains("messages")) return parse_messages(json["messages"]);
  Record record;
  if (auto text = text_of_key(json, "text")) {
    record.text = std::move(*text);
    return record;
  }
  auto prompt = text_of_key(json, "prompt"), completion = text_of_key(json, "completion");
  if (!prompt || !completion) return no_record("it has none of them as text");
  record.kind = RecordKind::completion;
  record.prompt = std::move(*prompt);
  record.completion = std::move(*completion);
  return record;
}

Result<void> lay_out(const Record& record, const Tokenizer& tokenizer, Tokens& tokens) {
  Writer out(tokenizer, tokens);
  if (record.kind == RecordKind::messages) return lay_out_messages(record, tokenizer, out);
  out.token(tokenizer.begin(), record.kind == RecordKind::text);
  if (record.kind == RecordKind::text) {
    ISTHMUS_CHECK(out.text(record.text, true));
  } else {
    ISTHMUS_CHECK(out.text(record.prompt, false));
    ISTHMUS_CHECK(out.text(record.completion, true));
  }
  out.token(tokenizer.end(), true);
  return {};
}

Result<Question> lay_out_question(std::string_view content, const Tokenizer& tokenizer) {
  const auto form = template_of(tokenizer);
  Tokens tokens;
  Writer out(tokenizer, tokens);
  if (form.has_begin) out.token(tokenizer.begin(), false);
  ISTHMUS_CHECK(lay_out_message({std::string(kUser), std::string(content)}, form, tokenizer, out));
  ISTHMUS_CHECK(begin_message(kAssistant, form, out));
  return Question{std::move(tokens.ids), answer_end(form, tokenizer)};
}

}  // namespace isthmus::runtime
