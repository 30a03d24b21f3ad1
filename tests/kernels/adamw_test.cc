#include "kernels/adamw.h"

#include "reference.h"

namespace isthmus::kernels {
namespace {

// PyTorch's documented update, in f64, over several steps.
TEST(AdamW, AgreesWithDouble) {
  for (const std::int64_t size : {1, 17, 1000, 70000}) {
    AdamWStep step;
    step.learning_rate = 3e-3F;
    step.beta1 = 0.9F;
    step.beta2 = 0.95F;
    step.epsilon = 1e-8F;
    step.weight_decay = 0.1F;
    step.gradient_scale = 0.5F;
    const Matrix start = Matrix::random("parameter", DType::f32, 1, size);
    std::vector<double> p = start.values();
    std::vector<double> m(p.size());
    std::vector<double> v(p.size());
    std::vector<Matrix> gradients;
    for (int t = 0; t < 4; ++t)
      gradients.push_back(Matrix::random(std::to_string(t), DType::f32, 1, size, 0, 0.01));
    for (int t = 1; t <= 4; ++t)
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double lr = step.learning_rate;
        const double b1 = step.beta1;
        const double b2 = step.beta2;
        const double g =
            0.5 * gradients[static_cast<std::size_t>(t - 1)].at(0, static_cast<std::int64_t>(i));
        p[i] *= 1 - lr * static_cast<double>(step.weight_decay);
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(b1, t));
        const double v_hat = v[i] / (1 - std::pow(b2, t));
        p[i] -= lr * m_hat / (std::sqrt(v_hat) + static_cast<double>(step.epsilon));
      }
    on_every_target_and_thread_count([&](ThreadPool& pool) {
      Matrix parameter = start;
      Matrix moment1(DType::f32, 1, size);
      Matrix moment2(DType::f32, 1, size);
      for (float& value : floats(moment1)) value = 0;
      for (float& value : floats(moment2)) value = 0;
      std::vector<bf16_t> copy(static_cast<std::size_t>(size));
      AdamWStep now = step;
      for (int t = 1; t <= 4; ++t) {
        now.step = t;
        adamw(pool, now, floats(gradients[static_cast<std::size_t>(t - 1)]), floats(parameter),
              floats(moment1), floats(moment2), t == 4 ? std::span(copy) : std::span<bf16_t>());
      }
      EXPECT_LT(relative_error(parameter.values(), p), 2e-7);
      EXPECT_LT(relative_error(moment1.values(), m), 5e-7);
      EXPECT_LT(relative_error(moment2.values(), v), 5e-7);
      for (std::int64_t i = 0; i < size; ++i)
        EXPECT_EQ(copy[static_cast<std::size_t>(i)].bits,
                  to_bf16(static_cast<float>(parameter.at(0, i))).bits);
      return std::vector<Matrix>{parameter, moment1, moment2};
    });
  }
}

TEST(AdamW, ZeroGradientLeavesOnlyDecay) {
  ThreadPool pool(unpinned(1));
  std::vector<float> parameter(20, 2.0F);
  std::vector<float> zero(20, 0.0F);
  std::vector<float> moment1(20, 0.0F);
  std::vector<float> moment2(20, 0.0F);
  AdamWStep step;
  step.learning_rate = 0.5F;
  step.weight_decay = 0.5F;
  adamw(pool, step, zero, parameter, moment1, moment2, {});
  for (const float value : parameter) EXPECT_EQ(value, 1.5F);
}

}  // namespace
}  // namespace isthmus::kernels
