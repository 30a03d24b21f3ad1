// The oracle vectors of tools/oracle/make_llama_vectors.py, and the hash from which both sides draw
// parameters, tokens and targets.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model.h"

namespace isthmus::runtime {

std::uint64_t oracle_hash(std::string_view name, std::uint64_t index);
// In [-1, 1), a multiple of 2^-23.
float oracle_uniform(std::string_view name, std::uint64_t index);

struct OracleTensor {
  std::string name;
  std::vector<float> gradient;  // of the summed loss, from fp64
  double norm = 0;              // L2, of the fp64 gradient
  double autocast_error = 0;    // L2, of PyTorch's bf16 autocast
};

struct OracleBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

struct OracleCase {
  std::string name;
  ModelConfig config;
  std::int64_t micro_batch = 0;
  std::int64_t sequence = 0;
  std::vector<OracleBatch> batches;
  std::int64_t counted = 0;
  double loss = 0;                    // summed
  std::vector<OracleTensor> tensors;  // ascending by name

  BatchShape shape(Precision precision) const { return {micro_batch, sequence, precision}; }
};

OracleCase load_oracle_case(const std::string& name);
std::map<std::string, std::string> load_oracle_text(const std::string& file);
std::vector<float> load_oracle_floats(const std::string& file);

// Matrices within 1/4 of 0, norm weights within 1/4 of 1.
void set_oracle_parameters(Model& model);

}  // namespace isthmus::runtime
