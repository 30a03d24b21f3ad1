// The model that trainer_bench or generate_bench measures, by size (docs/performance.md), and what
// both ask of the command line for it.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "runtime/model.h"
#include "tests/bench/command_line.h"

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

struct BenchedModel {
  std::string model = "13.8M";
  std::string precision = "fp32";
  std::size_t threads = 2;

  void ask(CommandLine& line) {
    std::vector<std::string> names;
    for (const auto& [name, config] : models()) names.push_back(name);
    line.choice("--model", model, names, "which model, by size");
    line.choice("--precision", precision, {"fp32", "bf16"}, "of activations and products");
    line.number("--threads", threads, 1, 1024, "compute threads, one per CPU");
  }
  // One per CPU; those beyond are not pinned.
  std::vector<int> cpus() const {
    auto all = available_cpus();
    all.resize(threads, -1);
    return all;
  }
  // Of random parameters; null, and why is said, where there is no room.
  std::unique_ptr<runtime::Model> create(
      std::int64_t batch, std::int64_t sequence, ThreadPool& pool,
      runtime::Recompute recompute = runtime::Recompute::off) const {
    const auto of = precision == "bf16" ? runtime::Precision::bf16 : runtime::Precision::f32;
    auto config = models().at(model);
    config.sequence_max = std::max(config.sequence_max, sequence);
    auto made = runtime::Model::create(
        config,
        {.micro_batch = batch, .sequence = sequence, .precision = of, .recompute = recompute},
        pool);
    if (!made) {
      fmt::print(stderr, "{}\n", made.error().text());
      return nullptr;
    }
    (*made)->initialise(0);
    return std::move(*made);
  }
};

}  // namespace isthmus::bench
