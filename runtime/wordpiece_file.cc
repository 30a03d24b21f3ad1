#include "runtime/wordpiece_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/tokenizer_json.h"

namespace isthmus::runtime {
namespace tokenizer_json {
namespace {

// Looking up all that may begin at each character of a word takes the square of its length.
constexpr std::uint64_t kWordCharactersMax = 1000;

class WordPieceDecoder {
 public:
  explicit WordPieceDecoder(const Json& json) : json_(json) {}

  Result<WordPieceFile> decode() {
    ISTHMUS_CHECK(check_members(json_));
    ISTHMUS_CHECK(model());
    ISTHMUS_CHECK(normalizer());
    ISTHMUS_CHECK(pre_tokenizer());
    ISTHMUS_CHECK(added_tokens());
    ISTHMUS_CHECK(post_processor());
    ISTHMUS_CHECK(decoder());
    file_.tokens = std::move(tokens_.texts);
    file_.of_model = std::move(tokens_.of_model);
    return std::move(file_);
  }

 private:
  Result<void> model() {
    const auto& model = member(json_, "model");
    if (!model.is_object()) return corrupt("it has no model");
    const auto& type = member(model, "type");
    if (type != "WordPiece") return unsupported(fmt::format("model {}", shown(type)));
    ISTHMUS_CHECK(only(
        model,
        {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"},
        "model."));
    ISTHMUS_CHECK(tokens_.read_vocabulary(member(model, "vocab")));
    const auto& unknown = member(model, "unk_token");
    const auto id =
        unknown.is_string() ? tokens_.find(unknown.get_ref<const std::string&>()) : std::nullopt;
    if (!id)
      return corrupt(fmt::format("model.unk_token {} is not in model.vocab", shown(unknown)));
    file_.unknown = *id;
    const auto& prefix = member(model, "continuing_subword_prefix");
    if (!prefix.is_string())
      return corrupt(fmt::format("model.continuing_subword_prefix is {}", shown(prefix)));
    file_.prefix = prefix.get<std::string>();
    const auto& characters = member(model, "max_input_chars_per_word");
    if (!characters.is_number_unsigned())
      return corrupt(fmt::format("model.max_input_chars_per_word is {}", shown(characters)));
    if (characters.get<std::uint64_t>() > kWordCharactersMax)
      return unsupported(fmt::format("model.max_input_chars_per_word = {}, above {}",
                                     shown(characters), kWordCharactersMax));
    file_.word_characters_max = characters.get<std::size_t>();
    return {};
  }

  Result<void> normalizer() {
    ISTHMUS_TRY(const auto parts,
                parts_of(member(json_, "normalizer"), "normalizers", "normalizer"));
    if (parts.empty()) return {};
    const auto& part = *parts.front();
    if (parts.size() > 1 || member(part, "type") != "BertNormalizer")
      return unsupported(fmt::format("normalizer {}", named(*parts.back())));
    ISTHMUS_CHECK(only(part,
                       {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"},
                       "normalizer."));
    ISTHMUS_TRY(file_.text.clean_text, flag(part, "clean_text", true));
    ISTHMUS_TRY(file_.text.space_han, flag(part, "handle_chinese_chars", true));
    ISTHMUS_TRY(file_.text.lowercase, flag(part, "lowercase", true));
    ISTHMUS_TRY(file_.text.strip_accents, flag(part, "strip_accents", file_.text.lowercase));
    return {};
  }

  Result<void> pre_tokenizer() {
    ISTHMUS_TRY(const auto parts,
                parts_of(member(json_, "pre_tokenizer"), "pretokenizers", "pre_tokenizer"));
    if (parts.empty()) return unsupported("no pre_tokenizer BertPreTokenizer");
    if (parts.size() > 1 || member(*parts.front(), "type") != "BertPreTokenizer")
      return unsupported(fmt::format("pre_tokenizer {}", named(*parts.back())));
    return only(*parts.front(), {"type"}, "pre_tokenizer.");
  }

  // Those that are looked for in the normalised text must be something there.
  Result<void> added_tokens() {
    ISTHMUS_CHECK(tokens_.read_added(member(json_, "added_tokens")));
    file_.added = tokens_.added;
    std::vector<std::string> seen;
    for (const auto& token : file_.added) {
      if (!token.normalized) continue;
      auto normal = file_.text.normalise(token.content);
      const bool is_double = std::find(seen.begin(), seen.end(), normal) != seen.end();
      if (normal.empty() || is_double)
        return unsupported(fmt::format("an added token {} that is {} in normalised text",
                                       shown(token.content),
                                       is_double ? "the same as another" : "nothing"));
      seen.push_back(std::move(normal));
    }
    return {};
  }

  Result<void> post_processor() {
    ISTHMUS_TRY(const auto parts,
                parts_of(member(json_, "post_processor"), "processors", "post_processor"));
    if (parts.empty()) return {};
    const auto& part = *parts.front();
    const auto& type = member(part, "type");
    if (parts.size() == 1 && type == "BertProcessing") return bert_processing(part);
    if (parts.size() == 1 && type == "TemplateProcessing") return text_template(part);
    return unsupported(fmt::format("post_processor {}", named(*parts.back())));
  }

  // "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]
  Result<void> bert_processing(const Json& part) {
    for (auto [key, id] : {std::pair("cls", &file_.begin), std::pair("sep", &file_.end)}) {
      const auto& token = member(part, key);
      if (!token.is_array() || token.size() != 2 || !token[0].is_string())
        return corrupt(fmt::format("post_processor.{} is {}", key, shown(token)));
      *id = tokens_.find(token[0].get_ref<const std::string&>());
      if (!*id || token[1] != **id)
        return corrupt(fmt::format("post_processor.{} {} is no token", key, shown(token)));
    }
    return {};
  }

  // [token] text [token], all of the first type
  Result<void> text_template(const Json& part) {
    const auto& single = member(part, "single");
    const auto no = [&] { return unsupported(fmt::format("the template {}", shown(single))); };
    if (!single.is_array()) return no();
    bool has_text = false;
    for (const auto& piece : single) {
      const auto& text = member_object(piece, "Sequence");
      const auto& token = member_object(piece, "SpecialToken");
      const auto& type = member(text.empty() ? token : text, "type_id");
      auto& place = has_text ? file_.end : file_.begin;
      if (type != 0 || (text.empty() ? place.has_value() : has_text)) return no();
      if (text.empty()) {
        ISTHMUS_TRY(place, token_of(part, member(token, "id")));
      } else if (member(text, "id") == "A") {
        has_text = true;
      } else {
        return no();
      }
    }
    if (!has_text) return no();
    return {};
  }

  // The template has its own table of the tokens that its names stand for.
  Result<std::int32_t> token_of(const Json& part, const Json& name) {
    if (!name.is_string()) return corrupt(fmt::format("the template's {} is no name", shown(name)));
    const auto& text = name.get_ref<const std::string&>();
    const auto id = tokens_.find(text);
    if (!id) return corrupt(fmt::format("the template's {} is no token", shown(name)));
    const auto& ids =
        member(member_object(member_object(part, "special_tokens"), text.c_str()), "ids");
    if (ids != Json::array({*id}))
      return unsupported(fmt::format("a template in which {} stands for {}, not {}", shown(name),
                                     shown(ids), *id));
    return *id;
  }

  Result<void> decoder() {
    ISTHMUS_TRY(const auto parts, parts_of(member(json_, "decoder"), "decoders", "decoder"));
    if (parts.empty()) return unsupported("no decoder WordPiece");
    const auto& part = *parts.front();
    if (parts.size() > 1 || member(part, "type") != "WordPiece")
      return unsupported(fmt::format("decoder {}", named(*parts.back())));
    ISTHMUS_CHECK(only(part, {"type", "prefix", "cleanup"}, "decoder."));
    if (member(part, "prefix") != file_.prefix)
      return unsupported(
          fmt::format("decoder.prefix = {}, not that of the model", shown(member(part, "prefix"))));
    ISTHMUS_TRY(file_.cleans_up, flag(part, "cleanup", true));
    return {};
  }

  const Json& json_;
  WordPieceFile file_;
  TokenTable tokens_;
};

}  // namespace
}  // namespace tokenizer_json

Result<WordPieceFile> decode_wordpiece_file(std::string_view json) {
  ISTHMUS_TRY(const auto parsed, tokenizer_json::parse(json));
  return tokenizer_json::WordPieceDecoder(parsed).decode();
}

}  // namespace isthmus::runtime
