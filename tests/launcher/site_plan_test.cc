#include "launcher/site_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/training_program.h"
#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SiteFile sample() { return checked(std::string(kGood)).file; }

TEST(SitePlan, SaysWhatEachKindTakes) {
  auto file = sample();
  file.train.precision = runtime::Precision::f32;
  file.site.roster = "roster.toml";
  file.sync.outer = inter::OuterRuleKind::nesterov;
  const auto plan = plan_of(file, 2, 8e9);
  const auto& memory = plan.memory;
  const auto parameters = static_cast<double>(plan.parameters);
  EXPECT_NEAR(memory.training.weights, 4 * parameters, 0.01 * 4 * parameters);
  EXPECT_EQ(memory.training.gradients, memory.training.weights);
  EXPECT_EQ(memory.training.optimizer, 2 * memory.training.weights);
  EXPECT_EQ(memory.exchange, 12 * parameters);
  const auto text = text_of(plan);
  for (const auto* kind : {"weights", "gradients", "optimizer", "activations", "working",
                           "exchange", "the gateway", "of the 8.00 GB that this machine has"})
    EXPECT_THAT(text, HasSubstr(kind));
  const auto json = nlohmann::json::parse(json_of(plan));
  EXPECT_EQ(json["rank"]["activations"], memory.training.activations);
  EXPECT_GT(memory.training.working, 0);
  EXPECT_EQ(json["rank"]["working"], memory.training.working);
  EXPECT_EQ(json["rank"]["all"], memory.rank());
  EXPECT_EQ(json["site_bytes"], plan.all_bytes());
  // int8 with a scale for 256 values; a state with momentum.
  const auto& writes = json["writes_per_outer_step"];
  EXPECT_EQ(file.sync.codec, compress::CodecId::int8);
  EXPECT_EQ(writes["contribution"], (4 + 65.0 / 64) * parameters);
  EXPECT_EQ(writes["others"], 65.0 / 64 * parameters);
  EXPECT_EQ(writes["state"], 8 * parameters);
}

TEST(SitePlan, OfASiteAloneHasNoGateway) {
  auto file = sample();
  file.site.roster.clear();
  const auto plan = plan_of(file, 1, 0);
  EXPECT_EQ(plan.all_bytes(), static_cast<double>(plan.ranks) * plan.memory.training.total());
  EXPECT_THAT(text_of(plan), Not(HasSubstr("gateway")));
  EXPECT_THAT(text_of(plan), Not(HasSubstr("this machine")));
}

// What is said of recomputation is what it does.
TEST(SitePlan, SaysWhatRecomputationChanges) {
  auto file = sample();
  file.model.config.layers = 5;
  const auto off = plan_of(file, 1, 0);
  file.train.recompute = runtime::Recompute::all;
  const auto all = plan_of(file, 1, 0);
  EXPECT_EQ(off.recomputation.blocks, 4);
  EXPECT_EQ(off.recomputation.saved_bytes_per_block, all.recomputation.saved_bytes_per_block);
  EXPECT_DOUBLE_EQ(off.memory.training.activations - 4 * off.recomputation.saved_bytes_per_block,
                   all.memory.training.activations);
  EXPECT_THAT(text_of(off), HasSubstr("recompute off"));
  EXPECT_THAT(text_of(all), HasSubstr("recompute all"));
  EXPECT_THAT(text_of(all), HasSubstr("4 layers made again"));
}

}  // namespace
}  // namespace isthmus::launcher
