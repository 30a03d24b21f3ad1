// Where the training of a site stands, besides model and optimizer: kept in checkpoints, shared by
// its ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/byte_stream.h"

namespace isthmus::runtime {

struct Progress {
  std::int64_t inner_step = 0;              // steps done
  std::uint64_t data_position = 0;          // samples drawn by all ranks together
  std::uint64_t tokens = 0;                 // trained, by all ranks together
  std::uint64_t seed = 0;                   // of the run's data: TrainOptions::seed
  std::string data_digest = {};             // TextDataset::digest(), hex
  std::string frozen_digest = {};           // of the parameters that do not train, hex; "": all do
  std::uint64_t skipped_steps = 0;          // that changed nothing
  std::vector<double> gradient_norms = {};  // of the last steps: SpikeGuard's, where there is one

  // With the lowest held-out loss so far: the mean over texts of HeldOutLoss::bits(). Step 0: none
  // yet.
  std::int64_t best_step = 0;
  double best_bits = 0;

  // In a federation: the state the parameters are based on, and what was trained upon it.
  std::uint64_t outer_step = 0;
  std::string record = {};         // hash of its record, hex; "" when alone
  std::string run = {};            // of which that is a record, hex
  std::int64_t steps_since = 0;    // inner steps since the last contribution
  std::uint64_t tokens_since = 0;  // and the tokens in them
  // What was handed over for the next state: still this site's when the gateway never had it.
  std::int64_t handed_steps = 0;
  std::uint64_t handed_tokens = 0;

  bool operator==(const Progress&) const = default;
};

// Between processes of one binary, which trust each other.
Bytes encode(const Progress& progress);
Progress decode_progress(std::span<const std::byte> bytes);

}  // namespace isthmus::runtime
