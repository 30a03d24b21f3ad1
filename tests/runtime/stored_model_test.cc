// What a Hugging Face directory must hold to be read, in one file or several.
#include "runtime/stored_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Tensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

class StoredModelTest : public testing::Test {
 protected:
  static Tensor tensor(const std::string& name, const Shape& shape, float first) {
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    std::iota(values.begin(), values.end(), first);
    return {name, shape, std::move(values)};
  }
  void write(const std::string& file, const std::vector<Tensor>& tensors) {
    std::vector<TensorToStore> stored;
    for (const auto& t : tensors) stored.push_back({t.name, t.shape, t.values});
    ASSERT_TRUE(write_safetensors(*disk, folder / file, stored, {}));
  }
  void write_text(const std::string& file, const std::string& text) {
    std::ofstream(folder / file) << text;
  }
  void write_index(const std::map<std::string, std::string>& files) {
    write_text("model.safetensors.index.json",
               nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", files}}.dump());
  }
  void two_files() {
    write("model-00001-of-00002.safetensors", {embedding, norm});
    write("model-00002-of-00002.safetensors", {matrix});
    write_index({{embedding.name, "model-00001-of-00002.safetensors"},
                 {norm.name, "model-00001-of-00002.safetensors"},
                 {matrix.name, "model-00002-of-00002.safetensors"}});
  }
  // Of the tensors that a model has.
  Result<void> check(const std::vector<Tensor>& tensors) {
    ISTHMUS_TRY(const auto model, StoredModel::open(*disk, folder.path()));
    return model.check(wanted(tensors));
  }
  static std::vector<CanonicalTensor> wanted(const std::vector<Tensor>& tensors) {
    std::vector<CanonicalTensor> canonical;
    for (const auto& t : tensors) canonical.push_back({.name = t.name, .shape = t.shape});
    return canonical;
  }
  static std::string why(const Result<void>& result) {
    return result ? "it is fine" : result.error().text();
  }
  void expect_read(const std::vector<Tensor>& tensors) {
    const auto model = StoredModel::open(*disk, folder.path());
    ASSERT_TRUE(model) << model.error().text();
    ASSERT_TRUE(model->check(wanted(tensors))) << why(model->check(wanted(tensors)));
    for (const auto& t : tensors) {
      std::vector<float> values(t.values.size());
      ASSERT_TRUE(model->read(wanted({t})[0], values));
      EXPECT_EQ(values, t.values) << t.name;
    }
  }

  TemporaryFolder folder;
  std::unique_ptr<Disk> disk = make_system_disk();
  const Tensor embedding = tensor("model.embed_tokens.weight", {7, 4}, 1);
  const Tensor norm = tensor("model.norm.weight", {4}, 100);
  const Tensor matrix = tensor("model.layers.0.mlp.down_proj.weight", {4, 6}, 200);
  const std::vector<Tensor> all{embedding, norm, matrix};
};

TEST_F(StoredModelTest, IsReadFromOneFileAndFromSeveral) {
  two_files();
  expect_read(all);
  write("model.safetensors", {norm, matrix, embedding});
  std::filesystem::remove(folder / "model.safetensors.index.json");
  expect_read(all);
}

TEST_F(StoredModelTest, NamesWhatIsMissingOfAnotherShapeOrTooMuch) {
  write("model.safetensors", {embedding, norm});
  EXPECT_THAT(why(check(all)), HasSubstr("there is no tensor " + matrix.name));
  write("model.safetensors", {embedding, norm, tensor(matrix.name, {6, 4}, 1)});
  EXPECT_THAT(why(check(all)),
              HasSubstr(matrix.name + " has shape [6, 4], the model needs [4, 6]"));
  write("model.safetensors", {embedding, norm, matrix, tensor("a.bias", {4}, 1)});
  const auto extra = check(all);
  EXPECT_THAT(why(extra), HasSubstr("has no tensor a.bias"));
  EXPECT_EQ(extra.error().code, ErrorCode::mismatch);
  // Of many some are named.
  std::vector<Tensor> many = all;
  for (int i = 0; i < 9; ++i) many.push_back(tensor("more." + std::to_string(i), {2}, 1));
  EXPECT_THAT(why(check(many)), HasSubstr("there is no tensor more.0, more.1, more.2 and 6 more"));
}

TEST_F(StoredModelTest, WhatOlderProgramsWroteBesideIsPassedOver) {
  auto stored = all;
  stored.push_back(tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, 1));
  write("model.safetensors", stored);
  expect_read(all);
}

// As the first ones of 2018 still are.
TEST_F(StoredModelTest, OldNamesOfABertAreThoseOfToday) {
  const auto weight = tensor("bert.embeddings.LayerNorm.weight", {6}, 1);
  const auto bias = tensor("bert.embeddings.LayerNorm.bias", {6}, 9);
  const auto words = tensor("bert.embeddings.word_embeddings.weight", {7, 6}, 2);
  auto old_weight = weight, old_bias = bias;
  old_weight.name = "bert.embeddings.LayerNorm.gamma";
  old_bias.name = "bert.embeddings.LayerNorm.beta";
  write("model.safetensors",
        {old_weight, old_bias, words, tensor("bert.embeddings.position_ids", {1, 4}, 0),
         tensor("bert.pooler.dense.weight", {6, 6}, 1), tensor("bert.pooler.dense.bias", {6}, 1),
         tensor("cls.seq_relationship.weight", {2, 6}, 1)});
  expect_read({weight, bias, words});
  EXPECT_THAT(why(check({weight, bias})), HasSubstr("bert.pooler"));  // of no BERT
  write("model.safetensors", {old_weight, weight, bias});
  const auto twice = StoredModel::open(*disk, folder.path());
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, ErrorCode::corrupt);
}

TEST_F(StoredModelTest, AHeadsBiasThatIsStoredTwiceMustBeTheSame) {
  const auto bias = tensor("cls.predictions.bias", {6}, 1);
  auto again = bias;
  again.name = "cls.predictions.decoder.bias";
  write("model.safetensors", {bias, again});
  expect_read({bias});
  again.values[5] += 1;
  write("model.safetensors", {bias, again});
  EXPECT_THAT(why(check({bias})), HasSubstr("has no tensor cls.predictions.decoder.bias"));
}

// Some save the head of a tied model too. Were it another one, somebody would not get their model.
TEST_F(StoredModelTest, AHeadThatIsStoredTwiceMustBeTheEmbedding) {
  auto head = embedding;
  head.name = "lm_head.weight";
  auto stored = all;
  stored.push_back(head);
  write("model.safetensors", stored);
  expect_read(all);
  stored.back().values[27] += 1;
  write("model.safetensors", stored);
  EXPECT_THAT(why(check(all)), HasSubstr("has no tensor lm_head.weight"));
  expect_read(stored);  // of an untied model
}

TEST_F(StoredModelTest, ValuesThatAreNoNumbersAreNamed) {
  auto stored = all;
  stored[2].values[3] = std::numeric_limits<float>::infinity();
  write("model.safetensors", stored);
  const auto model = StoredModel::open(*disk, folder.path());
  ASSERT_TRUE(model);
  std::vector<float> values(matrix.values.size());
  const auto read = model->read(wanted(all)[2], values);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::non_finite);
  EXPECT_THAT(read.error().text(), HasSubstr(matrix.name));
}

TEST_F(StoredModelTest, AnIndexIsBelievedNothing) {
  const auto refused = [&](ErrorCode code, const std::string& text) {
    const auto model = StoredModel::open(*disk, folder.path());
    ASSERT_FALSE(model) << text;
    EXPECT_EQ(model.error().code, code) << model.error().text();
    EXPECT_THAT(model.error().text(), HasSubstr(text));
  };
  refused(ErrorCode::not_found, "and no model.safetensors.index.json either");
  two_files();
  const std::string first = "model-00001-of-00002.safetensors";
  for (const auto* text : {"", "{", "[]", "{}", "{\"weight_map\": 3}"}) {
    write_text("model.safetensors.index.json", text);
    refused(ErrorCode::corrupt, "no JSON object with a weight_map");
  }
  for (const auto* file : {"../model.safetensors", "/etc/passwd", "", ".", "..", "a/b"}) {
    write_index({{embedding.name, file}});
    refused(ErrorCode::corrupt, "names no file of this directory");
  }
  write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": 3}}");
  refused(ErrorCode::corrupt, "names no file of this directory");
  write_index({{embedding.name, "model-00003-of-00002.safetensors"}});
  refused(ErrorCode::not_found, "model-00003-of-00002.safetensors");
  write_index({{embedding.name, first}, {matrix.name, first}});
  refused(ErrorCode::corrupt, first + " holds the tensor " + matrix.name + ", which it does not");
  two_files();
  write("model-00002-of-00002.safetensors", {matrix, norm});
  refused(ErrorCode::corrupt, "the tensor " + norm.name + " is there twice");
}

}  // namespace
}  // namespace isthmus::runtime
