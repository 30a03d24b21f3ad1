#include "oracle.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>

namespace isthmus::runtime {
namespace {

std::ifstream open_oracle(const std::string& file) {
  std::ifstream in(std::string(ISTHMUS_ORACLE_FOLDER) + "/" + file, std::ios::binary);
  EXPECT_TRUE(in.good()) << file << ": run tools/oracle/make_model_vectors.py";
  return in;
}

OracleBatch draw_batch(const OracleCase& c, std::int64_t m) {
  OracleBatch batch;
  const auto vocabulary = static_cast<std::uint64_t>(c.config.vocabulary);
  const auto draw = [&](std::string_view what, std::uint64_t i) {
    return oracle_hash(fmt::format("{} {} {}", c.data, what, m), i);
  };
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(c.micro_batch * c.sequence); ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(draw("tokens", i) % vocabulary));
    const bool counts = c.ignored == 0 || draw("ignored", i) % c.ignored != 0;
    batch.targets.push_back(counts ? static_cast<std::int32_t>(draw("targets", i) % vocabulary)
                                   : kIgnoredTarget);
  }
  const auto sequence = static_cast<std::uint64_t>(c.sequence);
  for (std::uint64_t row = 0; row < static_cast<std::uint64_t>(c.micro_batch); ++row) {
    batch.row_keys.push_back(draw("keys", row));
    if (!c.padded) continue;
    const auto length = sequence - draw("lengths", row) % (sequence / 2);
    for (std::uint64_t i = 0; i < sequence; ++i) {
      batch.document_starts.push_back(i < length ? 0 : static_cast<std::int32_t>(length));
      if (i >= length) batch.targets[row * sequence + i] = kIgnoredTarget;
    }
  }
  return batch;
}

std::vector<float> taken(std::span<const float>& rest, std::size_t count) {
  EXPECT_LE(count, rest.size());
  const std::vector<float> values(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  rest = rest.subspan(count);
  return values;
}

OracleTensor read_tensor(const std::string& line, std::size_t samples,
                         std::span<const float>& rest) {
  std::istringstream words(line.substr(std::string_view("tensor ").size()));
  OracleTensor tensor;
  words >> tensor.name >> tensor.elements >> tensor.norm >> tensor.autocast_error;
  tensor.samples = taken(rest, std::min(tensor.elements, samples));
  return tensor;
}

// NAME.txt and NAME.bin: each line but those of tensors, by its first word; and each tensor.
void read_lines(const std::string& name, std::size_t samples,
                const std::function<void(std::istringstream&, const std::string&)>& line_read,
                const std::function<void(OracleTensor)>& tensor_read) {
  const auto values = load_oracle_floats(name + ".bin");
  auto rest = std::span(values);
  auto in = open_oracle(name + ".txt");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "tensor")
      tensor_read(read_tensor(line, samples, rest));
    else
      line_read(words, kind);
  }
  EXPECT_TRUE(rest.empty());
}

RopeScaling rope_scaling_of(const std::map<std::string, std::string>& entries) {
  RopeScaling scaling;
  for (const auto kind :
       {RopeScaling::Kind::linear, RopeScaling::Kind::llama3, RopeScaling::Kind::yarn})
    if (entries.at("rope") == to_string(kind)) scaling.kind = kind;
  scaling.factor = std::stod(entries.at("rope_factor"));
  scaling.original_positions = std::stoll(entries.at("rope_original"));
  return scaling;
}

// "1,3", or "-" for none.
std::vector<int> numbers_of(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream in(text);
  for (std::string number; text != "-" && std::getline(in, number, ',');)
    numbers.push_back(std::stoi(number));
  return numbers;
}

void read_encoder(const std::map<std::string, std::string>& entries, OracleCase& c) {
  c.config.sequence_max = std::stoll(entries.at("sequence_max"));
  c.config.token_types = std::stoll(entries.at("token_types"));
  c.config.dropout = std::stod(entries.at("dropout"));
  c.config.attention_dropout = std::stod(entries.at("attention_dropout"));
  c.padded = entries.at("padded") != "0";
}

void read_decoder(const std::map<std::string, std::string>& entries, OracleCase& c) {
  c.config.head_dim = std::stoll(entries.at("head_dim"));
  c.config.rope_theta = std::stod(entries.at("rope_theta"));
  c.config.rope_scaling = rope_scaling_of(entries);
}

void read_experts(const std::map<std::string, std::string>& entries, OracleCase& c) {
  if (!entries.contains("experts")) return;
  const auto integer = [&](const std::string& key) { return std::stoll(entries.at(key)); };
  const auto number = [&](const std::string& key) { return std::stod(entries.at(key)); };
  c.config.experts = integer("experts");
  c.config.experts_per_token = integer("experts_per_token");
  c.config.expert_width = integer("expert_width");
  if (entries.contains("shared_expert_width"))
    c.config.shared_expert_width = integer("shared_expert_width");
  c.config.normalise_top_k = integer("normalise_top_k") != 0;
  c.config.dense_layers = numbers_of(entries.at("dense_layers"));
  c.router.capacity = number("capacity");
  c.router.balance = number("balance");
  c.router.z = number("z");
  c.router.scope = entries.at("balance_scope") == to_string(BalanceScope::sequence)
                       ? BalanceScope::sequence
                       : BalanceScope::micro_batch;
  c.balance_loss = number("balance_loss");
  c.z_loss = number("z_loss");
  c.margin = number("margin");
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

std::vector<std::size_t> oracle_sample(std::string_view name, std::size_t elements,
                                       std::size_t count) {
  std::vector<std::size_t> sample;
  for (std::size_t i = 0; i < std::min(elements, count); ++i)
    sample.push_back(elements <= count ? i
                                       : oracle_hash(std::string(name) + " sample", i) % elements);
  return sample;
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
  c.name = c.data = name;
  c.config.family = entries.at("family");
  c.config.layers = integer("layers");
  c.config.hidden = integer("hidden");
  c.config.heads = integer("heads");
  c.config.kv_heads = integer("kv_heads");
  c.config.ffn_width = integer("ffn_width");
  c.config.vocabulary = integer("vocabulary");
  c.config.tied = integer("tied") != 0;
  c.config.norm_eps = std::stod(entries.at("norm_eps"));
  c.micro_batch = integer("micro_batch");
  c.sequence = integer("sequence");
  c.counted = integer("counted");
  c.loss = std::stod(entries.at("loss"));
  c.micro_batches = integer("micro_batches");
  c.ignored = static_cast<std::uint64_t>(integer("ignored"));
  if (entries.contains("data")) c.data = entries.at("data");
  if (c.config.family == "bert")
    read_encoder(entries, c);
  else
    read_decoder(entries, c);
  read_experts(entries, c);
  c.batches = oracle_batches(c, 0);

  const auto values = load_oracle_floats(name + ".bin");
  auto rest = std::span(values);
  auto in = open_oracle(name + ".txt");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("tensor ")) c.tensors.push_back(read_tensor(line, kOracleSamples, rest));
  const auto elements = static_cast<std::size_t>(c.micro_batch * c.sequence * c.config.vocabulary);
  c.logits = {.name = "logits",
              .elements = elements,
              .samples = taken(rest, std::min(elements, kOracleSamples)),
              .norm = std::stod(entries.at("logits_norm"))};
  EXPECT_TRUE(rest.empty());
  return c;
}

OracleDraws load_oracle_draws(const std::string& name) {
  constexpr std::size_t kSamples = 12;
  auto drawn = load_oracle_case(name);
  drawn.micro_batches = drawn.micro_batch = 1;
  drawn.tensors.clear();
  OracleDraws draws;
  const auto values = load_oracle_floats(name + "_draws.bin");
  auto rest = std::span(values);
  auto in = open_oracle(name + "_draws.txt");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "draw") {
      words >> drawn.data;
      drawn.batches = oracle_batches(drawn, 0);
      draws.cases.push_back(drawn);
      continue;
    }
    OracleTensor tensor;
    words >> tensor.name >> tensor.elements >> draws.autocast_errors.emplace_back();
    for (auto& c : draws.cases) {
      tensor.samples = taken(rest, std::min(tensor.elements, kSamples));
      c.tensors.push_back(tensor);
    }
  }
  EXPECT_TRUE(rest.empty());
  return draws;
}

std::vector<OracleBatch> oracle_batches(const OracleCase& c, std::int64_t step) {
  std::vector<OracleBatch> batches;
  for (std::int64_t m = 0; m < c.micro_batches; ++m)
    batches.push_back(draw_batch(c, step * c.micro_batches + m));
  return batches;
}

std::vector<OracleFault> load_oracle_faults() {
  constexpr std::size_t kSamples = 16;
  std::vector<OracleFault> faults;
  read_lines(
      "faults", kSamples,
      [&](std::istringstream& words, const std::string& kind) {
        if (kind != "fault") return;
        auto& fault = faults.emplace_back();
        words >> fault.name >> fault.model >> fault.loss;
      },
      [&](OracleTensor tensor) { faults.back().tensors.push_back(std::move(tensor)); });
  return faults;
}

std::vector<OracleTraining> load_oracle_trainings() {
  std::vector<OracleTraining> trainings;
  read_lines(
      "training", kOracleSamples,
      [&](std::istringstream& words, const std::string& kind) {
        if (kind == "training") words >> trainings.emplace_back().name;
        if (kind == "step") words >> trainings.back().losses.emplace_back();
      },
      [&](OracleTensor tensor) { trainings.back().parameters.push_back(std::move(tensor)); });
  return trainings;
}

double distance(std::span<const float> values, const OracleTensor& tensor) {
  EXPECT_EQ(values.size(), tensor.elements) << tensor.name;
  const auto sample = oracle_sample(tensor.name, tensor.elements, tensor.samples.size());
  double sum = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double d =
        static_cast<double>(values[sample[i]]) - static_cast<double>(tensor.samples[i]);
    sum += d * d;
  }
  return std::sqrt(sum * static_cast<double>(tensor.elements) / static_cast<double>(sample.size()));
}

void set_oracle_parameters(Model& model) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    const auto& tensor = model.tensors()[t];
    const auto has = [&](std::string_view part) {
      return tensor.name.find(part) != std::string::npos;
    };
    const bool decides = has("q_proj") || has("k_proj") || has(".query.") || has(".key.");
    auto values = model.parameters(t);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float drawn = oracle_uniform(tensor.name, i);
      if (tensor.name.ends_with(".bias"))
        values[i] = drawn / 2;
      else if (tensor.shape.rank() == 1)
        values[i] = (drawn / 2 + 1) * (has("q_norm") ? 3.0F : 1.0F);
      else
        values[i] = drawn / (has(".gate.weight") ? 2.0F : decides ? 3.0F : 4.0F);
    }
  }
  model.parameters_changed();
}

}  // namespace isthmus::runtime
