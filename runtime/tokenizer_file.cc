#include "runtime/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/printable.h"
#include "runtime/shallow_json.h"

namespace isthmus::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::int32_t kIdMax = (1 << 24) - 1;
// What ByteLevel parts words by when it is asked to (GPT-2).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Error corrupt(std::string what) {
  return {ErrorCode::corrupt, fmt::format("the tokenizer's JSON is damaged: {}", what)};
}
Error unsupported(std::string what) {
  return {ErrorCode::unsupported, fmt::format("the tokenizer has {}, which is not understood here: "
                                              "only byte-level BPE as Llama 3's and Qwen's is",
                                              what)};
}

std::string shown(const Json& value) {
  constexpr std::size_t kShownMax = 80;
  auto text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "…";
  return text;
}

// A member of an object, or null.
const Json& member(const Json& object, const char* key) {
  static const Json none;
  const auto at = object.find(key);
  return at == object.end() ? none : *at;
}

// "Metaspace {"type": …".
std::string named(const Json& part) {
  const auto& type = member(part, "type");
  return fmt::format("{} {}", type.is_string() ? printable(type.get<std::string>()) : "",
                     shown(part));
}

// A flag that may be left out.
Result<bool> flag(const Json& object, const char* key, bool absent) {
  const auto& value = member(object, key);
  if (value.is_null()) return absent;
  if (!value.is_boolean()) return corrupt(fmt::format("{} is {}", key, shown(value)));
  return value.get<bool>();
}

// Each of these, where it is there, has no effect: it is null, false, 0 or "".
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

// "BPE" of {"type": "BPE", …}; "" for null.
Result<std::string> type_of(const Json& part, std::string_view what) {
  if (part.is_null()) return std::string();
  const auto& type = part.is_object() ? member(part, "type") : part;
  if (!part.is_object() || !type.is_string())
    return corrupt(fmt::format("{} is {}", what, shown(part)));
  return type.get<std::string>();
}

// The parts of a Sequence, or the one that it is; none for null.
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

// ---- the characters that stand for bytes

// Bytes that print stand for themselves; the others have characters from U+0100 on, in order
// (GPT-2's byte encoder).
constexpr std::size_t kCharacters = 256 + 68;
struct ByteCharacters {
  std::array<std::int16_t, kCharacters> byte_of;
  constexpr ByteCharacters() : byte_of() {
    byte_of.fill(-1);
    std::size_t next = 256;
    for (std::size_t b = 0; b < 256; ++b) {
      const bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
      byte_of[prints ? b : next++] = static_cast<std::int16_t>(b);
    }
  }
};
constexpr ByteCharacters kByteCharacters;

// The bytes that a token's characters stand for; nothing when one of them stands for none. All of
// these characters take one or two bytes of UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size(); ++at) {
    auto c = static_cast<std::size_t>(static_cast<std::uint8_t>(token[at]));
    if (c >= 0xE0) return std::nullopt;
    if (c >= 0xC0) {
      if (++at == token.size()) return std::nullopt;
      c = (c & 0x1F) << 6 | (static_cast<std::uint8_t>(token[at]) & 0x3F);
    }
    if (c >= kCharacters || kByteCharacters.byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteCharacters.byte_of[c]);
  }
  return bytes;
}

class Decoder {
 public:
  explicit Decoder(const Json& json) : json_(json) {}

  Result<TokenizerFile> decode() {
    ISTHMUS_CHECK(only(json_,
                       {"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"},
                       ""));
    ISTHMUS_CHECK(without_effect(json_, {"truncation", "padding"}, ""));
    ISTHMUS_CHECK(model());
    ISTHMUS_CHECK(added_tokens());
    ISTHMUS_CHECK(normalizer());
    ISTHMUS_CHECK(pre_tokenizer());
    ISTHMUS_CHECK(post_processor());
    ISTHMUS_CHECK(decoder());
    return std::move(file_);
  }

 private:
  Result<void> model() {
    const auto& model = member(json_, "model");
    if (!model.is_object()) return corrupt("it has no model");
    // Files of old versions do not name the type.
    const auto& type = member(model, "type");
    if (!type.is_null() && type != "BPE") return unsupported(fmt::format("model {}", shown(type)));
    ISTHMUS_CHECK(
        only(model,
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
             "model."));
    // unk_token is for what is no token: every byte is one.
    ISTHMUS_CHECK(without_effect(
        model, {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"},
        "model."));
    ISTHMUS_TRY(file_.ignore_merges, flag(model, "ignore_merges", false));
    ISTHMUS_CHECK(vocabulary(member(model, "vocab")));
    return merges(member(model, "merges"));
  }

  Result<void> vocabulary(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty()) return corrupt("model.vocab is no object");
    for (const auto& [token, id] : vocab.items()) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kIdMax)
        return corrupt(fmt::format("model.vocab: {} has the id {}", shown(token), shown(id)));
      ISTHMUS_CHECK(add(token, id.get<std::int32_t>(), false));
    }
    model_tokens_ = static_cast<std::int32_t>(ids_.size());
    for (std::size_t character = 0; character < kCharacters; ++character) {
      const auto byte = kByteCharacters.byte_of[character];
      if (byte < 0) continue;
      std::string token;
      if (character < 0x80) {
        token = static_cast<char>(character);
      } else {
        token = static_cast<char>(0xC0 | character >> 6);
        token += static_cast<char>(0x80 | (character & 0x3F));
      }
      const auto found = ids_.find(token);
      if (found == ids_.end())
        return unsupported(fmt::format("no token for the byte {:#04x}", byte));
      file_.byte_ids[static_cast<std::size_t>(byte)] = found->second;
    }
    return {};
  }

  // Memory follows the largest id, which must not be far from how many there are.
  Result<void> add(const std::string& token, std::int32_t id, bool is_added) {
    constexpr std::int32_t kHolesMax = 1 << 16;
    const auto at = static_cast<std::size_t>(id);
    if (at >= file_.pieces.size()) {
      if (at > ids_.size() + static_cast<std::size_t>(vocab_size()) + kHolesMax)
        return corrupt(fmt::format("{} has the id {}, far above all others", shown(token), id));
      file_.pieces.resize(at + 1);
      file_.is_word.resize(at + 1);
      taken_.resize(at + 1);
    }
    if (taken_[at]) return corrupt(fmt::format("two tokens have the id {}", id));
    taken_[at] = true;
    // What is added to the model's tokens is text, not written with the characters of bytes.
    auto bytes = is_added ? std::nullopt : bytes_of_token(token);
    file_.is_word[at] = bytes.has_value();
    file_.pieces[at] = std::move(bytes).value_or(token);
    ids_.emplace(token, id);
    return {};
  }
  std::size_t vocab_size() const { return member(member(json_, "model"), "vocab").size(); }

  Result<void> merges(const Json& merges) {
    if (!merges.is_array()) return corrupt("model.merges is no list");
    file_.merges.reserve(merges.size());
    for (const auto& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const auto space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos)
          return corrupt(fmt::format("the merge {} is no pair", shown(merge)));
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        return corrupt(fmt::format("the merge {} is no pair", shown(merge)));
      }
      const auto a = ids_.find(left), b = ids_.find(right), c = ids_.find(left + right);
      if (a == ids_.end() || b == ids_.end() || c == ids_.end())
        return corrupt(fmt::format("the merge {} is of or to no token", shown(merge)));
      file_.merges.push_back({a->second, b->second, c->second});
    }
    return {};
  }

  Result<void> added_tokens() {
    const auto& added = member(json_, "added_tokens");
    if (added.is_null()) return {};
    if (!added.is_array()) return corrupt("added_tokens is no list");
    std::int32_t next = model_tokens_;  // the id of one that the vocabulary has not
    for (const auto& token : added) {
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
      const auto known = ids_.find(read.content);
      const auto expected = known != ids_.end() ? known->second : next;
      if (read.id != expected)
        return unsupported(fmt::format("the added token {} with the id {}, where {} comes next",
                                       name, read.id, expected));
      if (known == ids_.end()) ISTHMUS_CHECK(add(read.content, read.id, true));
      next = std::max(next, read.id + 1);
      const auto same = [&](const AddedToken& other) { return other.content == read.content; };
      if (std::none_of(file_.added.begin(), file_.added.end(), same)) file_.added.push_back(read);
    }
    return {};
  }

  Result<void> normalizer() {
    ISTHMUS_TRY(const auto parts,
                parts_of(member(json_, "normalizer"), "normalizers", "normalizer"));
    for (const auto* part : parts) {
      if (member(*part, "type") != "NFC")
        return unsupported(fmt::format("normalizer {}", named(*part)));
      file_.normal_form_c = true;
    }
    return {};
  }

  Result<void> pre_tokenizer() {
    ISTHMUS_TRY(const auto parts,
                parts_of(member(json_, "pre_tokenizer"), "pretokenizers", "pre_tokenizer"));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& part = *parts[i];
      const bool is_last = i + 1 == parts.size();
      const auto& type = member(part, "type");
      if (type == "Split" && !is_last) {
        ISTHMUS_CHECK(split(part));
      } else if (type == "ByteLevel" && is_last) {
        ISTHMUS_TRY(const bool adds_space, flag(part, "add_prefix_space", true));
        ISTHMUS_TRY(const bool use_regex, flag(part, "use_regex", true));
        file_.steps.push_back({adds_space, use_regex ? kByteLevelPattern : "", false});
        return {};
      } else {
        return unsupported(fmt::format("pre_tokenizer {}", named(part)));
      }
    }
    return unsupported("no pre_tokenizer ByteLevel");
  }

  Result<void> split(const Json& part) {
    const auto& pattern = member(member_object(part, "pattern"), "Regex");
    ISTHMUS_TRY(const bool invert, flag(part, "invert", false));
    const auto& behavior = member(part, "behavior");
    const bool keeps_all = behavior == "Isolated", keeps_matches = behavior == "Removed" && invert;
    if (!pattern.is_string() || !(keeps_all || keeps_matches))
      return unsupported(fmt::format("pre_tokenizer {}", named(part)));
    file_.steps.push_back({false, pattern.get<std::string>(), keeps_matches});
    return {};
  }
  static const Json& member_object(const Json& object, const char* key) {
    static const Json empty = Json::object();
    const auto& value = member(object, key);
    return value.is_object() ? value : empty;
  }

  Result<void> post_processor() {
    ISTHMUS_TRY(const auto parts,
                parts_of(member(json_, "post_processor"), "processors", "post_processor"));
    for (const auto* part : parts) {
      const auto& type = member(*part, "type");
      if (type == "TemplateProcessing") {
        ISTHMUS_CHECK(text_template(*part));
      } else if (type != "ByteLevel") {  // which only moves offsets
        return unsupported(fmt::format("post_processor {}", named(*part)));
      }
    }
    return {};
  }

  // [begin token] text
  Result<void> text_template(const Json& part) {
    const auto& single = member(part, "single");
    const auto no = [&] { return unsupported(fmt::format("the template {}", shown(single))); };
    if (!single.is_array() || single.empty() || single.size() > 2 || file_.begin) return no();
    if (!single.back().is_object() || !single.back().contains("Sequence")) return no();
    if (single.size() == 1) return {};
    const auto& id = member(member_object_or_empty(single.front(), "SpecialToken"), "id");
    if (!id.is_string()) return no();
    const auto found = ids_.find(id.get<std::string>());
    if (found == ids_.end())
      return corrupt(fmt::format("the template's {} is no token", shown(id)));
    file_.begin = found->second;
    return {};
  }
  static const Json& member_object_or_empty(const Json& object, const char* key) {
    static const Json empty = Json::object();
    return object.is_object() ? member_object(object, key) : empty;
  }

  Result<void> decoder() {
    ISTHMUS_TRY(const auto parts, parts_of(member(json_, "decoder"), "decoders", "decoder"));
    for (const auto* part : parts)
      if (member(*part, "type") != "ByteLevel")
        return unsupported(fmt::format("decoder {}", named(*part)));
    return {};
  }

  const Json& json_;
  TokenizerFile file_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<bool> taken_;
  std::int32_t model_tokens_ = 0;
};

}  // namespace

Result<TokenizerFile> decode_tokenizer_file(std::string_view json) {
  const auto parsed = parse_shallow_json(json);
  if (!parsed.is_object()) return corrupt("it is no JSON object");
  return Decoder(parsed).decode();
}

}  // namespace isthmus::runtime
