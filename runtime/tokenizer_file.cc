#include "runtime/tokenizer_file.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/tokenizer_json.h"

namespace isthmus::runtime {
namespace tokenizer_json {
namespace {

// What ByteLevel parts words by when it is asked to (GPT-2).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

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
    ISTHMUS_CHECK(check_members(json_));
    ISTHMUS_CHECK(model());
    ISTHMUS_CHECK(tokens_.read_added(member(json_, "added_tokens")));
    pieces();
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
    ISTHMUS_CHECK(tokens_.read_vocabulary(vocab));
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
      const auto found = tokens_.find(token);
      if (!found) return unsupported(fmt::format("no token for the byte {:#04x}", byte));
      file_.byte_ids[static_cast<std::size_t>(byte)] = *found;
    }
    return {};
  }

  // What is added to the model's tokens is text, not written with the characters of bytes.
  void pieces() {
    const auto count = tokens_.texts.size();
    file_.pieces.resize(count);
    file_.is_word.resize(count);
    for (std::size_t id = 0; id < count; ++id) {
      auto bytes = tokens_.of_model[id] ? bytes_of_token(tokens_.texts[id]) : std::nullopt;
      file_.is_word[id] = bytes.has_value();
      file_.pieces[id] = std::move(bytes).value_or(tokens_.texts[id]);
    }
    file_.added = std::move(tokens_.added);
  }

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
      const auto a = tokens_.find(left), b = tokens_.find(right), c = tokens_.find(left + right);
      if (!a || !b || !c)
        return corrupt(fmt::format("the merge {} is of or to no token", shown(merge)));
      file_.merges.push_back({*a, *b, *c});
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
    const auto& id = member(member_object(single.front(), "SpecialToken"), "id");
    if (!id.is_string()) return no();
    file_.begin = tokens_.find(id.get<std::string>());
    if (!file_.begin) return corrupt(fmt::format("the template's {} is no token", shown(id)));
    return {};
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
  TokenTable tokens_;
};

}  // namespace
}  // namespace tokenizer_json

Result<TokenizerFile> decode_tokenizer_file(std::string_view json) {
  ISTHMUS_TRY(const auto parsed, tokenizer_json::parse(json));
  return tokenizer_json::Decoder(parsed).decode();
}

}  // namespace isthmus::runtime
