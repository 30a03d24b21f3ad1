// Documents of one sequence kept apart: each is computed as if it were alone. Where they begin is
// read in token_file_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/copy_to.h"
#include "runtime/evaluate.h"
#include "tests/runtime/small_model.h"
#include "tests/runtime/trainer_fixture.h"

namespace isthmus::runtime {
namespace {

constexpr std::size_t kRows = 2;
constexpr std::size_t kColumns = 50;

// Where the documents of each row begin, the row's end included.
const std::vector<std::vector<std::size_t>> kBegin = {{0, 7, 8, 31, kColumns}, {0, 20, kColumns}};

struct PartedBatch {
  std::vector<std::int32_t> tokens, targets, starts;
};

PartedBatch batch_of(const ModelConfig& config, std::uint64_t seed) {
  Random random(seed);
  const auto draw = [&] {
    return static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocabulary)));
  };
  PartedBatch batch;
  for (const auto& begin : kBegin)
    for (std::size_t document = 0; document + 1 < begin.size(); ++document)
      for (auto at = begin[document]; at < begin[document + 1]; ++at) {
        batch.tokens.push_back(draw());
        batch.targets.push_back(at + 1 == begin[document + 1] ? kIgnoredTarget : draw());
        batch.starts.push_back(static_cast<std::int32_t>(begin[document]));
      }
  return batch;
}

double length_of_difference(std::span<const float> x, std::span<const float> y) {
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    squares += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
  return std::sqrt(squares);
}

class DocumentsApart : public testing::TestWithParam<std::tuple<const char*, Precision>> {
 protected:
  DocumentsApart() {
    config_.family = std::get<0>(GetParam());
    config_.layers = 3;
  }
  std::unique_ptr<Model> model_of(std::int64_t rows, std::int64_t columns, Documents documents,
                                  ThreadPool& pool, Recompute recompute = Recompute::off,
                                  Precision precision = std::get<1>(GetParam())) {
    auto model = make_model(pool, config_,
                            {.micro_batch = rows,
                             .sequence = columns,
                             .precision = precision,
                             .recompute = recompute,
                             .documents = documents},
                            7);
    for (std::size_t i = 0; i < model->tensors().size(); ++i)
      if (model->tensors()[i].shape.rank() == 2)
        for (auto& x : model->parameters(i)) x *= 4;  // attention that is not uniform
    model->parameters_changed();
    return model;
  }
  // The loss and the gradients of a batch whose documents are sequences of their own.
  std::pair<BatchLoss, std::vector<float>> of_each_alone(const PartedBatch& batch,
                                                         Precision precision) {
    BatchLoss loss;
    std::vector<float> sum;
    for (std::size_t row = 0; row < kRows; ++row)
      for (std::size_t document = 0; document + 1 < kBegin[row].size(); ++document) {
        const auto first = row * kColumns + kBegin[row][document];
        const auto length = kBegin[row][document + 1] - kBegin[row][document];
        const auto alone = model_of(1, static_cast<std::int64_t>(length), Documents::joined, pool_,
                                    Recompute::off, precision);
        loss += alone->forward_backward(std::span(batch.tokens).subspan(first, length),
                                        std::span(batch.targets).subspan(first, length));
        sum.resize(alone->gradients().size());
        std::ranges::transform(sum, alone->gradients(), sum.begin(), std::plus<>());
      }
    return {loss, std::move(sum)};
  }

  ModelConfig config_ = small_config();
  ThreadPool pool_{{-1, -1}};
};

TEST_P(DocumentsApart, AreAsEachAlone) {
  const auto precision = std::get<1>(GetParam());
  const auto batch = batch_of(config_, 1);
  const auto together = model_of(kRows, kColumns, Documents::apart, pool_);
  const auto loss = together->forward_backward(batch.tokens, batch.targets, batch.starts);
  EXPECT_EQ(together->forward_loss(batch.tokens, batch.targets, batch.starts).sum, loss.sum);

  const auto [expected, gradients] = of_each_alone(batch, Precision::f32);
  EXPECT_EQ(loss.counted, expected.counted);
  const auto norm = length_of_difference(gradients, std::vector<float>(gradients.size()));
  const auto difference = length_of_difference(together->gradients(), gradients);
  if (precision == Precision::f32) {
    EXPECT_NEAR(loss.sum, expected.sum, 1e-6 * expected.sum);
    EXPECT_LT(difference, 5e-6 * norm);
  } else {  // no farther from it than each alone in bf16
    const auto [in_bf16, gradients_in_bf16] = of_each_alone(batch, precision);
    EXPECT_LT(difference, 1.25 * length_of_difference(gradients_in_bf16, gradients));
    EXPECT_NEAR(loss.sum, expected.sum, 2e-3 * expected.sum);
  }

  const auto joined = model_of(kRows, kColumns, Documents::joined, pool_);
  joined->forward_backward(batch.tokens, batch.targets);
  EXPECT_GT(length_of_difference(joined->gradients(), gradients), 0.1 * norm)
      << "these documents do not tell whether they are apart";
}

TEST_P(DocumentsApart, OneDocumentIsTheWholeSequenceToTheBit) {
  const auto batch = batch_of(config_, 2);
  const auto apart = model_of(kRows, kColumns, Documents::apart, pool_);
  const auto joined = model_of(kRows, kColumns, Documents::joined, pool_);
  const std::vector<std::int32_t> starts(batch.tokens.size(), 0);
  EXPECT_EQ(apart->forward_backward(batch.tokens, batch.targets, starts).sum,
            joined->forward_backward(batch.tokens, batch.targets).sum);
  EXPECT_TRUE(std::ranges::equal(apart->gradients(), joined->gradients()));
}

TEST_P(DocumentsApart, ThreadsAndRecomputationDoNotChangeABit) {
  const auto batch = batch_of(config_, 3);
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 5})
    for (const auto recompute : {Recompute::off, Recompute::all}) {
      ThreadPool pool(std::vector<int>(static_cast<std::size_t>(threads), -1));
      const auto model = model_of(kRows, kColumns, Documents::apart, pool, recompute);
      model->forward_backward(batch.tokens, batch.targets, batch.starts);
      if (first.empty()) first.assign(model->gradients().begin(), model->gradients().end());
      EXPECT_TRUE(std::ranges::equal(model->gradients(), first))
          << threads << " " << to_string(recompute);
    }
}

INSTANTIATE_TEST_SUITE_P(Of, DocumentsApart,
                         testing::Combine(testing::Values("llama", "qwen3"),
                                          testing::Values(Precision::f32, Precision::bf16)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" +
                                  std::string(to_string(std::get<1>(tested.param)));
                         });

// A text with the list of its documents beside it, in files.
class DocumentsApartInFiles : public TrainerTest {
 protected:
  DocumentsApartInFiles() {
    write_contents(folder_ / "held", sample_text(400, 3));
    std::vector<std::uint64_t> begin;
    for (std::uint64_t at = 0; at < 19'000; at += 10) begin.push_back(at);
    list_documents("text", begin);
  }
  void list_documents(const std::string& text, const std::vector<std::uint64_t>& begin) {
    std::ofstream(documents_path(folder_ / text), std::ios::binary)
        .write(reinterpret_cast<const char*>(begin.data()),
               static_cast<std::streamsize>(begin.size() * sizeof(begin[0])));
  }
  std::unique_ptr<Model> model_of(Documents documents) {
    auto shape = small_shape();
    shape.documents = documents;
    return make_model(pool_, small_config(), shape);
  }
};

// The seam is in the data as well as in the model: a run over documents is another run.
TEST_F(DocumentsApartInFiles, AreTrainedApart) {
  const auto apart = model_of(Documents::apart), again = model_of(Documents::apart),
             joined = model_of(Documents::joined);
  run_well(*apart);
  std::filesystem::remove_all(folder_ / "checkpoints");
  run_well(*again);
  std::filesystem::remove_all(folder_ / "checkpoints");
  run_well(*joined);
  EXPECT_EQ(canonical(*apart), canonical(*again));
  EXPECT_NE(canonical(*apart), canonical(*joined));
}

// What is held out is judged as it is trained on; where nobody knows its documents, as one.
TEST_F(DocumentsApartInFiles, AreJudgedApart) {
  const auto apart = model_of(Documents::apart), joined = model_of(Documents::joined);
  for (const auto& model : {apart.get(), joined.get()}) {
    for (auto& x : model->parameters()) x *= 8;
    model->parameters_changed();
  }
  const auto bits = [&](Model& model) {
    const auto loss = held_out_loss(model, *tokenizer_, *disk_, folder_ / "held");
    EXPECT_TRUE(loss) << loss.error().text();
    return loss->bits();
  };
  EXPECT_EQ(bits(*apart), bits(*joined));
  // From the second sequence on one begins at the third token.
  const auto text = contents_of(folder_ / "held");
  std::vector<std::uint64_t> begin;
  for (std::uint64_t at = 26; at < text.size(); at += 24) begin.push_back(at);
  list_documents("held", begin);
  const auto found = bits(*apart);
  EXPECT_NE(found, bits(*joined));

  double sum = 0;
  std::int64_t counted = 0;
  const auto alone = make_model(pool_, small_config(), {.micro_batch = 1, .sequence = 24});
  copy_to(apart->parameters(), alone->parameters().begin());
  alone->parameters_changed();
  for (std::size_t sequence = 0; sequence < 24; ++sequence) {
    const std::size_t seam = sequence == 0 ? 0 : 2;
    for (const auto& [first, end] :
         {std::pair{std::size_t{0}, seam}, std::pair{seam, std::size_t{24}}}) {
      std::vector<std::int32_t> tokens(24, 0), targets(24, kIgnoredTarget);
      for (auto i = first; i < end; ++i) {
        const auto byte = [&](std::size_t at) {
          return static_cast<std::int32_t>(static_cast<unsigned char>(text[24 * sequence + at]));
        };
        tokens[i - first] = byte(i);
        if (i + 1 < end || end == 24) targets[i - first] = byte(i + 1);
      }
      const auto loss = alone->forward_loss(tokens, targets);
      sum += loss.sum;
      counted += loss.counted;
    }
  }
  EXPECT_NEAR(found, sum / std::log(2.0) / static_cast<double>(counted), 1e-5 * found);
}

}  // namespace
}  // namespace isthmus::runtime
