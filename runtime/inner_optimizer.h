// The inner optimizer: AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR
// 2019) on one flat buffer of f32 parameters, with clipping of the global gradient norm, and the
// schedule of its learning rate. The outer optimizer is inter's.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus::runtime {

struct AdamWOptions {
  double beta_1 = 0.9;            // decay of the first moment per step
  double beta_2 = 0.95;           // decay of the second moment per step
  double eps = 1e-8;              // added to the root of the second moment
  double weight_decay = 0.1;      // per unit of learning rate; matrices only, never norm weights
  double gradient_norm_max = 1;   // longer gradients are scaled down to this; 0: never
  double gradient_norm_skip = 0;  // a step with longer ones changes nothing; 0: any is taken
};

// The learning rate of some tensors, relative to that of all others.
struct RateFactor {
  std::string tensors;  // a pattern of names (runtime/fine_tuning.h)
  double factor = 1;    // above 0
};

enum class RateShape : std::uint8_t {
  cosine,    // half a cosine over all steps (Loshchilov and Hutter, "SGDR", ICLR 2017)
  linear,    // a straight line over all steps
  constant,  // the peak
  // Warm-up, stable, decay: the peak, then a straight line over the last steps (Hu et al.,
  // "MiniCPM", 2024). Where it begins to fall is all that the length of the run decides, so that
  // one that is made longer before that goes on as if it had always been.
  wsd,
};

struct RateSchedule {
  RateShape shape = RateShape::cosine;
  double peak = 2e-3;              // learning rate after the warm-up
  std::int64_t warmup_steps = 20;  // linear: step t (from 0) has (t + 1) / warmup_steps of it
  std::int64_t steps = 240;        // of the run; later ones keep the final rate
  std::int64_t decay_steps = 0;    // of wsd, at the end of the run; 0: a fifth of it
  double final_fraction = 0.1;     // of the peak, at the end of the run; not of constant

  // The learning rate of inner step `step`, counted from 0.
  double rate(std::int64_t step) const;
};

}  // namespace isthmus::runtime
