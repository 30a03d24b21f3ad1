#include "runtime/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "runtime/shallow_json.h"

namespace isthmus::runtime::tokenizer_json {
namespace {

// "BPE" of {"type": "BPE", …}; "" for null.
Result<std::string> type_of(const Json& part, std::string_view what) {
  if (part.is_null()) return std::string();
  const auto& type = part.is_object() ? member(part, "type") : part;
  if (!part.is_object() || !type.is_string())
    return corrupt(fmt::format("{} is {}", what, shown(part)));
  return type.get<std::string>();
}

}  // namespace

Error corrupt(std::string what) {
  return {ErrorCode::corrupt, fmt::format("the tokenizer's JSON is damaged: {}", what)};
}
Error unsupported(std::string what) {
  return {ErrorCode::unsupported,
          fmt::format("the tokenizer has {}, which is not understood here: "
                      "only byte-level BPE as Llama 3's and Qwen's is, and WordPiece as BERT's",
                      what)};
}

Result<Json> parse(std::string_view file) {
  auto parsed = parse_shallow_json(file);
  if (!parsed.is_object()) return corrupt("it is no JSON object");
  return parsed;
}

std::string shown(const Json& value) {
  constexpr std::size_t kShownMax = 80;
  auto text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "…";
  return text;
}

const Json& member(const Json& object, const char* key) {
  static const Json none;
  const auto at = object.find(key);
  return at == object.end() ? none : *at;
}

const Json& member_object(const Json& value, const char* key) {
  static const Json empty = Json::object();
  if (!value.is_object()) return empty;
  const auto& found = member(value, key);
  return found.is_object() ? found : empty;
}

std::string named(const Json& part) {
  const auto& type = member(part, "type");
  return fmt::format("{} {}", type.is_string() ? printable(type.get<std::string>()) : "",
                     shown(part));
}

Result<bool> flag(const Json& object, const char* key, bool absent) {
  const auto& value = member(object, key);
  if (value.is_null()) return absent;
  if (!value.is_boolean()) return corrupt(fmt::format("{} is {}", key, shown(value)));
  return value.get<bool>();
}

Result<void> without_effect(const Json& object, std::initializer_list<const char*> keys,
                            std::string_view of) {
  for (const auto* key : keys) {
    const auto& value = member(object, key);
    if (!value.is_null() && value != false && value != 0 && value != "")
      return unsupported(fmt::format("{}{} = {}", of, key, shown(value)));
  }
  return {};
}

Result<void> only(const Json& object, std::initializer_list<std::string_view> known,
                  std::string_view of) {
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      return unsupported(fmt::format("{}{} = {}", of, shown(key), shown(value)));
  return {};
}

Result<std::vector<const Json*>> parts_of(const Json& part, const char* list,
                                          std::string_view what) {
  ISTHMUS_TRY(const auto type, type_of(part, what));
  std::vector<const Json*> parts;
  if (type.empty()) return parts;
  if (type != "Sequence") return std::vector<const Json*>{&part};
  const auto& members = member(part, list);
  if (!members.is_array()) return corrupt(fmt::format("{}.{} is no list", what, list));
  for (const auto& inner : members) {
    ISTHMUS_TRY(auto of_inner, parts_of(inner, list, what));
    parts.insert(parts.end(), of_inner.begin(), of_inner.end());
  }
  return parts;
}

Result<void> check_members(const Json& file) {
  ISTHMUS_CHECK(only(file,
                     {"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"},
                     ""));
  return without_effect(file, {"truncation", "padding"}, "");
}

std::string model_type(std::string_view file) {
  using Event = Json::parse_event_t;
  const auto keep = [](int depth, Event event, Json& value) {
    if (event != Event::key) return depth < 2 || event == Event::value;
    return (depth == 1 && value == "model") || (depth == 2 && value == "type");
  };
  const auto parsed = Json::parse(file, keep, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return {};
  const auto& type = member(member_object(parsed, "model"), "type");
  return type.is_string() ? type.get<std::string>() : std::string();
}

Result<void> TokenTable::read_vocabulary(const Json& vocab) {
  if (!vocab.is_object() || vocab.empty()) return corrupt("model.vocab is no object");
  vocabulary_ = vocab.size();
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kIdMax)
      return corrupt(fmt::format("model.vocab: {} has the id {}", shown(token), shown(id)));
    ISTHMUS_CHECK(add(token, id.get<std::int32_t>(), true));
  }
  return {};
}

Result<void> TokenTable::read_added(const Json& tokens) {
  if (tokens.is_null()) return {};
  if (!tokens.is_array()) return corrupt("added_tokens is no list");
  auto next = static_cast<std::int32_t>(vocabulary_);  // the id of one that the vocabulary has not
  for (const auto& token : tokens) {
    if (!token.is_object() || !member(token, "content").is_string() ||
        !member(token, "id").is_number_unsigned() ||
        member(token, "id").get<std::uint64_t>() > kIdMax)
      return corrupt(fmt::format("the added token {} has no content or id", shown(token)));
    AddedToken read{.content = token["content"].get<std::string>(),
                    .id = token["id"].get<std::int32_t>()};
    const auto name = shown(token["content"]);
    ISTHMUS_CHECK(without_effect(token, {"single_word", "lstrip", "rstrip"},
                                 fmt::format("an added token {} with ", name)));
    ISTHMUS_TRY(read.special, flag(token, "special", false));
    ISTHMUS_TRY(read.normalized, flag(token, "normalized", !read.special));
    if (read.content.empty()) return unsupported("an added token without text");
    const auto known = find(read.content);
    const auto expected = known.value_or(next);
    if (read.id != expected)
      return unsupported(fmt::format("the added token {} with the id {}, where {} comes next", name,
                                     read.id, expected));
    if (!known) ISTHMUS_CHECK(add(read.content, read.id, false));
    next = std::max(next, read.id + 1);
    const auto same = [&](const AddedToken& other) { return other.content == read.content; };
    if (std::none_of(added.begin(), added.end(), same)) added.push_back(std::move(read));
  }
  return {};
}

std::optional<std::int32_t> TokenTable::find(const std::string& text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

// Memory follows the largest id, which must not be far from how many there are.
Result<void> TokenTable::add(const std::string& token, std::int32_t id, bool is_of_model) {
  constexpr std::size_t kHolesMax = 1 << 16;
  const auto at = static_cast<std::size_t>(id);
  if (at >= texts.size()) {
    if (at > ids_.size() + vocabulary_ + kHolesMax)
      return corrupt(fmt::format("{} has the id {}, far above all others", shown(token), id));
    texts.resize(at + 1);
    of_model.resize(at + 1);
    taken_.resize(at + 1);
  }
  if (taken_[at]) return corrupt(fmt::format("two tokens have the id {}", id));
  taken_[at] = true;
  texts[at] = token;
  of_model[at] = is_of_model;
  ids_.emplace(token, id);
  return {};
}

}  // namespace isthmus::runtime::tokenizer_json
