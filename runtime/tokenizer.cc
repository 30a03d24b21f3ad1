#include "runtime/tokenizer.h"

#include <fmt/format.h>

#include "base/byte_stream.h"
#include "runtime/bpe_tokenizer.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/sentencepiece_tokenizer.h"
#include "runtime/shallow_json.h"
#include "runtime/tokenizer_json.h"
#include "runtime/wordpiece_tokenizer.h"

namespace isthmus::runtime {
namespace {

constexpr std::uint64_t kTokenizerBytesMax = std::uint64_t{128} << 20;
constexpr std::uint64_t kTokenizerConfigBytesMax = std::uint64_t{16} << 20;

// "eos_token" of a tokenizer_config.json: a text, or an object with its text.
std::string name_in(const nlohmann::json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end()) return {};
  if (at->is_string()) return at->get<std::string>();
  if (!at->is_object()) return {};
  const auto content = at->find("content");
  return content != at->end() && content->is_string() ? content->get<std::string>() : "";
}

// "eos_token_id" of a config.json: a number, or several, of which the first ends a text.
std::optional<std::int64_t> id_in(const nlohmann::json& config, const char* key) {
  auto at = config.find(key);
  if (at == config.end()) return {};
  const auto& id = at->is_array() && !at->empty() ? at->front() : *at;
  if (!id.is_number_integer()) return {};
  return id.get<std::int64_t>();
}

// An object, or nothing where the file is not there.
Result<nlohmann::json> config_of(const Disk& disk, const std::string& path) {
  auto text = read_file(disk, path, kTokenizerConfigBytesMax);
  if (!text) {
    if (text.error().code == ErrorCode::not_found) return nlohmann::json::object();
    return std::move(text).error();
  }
  auto json = parse_shallow_json(text_of(*text));
  if (!json.is_object())
    return Error{ErrorCode::corrupt, fmt::format("{} is no JSON object", path)};
  return json;
}

// What ends a text, which tokenizer.json does not say.
Result<TextEnd> text_end(const Disk& disk, const std::string& folder) {
  TextEnd end;
  ISTHMUS_TRY(const auto tokenizer_config, config_of(disk, folder + "tokenizer_config.json"));
  end.name = name_in(tokenizer_config, "eos_token");
  if (!end.name.empty()) return end;
  ISTHMUS_TRY(const auto config, config_of(disk, folder + "config.json"));
  end.id = id_in(config, "eos_token_id");
  return end;
}

Result<std::unique_ptr<Tokenizer>> open_file(const Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto content, read_file(disk, path, kTokenizerBytesMax));
  const auto text = text_of(content);
  const auto first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && text[first] == '{';
  auto opened = [&]() -> Result<std::unique_ptr<Tokenizer>> {
    if (!is_json) return make_sentencepiece_tokenizer(text);
    if (tokenizer_json::model_type(text) == "WordPiece") return make_wordpiece_tokenizer(text);
    const auto folder = folder_of(path);
    ISTHMUS_TRY(const auto end, text_end(disk, folder.empty() ? "" : folder + "/"));
    return make_bpe_tokenizer(text, end);
  }();
  if (!opened) {
    const auto code = opened.error().code;
    return Error{code, fmt::format("{} cannot be taken as a tokenizer", path),
                 std::move(opened).error()};
  }
  return opened;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const Disk& disk, const std::string& path) {
  if (path == "bytes") return make_byte_tokenizer();
  const auto json = path + "/tokenizer.json", model = path + "/tokenizer.model";
  ISTHMUS_TRY(const bool has_json, disk.exists(json));
  ISTHMUS_TRY(const bool has_model, disk.exists(model));
  if (has_json) {
    auto opened = open_file(disk, json);
    if (opened || opened.error().code != ErrorCode::unsupported || !has_model) return opened;
  }
  if (has_model) return open_file(disk, model);
  return open_file(disk, path);
}

}  // namespace isthmus::runtime
