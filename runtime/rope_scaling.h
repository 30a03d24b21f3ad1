// RopeScaling: how rotary frequencies are stretched, so that a model can read more positions than
// it first learnt. A head of d elements has d/2 frequencies theta^(-2i/d); a kind changes them, and
// with YaRN the size of what is rotated too:
//
//   linear  all divided by `factor`                            (Chen et al. 2023)
//   llama3  long waves divided by `factor`, short ones kept,   (Llama 3.1, Hugging Face's
//           a ramp over the frequency between                   LlamaConfig)
//   yarn    the same with a ramp over i, and the vectors       (Peng et al. 2023, sections 3.2 and
//           scaled by an attention factor                       3.4)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace isthmus::runtime {

struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;                    // longer sequences by so much; at least 1
  std::int64_t original_positions = 0;  // llama3, yarn: that the model first learnt
  double low_frequency_factor = 1;   // llama3: waves longer than original_positions / this are long
  double high_frequency_factor = 4;  // llama3: those shorter than original_positions / this, short
  double beta_fast = 32;             // yarn: turns over original_positions above which i is kept
  double beta_slow = 1;              // yarn: and below which it is divided
  bool truncate = true;              // yarn: the ramp's ends are whole numbers
  double attention_factor = 0;       // yarn: 0: 0.1 ln(factor) + 1

  bool operator==(const RopeScaling&) const = default;
};

std::string_view to_string(RopeScaling::Kind kind);

// invalid_argument, naming the field.
Result<void> check(const RopeScaling& scaling);

// The d/2 frequencies of a head, in radians per position; of a scaling that checks.
std::vector<double> rope_frequencies(double theta, std::int64_t head_dim,
                                     const RopeScaling& scaling);
// What rotated vectors are multiplied with.
double rope_amplitude(const RopeScaling& scaling);

// "llama3 by 8 from 8192"; "none". Different scalings give different texts.
std::string describe(const RopeScaling& scaling);

}  // namespace isthmus::runtime
