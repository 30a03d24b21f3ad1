#include "runtime/backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/random.h"
#include "runtime/executor.h"
#include "runtime/family.h"

namespace isthmus::runtime {
namespace {

ModelConfig tiny() {
  ModelConfig config;
  config.layers = 3;
  config.hidden = 8;
  config.heads = 2;
  config.kv_heads = 1;
  config.ffn_width = 12;
  config.vocabulary = 11;
  return config;
}

std::vector<std::string> names(const Program& program) {
  std::vector<std::string> result;
  for (const auto& op : program.ops) result.push_back(name_of(op));
  return result;
}

std::size_t count(const Program& program, std::string_view name) {
  const auto all = names(program);
  return static_cast<std::size_t>(std::count(all.begin(), all.end(), name));
}

TEST(Backward, WalksTheListInReverse) {
  auto config = tiny();
  config.layers = 1;
  const auto program = with_backward(build_program(config, {1, 4, Precision::f32}, Head::loss));
  const std::vector<std::string> expected = {"embed",
                                             "norm",
                                             "linear",
                                             "rope",
                                             "attention",
                                             "linear",
                                             "add",
                                             "norm",
                                             "linear",
                                             "glu",
                                             "linear",
                                             "add",
                                             "norm",
                                             "head_loss backward",
                                             "norm backward",
                                             "linear backward",  // down: dx
                                             "glu backward",
                                             "linear backward",  // down: dW
                                             "linear backward",
                                             "norm backward",
                                             "linear backward",
                                             "linear backward",
                                             "attention backward",
                                             "rope backward",
                                             "linear backward",
                                             "norm backward",
                                             "linear backward",
                                             "embed backward"};
  EXPECT_EQ(names(program), expected);  // in f32 the two gradients of a sum are one value
}

TEST(Backward, ConvertsTheGradientOfASumWhereDtypesDiffer) {
  const auto program = with_backward(build_program(tiny(), {1, 4, Precision::bf16}, Head::loss));
  EXPECT_EQ(count(program, "convert"), 6u);
}

TEST(Backward, LeavesOutWhatNoTrainingParameterNeeds) {
  auto forward = build_program(tiny(), {1, 4, Precision::f32}, Head::loss);
  for (auto& parameter : forward.parameters)
    parameter.trains = parameter.canonical[0].name.starts_with("model.layers.2.mlp");
  const auto program = with_backward(forward);
  EXPECT_EQ(count(program, "linear backward"), 3u);  // down's weight waits for what glu makes
  EXPECT_EQ(count(program, "glu backward"), 1u);
  EXPECT_EQ(count(program, "norm backward"), 1u);  // the last one, to reach the layer
  EXPECT_EQ(count(program, "attention backward"), 0u);
  EXPECT_EQ(count(program, "embed backward"), 0u);
  // gate_up needs no gradient of its input, the head none of its weight.
  for (const auto& op : program.ops) {
    if (op.kind == OpKind::linear && op.pass == Pass::backward &&
        program.value(op.inputs.back()).shape[1] == 24) {
      EXPECT_EQ(op.outputs[0], kNoValue);
    }
    if (op.kind == OpKind::head_loss) {
      EXPECT_EQ(op.outputs[1], kNoValue);
    }
  }
}

TEST(Backward, OfNothingIsTheForwardList) {
  auto forward = build_program(tiny(), {1, 4, Precision::f32}, Head::loss);
  for (auto& parameter : forward.parameters) parameter.trains = false;
  EXPECT_EQ(names(with_backward(forward)), names(forward));
}

// A program run on parameters of its own, in f32.
class Run {
 public:
  explicit Run(const Program& program)
      : pool_({-1}), device_(pool_), plan_(plan_memory(program)), arena_(plan_.arena_bytes) {
    for (const auto& parameter : program.parameters) {
      const auto bytes = program.value(parameter.master).bytes();
      parameters_.emplace_back(bytes);
      gradients_.emplace_back(bytes);
      places_.masters.push_back(parameters_.back().bytes().data());
      places_.operands.push_back(parameters_.back().bytes().data());
      places_.gradients.push_back(gradients_.back().bytes().data());
    }
    executor_.emplace(program, plan_, arena_.bytes(), places_, device_);
    Random random(4);
    for (auto& parameter : parameters_)
      for (auto& x : parameter.of<float>()) x = static_cast<float>(random.normal() * 0.7);
    const auto vocabulary =
        static_cast<std::uint64_t>(program.value(program.parameters[0].master).shape[0]);
    for (auto ints : {executor_->tokens(), executor_->targets()})
      for (std::size_t i = 0; i < static_cast<std::size_t>(program.value(program.tokens).shape[0]);
           ++i)
        ints[i] = static_cast<std::int32_t>(random.below(vocabulary));
  }
  double loss() { return executor_->run().sum; }
  std::span<float> parameter(std::size_t i) { return parameters_[i].of<float>(); }
  std::span<float> gradient(std::size_t i) { return gradients_[i].of<float>(); }
  std::size_t parameters() const { return parameters_.size(); }

 private:
  ThreadPool pool_;
  CpuDevice device_;
  Plan plan_;
  AlignedMemory arena_;
  std::vector<AlignedMemory> parameters_, gradients_;
  ParameterPlaces places_;
  std::optional<CpuExecutor> executor_;
};

// The derivative along each parameter's own gradient, by differences, is its squared length.
void expect_true_gradients(const Program& forward) {
  Run exact(with_backward(forward));
  exact.loss();
  for (std::size_t p = 0; p < exact.parameters(); ++p) {
    double squares = 0;
    for (const float g : exact.gradient(p))
      squares += static_cast<double>(g) * static_cast<double>(g);
    ASSERT_GT(squares, 0) << p;
    const double step = 1e-2 / std::sqrt(squares);
    Run moved(forward);
    const std::vector<float> at(moved.parameter(p).begin(), moved.parameter(p).end());
    const auto loss_at = [&](double along) {
      for (std::size_t i = 0; i < at.size(); ++i)
        moved.parameter(p)[i] =
            static_cast<float>(at[i] + along * step * static_cast<double>(exact.gradient(p)[i]));
      return moved.loss();
    };
    EXPECT_NEAR((loss_at(1) - loss_at(-1)) / (2 * step), squares, 2e-3 * squares) << p;
  }
}

// Several consumers, in orders in which the two gradients of a sum must not be one value.
TEST(Backward, SumsTheGradientsOfSeveralConsumers) {
  for (const int variant : {0, 1, 2, 3, 4}) {
    ProgramBuilder b({2, 5, Precision::f32}, true);
    const auto embedding = b.matrix({{"embedding", 13}}, 8);
    const auto first = b.matrix({{"first", 8}}, 8);
    const auto second = variant == 3 ? first : b.matrix({{"second", 8}}, 8);
    const auto weight = b.norm_weight("norm", 8);
    const auto x = b.embed(embedding);
    ValueId y = kNoValue;
    if (variant ==
        0) {  // the norm comes after the product: reads of y's gradient before are spoilt
      const auto product = b.linear(x, first);
      const auto n = b.norm(x, weight, 1e-5);
      y = b.add(b.add(x, product), b.linear(n, second));
    } else if (variant == 1) {  // parallel branches on one norm
      const auto n = b.norm(x, weight, 1e-5);
      y = b.add(b.add(x, b.linear(n, first)), b.linear(n, second));
    } else if (variant == 2) {  // the product is the residual, and is used again
      const auto product = b.linear(b.norm(x, weight, 1e-5), first);
      y = b.add(b.add(product, x), b.linear(product, second));
    } else if (variant == 3) {  // the gradient of a product is that of what was normalised
      y = b.add(x, b.linear(b.norm(x, weight, 1e-5), first));
    } else {  // a sum with itself
      const auto product = b.linear(b.norm(b.add(x, x), weight, 1e-5), first);
      y = b.linear(b.add(product, product), second);
    }
    b.head_loss(y, embedding);
    SCOPED_TRACE(variant);
    expect_true_gradients(b.take());
  }
}

}  // namespace
}  // namespace isthmus::runtime
