#include "runtime/planner.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "runtime/family.h"
#include "runtime/op_table.h"
#include "runtime/training_program.h"

namespace isthmus::runtime {
namespace {

bool overlap(std::size_t a, std::size_t a_bytes, std::size_t b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Replays the list on the arena's bytes: a value must still be the last that was written to its
// place when it is read, by an op or in the end by the caller.
void expect_no_value_is_overwritten(const Program& program, const Plan& plan) {
  std::vector<bool> intact(program.values.size(), false);
  const auto write = [&](ValueId id) {
    const auto v = static_cast<std::size_t>(id);
    for (std::size_t other = 0; other < program.values.size(); ++other)
      if (other != v && plan.offsets[other] != kNoOffset &&
          overlap(plan.offsets[v], program.values[v].bytes(), plan.offsets[other],
                  program.values[other].bytes()))
        intact[other] = false;
    intact[v] = true;
  };
  const auto in_arena = [&](ValueId id) {
    return id != kNoValue && lives_in_arena(program.value(id));
  };
  for (std::size_t at = 0; at < program.ops.size(); ++at) {
    const auto& op = program.ops[at];
    for (const auto id : op.inputs)
      if (in_arena(id)) {
        ASSERT_NE(plan.offsets[static_cast<std::size_t>(id)], kNoOffset);
        EXPECT_TRUE(intact[static_cast<std::size_t>(id)])
            << name_of(op) << " at " << at << " reads " << program.value(id).name;
      }
    for (std::size_t o = 0; o < op.outputs.size(); ++o)
      if (in_arena(op.outputs[o])) {
        if (op.accumulates(o)) {
          EXPECT_TRUE(intact[static_cast<std::size_t>(op.outputs[o])])
              << name_of(op) << " at " << at << " adds to " << program.value(op.outputs[o]).name;
        }
        write(op.outputs[o]);
      }
    // Nothing an op writes may lie over what else it touches, but where the table allows it.
    const auto& row = row_of(op.kind);
    const int over = op.pass == Pass::forward ? row.forward_over : row.backward_over;
    for (std::size_t o = 0; o < op.outputs.size(); ++o)
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        if (!in_arena(op.outputs[o]) || !in_arena(op.inputs[i]) || op.outputs[o] == op.inputs[i] ||
            (o == 0 && static_cast<int>(i) == over))
          continue;
        const auto a = static_cast<std::size_t>(op.outputs[o]);
        const auto b = static_cast<std::size_t>(op.inputs[i]);
        EXPECT_FALSE(overlap(plan.offsets[a], program.values[a].bytes(), plan.offsets[b],
                             program.values[b].bytes()))
            << name_of(op) << " at " << at;
      }
  }
  for (const auto id : {program.logits, program.loads})
    EXPECT_TRUE(id == kNoValue || intact[static_cast<std::size_t>(id)])
        << program.value(id).name << " at the end";
}

ModelConfig random_config(Random& random) {
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<std::int64_t>(low + random.below(high - low + 1));
  };
  ModelConfig config;
  config.layers = between(1, 4);
  config.kv_heads = between(1, 3);
  config.heads = config.kv_heads * between(1, 3);
  config.head_dim = 2 * between(1, 20);
  config.hidden = between(3, 70);
  config.ffn_width = between(1, 90);
  config.vocabulary = between(2, 500);
  config.tied = random.chance(0.5);
  if (random.chance(0.5)) return config;
  config.family = random.chance(0.5) ? "mixtral" : "qwen3_moe";
  config.experts = between(1, 6);
  config.experts_per_token = std::min(config.experts, between(1, 3));
  if (config.family == "qwen3_moe" && config.layers > 1)
    config.dense_layers = {static_cast<int>(between(0, 1))};
  return config;
}

TEST(Planner, NeverOverwritesWhatIsStillNeeded) {
  Random random(11);
  for (int i = 0; i < 60; ++i) {
    const auto config = random_config(random);
    const BatchShape shape{static_cast<std::int64_t>(1 + random.below(4)),
                           static_cast<std::int64_t>(1 + random.below(50)),
                           random.chance(0.5) ? Precision::bf16 : Precision::f32};
    auto less_kept = shape;
    less_kept.recompute = Recompute::all;
    for (const auto& program :
         {training_program(config, shape), training_program(config, less_kept),
          build_program(config, shape, Head::loss), build_program(config, shape, Head::logits)}) {
      const auto plan = plan_memory(program);
      expect_no_value_is_overwritten(program, plan);
      EXPECT_LE(plan.arena_bytes, plan.value_bytes + program.values.size() * kPlaceAlignment);
    }
  }
}

// What is kept of each token and layer from forward to backward, and how near the layout comes to
// what must be there at once.
TEST(Planner, KeepsOfALayerWhatNothingMakesAgain) {
  ModelConfig config;
  config.hidden = 384;
  config.heads = config.kv_heads = 6;
  config.ffn_width = 1024;
  config.vocabulary = 1000;
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    const auto arena = [&](std::int64_t layers) {
      config.layers = layers;
      const auto program = training_program(config, {2, 256, precision});
      const auto lives = lifetimes(program);
      std::size_t most = 0;
      for (std::size_t at = 0; at < program.ops.size(); ++at) {
        std::size_t bytes = 0;
        for (std::size_t v = 0; v < program.values.size(); ++v)
          if (lives_in_arena(program.values[v]) && lives[v].first <= at && at <= lives[v].last)
            bytes += program.values[v].bytes();
        most = std::max(most, bytes);
      }
      const auto plan = plan_memory(program);
      EXPECT_LE(static_cast<double>(plan.arena_bytes), 1.05 * static_cast<double>(most));
      return static_cast<double>(plan.arena_bytes);
    };
    const auto per_token_and_layer = (arena(14) - arena(6)) / 8 / 512;
    EXPECT_LE(per_token_and_layer, (precision == Precision::f32 ? 46 : 27) * 384.0);
    EXPECT_GT(per_token_and_layer, (precision == Precision::f32 ? 45 : 26) * 384.0);
  }
}

TEST(Planner, SharesBytes) {
  ModelConfig config;
  config.layers = 12;
  config.hidden = 64;
  config.heads = config.kv_heads = 4;
  config.ffn_width = 128;
  config.vocabulary = 100;
  const BatchShape shape{2, 64, Precision::bf16};
  const auto training = plan_memory(training_program(config, shape));
  EXPECT_LT(static_cast<double>(training.arena_bytes),
            0.6 * static_cast<double>(training.value_bytes));
  // Without backward a layer's values die with it, so depth costs nothing.
  const auto twelve = plan_memory(build_program(config, shape, Head::loss));
  config.layers = 2;
  EXPECT_EQ(twelve.arena_bytes, plan_memory(build_program(config, shape, Head::loss)).arena_bytes);
}

}  // namespace
}  // namespace isthmus::runtime
