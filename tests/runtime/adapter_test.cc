#include "runtime/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint.h"
#include "runtime/model_directory.h"
#include "runtime/model_export.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using ::testing::HasSubstr;

class AdapterTest : public testing::Test {
 protected:
  AdapterTest() {
    auto base = make_small_model(pool_, 11);
    EXPECT_TRUE(write_checkpoint(*disk_, folder_ / "base", *base, {}, 1));
    base_ = *model_directory(*disk_, folder_ / "base");
    tuning_.lora = {.rank = 3, .alpha = 6, .targets = {"q_proj", "down_proj"}};
    tuning_.base = base_;
    model_ = adapted();
    for (std::size_t i = 0; i < model_->tensors().size(); ++i)
      if (model_->tensors()[i].trains)
        for (auto& x : model_->parameters(i)) x = static_cast<float>(0.3 * random_.normal());
  }
  std::unique_ptr<Model> adapted() {
    auto model = open_model(*disk_, base_, small_shape(), pool_, tuning_);
    EXPECT_TRUE(model) << model.error().text();
    (*model)->initialise_trained(1);
    return std::move(*model);
  }
  std::string write() {
    auto path = write_checkpoint(*disk_, folder_ / "run", *model_, {.inner_step = 7}, 1);
    EXPECT_TRUE(path) << path.error().text();
    return *path;
  }
  static double loss(Model& model) {
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(model.shape().tokens()), 70);
    return model.forward_loss(tokens, tokens).sum;
  }
  void edit(const std::string& path, const std::string& key, const nlohmann::json& value) {
    auto json = nlohmann::ordered_json::parse(contents_of(path));
    json[key] = value;
    write_contents(path, json.dump());
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  ThreadPool pool_{{-1}};
  Random random_{4};
  std::string base_;
  FineTuning tuning_;
  std::unique_ptr<Model> model_;
};

TEST_F(AdapterTest, IsWhatACheckpointHolds) {
  model_->set_updates(5);
  model_->first_moments()[3] = 0.5F;
  const auto path = write();
  EXPECT_FALSE(std::filesystem::exists(path + "/model.safetensors"));
  const auto json = nlohmann::json::parse(contents_of(path + "/adapter_config.json"));
  EXPECT_EQ(json["peft_type"], "LORA");
  EXPECT_EQ(json["r"], 3);
  EXPECT_EQ(json["lora_alpha"], 6);
  EXPECT_EQ(json["base_model_name_or_path"], base_);
  EXPECT_EQ(json["target_modules"], nlohmann::json({"q_proj", "down_proj"}));
  const auto stored = SafetensorsReader::open(*disk_, path + "/adapter_model.safetensors");
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->tensors().size(), 2U * 2U * 2U);
  EXPECT_NE(stored->find("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"), nullptr);

  const auto again = adapted();
  const auto progress = load_checkpoint(*disk_, path, *again);
  ASSERT_TRUE(progress) << progress.error().text();
  EXPECT_EQ(progress->inner_step, 7);
  EXPECT_EQ(again->updates(), 5);
  EXPECT_TRUE(std::ranges::equal(again->parameters(), model_->parameters()));
  EXPECT_TRUE(std::ranges::equal(again->first_moments(), model_->first_moments()));
}

TEST_F(AdapterTest, IsMergedWhereAModelIsLookedAtOrExported) {
  const auto path = write();
  const auto merged = open_model(*disk_, folder_ / "run", small_shape(), pool_);
  ASSERT_TRUE(merged) << merged.error().text();
  EXPECT_EQ((*merged)->tensors().size(), model_->tensors().size() - 8);
  EXPECT_NEAR(loss(**merged), loss(*model_), 1e-5 * loss(*model_));
  const auto base = open_model(*disk_, base_, small_shape(), pool_);
  EXPECT_GT(std::abs(loss(**base) - loss(*model_)), 1e-3 * loss(*model_));

  const auto exported = export_model(*disk_, folder_ / "run", folder_ / "merged", {});
  ASSERT_TRUE(exported) << exported.error().text();
  const auto read = open_model(*disk_, folder_ / "merged", small_shape(), pool_);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_TRUE(std::ranges::equal((*read)->parameters(), (*merged)->parameters()));
}

TEST_F(AdapterTest, OfAnotherRunIsRefused) {
  const auto path = write();
  const auto plain = make_small_model(pool_);
  auto loaded = load_checkpoint(*disk_, path, *plain);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().text(), HasSubstr("of a run with adapters, this run is without"));
  tuning_.lora.alpha = 3;
  loaded = load_checkpoint(*disk_, path, *adapted());
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::mismatch);
  EXPECT_THAT(loaded.error().text(),
              HasSubstr("has rank 3, alpha 6 and q_proj, down_proj; this run has rank 3, alpha 3"));
  tuning_.lora.alpha = 6;
  tuning_.lora.targets = {"q_proj"};
  EXPECT_FALSE(load_checkpoint(*disk_, path, *adapted()));
  EXPECT_FALSE(load_checkpoint(*disk_, base_, *adapted()));
  EXPECT_THAT(open_model(*disk_, path, small_shape(), pool_, tuning_).error().text(),
              HasSubstr("lora.from"));
}

TEST_F(AdapterTest, WithoutItsBaseSaysWhereToWriteIt) {
  // Of somebody else's: without the sums of a checkpoint.
  const auto path = write();
  std::filesystem::remove(path + "/trainer.json");
  const auto config = path + "/adapter_config.json";
  for (const auto& [base, why] :
       std::vector<std::pair<std::string, std::string>>{{"", "does not name"},
                                                        {folder_ / "gone", "where there is none"},
                                                        {path, "an adapter itself"}}) {
    edit(config, "base_model_name_or_path", base);
    const auto opened = open_model(*disk_, path, small_shape(), pool_);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().text(), HasSubstr(why));
    EXPECT_THAT(opened.error().text(), HasSubstr("base_model_name_or_path"));
  }
}

TEST_F(AdapterTest, OfAnotherModelNamesTheTensor) {
  const auto path = write();
  std::filesystem::remove(path + "/trainer.json");
  const auto config = path + "/adapter_config.json";
  const auto why = [&] {
    const auto opened = open_model(*disk_, path, small_shape(), pool_);
    return opened ? std::string() : opened.error().text();
  };
  EXPECT_EQ(why(), "");
  edit(config, "target_modules", {"q_proj", "down_proj", "o_proj"});
  EXPECT_THAT(
      why(),
      HasSubstr(
          "there is no tensor base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"));
  edit(config, "target_modules", {"q_proj"});
  EXPECT_THAT(
      why(),
      HasSubstr("knows no tensor base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"));
  edit(config, "target_modules", {"query"});
  EXPECT_THAT(why(), HasSubstr("no product of the model fits"));
  edit(config, "target_modules", {"q_proj", "down_proj"});
  edit(config, "r", 4);
  EXPECT_THAT(why(), HasSubstr("lora_A.weight"));
}

TEST(AdapterDescription, RefusesByNameWhatItDoesNotKnow) {
  const nlohmann::json good = {{"peft_type", "LORA"},
                               {"r", 8},
                               {"lora_alpha", 16.5},
                               {"target_modules", {"q_proj", "v_proj"}},
                               {"base_model_name_or_path", "base"}};
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto json = good;
    json[key] = value;
    const auto read = from_adapter_json(json.dump());
    return read ? std::string() : read.error().text();
  };
  const auto read = from_adapter_json(good.dump());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->lora,
            (LowRankOptions{.rank = 8, .alpha = 16.5, .targets = {"q_proj", "v_proj"}}));
  EXPECT_EQ(read->base, "base");
  for (const auto& [key, value] : std::vector<std::pair<const char*, nlohmann::json>>{
           {"bias", "none"},
           {"use_dora", false},
           {"rank_pattern", nlohmann::json::object()},
           {"modules_to_save", nullptr},
           {"init_lora_weights", "gaussian"},
           {"lora_dropout", 0.1},
           {"task_type", "CAUSAL_LM"},
           {"target_modules", "all-linear"}})
    EXPECT_EQ(with(key, value), "") << key;
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"bias", "all"},
                                                           {"use_dora", true},
                                                           {"use_rslora", true},
                                                           {"rank_pattern", {{"q_proj", 4}}},
                                                           {"alpha_pattern", {{"q_proj", 4}}},
                                                           {"modules_to_save", {"lm_head"}},
                                                           {"fan_in_fan_out", true},
                                                           {"init_lora_weights", "pissa"},
                                                           {"layers_to_transform", {0}},
                                                           {"target_parameters", {"w"}},
                                                           {"target_modules", "q_.*"},
                                                           {"peft_type", "IA3"},
                                                           {"r", 0.5},
                                                           {"r", -1},
                                                           {"lora_alpha", "x"},
                                                           {"something_new", 1}})
    EXPECT_THAT(with(key, value), HasSubstr(key)) << key;
  EXPECT_FALSE(from_adapter_json("{"));
  EXPECT_FALSE(from_adapter_json("[]"));
}

// Patterns mean nothing to PEFT: it gets the modules that they are.
TEST(AdapterDescription, NamesModulesWhereThereArePatterns) {
  const FineTuning tuning{
      .frozen = {}, .lora = {.rank = 2, .alpha = 4, .targets = {"*.1.mlp.*"}}, .base = "b"};
  const auto modules = adapted_modules(tuning, small_config());
  const auto json = nlohmann::json::parse(
      to_adapter_json({.lora = tuning.lora, .base = "b"}, modules, Objective::next_token));
  EXPECT_EQ(json["target_modules"],
            nlohmann::json({"model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj",
                            "model.layers.1.mlp.down_proj"}));
  const auto read = from_adapter_json(json.dump());
  ASSERT_TRUE(read);
  EXPECT_EQ(adapted_modules({.frozen = {}, .lora = read->lora, .base = {}}, small_config()),
            modules);
}

}  // namespace
}  // namespace isthmus::runtime
