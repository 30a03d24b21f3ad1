#include "kernels/adamw.h"

#include <cmath>
#include <cstddef>

#include "base/assert.h"
#include "kernels/adamw_factors.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// `copy`, unless null, receives the parameters rounded to bf16.
void update(const AdamWFactors& f, const float* gradient, std::size_t count, float* parameter,
            float* moment1, float* moment2, bf16_t* copy) {
  for_lanes(count, [=](auto tag, std::size_t i) {
    const auto g = hn::Mul(hn::LoadU(tag, gradient + i), hn::Set(tag, f.gradient_scale));
    const auto m_before = hn::LoadU(tag, moment1 + i);
    const auto m = hn::MulAdd(hn::Set(tag, f.one_minus_beta1), hn::Sub(g, m_before), m_before);
    const auto v = hn::MulAdd(hn::Set(tag, f.beta2), hn::LoadU(tag, moment2 + i),
                              hn::Mul(hn::Mul(hn::Set(tag, f.one_minus_beta2), g), g));
    const auto spread = hn::MulAdd(hn::Sqrt(v), hn::Set(tag, f.root), hn::Set(tag, f.epsilon));
    const auto step = hn::Mul(hn::Set(tag, f.size), hn::Div(m, spread));
    const auto p = hn::MulSub(hn::LoadU(tag, parameter + i), hn::Set(tag, f.keep), step);
    hn::StoreU(m, tag, moment1 + i);
    hn::StoreU(v, tag, moment2 + i);
    hn::StoreU(p, tag, parameter + i);
    if (copy != nullptr) store_float(p, tag, copy + i);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(update);

void adamw(ThreadPool& pool, const AdamWStep& step, std::span<const float> gradient,
           std::span<float> parameter, std::span<float> moment1, std::span<float> moment2,
           std::span<bf16_t> bf16_copy) {
  ISTHMUS_ASSERT(gradient.size() == parameter.size() && moment1.size() == parameter.size() &&
                 moment2.size() == parameter.size() && step.step > 0);
  ISTHMUS_ASSERT(bf16_copy.empty() || bf16_copy.size() == parameter.size());
  const auto count = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(step.beta1), count);
  const double correction2 = 1.0 - std::pow(static_cast<double>(step.beta2), count);
  AdamWFactors factors{};
  factors.gradient_scale = step.gradient_scale;
  factors.beta2 = step.beta2;
  factors.one_minus_beta1 = 1.0F - step.beta1;
  factors.one_minus_beta2 = 1.0F - step.beta2;
  factors.keep = 1.0F - step.learning_rate * step.weight_decay;
  factors.size = static_cast<float>(static_cast<double>(step.learning_rate) / correction1);
  factors.root = static_cast<float>(1.0 / std::sqrt(correction2));
  factors.epsilon = step.epsilon;
  for_row_tasks(pool, static_cast<std::int64_t>(parameter.size()), 1,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  HWY_DYNAMIC_DISPATCH(update)
                  (factors, gradient.data() + first, static_cast<std::size_t>(end - first),
                   parameter.data() + first, moment1.data() + first, moment2.data() + first,
                   bf16_copy.empty() ? nullptr : bf16_copy.data() + first);
                });
}

}  // namespace isthmus::kernels
#endif
