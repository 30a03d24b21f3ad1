#include "launcher/site_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

// The field `part.member` of a SiteFile.
template <class Part, class Member>
FieldOf<Member> field(Part SiteFile::*part, Member Part::*member) {
  return [part, member](SiteFile& file) -> Member& { return (file.*part).*member; };
}
template <class Part, class Inner, class Member>
FieldOf<Member> field(Part SiteFile::*part, Inner Part::*inner, Member Inner::*member) {
  return [part, inner, member](SiteFile& file) -> Member& { return ((file.*part).*inner).*member; };
}
template <class Part, class Choice>
ChoiceField choice_field(Part SiteFile::*part, Choice Part::*member) {
  return {
      .get = [part, member](
                 const SiteFile& file) { return static_cast<std::size_t>((file.*part).*member); },
      .set = [part, member](SiteFile& file,
                            std::size_t index) { (file.*part).*member = Choice(index); }};
}

ChoiceField family_field() {
  return {.get = [](const SiteFile&) { return std::size_t{0}; },
          .set = [](SiteFile& file, std::size_t) { file.model.config.family = "llama"; }};
}

constexpr double kSeedMax = 9007199254740991;  // exact in every reader of numbers

std::vector<SiteKey> make_keys() {
  using enum ValueKind;
  using runtime::AdamWOptions;
  using runtime::ModelConfig;
  using runtime::RateSchedule;
  constexpr auto site = &SiteFile::site;
  constexpr auto model = &SiteFile::model;
  constexpr auto config = &ModelOptions::config;
  constexpr auto data = &SiteFile::data;
  constexpr auto train = &SiteFile::train;
  constexpr auto mesh = &SiteFile::mesh;
  constexpr auto sync = &SiteFile::sync;
  constexpr auto gateway = &SiteFile::gateway;

  return {
      {.section = "site",
       .name = "name",
       .kind = name,
       .field = field(site, &SiteOptions::name),
       .meaning = "What this site is called, as the roster lists it.",
       .required = true,
       .example = "\"alpha\""},
      {.section = "site",
       .name = "run_dir",
       .kind = path,
       .field = field(site, &SiteOptions::run_dir),
       .meaning =
           "Folder of this run: checkpoints, outer state, event log, sockets. Made when it is "
           "not there; a run continues from what it holds.",
       .required = true,
       .example = "\"run\""},
      {.section = "site",
       .name = "roster",
       .kind = path,
       .field = field(site, &SiteOptions::roster),
       .meaning = "Who the sites are, signed by the operator (`isthmus roster`).",
       .absent = "the site trains alone, without a gateway",
       .example = "\"roster.toml\""},
      {.section = "site",
       .name = "operator_key",
       .kind = key,
       .field = field(site, &SiteOptions::operator_key),
       .meaning = "The operator's public key, which must have signed the roster: 64 hexadecimal "
                  "digits, or the file that holds them (`operator.key.pub`).",
       .absent = "only without a roster",
       .example = "\"operator.key.pub\""},
      {.section = "site",
       .name = "identity",
       .kind = path,
       .field = field(site, &SiteOptions::identity),
       .meaning = "This site's secret keys (`isthmus keys generate`); readable by its owner only.",
       .absent = "only without a roster",
       .example = "\"alpha.key\""},

      {.section = "model",
       .name = "family",
       .kind = choice,
       .field = family_field(),
       .choices = {"llama"},
       .meaning = "The architecture: a Llama decoder (RMSNorm, rotary positions, grouped-query "
                  "attention, SwiGLU).",
       .shared = true},
      {.section = "model",
       .name = "from",
       .kind = path,
       .field = field(model, &ModelOptions::from),
       .meaning =
           "A Hugging Face directory (config.json, model.safetensors) to start from. The other "
           "keys of this section are then read from it and must be left out.",
       .absent = "a new model, as the other keys say"},
      {.section = "model",
       .name = "layers",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::layers),
       .min = 1,
       .max = 1024,
       .unit = "blocks",
       .meaning = "Decoder blocks.",
       .absent = "only with `from`",
       .example = "6",
       .shared = true},
      {.section = "model",
       .name = "hidden",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::hidden),
       .min = 2,
       .max = 65536,
       .unit = "elements",
       .meaning = "Width of the residual stream; `heads` divides it.",
       .absent = "only with `from`",
       .example = "256",
       .shared = true},
      {.section = "model",
       .name = "heads",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::heads),
       .min = 1,
       .max = 1024,
       .unit = "heads",
       .meaning = "Query heads of the attention.",
       .absent = "only with `from`",
       .example = "8",
       .shared = true},
      {.section = "model",
       .name = "kv_heads",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::kv_heads),
       .min = 1,
       .max = 1024,
       .unit = "heads",
       .meaning = "Key and value heads; divides `heads`.",
       .absent = "as many as `heads`",
       .example = "4",
       .shared = true},
      {.section = "model",
       .name = "ffn",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::ffn_width),
       .min = 1,
       .max = 1 << 20,
       .unit = "elements",
       .meaning = "Width of the SwiGLU feed-forward layer.",
       .absent = "only with `from`",
       .example = "704",
       .shared = true},
      {.section = "model",
       .name = "vocabulary",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::vocabulary),
       .min = 2,
       .max = 1 << 24,
       .unit = "tokens",
       .meaning =
           "Number of tokens the model knows. Text is read as bytes, so 256 and a few special "
           "tokens.",
       .shared = true},
      {.section = "model",
       .name = "tied",
       .kind = flag,
       .field = field(model, config, &ModelConfig::tied),
       .meaning = "The output head is the embedding.",
       .shared = true},
      {.section = "model",
       .name = "context",
       .kind = whole_number,
       .field = field(model, config, &ModelConfig::sequence_max),
       .min = 1,
       .max = 1 << 24,
       .unit = "tokens",
       .meaning = "Longest sequence the model is meant for (max_position_embeddings)."},
      {.section = "model",
       .name = "rope_theta",
       .kind = number,
       .field = field(model, config, &ModelConfig::rope_theta),
       .min = 1,
       .max = 1e12,
       .above_min = true,
       .meaning = "Base of the rotary frequencies.",
       .shared = true},
      {.section = "model",
       .name = "norm_eps",
       .kind = number,
       .field = field(model, config, &ModelConfig::norm_eps),
       .min = 0,
       .max = 0.1,
       .above_min = true,
       .meaning = "Added to the mean square in RMSNorm.",
       .shared = true},
      {.section = "model",
       .name = "seed",
       .kind = whole_number,
       .field = field(model, &ModelOptions::seed),
       .min = 0,
       .max = kSeedMax,
       .meaning = "Of the initial parameters. Sites that differ take those the run began with."},

      {.section = "data",
       .name = "train",
       .kind = train_texts,
       .field = field(data, &DataOptions::train),
       .meaning = "Text files to train on, as bytes. `weight` (default 1) is how often a sequence "
                  "comes from the file, relative to the others.",
       .required = true,
       .example =
           "[{ path = \"data/en.bin\", weight = 1.0 }, { path = \"data/de.bin\", weight = 1.0 }]"},
      {.section = "data",
       .name = "held_out",
       .kind = held_out_texts,
       .field = field(data, &DataOptions::held_out),
       .meaning = "Text files never trained on, whose loss is reported under `name`.",
       .absent = "no evaluation",
       .example = "[{ name = \"en\", path = \"data/en.held.bin\" }]"},

      {.section = "train",
       .name = "micro_batch",
       .kind = whole_number,
       .field = field(train, &TrainOptions::micro_batch),
       .min = 1,
       .max = 65536,
       .unit = "sequences",
       .meaning = "Sequences that one rank computes at once.",
       .example = "8"},
      {.section = "train",
       .name = "accumulation",
       .kind = whole_number,
       .field = field(train, &TrainOptions::accumulation),
       .min = 1,
       .max = 65536,
       .unit = "micro-batches",
       .meaning = "Micro-batches whose gradients a rank adds up for one inner step. An inner step "
                  "trains on micro_batch x accumulation x mesh.data sequences."},
      {.section = "train",
       .name = "sequence",
       .kind = whole_number,
       .field = field(train, &TrainOptions::sequence),
       .min = 1,
       .max = 1 << 20,
       .unit = "tokens",
       .meaning = "Length of a sequence; at most model.context.",
       .example = "256"},
      {.section = "train",
       .name = "precision",
       .kind = choice,
       .field = choice_field(train, &TrainOptions::precision),
       .choices = {"f32", "bf16"},
       .meaning =
           "Format in which matrices are multiplied. Parameters, sums, norms and gradients are "
           "f32 in both.",
       .example = "\"bf16\""},
      {.section = "train",
       .name = "learning_rate",
       .kind = number,
       .field = field(train, &TrainOptions::rate, &RateSchedule::peak),
       .min = 0,
       .max = 10,
       .above_min = true,
       .meaning = "Of AdamW, after the warm-up; from there it falls as a cosine to the end of the "
                  "run.",
       .example = "0.002"},
      {.section = "train",
       .name = "warmup_steps",
       .kind = whole_number,
       .field = field(train, &TrainOptions::rate, &RateSchedule::warmup_steps),
       .min = 0,
       .max = 1e9,
       .unit = "inner steps",
       .meaning = "Over which the learning rate rises linearly.",
       .example = "20"},
      {.section = "train",
       .name = "final_rate",
       .kind = number,
       .field = field(train, &TrainOptions::rate, &RateSchedule::final_fraction),
       .min = 0,
       .max = 1,
       .meaning = "Learning rate at the end of the run, as a share of learning_rate."},
      {.section = "train",
       .name = "weight_decay",
       .kind = number,
       .field = field(train, &TrainOptions::adamw, &AdamWOptions::weight_decay),
       .min = 0,
       .max = 10,
       .meaning = "Of AdamW, per unit of learning rate; on matrices, never on norms."},
      {.section = "train",
       .name = "beta_1",
       .kind = number,
       .field = field(train, &TrainOptions::adamw, &AdamWOptions::beta_1),
       .min = 0,
       .max = 0.999999,
       .meaning = "Decay of AdamW's first moment per step."},
      {.section = "train",
       .name = "beta_2",
       .kind = number,
       .field = field(train, &TrainOptions::adamw, &AdamWOptions::beta_2),
       .min = 0,
       .max = 0.9999999,
       .meaning = "Decay of AdamW's second moment per step."},
      {.section = "train",
       .name = "epsilon",
       .kind = number,
       .field = field(train, &TrainOptions::adamw, &AdamWOptions::eps),
       .min = 0,
       .max = 1,
       .above_min = true,
       .meaning = "Added to the root of AdamW's second moment."},
      {.section = "train",
       .name = "clip",
       .kind = number,
       .field = field(train, &TrainOptions::adamw, &AdamWOptions::gradient_norm_max),
       .min = 0,
       .max = 1e9,
       .meaning = "Longer gradients are scaled down to this norm; 0: never."},
      {.section = "train",
       .name = "threads",
       .kind = whole_number,
       .field = field(train, &TrainOptions::threads),
       .min = 0,
       .max = 4096,
       .unit = "threads",
       .meaning = "Threads of one rank; 0: one for each CPU it may use."},
      {.section = "train",
       .name = "cpus",
       .kind = ValueKind::cpus,
       .field = field(train, &TrainOptions::cpus),
       .meaning = "CPUs of this site's ranks, shared out evenly; threads are pinned to them.",
       .absent = "all that the system gives, shared out, not pinned"},
      {.section = "train",
       .name = "checkpoint_every",
       .kind = whole_number,
       .field = field(train, &TrainOptions::checkpoint_every),
       .min = 0,
       .max = 1e9,
       .unit = "inner steps",
       .meaning =
           "Distance of checkpoints; 0: one after every outer step. There is always one at the "
           "end and when the run is stopped."},
      {.section = "train",
       .name = "checkpoints_kept",
       .kind = whole_number,
       .field = field(train, &TrainOptions::checkpoints_kept),
       .min = 1,
       .max = 1e6,
       .unit = "checkpoints",
       .meaning = "Older ones are removed."},
      {.section = "train",
       .name = "seed",
       .kind = whole_number,
       .field = field(train, &TrainOptions::seed),
       .min = 0,
       .max = kSeedMax,
       .meaning = "Of the order of the data. Sites with the same text should differ in it."},

      {.section = "mesh",
       .name = "data",
       .kind = whole_number,
       .field = field(mesh, &intra::MeshShape::data),
       .min = 1,
       .max = 1024,
       .unit = "ranks",
       .meaning =
           "Replicas of the model that see different sequences. More than one rank is started "
           "through mpirun.",
       .example = "1"},
      {.section = "mesh",
       .name = "pipeline",
       .kind = whole_number,
       .field = field(mesh, &intra::MeshShape::pipeline),
       .min = 1,
       .max = 1,
       .unit = "stages",
       .meaning = "Stages of consecutive layers."},
      {.section = "mesh",
       .name = "tensor",
       .kind = whole_number,
       .field = field(mesh, &intra::MeshShape::tensor),
       .min = 1,
       .max = 1,
       .unit = "slices",
       .meaning = "Slices of each matrix."},
      {.section = "mesh",
       .name = "expert",
       .kind = whole_number,
       .field = field(mesh, &intra::MeshShape::expert),
       .min = 1,
       .max = 1,
       .unit = "groups",
       .meaning = "Groups of experts."},

      {.section = "sync",
       .name = "inner_steps",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::inner_steps),
       .min = 1,
       .max = 1e6,
       .unit = "inner steps",
       .meaning = "Between two outer steps.",
       .required = true,
       .example = "10",
       .shared = true},
      {.section = "sync",
       .name = "outer_steps",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::outer_steps),
       .min = 1,
       .max = 1e6,
       .unit = "outer steps",
       .meaning = "Length of the run.",
       .required = true,
       .example = "24",
       .shared = true},
      {.section = "sync",
       .name = "outer",
       .kind = choice,
       .field = choice_field(sync, &SyncOptions::outer),
       .choices = {"average", "nesterov"},
       .meaning = "The outer optimizer: the weighted average of the sites, or Nesterov momentum on "
                  "it, which learns more per step in long runs and lags in short ones.",
       .example = "\"average\"",
       .shared = true},
      {.section = "sync",
       .name = "outer_rate",
       .kind = number,
       .field = field(sync, &SyncOptions::outer_rate),
       .min = 0,
       .max = 10,
       .above_min = true,
       .meaning = "Learning rate of the Nesterov outer optimizer.",
       .shared = true},
      {.section = "sync",
       .name = "outer_momentum",
       .kind = number,
       .field = field(sync, &SyncOptions::outer_momentum),
       .min = 0,
       .max = 0.9999,
       .meaning = "Momentum of the Nesterov outer optimizer.",
       .shared = true},
      {.section = "sync",
       .name = "codec",
       .kind = choice,
       .field = choice_field(sync, &SyncOptions::codec),
       .choices = {"none", "bf16", "int8"},
       .meaning = "How pseudo-gradients travel: f32, half of that, or a quarter (int8 in blocks of "
                  "256). What the codec loses is kept back and added to the next step; zstd "
                  "follows it where it gains.",
       .example = "\"int8\"",
       .shared = true},
      {.section = "sync",
       .name = "min_sites",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::min_sites),
       .min = 1,
       .max = 1e6,
       .unit = "sites",
       .meaning = "Contributions that make an outer step worth committing. It is no quorum: a "
                  "majority of the voters is always needed as well.",
       .example = "2",
       .shared = true},
      {.section = "sync",
       .name = "absent_steps",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::absent_steps),
       .min = 1,
       .max = 1e6,
       .unit = "outer steps",
       .meaning =
           "A site without a part in so many steps in a row is no longer waited for, until it "
           "returns.",
       .shared = true},
      {.section = "sync",
       .name = "max_lead",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::max_lead),
       .min = 1,
       .max = 1000,
       .unit = "times inner_steps",
       .meaning = "How far a site that is cut off trains on past the last agreed state before it "
                  "waits.",
       .shared = true},
      {.section = "sync",
       .name = "straggler_wait",
       .kind = duration,
       .field = field(sync, &SyncOptions::straggler_wait),
       .min = 0,
       .max = 30.0 * 86400 * 1e9,
       .meaning = "How long a step waits for a site that is late but makes progress."},

      {.section = "gateway",
       .name = "listen",
       .kind = address,
       .field = field(gateway, &GatewayOptions::listen),
       .meaning = "Where other sites reach this one; bulk data use the next port as well.",
       .absent = "this site only dials",
       .example = "\"0.0.0.0:7700\""},
      {.section = "gateway",
       .name = "rate_limit",
       .kind = rate,
       .field = field(gateway, &GatewayOptions::rate_limit),
       .min = 8000,
       .max = 1e13,
       .meaning = "Over all bytes this gateway sends to other sites."},
      {.section = "gateway",
       .name = "metrics",
       .kind = address,
       .field = field(gateway, &GatewayOptions::metrics),
       .meaning = "Where Prometheus reads metrics over HTTP. Unauthenticated: keep it on loopback.",
       .absent = "no endpoint",
       .example = "\"127.0.0.1:9464\""},
      {.section = "gateway",
       .name = "workers",
       .kind = whole_number,
       .field = field(gateway, &GatewayOptions::workers),
       .min = 1,
       .max = 1024,
       .unit = "threads",
       .meaning = "Threads that encode, seal and reduce."},
      {.section = "gateway",
       .name = "cpus",
       .kind = ValueKind::cpus,
       .field = field(gateway, &GatewayOptions::cpus),
       .meaning = "CPUs the gateway may use.",
       .absent = "all that the system gives"},
      {.section = "gateway",
       .name = "memory",
       .kind = size,
       .field = field(gateway, &GatewayOptions::memory),
       .min = 64.0 * (1 << 20),
       .max = 1e15,
       .meaning = "Memory the gateway may use: 16 bytes per parameter, and the coded contributions "
                  "of all sites."},
  };
}

constexpr std::array kSections = {
    SiteSection{"site", "This site."},
    SiteSection{"model", "The model that all sites train."},
    SiteSection{"data", "This site's own text. It never leaves the site."},
    SiteSection{"train", "Inner steps: how this site trains between two outer steps."},
    SiteSection{"mesh", "The ranks of this site, as a grid of data x pipeline x tensor x expert."},
    SiteSection{"sync",
                "Outer steps: how sites come together. Keys marked shared must be equal at all of "
                "them."},
    SiteSection{"gateway", "The process that speaks with the other sites."},
};

// A number as TOML writes it, without a needless exponent or fraction.
std::string plain_number(double value) {
  if (value == static_cast<double>(static_cast<std::int64_t>(value)) && std::abs(value) < 1e16)
    return fmt::format("{}", static_cast<std::int64_t>(value));
  return fmt::format("{}", value);
}

std::string toml_number(double value) {
  std::string text = plain_number(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(std::string_view text) { return fmt::format("\"{}\"", text); }

std::string bound_text(ValueKind kind, double bound) {
  const auto whole = static_cast<std::int64_t>(bound);
  if (kind == ValueKind::size) return quoted(exact_bytes(whole));
  if (kind == ValueKind::rate) return quoted(exact_rate(whole));
  if (kind == ValueKind::duration) return quoted(exact_duration(whole));
  return plain_number(bound);
}

std::string choices_text(std::span<const std::string_view> choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += quoted(choices[i]);
  }
  return text;
}

struct ValueText {
  const SiteKey& key;
  SiteFile& file;

  std::string operator()(const FieldOf<bool>& get) const { return get(file) ? "true" : "false"; }
  std::string operator()(const FieldOf<int>& get) const { return fmt::format("{}", get(file)); }
  std::string operator()(const FieldOf<double>& get) const { return toml_number(get(file)); }
  std::string operator()(const FieldOf<std::string>& get) const { return quoted(get(file)); }
  std::string operator()(const FieldOf<std::int64_t>& get) const {
    const std::int64_t value = get(file);
    if (key.kind == ValueKind::size) return quoted(exact_bytes(value));
    if (key.kind == ValueKind::rate) return quoted(exact_rate(value));
    if (key.kind == ValueKind::duration) return quoted(exact_duration(value));
    return fmt::format("{}", value);
  }
  std::string operator()(const ChoiceField& choice) const {
    return quoted(key.choices[choice.get(file)]);
  }
  template <class Other>
  std::string operator()(const Other&) const {
    return "[]";
  }
};

// `text` broken at spaces to lines of at most `width`, each with `prefix`.
std::string wrapped(std::string_view text, std::string_view prefix, std::size_t width) {
  std::string out, line;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const auto word = text.substr(0, end);
    if (!line.empty() && prefix.size() + line.size() + 1 + word.size() > width) {
      out += fmt::format("{}{}\n", prefix, line);
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!line.empty()) out += fmt::format("{}{}\n", prefix, line);
  return out;
}

// "Default: 8." or what leaving the key out means.
std::string default_sentence(const SiteKey& key) {
  if (key.required) return "Required.";
  if (!key.absent.empty()) return fmt::format("Left out: {}.", key.absent);
  return fmt::format("Default: {}.", key.default_text());
}

std::string comment_of(const SiteKey& key) {
  std::string text{key.meaning};
  text += fmt::format(" Value: {}.", key.allowed());
  text += ' ';
  text += default_sentence(key);
  if (key.shared) text += " Shared by all sites.";
  return text;
}

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

// A file with `values`, and what `otherwise` gives for the other keys ("": left out).
template <class Otherwise>
std::string site_file_text(const SiteValues& values, const Otherwise& otherwise) {
  std::string out =
      "# A site of isthmus. `isthmus check FILE` checks it; docs/configuration.md has all keys.\n"
      "# Relative paths are relative to the folder of this file.\n";
  for (const auto& section : site_sections()) {
    std::string keys;
    for (const auto& key : site_keys()) {
      if (key.section != section.name) continue;
      const auto given = values.find(key.full_name());
      const auto line = given != values.end() ? fmt::format("{} = {}\n", key.name, given->second)
                                              : otherwise(key);
      if (!line.empty()) keys += wrapped(comment_of(key), "# ", 100) + line;
    }
    if (!keys.empty())
      out += fmt::format("\n{}[{}]\n{}", wrapped(section.meaning, "# ", 100), section.name, keys);
  }
  return out;
}

constexpr std::string_view kDocumentHead = R"(# Configuration

<!-- Written by `isthmus check --document` from launcher/site_schema.cc; a test compares them. -->

A site is described by one TOML file. `isthmus init NAME` writes one to start from, `isthmus check FILE` tells every
fault at once with its place, what is allowed and the nearest name for a typo, and says what the file means: steps,
memory, traffic, and what happens when a site is lost.

- Relative paths are relative to the folder of the file.
- Sizes, rates and durations are text with a unit: `"64 MiB"` (B, kB, MB, GB, KiB, MiB, GiB), `"20 Mbit/s"` (bit/s,
  kbit/s, Mbit/s, Gbit/s, kB/s, MB/s, KiB/s, MiB/s, or `"unlimited"`), `"60 s"` (ns, us, ms, s, min, h, d; `"1 h 30 min"`).
- *Shared* keys must be equal at all sites of a run: they are part of the fingerprint that gateways compare before they
  exchange anything. A site that differs is refused, and both ends name the key.
- Any key can be replaced for one command: `isthmus launch alpha.toml --set sync.outer_steps=8`.

)";

constexpr std::string_view kDocumentTail =
    R"(## What the sites of a run agree on, and when a site is lost

A step is committed when a majority of **all voters** accepts it, reachable or not. `min_sites` says something else: how
many contributions make a step worth committing. With two voters, neither goes on without the other; `voter = false` at
one of them (in the roster) lets the other go on alone, if `min_sites` is 1. With three voters any one may be lost. A
site without a majority trains on for `max_lead` x `inner_steps` past the last agreed state and then waits; its work is
used when it returns. `isthmus check` says which of these a file and its roster mean.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed; the message says what to do |
| 2 | the command line, a site file or a roster has a fault; starting again cannot help |
| 3 | stopped on request (Ctrl-C, SIGTERM) with everything saved; starting again continues |
| 4 | the gateway or another site is not there; starting again may help |
| 5 | a device or a collective broke; `launch` starts the ranks again from the gateway's state |
)";

}  // namespace

std::string SiteKey::full_name() const { return fmt::format("{}.{}", section, name); }

std::string SiteKey::allowed() const {
  switch (kind) {
    case ValueKind::flag:
      return "true or false";
    case ValueKind::whole_number:
    case ValueKind::number: {
      if (min == max) return fmt::format("{} in this version", plain_number(min));
      const auto range = fmt::format("{}{} to {}", above_min ? "above " : "", plain_number(min),
                                     plain_number(max));
      return unit.empty() ? range : fmt::format("{} {}", range, unit);
    }
    case ValueKind::text:
      return "text";
    case ValueKind::name:
      return "1 to 64 letters, digits, '.', '_' or '-'";
    case ValueKind::key:
      return "64 hexadecimal digits or a path";
    case ValueKind::path:
      return "a path";
    case ValueKind::choice:
      return choices_text(choices);
    case ValueKind::rate:
      return fmt::format("{} to {} or \"unlimited\"", bound_text(kind, min), bound_text(kind, max));
    case ValueKind::size:
    case ValueKind::duration:
      return fmt::format("{} to {}", bound_text(kind, min), bound_text(kind, max));
    case ValueKind::address:
      return "\"host:port\"";
    case ValueKind::cpus:
      return "a list like \"0-3,8\"";
    case ValueKind::train_texts:
      return "a list of { path, weight }";
    case ValueKind::held_out_texts:
      return "a list of { name, path }";
  }
  return {};
}

std::string SiteKey::value_text(const SiteFile& file) const {
  SiteFile copy = file;  // fields give a mutable reference
  return std::visit(ValueText{*this, copy}, field);
}

std::string SiteKey::default_text() const {
  return required || !absent.empty() ? std::string() : value_text(SiteFile{});
}

std::span<const SiteSection> site_sections() { return kSections; }

std::span<const SiteKey> site_keys() {
  static const std::vector<SiteKey> keys = make_keys();
  return keys;
}

std::optional<std::vector<int>> parse_cpus(std::string_view text) {
  constexpr int kCpuMax = 8191;
  std::vector<int> cpus;
  const auto take = [&text](int& number) {
    std::size_t digits = 0;
    number = 0;
    while (digits < text.size() && digits < 5 && text[digits] >= '0' && text[digits] <= '9')
      number = 10 * number + (text[digits++] - '0');
    text.remove_prefix(digits);
    return digits > 0 && number <= kCpuMax;
  };
  while (true) {
    int first = 0, last = 0;
    if (!take(first)) return std::nullopt;
    last = first;
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      if (!take(last)) return std::nullopt;
    }
    if (last < first || (!cpus.empty() && first <= cpus.back())) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) return cpus;
    if (text.front() != ',') return std::nullopt;
    text.remove_prefix(1);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
}

std::optional<HostPort> parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > 255) return std::nullopt;
  auto host = text.substr(0, colon);
  const auto port_text = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port_text.empty() || port_text.size() > 5) return std::nullopt;
  int port = 0;
  for (const char c : port_text) {
    if (c < '0' || c > '9') return std::nullopt;
    port = 10 * port + (c - '0');
  }
  if (port < 1 || port > 65535) return std::nullopt;
  const bool fits = std::all_of(host.begin(), host.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || (bracketed && (c == ':' || c == '%'));
  });
  if (!fits && host != "*") return std::nullopt;
  return HostPort{std::string(host), static_cast<std::uint16_t>(port)};
}

std::string configuration_document() {
  std::string out{kDocumentHead};
  for (const auto& section : site_sections()) {
    out += fmt::format("## [{}]\n\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                       section.name, section.meaning);
    for (const auto& key : site_keys()) {
      if (key.section != section.name) continue;
      const std::string otherwise = key.required          ? "required"
                                    : !key.absent.empty() ? std::string(key.absent)
                                                          : fmt::format("`{}`", key.default_text());
      out += fmt::format("| `{}` | {} | {} | {}{} |\n", key.name, markdown_cell(key.allowed()),
                         markdown_cell(otherwise), markdown_cell(key.meaning),
                         key.shared ? " *Shared.*" : "");
    }
    out += '\n';
  }
  return out += kDocumentTail;
}

std::string starting_site_file(const SiteValues& values) {
  return site_file_text(values, [](const SiteKey& key) {
    if (!key.example.empty()) return fmt::format("{} = {}\n", key.name, key.example);
    const auto otherwise = key.default_text();
    return fmt::format("# {} = {}\n", key.name, otherwise.empty() ? "…" : otherwise);
  });
}

std::string explained_site_file(const SiteValues& values) {
  return site_file_text(values, [](const SiteKey&) { return std::string(); });
}

}  // namespace isthmus::launcher
