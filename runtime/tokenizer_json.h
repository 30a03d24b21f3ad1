// What the readers of a tokenizer.json share (runtime/tokenizer_file.h, runtime/wordpiece_file.h):
// its parts looked up with checks, and its tokens with their ids. The file is anybody's: what is
// damaged is corrupt, and what would be computed differently here is unsupported, both by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "runtime/added_tokens.h"

namespace isthmus::runtime::tokenizer_json {

using Json = nlohmann::json;

inline constexpr std::int32_t kIdMax = (1 << 24) - 1;

Error corrupt(std::string what);
Error unsupported(std::string what);

// The whole of a file's text. Errors: corrupt.
Result<Json> parse(std::string_view file);

// For messages: cut off where it is long.
std::string shown(const Json& value);
// "Metaspace {"type": …".
std::string named(const Json& part);

// A member of an object, or null; the other, of anything, an object, or an empty one.
const Json& member(const Json& object, const char* key);
const Json& member_object(const Json& value, const char* key);

// A flag that may be left out.
Result<bool> flag(const Json& object, const char* key, bool absent);

// Each of these, where it is there, has no effect: it is null, false, 0 or "".
Result<void> without_effect(const Json& object, std::initializer_list<const char*> keys,
                            std::string_view of);
// It has no other members.
Result<void> only(const Json& object, std::initializer_list<std::string_view> known,
                  std::string_view of);

// The parts of a Sequence, or the one that it is, each an object with a type; none for null.
Result<std::vector<const Json*>> parts_of(const Json& part, const char* list,
                                          std::string_view what);

// The file has no other members than these have, and none that changes ids.
Result<void> check_members(const Json& file);

// "model.type" of a file's text, which need not be whole; "" where there is none. Keeps nothing
// else of it.
std::string model_type(std::string_view file);

// The tokens, with memory that follows how many there are, whatever ids the file names.
class TokenTable {
 public:
  Result<void> read_vocabulary(const Json& vocab);  // "model.vocab"
  Result<void> read_added(const Json& added);       // "added_tokens"; after the vocabulary

  std::optional<std::int32_t> find(const std::string& text) const;

  std::vector<std::string> texts;  // by id; "" where there is no token
  std::vector<bool> of_model;      // by id: in the vocabulary
  std::vector<AddedToken> added;

 private:
  Result<void> add(const std::string& token, std::int32_t id, bool is_of_model);

  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<bool> taken_;
  std::size_t vocabulary_ = 0;  // tokens of the model
};

}  // namespace isthmus::runtime::tokenizer_json
