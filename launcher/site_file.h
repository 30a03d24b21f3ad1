// SiteFile: all that one site's TOML file says, in plain values. Keys map onto these structs in one
// place, the table in launcher/site_schema.h; what else must hold between them is
// launcher/site_check.h.
//
// Every field: meaning, unit, default (none: the file must say). Relative paths are relative to the
// folder of the file, and come out joined with it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "compress/codec.h"
#include "inter/sync_options.h"
#include "intra/mesh.h"
#include "launcher/fault.h"
#include "launcher/rate_windows.h"
#include "runtime/evaluate.h"
#include "runtime/fine_tuning.h"
#include "runtime/inner_optimizer.h"
#include "runtime/model_config.h"

namespace isthmus::launcher {

// [site]
struct SiteOptions {
  std::string name;          // as the roster lists it
  std::string run_dir;       // folder of checkpoints, outer state, event log, sockets
  std::string roster;        // file, signed by the operator; "": the site trains alone
  std::string operator_key;  // 64 hexadecimal digits, or the file that holds them
  std::string identity;      // file with the site's secret keys
};

// [model]
struct ModelOptions {
  std::string from;             // Hugging Face directory; "": a new model, as the other keys say
  runtime::ModelConfig config;  // vocabulary 260 (bytes and four special tokens)
  std::int64_t seed = 0;        // of the initial parameters
  // tokenizer.json, SentencePiece model, or a folder with one; "": that of `from`, else bytes
  std::string tokenizer;

  ModelOptions() { config.vocabulary = 260; }
};

struct TrainText {
  std::string path;
  double weight = 1;  // chance of a sequence, relative to the other files
};

// [lora]
struct LoraOptions {
  std::int64_t rank = 0;  // 0: all of the model trains, but for train.freeze
  double alpha = 0;       // 0: twice the rank
  std::vector<std::string> targets = {"all-linear"};
  std::string from;  // directory of an adapter to begin with; "": new ones
};

enum class TokenDtype { automatic, uint16, uint32 };

// [data]
struct DataOptions {
  std::vector<TrainText> train;
  std::vector<runtime::HeldOutText> held_out;
  TokenDtype dtype = TokenDtype::automatic;  // of files of tokens that do not say it themselves
  runtime::Documents documents = runtime::Documents::joined;
};

// [masking]
struct MaskingOptions {
  double share = 0.15;      // of the tokens that may be hidden
  std::int64_t token = -1;  // what stands in their place; -1: the tokenizer's own mask token
};

// [train]
struct TrainOptions {
  std::int64_t micro_batch = 8;   // sequences a rank computes at once
  std::int64_t accumulation = 1;  // micro-batches a rank adds up for one inner step
  std::int64_t sequence = 256;    // tokens of a sequence
  runtime::Precision precision = runtime::Precision::bf16;
  runtime::Recompute recompute = runtime::Recompute::off;
  std::vector<std::string> freeze;         // patterns of tensors that do not train
  runtime::RateSchedule rate;              // rate.steps: inner_steps × outer_steps
  std::vector<runtime::RateFactor> rates;  // of some tensors
  double spike = 0;                 // a step with so many times the usual gradient norm is skipped
  std::int64_t skipped_steps = 10;  // so many in a row end the training
  runtime::AdamWOptions adamw;      // as runtime/inner_optimizer.h
  std::int64_t threads = 0;         // per rank; 0: one per CPU it may use
  std::vector<int> cpus;            // of all ranks together; empty: whatever the system gives
  std::int64_t checkpoint_every = 0;  // inner steps; 0: sync.inner_steps
  Nanoseconds checkpoint_after = 0;   // after so long at the latest; 0: however long
  std::int64_t checkpoints_kept = 2;
  std::int64_t evaluate_every = 0;  // inner steps; 0: never
  std::int64_t evaluate_sequences = 24;
  bool tensorboard = false;  // event files in the run's folder
  std::int64_t seed = 0;     // of the order of the data
};

// [sync]
struct SyncOptions {
  std::int64_t inner_steps = 0;  // inner steps between two outer steps
  std::int64_t outer_steps = 0;  // outer steps of the whole run
  inter::OuterRuleKind outer = inter::OuterRuleKind::average;
  double outer_rate = 0.7;      // nesterov only
  double outer_momentum = 0.9;  // nesterov only
  compress::CodecId codec = compress::CodecId::int8;
  std::int64_t min_sites = 1;     // parts that make a step worth committing
  std::int64_t absent_steps = 3;  // a member absent from so many records in a row is dropped
  std::int64_t max_lead = 1;      // how far a separated site trains on, in times inner_steps
  // For a member whose heartbeats show progress, at most; below 0: as inter/straggler_wait.h
  // learns.
  Nanoseconds straggler_wait = -1;
};

// [gateway]
struct GatewayOptions {
  std::string listen;               // "host:port"; bulk is the next port; "": this site only dials
  std::int64_t rate_limit = 0;      // bits per second over all that it sends; 0: unlimited
  std::vector<RateWindow> windows;  // hours with another rate_limit
  std::string zone;                 // of those hours; "": this machine's
  bool polite = false;              // bulk yields to whoever else uses the line
  std::string congestion_control = "bbr";  // of TCP; "system": as the machine does it anyway
  std::int64_t bulk_connections = 128;     // to one other site, at most
  std::int64_t receive_window = std::int64_t{256} << 20;  // bytes under way from a site, at most
  std::string metrics;                          // "host:port" of the Prometheus endpoint; "": none
  std::int64_t workers = 1;                     // threads that encode, seal and reduce
  std::vector<int> cpus;                        // of the gateway; empty: whatever the system gives
  std::int64_t memory = std::int64_t{4} << 30;  // bytes shared with ranks, at most

  // The lowest rate that ever holds; 0: never any.
  std::int64_t rate_limit_min() const;
};

struct SiteFile {
  SiteOptions site;
  ModelOptions model;
  runtime::RouterOptions experts = {.balance = 0.001};  // as transformers has it
  LoraOptions lora;
  DataOptions data;
  MaskingOptions masking;
  TrainOptions train;
  intra::MeshShape mesh;
  SyncOptions sync;
  GatewayOptions gateway;

  bool alone() const { return site.roster.empty(); }
  runtime::FineTuning fine_tuning() const {
    return {.frozen = train.freeze,
            .lora = {.rank = lora.rank,
                     .alpha = lora.alpha > 0 ? lora.alpha : 2 * static_cast<double>(lora.rank),
                     .targets = lora.targets},
            .base = model.from};
  }
  std::int64_t inner_steps_total() const { return sync.inner_steps * sync.outer_steps; }
  // Of one inner step of the whole site.
  std::int64_t tokens_per_inner_step() const {
    return train.micro_batch * train.accumulation * train.sequence * mesh.data;
  }
};

// A site file as written: its values, and where each stands.
struct SiteText {
  std::string path;         // as the user gave it
  std::string source = {};  // the file's text, for excerpts
  SiteFile file = {};
  std::map<std::string, Region, std::less<>> regions =
      {};  // "sync.min_sites", "sync", "data.train[0]"
  Faults faults = {};
  bool is_toml = false;  // false: nothing could be read, `faults` says why

  // The user wrote this key.
  bool written(std::string_view key) const { return regions.find(key) != regions.end(); }
  // Of the key, else of its section, else the file's start.
  Region region(std::string_view key) const;
  std::string fault_text() const { return faults.text(path, source); }
};

inline constexpr std::size_t kSiteFileBytesMax = std::size_t{1} << 20;

// Reads and checks each key by itself; a value with a fault keeps its default. Never fails: what is
// wrong is in `faults`. `overrides` ("section.key=value") replace what the text says.
SiteText parse_site_text(std::string path, std::string source,
                         std::span<const std::string> overrides = {});

// The same from a file. Errors: invalid_argument, when the file cannot be read.
Result<SiteText> read_site_file(const std::string& path,
                                std::span<const std::string> overrides = {});

}  // namespace isthmus::launcher
