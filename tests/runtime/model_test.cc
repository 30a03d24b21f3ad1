#include "runtime/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/copy_to.h"
#include "base/random.h"
#include "oracle.h"
#include "runtime/family.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

const std::vector<int> kOne{-1};
const std::vector<int> kTwo{-1, -1};

std::unique_ptr<Model> make_model(const ModelConfig& config, const BatchShape& shape,
                                  ThreadPool& pool, const FineTuning& tuning = {}) {
  auto model = Model::create(config, shape, pool, tuning);
  EXPECT_TRUE(model.has_value()) << model.error().text();
  return std::move(*model);
}

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

std::vector<float> copy_of(std::span<const float> values) { return {values.begin(), values.end()}; }

std::size_t tensor_index(const Model& model, std::string_view name) {
  const auto tensors = model.tensors();
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const CanonicalTensor& t) { return t.name == name; });
  EXPECT_NE(at, tensors.end()) << name;
  return static_cast<std::size_t>(at - tensors.begin());
}

ModelConfig two_layers() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 48;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn_width = 60;
  config.vocabulary = 259;
  return config;
}

OracleBatch random_batch(const ModelConfig& config, const BatchShape& shape, std::uint64_t seed) {
  Random random(seed);
  OracleBatch batch;
  for (std::int64_t i = 0; i < shape.tokens(); ++i) {
    const auto draw = [&] {
      return static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocabulary)));
    };
    batch.tokens.push_back(draw());
    batch.targets.push_back(random.chance(0.1) ? kIgnoredTarget : draw());
  }
  for (std::int64_t row = 0; row < shape.micro_batch; ++row)
    batch.row_keys.push_back(random.next());
  return batch;
}

TEST(Model, LogitsOfAPrefixAreThePrefixOfLogits) {
  const auto config = two_layers();
  const BatchShape shape{2, 70, Precision::f32};
  ThreadPool pool(kOne);
  const auto model = make_model(config, shape, pool);
  model->initialise(5);
  const auto batch = random_batch(config, shape, 1);
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  std::vector<float> whole(70 * vocabulary);
  model->logits(std::span(batch.tokens).first(70), whole);
  for (const std::size_t length : {1, 31, 33, 69}) {
    std::vector<float> part(length * vocabulary);
    model->logits(std::span(batch.tokens).first(length), part);
    const auto expected = std::span(whole).first(part.size());
    EXPECT_LE(distance(part, expected), 1e-5 * distance(expected, std::vector<float>(part.size())))
        << length;
  }
}

// The global batch is one, however it is cut.
TEST(Model, MicroBatchesAddUpToTheWholeBatch) {
  const auto config = two_layers();
  const BatchShape whole{4, 24, Precision::f32};
  const BatchShape half{2, 24, Precision::f32};
  ThreadPool pool(kTwo);
  const auto at_once = make_model(config, whole, pool);
  const auto in_halves = make_model(config, half, pool);
  at_once->initialise(9);
  in_halves->initialise(9);
  const auto batch = random_batch(config, whole, 2);
  const auto n = static_cast<std::size_t>(half.tokens());
  const auto loss = at_once->forward_backward(batch.tokens, batch.targets);
  BatchLoss sum;
  for (const std::size_t first : {std::size_t{0}, n})
    sum += in_halves->forward_backward(std::span(batch.tokens).subspan(first, n),
                                       std::span(batch.targets).subspan(first, n));
  EXPECT_EQ(sum.counted, loss.counted);
  EXPECT_NEAR(sum.sum, loss.sum, 1e-6 * loss.sum);
  const std::vector<float> zero(at_once->gradients().size());
  EXPECT_LE(distance(at_once->gradients(), in_halves->gradients()),
            2e-6 * distance(at_once->gradients(), zero));
}

// Of experts, too: what is dropped, and the routers' losses, are of each sequence by itself.
TEST(Model, MicroBatchesOfExpertsAddUpToTheWholeBatch) {
  for (const char* family : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    SCOPED_TRACE(family);
    const auto config = small_config(family);
    BatchShape whole{4, 24, Precision::f32};
    whole.router = {.capacity = 1, .balance = 0.3, .z = 0.02};
    auto half = whole;
    half.micro_batch = 2;
    ThreadPool pool(kTwo);
    const auto at_once = make_model(config, whole, pool);
    const auto in_halves = make_model(config, half, pool);
    at_once->initialise(9);
    in_halves->initialise(9);
    auto batch = random_batch(config, whole, 2);
    for (std::size_t i = 0; i < 40; ++i)
      batch.targets[i] = kIgnoredTarget;  // sequences weigh unequally
    const auto n = static_cast<std::size_t>(half.tokens());
    at_once->forward_backward(batch.tokens, batch.targets);
    for (const std::size_t first : {std::size_t{0}, n})
      in_halves->forward_backward(std::span(batch.tokens).subspan(first, n),
                                  std::span(batch.targets).subspan(first, n));
    const std::vector<float> zero(at_once->gradients().size());
    EXPECT_LE(distance(at_once->gradients(), in_halves->gradients()),
              1e-6 * distance(at_once->gradients(), zero));
    const auto &one = at_once->routing(), &two = in_halves->routing();
    EXPECT_EQ(one.chosen, two.chosen);
    EXPECT_EQ(one.dropped, two.dropped);
    EXPECT_GT(one.dropped, 0U);
    EXPECT_NEAR(one.balance_loss, two.balance_loss, 1e-6 * one.balance_loss);
    EXPECT_NEAR(one.z_loss, two.z_loss, 1e-6 * one.z_loss);
    EXPECT_EQ(one.choices(),
              static_cast<std::uint64_t>(whole.tokens() * 2 * config.expert_layers()));
  }
}

// Of an encoder, too: what is dropped depends on a row's key and nothing else, and no row sees
// another, nor a document another of its row.
TEST(Model, MicroBatchesWithDropoutAddUpToTheWholeBatch) {
  const auto config = small_config("bert");
  BatchShape whole{4, 24, Precision::f32};
  whole.documents = Documents::apart;
  auto half = whole;
  half.micro_batch = 2;
  ThreadPool pool(kTwo);
  const auto at_once = make_model(config, whole, pool), in_halves = make_model(config, half, pool);
  for (const auto& model : {at_once.get(), in_halves.get()}) model->initialise(9);
  auto batch = random_batch(config, whole, 2);
  for (std::int32_t i = 0; i < whole.tokens(); ++i)
    batch.document_starts.push_back(i % 24 < 11 ? 0 : 11);
  const auto loss =
      at_once->forward_backward(batch.tokens, batch.targets, batch.document_starts, batch.row_keys);
  BatchLoss sum;
  for (const std::size_t row : {std::size_t{0}, std::size_t{2}}) {
    const auto of_rows = [&](const std::vector<std::int32_t>& all) {
      return std::span(all).subspan(row * 24, std::size_t{2} * 24);
    };
    sum += in_halves->forward_backward(of_rows(batch.tokens), of_rows(batch.targets),
                                       of_rows(batch.document_starts),
                                       std::span(batch.row_keys).subspan(row, 2));
  }
  EXPECT_NEAR(sum.sum, loss.sum, 1e-6 * loss.sum);
  const std::vector<float> zero(at_once->gradients().size());
  EXPECT_LE(distance(at_once->gradients(), in_halves->gradients()),
            1e-6 * distance(at_once->gradients(), zero));

  batch.row_keys[3] ^= std::uint64_t{1} << 40;
  const auto other =
      at_once->forward_backward(batch.tokens, batch.targets, batch.document_starts, batch.row_keys);
  EXPECT_GT(std::abs(other.sum - loss.sum), 1e-5 * loss.sum);
}

TEST(Model, EvaluationHasNoDropout) {
  auto config = small_config("bert");
  const BatchShape shape{2, 24, Precision::f32};
  ThreadPool pool(kTwo);
  const auto with = make_model(config, shape, pool);
  config.dropout = config.attention_dropout = 0;
  const auto without = make_model(config, shape, pool);
  const auto batch = random_batch(config, shape, 2);
  for (const auto& model : {with.get(), without.get()}) model->initialise(9);
  const auto loss = without->forward_loss(batch.tokens, batch.targets).sum;
  EXPECT_EQ(with->forward_loss(batch.tokens, batch.targets).sum, loss);
  EXPECT_EQ(without->forward_backward(batch.tokens, batch.targets).sum, loss);
  EXPECT_NE(with->forward_backward(batch.tokens, batch.targets, {}, batch.row_keys).sum, loss);
}

// A text is scored by itself, though there is room behind it.
TEST(Model, AnEncoderSeesBothWaysAndNoFurtherThanItsText) {
  const auto config = small_config("bert");
  ThreadPool pool(kTwo);
  const auto model = make_model(config, {1, 40, Precision::f32}, pool);
  model->initialise(9);
  const auto batch = random_batch(config, {1, 40, Precision::f32}, 3);
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  const auto scores = [&](std::span<const std::int32_t> tokens) {
    std::vector<float> out(tokens.size() * vocabulary);
    model->logits(tokens, out);
    return out;
  };
  const auto tokens = std::span(batch.tokens);
  const auto of_33 = scores(tokens.first(33));
  scores(tokens.first(40));  // leaves other tokens behind
  EXPECT_EQ(scores(tokens.first(33)), of_33);
  const auto of_34 = scores(tokens.first(34));
  EXPECT_GT(distance(of_33, std::span(of_34).first(of_33.size())), 1e-4);
  const std::vector<std::int32_t> one(tokens.begin(), tokens.begin() + 1);
  EXPECT_EQ(scores(one).size(), vocabulary);
}

TEST(Model, AnEncoderContinuesNoText) {
  ThreadPool pool(kOne);
  const auto model = make_model(small_config("bert"), {1, 16, Precision::f32}, pool);
  const auto decoding = model->decoding(1, 16);
  ASSERT_FALSE(decoding);
  EXPECT_EQ(decoding.error().code, ErrorCode::unsupported);
}

// Whatever training drops.
TEST(Model, EvaluationOfExpertsDropsNothing) {
  const auto config = small_config("mixtral");
  const BatchShape dropless{2, 24, Precision::f32};
  auto tight = dropless;
  tight.router = {.capacity = 0.25, .balance = 0.1};
  ThreadPool pool(kTwo);
  const auto one = make_model(config, dropless, pool), other = make_model(config, tight, pool);
  const auto batch = random_batch(config, dropless, 2);
  for (const auto& model : {one.get(), other.get()}) model->initialise(9);
  EXPECT_EQ(other->forward_loss(batch.tokens, batch.targets).sum,
            one->forward_loss(batch.tokens, batch.targets).sum);
  EXPECT_NE(other->forward_backward(batch.tokens, batch.targets).sum,
            one->forward_backward(batch.tokens, batch.targets).sum);
}

// Whatever the step before has left there.
TEST(Model, AStepBeginsWithGradientsOfZero) {
  auto untied = two_layers();
  untied.tied = false;
  for (const auto& config : {untied, two_layers(), small_config("bert")}) {
    const BatchShape shape{2, 24, Precision::f32};
    ThreadPool pool(kTwo);
    const auto used = make_model(config, shape, pool), fresh = make_model(config, shape, pool);
    for (const auto& model : {used.get(), fresh.get()}) model->initialise(9);
    const auto batch = random_batch(config, shape, 2);
    std::ranges::fill(used->gradients(), std::numeric_limits<float>::quiet_NaN());
    used->zero_gradients();
    for (const auto& model : {used.get(), fresh.get()})
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
        model->forward_backward(batch.tokens, batch.targets, {}, batch.row_keys);
    for (std::size_t i = 0; i < used->tensors().size(); ++i)
      EXPECT_EQ(copy_of(used->gradients(i)), copy_of(fresh->gradients(i)))
          << used->tensors()[i].name;
    used->zero_gradients();
    EXPECT_EQ(copy_of(used->gradients()), std::vector<float>(used->gradients().size()));
  }
}

class ModelBits : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Precisions, ModelBits, testing::Values(Precision::f32, Precision::bf16),
                         [](const auto& value) { return std::string(to_string(value.param)); });

struct Trained {
  std::vector<float> parameters, first_moments, second_moments, gradients;
  std::vector<double> losses;
  bool operator==(const Trained&) const = default;
};

Trained train(Model& model, std::int64_t first_step, std::int64_t end_step,
              std::uint64_t micro_batches = 2) {
  Trained trained;
  for (auto step = first_step; step < end_step; ++step) {
    model.zero_gradients();
    BatchLoss loss;
    for (std::uint64_t m = 0; m < micro_batches; ++m) {
      const auto batch =
          random_batch(model.config(), model.shape(), static_cast<std::uint64_t>(step) * 2 + m);
      loss += model.forward_backward(batch.tokens, batch.targets, {}, batch.row_keys);
    }
    trained.losses.push_back(loss.sum);
    model.update({}, 1e-2, loss.counted);
  }
  trained.parameters = copy_of(model.parameters());
  trained.first_moments = copy_of(model.first_moments());
  trained.second_moments = copy_of(model.second_moments());
  trained.gradients = copy_of(model.gradients());
  return trained;
}

class ModelThreads : public testing::TestWithParam<std::tuple<Precision, std::string>> {};

INSTANTIATE_TEST_SUITE_P(Families, ModelThreads,
                         testing::Combine(testing::Values(Precision::f32, Precision::bf16),
                                          testing::Values("llama", "qwen3", "mixtral", "qwen3_moe",
                                                          "qwen2_moe", "bert", "adapters")),
                         [](const auto& value) {
                           return std::get<1>(value.param) + "_" +
                                  std::string(to_string(std::get<0>(value.param)));
                         });

// 214 tokens a micro-batch, and odd sizes: more than one GEMM tile and several attention blocks,
// none of them full; of experts some choices are dropped.
TEST_P(ModelThreads, DoNotChangeBitsNorDoesRepetition) {
  const auto& [precision, family] = GetParam();
  BatchShape shape{2, 107, precision};
  auto config = two_layers();
  FineTuning tuning;
  if (family == "adapters")
    tuning.lora = {.rank = 3, .alpha = 6, .targets = {"*_proj"}};
  else
    config.family = family;
  config.hidden = 42;
  config.heads = 6;
  config.head_dim = 8;
  config.ffn_width = 61;
  config.vocabulary = 131;
  if (family == "bert") {
    config.kv_heads = config.heads;
    config.head_dim = 0;
    config.token_types = 2;
    config.dropout = 0.1;
    config.attention_dropout = 0.2;
  }
  if (find_family(config.family)->has_experts) {
    config.experts = 5;
    config.experts_per_token = 2;
    if (family == "qwen2_moe") config.shared_expert_width = 23;
    shape.router = {.capacity = 1.1, .balance = 0.02, .z = 0.001};
  }
  std::vector<Trained> runs;
  std::vector<std::vector<std::uint64_t>> chosen;
  for (const std::size_t threads : {1, 2, 3, 5, 2}) {
    ThreadPool pool(std::vector<int>(threads, -1));
    const auto model = make_model(config, shape, pool, tuning);
    model->initialise(3);
    runs.push_back(train(*model, 0, 20, 1));
    chosen.push_back(model->routing().chosen);
    EXPECT_EQ(model->routing().dropped > 0, config.experts > 0);
  }
  for (std::size_t i = 1; i < runs.size(); ++i) {
    EXPECT_TRUE(runs[i] == runs[0]) << i;
    EXPECT_EQ(chosen[i], chosen[0]);
  }
}

TEST_P(ModelBits, Learn) {
  const BatchShape shape{2, 40, GetParam()};
  ThreadPool pool(kTwo);
  const auto model = make_model(two_layers(), shape, pool);
  model->initialise(3);
  const auto batch = random_batch(model->config(), shape, 1);
  for (int step = 0; step < 60; ++step) {
    model->zero_gradients();
    const auto loss = model->forward_backward(batch.tokens, batch.targets);
    model->update({}, 1e-2, loss.counted);
  }
  const auto loss = model->forward_loss(batch.tokens, batch.targets);
  EXPECT_LT(loss.sum / static_cast<double>(loss.counted), 0.1);  // from 5.6, the log of 259
}

TEST_P(ModelBits, ResumeExactlyFromCanonicalTensors) {
  const BatchShape shape{2, 40, GetParam()};
  ThreadPool pool(kTwo);
  const auto model = make_model(two_layers(), shape, pool);
  model->initialise(3);
  train(*model, 0, 2);
  const auto resumed = make_model(two_layers(), shape, pool);
  for (std::size_t t = 0; t < model->tensors().size(); ++t) {
    copy_to(model->parameters(t), resumed->parameters(t).begin());
    copy_to(model->first_moments(t), resumed->first_moments(t).begin());
    copy_to(model->second_moments(t), resumed->second_moments(t).begin());
  }
  resumed->parameters_changed();
  resumed->set_updates(model->updates());
  EXPECT_TRUE(train(*model, 2, 4) == train(*resumed, 2, 4));
}

TEST(Model, ANonFiniteGradientChangesNothing) {
  ThreadPool pool(kOne);
  const auto model = make_model(two_layers(), {1, 16, Precision::f32}, pool);
  model->initialise(1);
  const auto before = copy_of(model->parameters());
  model->gradients()[1234] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(model->update({}, 1e-3, 10).finite);
  EXPECT_EQ(model->updates(), 0);
  EXPECT_EQ(copy_of(model->parameters()), before);
}

TEST(Model, NothingCountedChangesNothing) {
  const BatchShape shape{1, 16, Precision::f32};
  ThreadPool pool(kOne);
  const auto model = make_model(two_layers(), shape, pool);
  model->initialise(1);
  const auto before = copy_of(model->parameters());
  const auto batch = random_batch(model->config(), shape, 1);
  const std::vector<std::int32_t> ignored(batch.tokens.size(), kIgnoredTarget);
  const auto loss = model->forward_backward(batch.tokens, ignored);
  EXPECT_EQ(loss.counted, 0);
  EXPECT_EQ(loss.sum, 0);
  EXPECT_EQ(copy_of(model->gradients()), std::vector<float>(model->gradients().size()));
  model->update({}, 1e-3, 0);
  EXPECT_EQ(copy_of(model->parameters()), before);
}

// Three products with the vocabulary, of two operations for each element and hidden value.
TEST(Model, OperationsOfTheHeadAreThoseOfTargetsThatCount) {
  const BatchShape shape{2, 16, Precision::f32};
  ThreadPool pool(kOne);
  const auto config = two_layers();
  const auto model = make_model(config, shape, pool);
  const auto of_target = static_cast<double>(3 * 2 * config.hidden * config.vocabulary);
  EXPECT_DOUBLE_EQ(model->flops(shape.tokens()) - model->flops(5),
                   static_cast<double>(shape.tokens() - 5) * of_target);
  EXPECT_GT(model->flops(0), 0);
}

TEST(Model, InitialParametersDependOnSeedNameAndElementOnly) {
  ThreadPool pool(kTwo);
  const auto model = make_model(two_layers(), {1, 16, Precision::f32}, pool);
  model->initialise(7);
  // The k projection lies within a fused matrix, yet is drawn by its own name.
  const auto k = tensor_index(*model, "model.layers.1.self_attn.k_proj.weight");
  const auto random = Random(7).split("model.layers.1.self_attn.k_proj.weight");
  for (const std::size_t i : {0, 1, 500, 1151})
    EXPECT_EQ(model->parameters(k)[i], static_cast<float>(random.normal_at(i) * 0.02));
  EXPECT_THAT(model->parameters(tensor_index(*model, "model.norm.weight")), testing::Each(1.0F));
  double squares = 0;
  const auto embedding = model->parameters(tensor_index(*model, "model.embed_tokens.weight"));
  for (const float x : embedding) squares += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(embedding.size())), 0.02, 0.0005);
}

TEST(Model, CanonicalTensorsCoverTheModelOnceInOrderOfNames) {
  auto config = two_layers();
  config.layers = 11;
  config.tied = false;
  const auto tensors =
      lay_out_parameters(build_program(config, {.micro_batch = 1, .sequence = 1}, Head::loss))
          .tensors;
  EXPECT_EQ(tensors.size(), 11u * 9u + 3u);
  EXPECT_TRUE(std::ranges::is_sorted(tensors, {}, &CanonicalTensor::name));
  EXPECT_EQ(tensors[0].name, "lm_head.weight");
  std::int64_t elements = 0;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (const auto& tensor : tensors) {
    elements += tensor.shape.elements();
    ranges.emplace_back(tensor.first, tensor.first + tensor.elements());
  }
  EXPECT_EQ(elements, parameter_count(config));
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
}

TEST(Model, RefusesWhatItCannotBe) {
  ThreadPool pool(kOne);
  const auto config = two_layers();
  EXPECT_FALSE(Model::create(config, {0, 16, Precision::f32}, pool).has_value());
  EXPECT_FALSE(
      Model::create(config, {1, config.sequence_max + 1, Precision::f32}, pool).has_value());
  auto other = config;
  other.family = "gpt";
  const auto refused = Model::create(other, {1, 16, Precision::f32}, pool);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  other = config;
  other.layers = 1000;
  other.hidden = 65536;
  other.ffn_width = 1 << 18;
  const auto giant = Model::create(other, {1, 16, Precision::f32}, pool);
  ASSERT_FALSE(giant.has_value());
  EXPECT_EQ(giant.error().code, ErrorCode::too_large);
}

TEST(Model, TimesItsOps) {
  const BatchShape shape{1, 16, Precision::f32};
  ThreadPool pool(kOne);
  const auto model = make_model(two_layers(), shape, pool);
  const auto batch = random_batch(model->config(), shape, 1);
  model->forward_backward(batch.tokens, batch.targets);
  model->measure_ops(true);
  model->forward_backward(batch.tokens, batch.targets);
  model->forward_backward(batch.tokens, batch.targets);
  double flops = 0;
  for (const auto& time : model->op_times()) {
    flops += time.flops;
    EXPECT_GT(time.seconds, 0) << time.name;
  }
  // Six per parameter of a matrix and token (the embedding's lookup has none, its head has), and
  // the scores.
  const auto matrices = parameter_count(model->config()) - 5 * 48;
  EXPECT_GT(flops, 2.0 * 6.0 * 16.0 * static_cast<double>(matrices));
  EXPECT_LT(flops, 2.0 * 6.6 * 16.0 * static_cast<double>(matrices));
  double of_gemms = 0;
  for (const auto& gemm : model->gemms()) of_gemms += gemm.flops();
  EXPECT_EQ(of_gemms, 6.0 * 16.0 * static_cast<double>(matrices));
}

}  // namespace
}  // namespace isthmus::runtime
