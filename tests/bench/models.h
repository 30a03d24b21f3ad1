// The models that trainer_bench and generate_bench measure, by size (docs/performance.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/model_config.h"

namespace isthmus::bench {

inline const std::map<std::string, runtime::ModelConfig>& models() {
  const auto config_of = [](std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                            std::int64_t kv_heads, std::int64_t ffn_width,
                            std::int64_t vocabulary) {
    runtime::ModelConfig config;
    config.layers = layers;
    config.hidden = hidden;
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.ffn_width = ffn_width;
    config.vocabulary = vocabulary;
    return config;
  };
  static const std::map<std::string, runtime::ModelConfig> known = {
      {"5M-bytes", config_of(6, 256, 8, 4, 704, 260)},
      {"13.8M", config_of(6, 384, 6, 6, 1024, 8192)},
      {"29.5M", config_of(8, 512, 8, 8, 1376, 8192)},
  };
  return known;
}

inline std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : models()) names.push_back(name);
  return names;
}

}  // namespace isthmus::bench
