// For tokenizers_test.py: texts into tokens and back, with a tokenizer that Python made.
//
//   tokenize PATH [specials]    a JSON array of texts on stdin; on stdout an object with
//   `vocabulary`,
//                               `begin`, `end`, `ids` of each and `text`, what these decode to
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/tokenizer.h"

namespace isthmus::runtime {
namespace {

Result<nlohmann::json> tokenize(const std::string& path, Tokenizer::Specials specials) {
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto tokenizer, open_tokenizer(*disk, path));
  nlohmann::json out = {{"vocabulary", tokenizer->vocabulary()},
                        {"begin", tokenizer->begin().value_or(-1)},
                        {"end", tokenizer->end().value_or(-1)},
                        {"ids", nlohmann::json::array()},
                        {"text", nlohmann::json::array()}};
  const auto texts = nlohmann::json::parse(
      std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()));
  for (const auto& text : texts) {
    std::vector<std::int32_t> ids;
    ISTHMUS_CHECK(tokenizer->encode(text.get<std::string>(), ids, specials));
    out["ids"].push_back(ids);
    out["text"].push_back(tokenizer->decode(ids));
  }
  return out;
}

}  // namespace
}  // namespace isthmus::runtime

int main(int argc, char** argv) {
  using namespace isthmus;
  using enum runtime::Tokenizer::Specials;
  if (argc < 2) return 2;
  const auto out = runtime::tokenize(argv[1], argc > 2 ? are_tokens : are_text);
  if (!out) {
    fmt::print(stderr, "{}\n", out.error().text());
    return 1;
  }
  fmt::print("{}\n", out->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  return 0;
}
