// Report: what a run came to, for people at its end and for programs in report.json.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inter/record.h"
#include "launcher/traffic.h"
#include "runtime/model_config.h"

namespace isthmus::launcher {

struct HeldOutReport {
  std::string name;                   // "en"
  bool per_token = false;             // what its tokens stand for is not known; else per byte
  std::optional<double> before = {};  // bits; none: of a model that is elsewhere
  double after = 0;
  std::string prompt = {}, generated = {};  // "": nothing was generated
};

// One site, as far as its run has come.
struct SiteReport {
  std::string site;
  std::int64_t outer_steps = 0, outer_steps_planned = 0;
  std::int64_t inner_steps = 0;
  // Where it is masked_tokens, all tokens here are hidden ones, and held-out losses are of those.
  runtime::Objective objective = runtime::Objective::next_token;
  std::uint64_t tokens = 0;  // in its outer steps; of a site that trains alone, in its model
  std::uint64_t tokens_trained = 0;  // also what a crash lost, or no outer step names yet
  double tokens_per_second = 0;      // while it trained, waiting included
  bool initial_replaced = false;     // its own first parameters were never used
  std::vector<HeldOutReport> held_out = {};
  Traffic traffic = {};                          // empty for a site that trains alone
  std::optional<std::uint64_t> state_step = {};  // none for a site that trains alone
  std::string state_root = {};               // hex: sites whose roots are equal hold the same bits
  std::string checkpoints, events, metrics;  // where they are
};

struct Report {
  std::vector<SiteReport> sites;
  std::vector<SiteReport> controls;  // trained alone, to compare
};

std::string to_json(const Report& report);
std::string to_text(const Report& report);

// Steps, tokens and speed, from what the ranks wrote (runtime/metrics_log.h). From the end of one
// process to the first step of the next no time counts.
void read_metrics(const std::string& path, std::int64_t inner_steps_per_outer, SiteReport& out);

// Outer steps, and the site's tokens in them, as they were decided.
void read_records(std::span<const inter::Certificate> records, std::uint32_t site, SiteReport& out);

}  // namespace isthmus::launcher
