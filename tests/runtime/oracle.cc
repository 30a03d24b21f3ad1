#include "oracle.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace isthmus::runtime {
namespace {

std::ifstream open_oracle(const std::string& file) {
  std::ifstream in(std::string(ISTHMUS_ORACLE_FOLDER) + "/" + file, std::ios::binary);
  EXPECT_TRUE(in.good()) << file << ": run tools/oracle/make_llama_vectors.py";
  return in;
}

OracleBatch draw_batch(const OracleCase& c, std::int64_t m, std::uint64_t ignored) {
  OracleBatch batch;
  const auto vocabulary = static_cast<std::uint64_t>(c.config.vocabulary);
  const auto draw = [&](std::string_view what, std::uint64_t i) {
    return oracle_hash(fmt::format("{} {} {}", c.name, what, m), i);
  };
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(c.micro_batch * c.sequence); ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(draw("tokens", i) % vocabulary));
    const bool counts = ignored == 0 || draw("ignored", i) % ignored != 0;
    batch.targets.push_back(counts ? static_cast<std::int32_t>(draw("targets", i) % vocabulary)
                                   : kIgnoredTarget);
  }
  return batch;
}

}  // namespace

std::uint64_t oracle_hash(std::string_view name, std::uint64_t index) {
  std::uint64_t h = 0xcbf29ce484222325;  // FNV-1a, then splitmix64
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::uint64_t z = (h + index) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

float oracle_uniform(std::string_view name, std::uint64_t index) {
  return static_cast<float>(oracle_hash(name, index) >> 40) * 0x1p-23F - 1.0F;
}

std::map<std::string, std::string> load_oracle_text(const std::string& file) {
  std::map<std::string, std::string> entries;
  auto in = open_oracle(file);
  std::string line;
  while (std::getline(in, line))
    if (const auto space = line.find(' ');
        space != std::string::npos && !line.starts_with("tensor"))
      entries[line.substr(0, space)] = line.substr(space + 1);
  return entries;
}

std::vector<float> load_oracle_floats(const std::string& file) {
  auto in = open_oracle(file);
  std::ostringstream all;
  all << in.rdbuf();
  const auto bytes = all.str();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char*>(values.data()));
  return values;
}

OracleCase load_oracle_case(const std::string& name) {
  const auto entries = load_oracle_text(name + ".txt");
  const auto integer = [&](const std::string& key) { return std::stoll(entries.at(key)); };
  OracleCase c;
  c.name = name;
  c.config.layers = integer("layers");
  c.config.hidden = integer("hidden");
  c.config.heads = integer("heads");
  c.config.kv_heads = integer("kv_heads");
  c.config.head_dim = integer("head_dim");
  c.config.ffn_width = integer("ffn_width");
  c.config.vocabulary = integer("vocabulary");
  c.config.tied = integer("tied") != 0;
  c.config.rope_theta = std::stod(entries.at("rope_theta"));
  c.config.norm_eps = std::stod(entries.at("norm_eps"));
  c.micro_batch = integer("micro_batch");
  c.sequence = integer("sequence");
  c.counted = integer("counted");
  c.loss = std::stod(entries.at("loss"));
  for (std::int64_t m = 0; m < integer("micro_batches"); ++m)
    c.batches.push_back(draw_batch(c, m, static_cast<std::uint64_t>(integer("ignored"))));

  const auto values = load_oracle_floats(name + ".bin");
  auto next = values.begin();
  auto in = open_oracle(name + ".txt");
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with("tensor ")) continue;
    std::istringstream words(line.substr(7));
    OracleTensor tensor;
    std::ptrdiff_t elements = 0;
    words >> tensor.name >> elements >> tensor.norm >> tensor.autocast_error;
    tensor.gradient.assign(next, next + elements);
    next += elements;
    c.tensors.push_back(std::move(tensor));
  }
  EXPECT_EQ(next, values.end());
  return c;
}

void set_oracle_parameters(Model& model) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    const auto& tensor = model.tensors()[t];
    const float middle = tensor.shape.rank() == 1 ? 1.0F : 0.0F;
    auto values = model.parameters(t);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = oracle_uniform(tensor.name, i) / 4 + middle;
  }
  model.parameters_changed();
}

}  // namespace isthmus::runtime
