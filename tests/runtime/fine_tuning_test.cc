#include "runtime/fine_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/byte_stream.h"
#include "runtime/frozen_digest.h"
#include "runtime/training_memory.h"
#include "security/hash.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using ::testing::HasSubstr;

constexpr double kScale = 1.5;

FineTuning lora(std::vector<std::string> targets) {
  return {.frozen = {},
          .lora = {.rank = 4, .alpha = 4 * kScale, .targets = std::move(targets)},
          .base = {}};
}

std::unique_ptr<Model> make(ThreadPool& pool, const FineTuning& tuning,
                            Precision precision = Precision::f32,
                            Recompute recompute = Recompute::off) {
  auto shape = small_shape();
  shape.precision = precision;
  shape.recompute = recompute;
  auto model = Model::create(small_config(), shape, pool, tuning);
  EXPECT_TRUE(model) << model.error().text();
  (*model)->initialise(3);
  return std::move(*model);
}

// Of equal names equal values, whichever model it is in; adapters are not zero.
void fill(Model& model) {
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const auto random = Random(5).split(model.tensors()[i].name);
    const bool norm = model.tensors()[i].shape.rank() == 1;
    auto values = model.parameters(i);
    for (std::size_t k = 0; k < values.size(); ++k)
      values[k] = static_cast<float>((norm ? 1 : 0) + 0.2 * random.normal_at(k));
  }
  model.parameters_changed();
}

std::map<std::string, std::size_t> indices(const Model& model) {
  std::map<std::string, std::size_t> all;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) all[model.tensors()[i].name] = i;
  return all;
}

struct Batch {
  Batch() {
    Random random(9);
    for (std::int64_t i = 0; i < small_shape().tokens(); ++i) {
      tokens.push_back(static_cast<std::int32_t>(random.below(260)));
      targets.push_back(static_cast<std::int32_t>(random.below(260)));
    }
  }
  std::vector<std::int32_t> tokens, targets;
};

double distance_of_oracle(std::span<const float> got, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

// The oracle is the model with the adapters merged into its weights: its loss is the same, and the
// gradients of A and B follow from that of the weight by the chain rule: dA = s Bᵀ dW, dB = s dW
// Aᵀ.
TEST(Adapters, HaveTheGradientsOfTheMergedModel) {
  ThreadPool pool({-1, -1});
  const auto adapted = make(pool, lora({"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"}));
  const auto merged = make(pool, {});
  fill(*adapted);
  fill(*merged);
  const auto of_adapted = indices(*adapted);
  const auto of_merged = indices(*merged);
  struct Adapter {
    std::size_t a, b, weight;
    std::int64_t in, out;
  };
  std::vector<Adapter> adapters;
  for (const auto& [name, index] : of_adapted) {
    if (!name.ends_with(kLoraA)) continue;
    const auto module = name.substr(0, name.size() - kLoraA.size());
    const auto weight = of_merged.at(module + ".weight");
    const auto& shape = merged->tensors()[weight].shape;
    adapters.push_back(
        {index, of_adapted.at(module + std::string(kLoraB)), weight, shape[1], shape[0]});
  }
  ASSERT_EQ(adapters.size(), 2U * 5U);
  const auto at = [](std::span<const float> values, std::int64_t i) {
    return static_cast<double>(values[static_cast<std::size_t>(i)]);
  };
  for (const auto& [a, b, weight, in, out] : adapters) {
    const auto w = merged->parameters(weight);
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) {
        double sum = 0;
        for (std::int64_t r = 0; r < 4; ++r)
          sum += at(adapted->parameters(b), o * 4 + r) * at(adapted->parameters(a), r * in + i);
        w[static_cast<std::size_t>(o * in + i)] += static_cast<float>(kScale * sum);
      }
  }
  merged->parameters_changed();

  const Batch batch;
  for (auto* model : {adapted.get(), merged.get()}) model->zero_gradients();
  for (int micro = 0; micro < 2; ++micro) {
    const auto loss = adapted->forward_backward(batch.tokens, batch.targets);
    const auto expected = merged->forward_backward(batch.tokens, batch.targets);
    EXPECT_NEAR(loss.sum, expected.sum, 2e-6 * expected.sum);
  }
  for (const auto& [a, b, weight, in, out] : adapters) {
    const auto dw = merged->gradients(weight);
    std::vector<double> da(static_cast<std::size_t>(4 * in)), db(static_cast<std::size_t>(out * 4));
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i)
        for (std::int64_t r = 0; r < 4; ++r) {
          const double dw_oi = kScale * at(dw, o * in + i);
          da[static_cast<std::size_t>(r * in + i)] += at(adapted->parameters(b), o * 4 + r) * dw_oi;
          db[static_cast<std::size_t>(o * 4 + r)] += at(adapted->parameters(a), r * in + i) * dw_oi;
        }
    EXPECT_LT(distance_of_oracle(adapted->gradients(a), da), 2e-5) << adapted->tensors()[a].name;
    EXPECT_LT(distance_of_oracle(adapted->gradients(b), db), 2e-5) << adapted->tensors()[b].name;
  }
}

TEST(Adapters, AddNothingAtFirst) {
  ThreadPool pool({-1, -1});
  const Batch batch;
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    const auto adapted = make(pool, lora({"*_proj"}), precision);
    const auto plain = make(pool, {}, precision);
    EXPECT_EQ(adapted->forward_loss(batch.tokens, batch.targets).sum,
              plain->forward_loss(batch.tokens, batch.targets).sum);
    std::set<std::string> trained;
    for (const auto& tensor : adapted->tensors())
      if (tensor.trains) trained.insert(tensor.name);
    EXPECT_EQ(trained.size(), 2U * 2U * 7U);
    EXPECT_TRUE(trained.contains("model.layers.1.mlp.up_proj.lora_B.weight"));
  }
}

// A step moves the adapters, and nothing else; bits do not depend on threads, nor on recomputation.
TEST(Adapters, TrainAlone) {
  const Batch batch;
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    std::set<std::string> results;
    for (const auto recompute : {Recompute::off, Recompute::all})
      for (const std::size_t threads : {1U, 2U, 3U, 5U}) {
        ThreadPool pool(std::vector<int>(threads, -1));
        const auto model = make(pool, lora({"q_proj", "down_proj"}), precision, recompute);
        const auto frozen = frozen_digest(*model);
        EXPECT_EQ(frozen.size(), 64U);
        const auto before = model->forward_loss(batch.tokens, batch.targets).sum;
        for (int step = 0; step < 20; ++step) {
          model->zero_gradients();
          const auto loss = model->forward_backward(batch.tokens, batch.targets);
          EXPECT_TRUE(model->update({}, 1e-2, loss.counted).finite);
        }
        EXPECT_EQ(frozen_digest(*model), frozen);
        EXPECT_LT(model->forward_loss(batch.tokens, batch.targets).sum, 0.98 * before);
        security::Hasher hasher;
        for (const auto values :
             {model->parameters(), model->first_moments(), model->second_moments()})
          hasher.update(std::as_bytes(values));
        results.insert(hasher.finish().hex());
      }
    EXPECT_EQ(results.size(), 1U);
  }
}

TEST(Adapters, ContinueTextsAsTheyScoreThem) {
  ThreadPool pool({-1, -1});
  const auto model = make(pool, lora({"*_proj"}));
  fill(*model);
  const std::vector<std::int32_t> text = {5, 80, 33, 7, 120};
  std::vector<float> scores(text.size() * 260);
  model->logits(text, scores);
  const auto decoding = *model->decoding(1, 16);
  decoding->read(0, std::span(text).first(4));
  const auto next = decoding->next(std::span(text).last(1));
  for (std::size_t i = 0; i < 260; ++i) EXPECT_NEAR(next[i], scores[4 * 260 + i], 1e-4);
}

// What trains beside frozen tensors has the gradients that it has beside training ones.
TEST(Freezing, LeavesTheOtherGradientsAlone) {
  ThreadPool pool({-1, -1});
  const Batch batch;
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    const auto all = make(pool, {}, precision);
    const auto some = make(pool,
                           {.frozen = {"model.embed_tokens.weight", "*.0.*", "*.mlp.down_proj.*"},
                            .lora = {},
                            .base = {}},
                           precision);
    fill(*all);
    fill(*some);
    for (auto* model : {all.get(), some.get()}) {
      model->zero_gradients();
      model->forward_backward(batch.tokens, batch.targets);
    }
    const auto of_all = indices(*all);
    std::size_t trained = 0, elements = 0;
    for (std::size_t i = 0; i < some->tensors().size(); ++i) {
      const auto& tensor = some->tensors()[i];
      EXPECT_EQ(tensor.trains, tensor.name.find(".1.") != std::string::npos &&
                                       tensor.name.find("down_proj") == std::string::npos
                                   ? true
                                   : tensor.name == "model.norm.weight")
          << tensor.name;
      if (!tensor.trains) continue;
      ++trained;
      elements += tensor.elements();
      EXPECT_TRUE(std::ranges::equal(some->gradients(i), all->gradients(of_all.at(tensor.name))))
          << tensor.name;
    }
    EXPECT_EQ(trained, 9U);
    // No gradients and no moments but theirs; each begins at a multiple of 16.
    EXPECT_GE(some->gradients().size(), elements);
    EXPECT_LE(some->gradients().size(), elements + 16 * trained);
    EXPECT_EQ(some->first_moments().size(), some->gradients().size());
    EXPECT_EQ(some->second_moments().size(), some->gradients().size());
    const auto frozen = frozen_digest(*some);
    EXPECT_TRUE(some->update({}, 1e-2, 48).finite);
    EXPECT_EQ(frozen_digest(*some), frozen);
    EXPECT_EQ(frozen_digest(*all), "");
  }
}

// What is frozen around it changes nothing of a tensor's gradient: no op needs another one's.
TEST(FineTuning, EachTensorMayTrainAlone) {
  ThreadPool pool({-1, -1});
  for (const std::string family : {"llama", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "bert"}) {
    const auto config = small_config(family);
    auto shape = small_shape();
    shape.router = {.capacity = 1, .balance = 0.02, .z = 0.001};
    const Batch batch;
    const auto gradients_of = [&](Model& model) {
      model.initialise(5);
      model.zero_gradients();
      model.forward_backward(batch.tokens, batch.targets, {}, std::vector<std::uint64_t>{1, 2});
    };
    const auto whole = *Model::create(config, shape, pool);
    gradients_of(*whole);
    const auto program = build_program(config, shape, Head::loss);
    for (const auto& alone : program.parameters) {
      SCOPED_TRACE(family + " " + alone.canonical[0].name);
      FineTuning tuning;
      for (const auto& parameter : program.parameters)
        if (parameter.canonical[0].name != alone.canonical[0].name)
          for (const auto& part : parameter.canonical) tuning.frozen.push_back(part.name);
      const auto model = *Model::create(config, shape, pool, tuning);
      gradients_of(*model);
      for (std::size_t t = 0; t < model->tensors().size(); ++t) {
        if (!model->tensors()[t].trains) continue;
        const auto all = whole->gradients(t);
        EXPECT_TRUE(std::ranges::equal(model->gradients(t), all)) << model->tensors()[t].name;
      }
    }
  }
}

// Experts and routers have no adapters beside them, and are frozen all the same.
TEST(Adapters, OfAModelWithExpertsTrainBesideItsOtherProducts) {
  ThreadPool pool({-1, -1});
  const Batch batch;
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    SCOPED_TRACE(family);
    const auto config = small_config(family);
    const auto tuning = lora({"*"});
    for (const auto& module : adapted_modules(tuning, config)) {
      EXPECT_EQ(module.find("expert"), std::string::npos) << module;
      EXPECT_FALSE(module.ends_with(".gate")) << module;
    }
    EXPECT_FALSE(check(lora({"gate"}), config));
    EXPECT_FALSE(check(lora({"w1"}), config));
    auto shape = small_shape();
    shape.router = {.balance = 0.01};
    const auto model = *Model::create(config, shape, pool, tuning);
    model->initialise(5);
    const auto frozen = frozen_digest(*model);
    const auto before = model->forward_loss(batch.tokens, batch.targets).sum;
    for (int step = 0; step < 20; ++step) {
      model->zero_gradients();
      const auto loss = model->forward_backward(batch.tokens, batch.targets);
      EXPECT_TRUE(model->update({}, 1e-2, loss.counted).finite);
    }
    EXPECT_EQ(frozen_digest(*model), frozen);
    EXPECT_LT(model->forward_loss(batch.tokens, batch.targets).sum, 0.99 * before);
    EXPECT_GT(model->routing().choices(), 0U);
  }
}

// All experts of a layer are one parameter, so that their names are frozen together.
TEST(Freezing, ExpertsLeaveTheOtherGradientsAlone) {
  ThreadPool pool({-1, -1});
  const Batch batch;
  const auto config = small_config("mixtral");
  auto shape = small_shape();
  shape.router = {.capacity = 1.25, .balance = 0.1, .z = 0.01};
  const auto all = *Model::create(config, shape, pool);
  const FineTuning tuning{.frozen = {"*.experts.*"}, .lora = {}, .base = {}};
  const auto some = *Model::create(config, shape, pool, tuning);
  for (auto* model : {all.get(), some.get()}) {
    model->initialise(5);
    model->zero_gradients();
    model->forward_backward(batch.tokens, batch.targets);
  }
  const auto of_all = indices(*all);
  for (std::size_t i = 0; i < some->tensors().size(); ++i) {
    const auto& tensor = some->tensors()[i];
    EXPECT_EQ(tensor.trains, tensor.name.find(".experts.") == std::string::npos) << tensor.name;
    if (!tensor.trains) continue;
    EXPECT_TRUE(std::ranges::equal(some->gradients(i), all->gradients(of_all.at(tensor.name))))
        << tensor.name;
  }
  const auto part = check({.frozen = {"*.experts.0.*"}, .lora = {}, .base = {}}, config);
  ASSERT_FALSE(part);
  EXPECT_NE(part.error().text().find("and 4 more are one matrix here"), std::string::npos)
      << part.error().text();
}

TEST(Freezing, CostsNoOptimizerMemory) {
  const auto config = small_config();
  const auto all = training_memory(config, small_shape(), 2);
  const FineTuning tuning = lora({"q_proj"});
  const auto adapted = training_memory(config, small_shape(), 2, tuning);
  const auto trained = static_cast<double>(trained_parameter_count(config, tuning));
  EXPECT_EQ(trained, 2 * (4 * 32 + 32 * 4));
  EXPECT_EQ(adapted.gradients, 4 * trained);
  EXPECT_EQ(adapted.optimizer, 8 * trained);
  EXPECT_EQ(adapted.weights, all.weights + 4 * trained);
  EXPECT_EQ(trained_parameter_count(config, {}), parameter_count(config));
}

TEST(FineTuning, IsRefusedWhereItMeansNothing) {
  const auto why = [](const FineTuning& tuning) {
    const auto fits = check(tuning, small_config());
    return fits ? std::string() : fits.error().text();
  };
  EXPECT_EQ(why({}), "");
  EXPECT_EQ(why(lora({"q_proj", "*.1.mlp.*"})), "");
  EXPECT_EQ(why({.frozen = {"*.self_attn.[qkv]_proj.weight"}, .lora = {}, .base = {}}), "");
  EXPECT_THAT(why(lora({})), HasSubstr("no target"));
  EXPECT_THAT(why(lora({"query"})), HasSubstr("no product of the model fits the target \"query\""));
  EXPECT_THAT(why(lora({"lm_head"})), HasSubstr("no product"));
  auto wrong = lora({"q_proj"});
  wrong.lora.rank = -1;
  EXPECT_THAT(why(wrong), HasSubstr("rank"));
  wrong = lora({"q_proj"});
  wrong.lora.alpha = 0;
  EXPECT_THAT(why(wrong), HasSubstr("alpha"));
  wrong = lora({"q_proj"});
  wrong.frozen = {"model.norm.weight"};
  EXPECT_THAT(why(wrong), HasSubstr("name no tensors besides"));
  EXPECT_THAT(why({.frozen = {"*.k_proj.weight"}, .lora = {}, .base = {}}),
              HasSubstr("q_proj.weight, model.layers.0.self_attn.k_proj.weight, "
                        "model.layers.0.self_attn.v_proj.weight are one matrix here"));
  EXPECT_THAT(why({.frozen = {"*.bias"}, .lora = {}, .base = {}}),
              HasSubstr("no tensor of the model fits"));
  EXPECT_THAT(why({.frozen = {"*"}, .lora = {}, .base = {}}),
              HasSubstr("nothing is left to train"));
  ThreadPool pool({-1});
  EXPECT_FALSE(Model::create(small_config(), small_shape(), pool, lora({"query"})));
}

}  // namespace
}  // namespace isthmus::runtime
