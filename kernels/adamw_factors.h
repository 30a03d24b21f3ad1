// AdamWFactors: private to adamw.cc, and apart only because that file is compiled once per target.
#pragma once

namespace isthmus::kernels {

// What one step does to each element, with the bias corrections folded in.
struct AdamWFactors {
  float gradient_scale;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float keep;  // 1 - learning_rate * weight_decay
  float size;  // learning_rate / (1 - beta1^step)
  float root;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

}  // namespace isthmus::kernels
