#include "runtime/recompute.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/random.h"
#include "runtime/model.h"
#include "runtime/op_table.h"
#include "runtime/planner.h"
#include "runtime/training_memory.h"
#include "runtime/training_program.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

BatchShape shape_of(Precision precision, Recompute recompute) {
  return {.micro_batch = 2, .sequence = 24, .precision = precision, .recompute = recompute};
}

std::size_t forwards(const Program& program, OpKind kind) {
  return static_cast<std::size_t>(std::ranges::count_if(
      program.ops, [&](const Op& op) { return op.kind == kind && op.pass == Pass::forward; }));
}

// Each layer's ops but the last two, which make what is kept: its other product and sum.
TEST(Recompute, MakesAllLayersButTheLastAgain) {
  auto config = small_config();
  config.layers = 4;
  const auto kept = training_program(config, shape_of(Precision::f32, Recompute::off));
  const auto again = training_program(config, shape_of(Precision::f32, Recompute::all));
  EXPECT_EQ(forwards(kept, OpKind::attention), 4U);
  EXPECT_EQ(forwards(again, OpKind::attention), 4U + 3U);
  EXPECT_EQ(forwards(again, OpKind::linear), 4U * 4U + 3U * 3U);
  EXPECT_EQ(forwards(again, OpKind::glu), 4U);  // its backward makes it again anyway
  EXPECT_EQ(forwards(again, OpKind::embed), 1U);
  const auto plan = recomputation_plan(config, shape_of(Precision::f32, Recompute::off));
  EXPECT_EQ(plan.blocks, 3);
  EXPECT_GT(plan.flops_per_block, 0.1 * plan.flops_without / 4 / 3);
  EXPECT_LT(plan.flops_per_block, plan.flops_without / 4 / 3);  // a forward is a third of a step
}

TEST(Recompute, OfOneLayerChangesNothing) {
  auto config = small_config();
  config.layers = 1;
  const auto kept = training_program(config, shape_of(Precision::f32, Recompute::off));
  const auto again = training_program(config, shape_of(Precision::f32, Recompute::all));
  EXPECT_EQ(kept.ops.size(), again.ops.size());
  EXPECT_EQ(recomputation_plan(config, shape_of(Precision::f32, Recompute::off)).blocks, 0);
}

// Of a layer more the arena grows by the residual stream that comes into it, and by nothing else.
TEST(Recompute, KeepsTheInputsOfLayersOnly) {
  ModelConfig config;
  config.hidden = 384;
  config.heads = config.kv_heads = 6;
  config.ffn_width = 1024;
  config.vocabulary = 1000;
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    const auto arena = [&](std::int64_t layers) {
      config.layers = layers;
      const BatchShape shape{
          .micro_batch = 2, .sequence = 256, .precision = precision, .recompute = Recompute::all};
      return training_memory(config, shape, 2).activations;
    };
    EXPECT_EQ((arena(14) - arena(6)) / 8 / 512, 4 * 384);
  }
}

// Though the routers of all layers look at the loads of each other.
TEST(Recompute, OfExpertsKeepsTheInputsOfLayersAndTheirLoads) {
  ModelConfig config;
  config.family = "mixtral";
  config.hidden = 96;
  config.heads = config.kv_heads = 6;
  config.ffn_width = 64;
  config.experts = 4;
  config.experts_per_token = 2;
  config.vocabulary = 1000;
  const auto arena = [&](std::int64_t layers) {
    config.layers = layers;
    const BatchShape shape{.micro_batch = 2,
                           .sequence = 256,
                           .recompute = Recompute::all,
                           .router = {.balance = 0.1, .scope = BalanceScope::micro_batch}};
    return training_memory(config, shape, 2).activations;
  };
  const double inputs = 512 * 4 * 96, loads = 2 * 4 * 4;
  EXPECT_NEAR((arena(14) - arena(6)) / 8, inputs + loads, 64);  // places begin at multiples of 64
}

// Of an encoder a layer ends in a norm, whose output is kept; two numbers per token stay with it.
TEST(Recompute, OfAnEncoderKeepsTheInputsOfLayersAndTheirNorms) {
  ModelConfig config = small_config("bert");
  config.hidden = 384;
  config.heads = config.kv_heads = 6;
  config.ffn_width = 1536;
  config.sequence_max = 256;
  const auto arena = [&](int layers) {
    config.layers = layers;
    const BatchShape shape{.micro_batch = 2, .sequence = 256, .recompute = Recompute::all};
    return training_memory(config, shape, 2).activations;
  };
  const double inputs = 512 * 4 * (384 + 2);
  EXPECT_NEAR((arena(14) - arena(6)) / 8, inputs, 64);  // places begin at multiples of 64
}

// Each layer's right before its own backward, though the losses of all routers read all loads.
TEST(Recompute, RoutesAgainLayerByLayer) {
  auto config = small_config("mixtral");
  config.layers = 4;
  auto shape = shape_of(Precision::f32, Recompute::all);
  shape.router = {.balance = 0.1, .scope = BalanceScope::micro_batch};
  const auto program = training_program(config, shape);
  std::string order;
  for (const auto& op : program.ops)
    if (op.kind == OpKind::route)
      order +=
          fmt::format("{}{} ", op.pass == Pass::forward ? "" : "-", op.attributes.routing.layer);
  EXPECT_EQ(order, "0 1 2 3 -3 2 -2 1 -1 0 -0 ");
}

class RecomputedModel : public testing::TestWithParam<std::tuple<const char*, Precision>> {};

TEST_P(RecomputedModel, HasTheSameBits) {
  const auto& [family, precision] = GetParam();
  auto config = small_config(family);
  config.layers = 4;
  ThreadPool pool({-1, -1});
  std::unique_ptr<Model> models[2];
  for (const auto recompute : {Recompute::off, Recompute::all}) {
    auto& model = models[static_cast<int>(recompute)];
    auto shape = shape_of(precision, recompute);
    // Of all layers together, though some are made again when others are done with.
    shape.router = {.capacity = 1, .balance = 0.1, .z = 0.01, .scope = BalanceScope::micro_batch};
    model = *Model::create(config, shape, pool);
    model->initialise(7);
    for (const float rate : {1e-2F, 1e-3F}) {
      Random random(3);
      model->zero_gradients();
      BatchLoss loss;
      for (int micro = 0; micro < 2; ++micro) {
        std::vector<std::int32_t> tokens, targets;
        for (int i = 0; i < 2 * 24; ++i) {
          tokens.push_back(static_cast<std::int32_t>(
              random.below(static_cast<std::uint64_t>(config.vocabulary))));
          targets.push_back(static_cast<std::int32_t>(
              random.below(static_cast<std::uint64_t>(config.vocabulary))));
        }
        loss += model->forward_backward(tokens, targets, {}, std::vector<std::uint64_t>{3, 4});
      }
      EXPECT_TRUE(model->update({}, rate, loss.counted).finite);
    }
  }
  EXPECT_TRUE(std::ranges::equal(models[0]->parameters(), models[1]->parameters()));
  EXPECT_TRUE(std::ranges::equal(models[0]->gradients(), models[1]->gradients()));
  EXPECT_TRUE(std::ranges::any_of(models[0]->gradients(), [](float g) { return g != 0; }));
  EXPECT_EQ(models[0]->routing().chosen, models[1]->routing().chosen);
  EXPECT_EQ(models[0]->routing().dropped, models[1]->routing().dropped);
  EXPECT_EQ(models[0]->routing().balance_loss, models[1]->routing().balance_loss);
}

INSTANTIATE_TEST_SUITE_P(Families, RecomputedModel,
                         testing::Combine(testing::Values("llama", "qwen3", "mixtral", "qwen3_moe",
                                                          "qwen2_moe", "bert"),
                                          testing::Values(Precision::f32, Precision::bf16)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::string(to_string(std::get<1>(tested.param)));
                         });

}  // namespace
}  // namespace isthmus::runtime
