// Models against PyTorch in fp64: losses, logits, gradients and AdamW (oracle.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include "oracle.h"
#include "runtime/model.h"
#include "small_model.h"

namespace isthmus::runtime {
namespace {

const std::vector<int> kTwoThreads{-1, -1};

class ModelOracle : public testing::TestWithParam<std::string> {
 protected:
  void make(const std::string& name, Precision precision) {
    c = load_oracle_case(name);
    make_model(precision);
  }
  // Of `c`.
  void make_model(Precision precision) {
    auto made = Model::create(c.config, c.shape(precision), pool);
    ASSERT_TRUE(made.has_value()) << made.error().text();
    model = std::move(*made);
    EXPECT_LE(model->parameters().size(), kParametersMax);
    set_oracle_parameters(*model);
  }
  BatchLoss forward_backward_all() { return forward_backward(c.batches); }
  BatchLoss forward_backward(const std::vector<OracleBatch>& batches) {
    model->zero_gradients();
    BatchLoss loss;
    for (const auto& batch : batches)
      loss += model->forward_backward(batch.tokens, batch.targets, batch.document_starts,
                                      batch.row_keys);
    return loss;
  }
  // The tensors whose gradients are not those of the vectors, as f32 computes them; and "loss".
  std::vector<std::string> differences(double loss, double expected_loss,
                                       const std::vector<OracleTensor>& tensors) {
    std::vector<std::string> differ;
    if (!(std::abs(loss - expected_loss) <= 2e-6 * expected_loss)) differ.push_back("loss");
    double squares = 0;
    for (const auto& tensor : tensors) squares += tensor.norm * tensor.norm;
    EXPECT_EQ(model->tensors().size(), tensors.size());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      EXPECT_EQ(model->tensors()[t].name, tensors[t].name);
      const double most = 5e-6 * tensors[t].norm + 1e-7 * std::sqrt(squares);
      const bool near = distance(model->gradients(t), tensors[t]) <= most;
      const bool as_long = std::abs(norm(model->gradients(t)) - tensors[t].norm) <= most;
      if (!near || !as_long) differ.push_back(tensors[t].name);
    }
    return differ;
  }
  // Of a row of the first micro-batch: without padding.
  std::size_t text_length(std::size_t row) const {
    const auto sequence = static_cast<std::size_t>(c.sequence);
    if (!c.padded) return sequence;
    return static_cast<std::size_t>(std::ranges::count(
        std::span(c.batches[0].document_starts).subspan(row * sequence, sequence), 0));
  }
  static double norm(std::span<const float> values) {
    double squares = 0;
    for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
    return std::sqrt(squares);
  }

  ThreadPool pool{kTwoThreads};
  OracleCase c;
  std::unique_ptr<Model> model;
};

const std::vector<std::string> kCasesInBf16 = {
    "tied",      "untied", "grouped",      "long",        "linear",    "llama3",
    "yarn",      "qwen3",  "qwen3_untied", "mixtral",     "qwen3_moe", "qwen3_moe_untied",
    "qwen2_moe", "bert",   "bert_long",    "bert_dropout"};
// Where rounding to bf16 would choose other experts, in PyTorch as here.
const std::vector<std::string> kCasesInF32Alone = {"mixtral_long"};

std::string name_of_case(const testing::TestParamInfo<std::string>& value) { return value.param; }

INSTANTIATE_TEST_SUITE_P(Cases, ModelOracle, testing::ValuesIn(kCasesInBf16), name_of_case);
INSTANTIATE_TEST_SUITE_P(InF32Alone, ModelOracle, testing::ValuesIn(kCasesInF32Alone),
                         name_of_case);

class ModelOracleInBf16 : public ModelOracle {};
INSTANTIATE_TEST_SUITE_P(Cases, ModelOracleInBf16, testing::ValuesIn(kCasesInBf16), name_of_case);

TEST_P(ModelOracle, GradientsInF32AreThoseOfFp64) {
  ASSERT_NO_FATAL_FAILURE(make(GetParam(), Precision::f32));
  const auto loss = forward_backward_all();
  EXPECT_EQ(loss.counted, c.counted);
  EXPECT_THAT(differences(loss.sum, c.loss, c.tensors), testing::IsEmpty());
  EXPECT_NEAR(model->routing().balance_loss, c.balance_loss, 2e-6 * c.balance_loss);
  EXPECT_NEAR(model->routing().z_loss, c.z_loss, 2e-6 * c.z_loss);
}

// Added to all keys alike, it changes no weight of attention: its gradient is 0. What rounding
// makes of it is nobody's to compare, nor what AdamW, which divides by its size, makes of that.
bool has_no_gradient(std::string_view name) { return name.ends_with("attention.self.key.bias"); }

constexpr double kBf16Factor = 1.25;  // of what PyTorch's autocast is off by

TEST_P(ModelOracleInBf16, GradientsAreAsGoodAsAutocast) {
  ASSERT_NO_FATAL_FAILURE(make(GetParam(), Precision::bf16));
  EXPECT_TRUE(c.config.experts == 0 || c.margin > 0.05) << c.margin;
  const auto loss = forward_backward_all();
  EXPECT_EQ(loss.counted, c.counted);
  EXPECT_NEAR(loss.sum, c.loss, 2e-3 * c.loss);
  for (std::size_t t = 0; t < c.tensors.size(); ++t) {
    const auto& expected = c.tensors[t];
    const auto error = distance(model->gradients(t), expected);
    EXPECT_GT(error, 1e-5 * expected.norm) << expected.name << ": this cannot have been bf16";
    if (c.config.experts > 0) continue;  // too few tokens to tell by: DrawsOfExpertsInBf16
    if (has_no_gradient(expected.name)) continue;
    EXPECT_LE(error, kBf16Factor * expected.autocast_error) << expected.name;
  }
}

class DrawsOfExpertsInBf16 : public ModelOracle {};
INSTANTIATE_TEST_SUITE_P(Cases, DrawsOfExpertsInBf16,
                         testing::Values("mixtral", "qwen3_moe", "qwen3_moe_untied", "qwen2_moe"),
                         name_of_case);

// What is compared as one: a tensor, or those of one kind of all experts of a layer, as hardly any
// draw chooses some of them.
std::string compared_as(const std::string& name) {
  static const std::regex expert("experts[.][0-9]+");
  return std::regex_replace(name, expert, "experts");
}

struct Bf16Error {
  double ours = 0, autocast = 0;  // squared
};

TEST_P(DrawsOfExpertsInBf16, GradientsAreAsGoodAsAutocast) {
  const auto draws = load_oracle_draws(GetParam());
  EXPECT_EQ(draws.cases.size(), 24U);
  std::map<std::string, Bf16Error> errors;
  std::vector<std::vector<std::uint64_t>> chosen;  // of each draw, in f32
  for (const auto precision : {Precision::f32, Precision::bf16}) {
    c = draws.cases[0];
    ASSERT_NO_FATAL_FAILURE(make_model(precision));
    for (std::size_t i = 0; i < draws.cases.size(); ++i) {
      const auto& draw = draws.cases[i];
      ASSERT_EQ(model->tensors().size(), draw.tensors.size());
      forward_backward(draw.batches);
      if (precision == Precision::f32) {
        chosen.push_back(model->routing().chosen);
        continue;
      }
      EXPECT_EQ(model->routing().chosen, chosen[i]) << draw.data;
      for (std::size_t t = 0; t < draw.tensors.size(); ++t)
        errors[compared_as(draw.tensors[t].name)].ours +=
            std::pow(distance(model->gradients(t), draw.tensors[t]), 2);
    }
  }
  for (std::size_t t = 0; t < draws.autocast_errors.size(); ++t) {
    const auto& name = draws.cases[0].tensors[t].name;
    EXPECT_EQ(model->tensors()[t].name, name);
    errors[compared_as(name)].autocast += std::pow(draws.autocast_errors[t], 2);
  }
  for (const auto& [name, squares] : errors)
    EXPECT_LE(std::sqrt(squares.ours), kBf16Factor * std::sqrt(squares.autocast)) << name;
}

TEST_P(ModelOracle, LogitsAreThoseOfFp64) {
  ASSERT_NO_FATAL_FAILURE(make(GetParam(), Precision::f32));
  const auto vocabulary = static_cast<std::size_t>(c.config.vocabulary);
  const auto sequence = static_cast<std::size_t>(c.sequence);
  std::vector<float> logits(c.logits.elements);
  for (std::size_t b = 0; b < static_cast<std::size_t>(c.micro_batch); ++b) {
    const auto length = text_length(b);
    model->logits(std::span(c.batches[0].tokens).subspan(b * sequence, length),
                  std::span(logits).subspan(b * sequence * vocabulary, length * vocabulary));
  }
  EXPECT_LE(distance(logits, c.logits), 5e-6 * c.logits.norm);
  EXPECT_NEAR(norm(logits), c.logits.norm, 5e-6 * c.logits.norm);
}

TEST_P(ModelOracle, EvaluationAndLogitsGiveTheLossOfTraining) {
  ASSERT_NO_FATAL_FAILURE(make(GetParam(), Precision::f32));
  auto shape = c.shape(Precision::f32);
  shape.router = {};  // neither of them drops anything
  c.config.dropout = c.config.attention_dropout = 0;
  model = *Model::create(c.config, shape, pool);
  set_oracle_parameters(*model);
  const auto& batch = c.batches[0];
  const auto trained =
      model->forward_backward(batch.tokens, batch.targets, batch.document_starts, batch.row_keys);
  const auto evaluated = model->forward_loss(batch.tokens, batch.targets, batch.document_starts);
  EXPECT_EQ(evaluated.counted, trained.counted);
  EXPECT_DOUBLE_EQ(evaluated.sum, trained.sum);

  double from_logits = 0;
  const auto vocabulary = static_cast<std::size_t>(c.config.vocabulary);
  const auto sequence = static_cast<std::size_t>(c.sequence);
  std::vector<float> logits(sequence * vocabulary);
  for (std::size_t b = 0; b < static_cast<std::size_t>(c.micro_batch); ++b) {
    const auto length = text_length(b);
    model->logits(std::span(c.batches[0].tokens).subspan(b * sequence, length),
                  std::span(logits).first(length * vocabulary));
    for (std::size_t i = 0; i < length; ++i) {
      const auto target = c.batches[0].targets[b * sequence + i];
      if (target == kIgnoredTarget) continue;
      const auto row = std::span(logits).subspan(i * vocabulary, vocabulary);
      double sum = 0;
      for (const float x : row) sum += std::exp(static_cast<double>(x));
      from_logits += std::log(sum) - static_cast<double>(row[static_cast<std::size_t>(target)]);
    }
  }
  EXPECT_NEAR(from_logits, trained.sum, 1e-5 * trained.sum);
}

// The comparison above would notice each of these mistakes: of what PyTorch computes with one, ours
// differs.
TEST_F(ModelOracle, EachPlantedFaultIsSeen) {
  const auto faults = load_oracle_faults();
  EXPECT_GE(faults.size(), 12U);
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.name);
    ASSERT_NO_FATAL_FAILURE(make(fault.model, Precision::f32));
    const auto loss = forward_backward_all();
    EXPECT_THAT(differences(loss.sum, c.loss, c.tensors), testing::IsEmpty());
    EXPECT_THAT(differences(loss.sum, fault.loss, fault.tensors), testing::Not(testing::IsEmpty()));
  }
}

AdamWOptions oracle_adamw() {
  const auto options = load_oracle_text("adamw.txt");
  const auto number = [&](const std::string& key) { return std::stod(options.at(key)); };
  return {number("beta_1"), number("beta_2"), number("eps"), number("weight_decay"),
          number("gradient_norm_max")};
}

TEST_F(ModelOracle, UpdatesAreThoseOfTorchAdamW) {
  const auto options = load_oracle_text("adamw.txt");
  const auto number = [&](const std::string& key) { return std::stod(options.at(key)); };
  ASSERT_NO_FATAL_FAILURE(make(options.at("model"), Precision::f32));
  std::vector<std::vector<float>> before;
  for (std::size_t t = 0; t < model->tensors().size(); ++t)
    before.emplace_back(model->parameters(t).begin(), model->parameters(t).end());

  const auto adamw = oracle_adamw();
  const auto steps = std::stoll(options.at("steps"));
  for (std::int64_t step = 0; step < steps; ++step) {
    for (std::size_t t = 0; t < model->tensors().size(); ++t) {
      const auto name = model->tensors()[t].name + " gradient " + std::to_string(step);
      auto gradient = model->gradients(t);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = oracle_uniform(name, i) * (step == 0 ? 0.25F : 64.0F);
    }
    const auto report = model->update(
        adamw, number("rate") * static_cast<double>(step + 1) / static_cast<double>(steps),
        std::stoll(options.at("counted")));
    EXPECT_TRUE(report.finite);
    EXPECT_EQ(report.gradient_norm < 1, step == 0);  // both sides of the clipping
  }
  const auto after = load_oracle_floats("adamw.bin");
  auto rest = std::span(after);
  for (std::size_t t = 0; t < model->tensors().size(); ++t) {
    const auto& name = model->tensors()[t].name;
    const auto count = std::min(before[t].size(), kOracleSamples);
    const OracleTensor final{.name = name,
                             .elements = before[t].size(),
                             .samples = {rest.begin(), rest.begin() + static_cast<long>(count)}};
    rest = rest.subspan(count);
    EXPECT_LE(distance(model->parameters(t), final), 2e-5 * distance(before[t], final)) << name;
  }
  EXPECT_TRUE(rest.empty());
}

const std::vector<std::string> kTrainings = {"bert_trained", "grouped", "qwen3", "mixtral_trained"};

class TrainingOracle : public ModelOracle {};

TEST_P(TrainingOracle, AHundredStepsAreThoseOfFp64) {
  const auto options = load_oracle_text("training.txt");
  const auto number = [&](const std::string& key) { return std::stod(options.at(key)); };
  const auto adamw = oracle_adamw();
  const auto steps_of_data = std::stoll(options.at("steps_of_data"));
  const auto trainings = load_oracle_trainings();
  ASSERT_EQ(trainings.size(), kTrainings.size());
  const auto found = std::ranges::find(trainings, GetParam(), &OracleTraining::name);
  ASSERT_NE(found, trainings.end());
  const auto& training = *found;
  ASSERT_NO_FATAL_FAILURE(make(training.name, Precision::f32));
  ASSERT_EQ(training.losses.size(), 100U);
  for (std::int64_t step = 0; step < 100; ++step) {
    const auto loss = forward_backward(oracle_batches(c, step % steps_of_data));
    const auto expected = training.losses[static_cast<std::size_t>(step)];
    EXPECT_NEAR(loss.sum / static_cast<double>(loss.counted), expected, 2e-5 * expected) << step;
    const auto warmed_up = static_cast<double>(step + 1) / number("warmup");
    model->update(adamw, number("rate") * std::min(1.0, warmed_up), loss.counted);
  }
  ASSERT_EQ(training.parameters.size(), model->tensors().size());
  for (std::size_t t = 0; t < model->tensors().size(); ++t) {
    const auto& expected = training.parameters.at(t);
    if (has_no_gradient(expected.name)) continue;
    EXPECT_LE(distance(model->parameters(t), expected), 2e-5 * expected.norm) << expected.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainingOracle, testing::ValuesIn(kTrainings), name_of_case);

}  // namespace
}  // namespace isthmus::runtime
