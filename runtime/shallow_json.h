// JSON from a file that anybody may have written. What walks a value later does so by recursion,
// which text that nests without bound would lead off the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace isthmus::runtime {

inline constexpr int kJsonDepthMax = 32;

// Discarded (is_discarded()) when it is no JSON or nests deeper. Json: nlohmann::json or
// nlohmann::ordered_json.
template <class Json = nlohmann::json>
Json parse_shallow_json(std::string_view text) {
  bool too_deep = false;
  const auto watch = [&too_deep](int depth, typename Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kJsonDepthMax;
    return !too_deep;
  };
  Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (too_deep) return Json(Json::value_t::discarded);
  return json;
}

}  // namespace isthmus::runtime
