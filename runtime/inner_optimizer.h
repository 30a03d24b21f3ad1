// The inner optimizer: AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR
// 2019) on one flat buffer of f32 parameters, with clipping of the global gradient norm, and the
// schedule of its learning rate. The outer optimizer is inter's.
#pragma once

#include <cstdint>

namespace isthmus::runtime {

struct AdamWOptions {
  double beta_1 = 0.9;           // decay of the first moment per step
  double beta_2 = 0.95;          // decay of the second moment per step
  double eps = 1e-8;             // added to the root of the second moment
  double weight_decay = 0.1;     // per unit of learning rate; matrices only, never norm weights
  double gradient_norm_max = 1;  // longer gradients are scaled down to this; 0: never
};

struct RateSchedule {
  double peak = 2e-3;              // learning rate after the warm-up
  std::int64_t warmup_steps = 20;  // linear: step t (from 0) has (t + 1) / warmup_steps of it
  std::int64_t steps = 240;        // length of the cosine; later steps keep the final rate
  double final_fraction = 0.1;     // of the peak, at the end of the cosine

  // The learning rate of inner step `step`, counted from 0.
  double rate(std::int64_t step) const;
};

}  // namespace isthmus::runtime
