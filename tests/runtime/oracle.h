// The oracle vectors of tools/oracle/make_model_vectors.py, and the hash from which both sides
// draw parameters, tokens and targets.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model.h"

namespace isthmus::runtime {

std::uint64_t oracle_hash(std::string_view name, std::uint64_t index);
// In [-1, 1), a multiple of 2^-23.
float oracle_uniform(std::string_view name, std::uint64_t index);

// At most `count` elements of a tensor, by which it is compared: all of a small one.
std::vector<std::size_t> oracle_sample(std::string_view name, std::size_t elements,
                                       std::size_t count);

struct OracleTensor {
  std::string name;
  std::size_t elements = 0;
  std::vector<float> samples;  // of the gradient of the summed loss, from fp64: oracle_sample()
  double norm = 0;             // L2, of all of the fp64 gradient
  double autocast_error = 0;   // L2, of PyTorch's bf16 autocast
};

// ‖values − tensor‖, estimated from the samples; exact for a tensor that is no larger than they
// are.
double distance(std::span<const float> values, const OracleTensor& tensor);

struct OracleBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> document_starts = {};  // of a padded case: what is behind is another
  std::vector<std::uint64_t> row_keys = {};
};

struct OracleCase {
  std::string name;
  std::string data;  // the name that tokens and targets are drawn by
  ModelConfig config;
  RouterOptions router;
  std::int64_t micro_batch = 0;
  std::int64_t sequence = 0;
  std::int64_t micro_batches = 0;
  std::uint64_t ignored = 0;  // one target of so many; 0: none
  bool padded = false;        // rows end in what is no part of their text
  std::vector<OracleBatch> batches;
  std::int64_t counted = 0;
  double loss = 0;    // summed
  double margin = 0;  // by which a token's last expert was chosen: of logits, in the closest case
  double balance_loss = 0, z_loss = 0;  // of routers, summed, without their factors
  std::vector<OracleTensor> tensors;    // ascending by name
  OracleTensor logits;                  // of the first micro-batch

  BatchShape shape(Precision precision) const {
    return {.micro_batch = micro_batch,
            .sequence = sequence,
            .precision = precision,
            .documents = padded ? Documents::apart : Documents::joined,
            .router = router};
  }
};

inline constexpr std::size_t kOracleSamples = 256;  // of each tensor

OracleCase load_oracle_case(const std::string& name);

// A case of experts again with other tokens and targets, of one sequence each, so few that no
// choice is a near tie. In bf16 what a single case comes to is chance; together they average it.
struct OracleDraws {
  std::vector<OracleCase> cases;  // of their tensors the samples alone
  // Of each tensor, by the samples: the L2 error of the gradients of all cases.
  std::vector<double> autocast_errors;
};
OracleDraws load_oracle_draws(const std::string& name);

// The same case, computed wrongly in one place: loss and tensors differ.
struct OracleFault {
  std::string name, model;  // of the fault and of the case
  double loss = 0;
  std::vector<OracleTensor> tensors;
};
std::vector<OracleFault> load_oracle_faults();

// A hundred steps of training of a case in fp64: the mean loss of each, and the parameters in the
// end.
struct OracleTraining {
  std::string name;
  std::vector<double> losses;
  std::vector<OracleTensor> parameters;
};
std::vector<OracleTraining> load_oracle_trainings();
// What a step of training learns from; of step 0 it is OracleCase::batches.
std::vector<OracleBatch> oracle_batches(const OracleCase& c, std::int64_t step);

std::map<std::string, std::string> load_oracle_text(const std::string& file);
std::vector<float> load_oracle_floats(const std::string& file);

// Queries and keys large enough that attention has peaks, routers that experts are chosen clearly,
// norm weights away from 1, biases from 0.
void set_oracle_parameters(Model& model);

}  // namespace isthmus::runtime
