#include "kernels/adamw.h"

#include <cmath>
#include <cstddef>

#include "base/assert.h"
#include "kernels/bf16.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {

void adamw(ThreadPool& pool, const AdamWStep& step, std::span<const float> gradient,
           std::span<float> parameter, std::span<float> moment1, std::span<float> moment2,
           std::span<bf16_t> bf16_copy) {
  ISTHMUS_ASSERT(gradient.size() == parameter.size() && moment1.size() == parameter.size() &&
                 moment2.size() == parameter.size() && step.step > 0);
  ISTHMUS_ASSERT(bf16_copy.empty() || bf16_copy.size() == parameter.size());
  const auto count = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), count);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), count);
  const auto size = static_cast<float>(step.learning_rate / correction1);
  const auto root = static_cast<float>(1.0 / std::sqrt(correction2));
  const float keep = 1.0F - step.learning_rate * step.weight_decay;
  for_row_tasks(pool, static_cast<std::int64_t>(parameter.size()), 1,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  for (std::int64_t i = first; i < end; ++i) {
                    const float g = gradient[i] * step.gradient_scale;
                    const float m = moment1[i] + (1.0F - step.beta1) * (g - moment1[i]);
                    const float v = step.beta2 * moment2[i] + (1.0F - step.beta2) * g * g;
                    const float p =
                        parameter[i] * keep - size * (m / (std::sqrt(v) * root + step.epsilon));
                    moment1[i] = m;
                    moment2[i] = v;
                    parameter[i] = p;
                    if (!bf16_copy.empty()) bf16_copy[i] = to_bf16(p);
                  }
                });
}

}  // namespace isthmus::kernels
