// The head, which multiplies only rows whose target counts, against its formula in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "runtime/cpu_device.h"
#include "runtime/cpu_ops.h"

namespace isthmus::runtime {
namespace {

// Two whole chunks and a shorter one; neither they nor their rows are multiples of anything.
constexpr std::int64_t kTokens = 203, kChunk = 70, kVocabulary = 61, kHidden = 7;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Matrix {
  Matrix(std::int64_t rows, std::int64_t columns, float value)
      : shape{rows, columns}, values(static_cast<std::size_t>(rows * columns), value) {}
  Matrix(std::int64_t rows, std::int64_t columns, const Random& random) : Matrix(rows, columns, 0) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(random.normal_at(i));
  }
  TensorView view() { return {values.data(), DType::f32, shape}; }
  double at(std::int64_t row, std::int64_t column) const {
    return static_cast<double>(values[static_cast<std::size_t>(row * shape[1] + column)]);
  }

  Shape shape;
  std::vector<float> values;
};

struct Head {
  Matrix x{kTokens, kHidden, Random(1)};
  Matrix weight{kVocabulary, kHidden, Random(2)};
  Matrix bias{1, kVocabulary, Random(3)};
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(kTokens, kIgnoredTarget);
  // Before: what a micro-batch adds to, and what nobody may read.
  Matrix dx{kTokens, kHidden, kNan};
  Matrix dweight{kVocabulary, kHidden, Random(4)};
  Matrix dbias{1, kVocabulary, Random(5)};

  explicit Head(const std::vector<std::int64_t>& counted) {
    for (const auto row : counted)
      targets[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(11 * row % kVocabulary);
    // Whoever multiplies them shows it. (Where none counts one of them has to be.)
    for (std::int64_t row = 0; row < kTokens; ++row)
      if (!counts(row) && !counted.empty())
        for (std::int64_t i = 0; i < kHidden; ++i)
          x.values[static_cast<std::size_t>(row * kHidden + i)] = kNan;
  }
  bool counts(std::int64_t row) const {
    return targets[static_cast<std::size_t>(row)] != kIgnoredTarget;
  }

  BatchLoss run(bool backward, std::size_t threads, bool first_micro_batch = false) {
    ThreadPool pool(std::vector<int>(threads, -1));
    CpuDevice device(pool);
    device.first_micro_batch = first_micro_batch;
    Op op{.kind = OpKind::head_loss,
          .pass = backward ? Pass::backward : Pass::forward,
          .inputs = {},
          .outputs = {},
          .sets_first = bit(1),
          .attributes = {}};
    Matrix logits(kChunk, kVocabulary, kNan);
    const TensorView of_targets{targets.data(), DType::i32, {kTokens}};
    const BoundOp bound{op,
                        {x.view(), weight.view(), of_targets, bias.view()},
                        backward ? std::vector<TensorView>{dx.view(),
                                                           dweight.view(),
                                                           {},
                                                           dbias.view(),
                                                           logits.view(),
                                                           {}}
                                 : std::vector<TensorView>{logits.view(), {}}};
    (backward ? cpu::head_loss_backward : cpu::head_loss_forward)(bound, device)();
    return device.loss;
  }
};

// softmax(x · Wᵀ + b) of a row, then what `target` takes off.
struct Reference {
  explicit Reference(const Head& head)
      : dx(kTokens * kHidden), dweight(kVocabulary * kHidden), dbias(kVocabulary) {
    for (std::int64_t row = 0; row < kTokens; ++row)
      if (head.counts(row)) add(head, row);
  }
  void add(const Head& head, std::int64_t row) {
    std::vector<double> p(kVocabulary);
    for (std::int64_t v = 0; v < kVocabulary; ++v) {
      double logit = head.bias.at(0, v);
      for (std::int64_t i = 0; i < kHidden; ++i) logit += head.x.at(row, i) * head.weight.at(v, i);
      p[static_cast<std::size_t>(v)] = std::exp(logit);
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    const auto target = static_cast<std::size_t>(head.targets[static_cast<std::size_t>(row)]);
    for (auto& value : p) value /= sum;
    loss -= std::log(p[target]);
    p[target] -= 1;
    for (std::int64_t v = 0; v < kVocabulary; ++v) {
      const double d = p[static_cast<std::size_t>(v)];
      dbias[static_cast<std::size_t>(v)] += d;
      for (std::int64_t i = 0; i < kHidden; ++i) {
        dx[static_cast<std::size_t>(row * kHidden + i)] += d * head.weight.at(v, i);
        dweight[static_cast<std::size_t>(v * kHidden + i)] += d * head.x.at(row, i);
      }
    }
  }

  double loss = 0;
  std::vector<double> dx, dweight, dbias;
};

// That, added to `before` if there is one.
void expect_sum(const Matrix& got, const std::vector<double>& sum, const Matrix* before = nullptr) {
  for (std::size_t i = 0; i < sum.size(); ++i)
    ASSERT_NEAR(static_cast<double>(got.values[i]),
                sum[i] + (before != nullptr ? static_cast<double>(before->values[i]) : 0), 2e-5)
        << i;
}

std::vector<std::int64_t> rows_from(std::int64_t first, std::int64_t end, std::int64_t step = 1) {
  std::vector<std::int64_t> rows;
  for (auto row = first; row < end; row += step) rows.push_back(row);
  return rows;
}

TEST(HeadLoss, IsOfTheRowsThatCountAndMultipliesNoOthers) {
  const std::vector<std::vector<std::int64_t>> cases = {
      {},
      {0},
      {kTokens - 1},
      rows_from(0, kTokens),
      rows_from(1, kTokens),
      rows_from(0, kTokens - 1),
      rows_from(0, kTokens, 7),
      rows_from(5, 5 + 32),        // as many as a step has
      rows_from(100, 100 + 33),    // and one more
      rows_from(60, 60 + kChunk),  // a chunk
      rows_from(1, 1 + 2 * kChunk + 1)};
  for (const auto& counted : cases) {
    SCOPED_TRACE(counted.size());
    const Head before(counted);
    const Reference reference(before);
    for (const bool first : {false, true}) {
      Head head(counted);
      const auto loss = head.run(true, 1, first);
      EXPECT_EQ(loss.counted, std::ssize(counted));
      EXPECT_NEAR(loss.sum, reference.loss, 1e-6 * (1 + reference.loss));
      expect_sum(head.dx, reference.dx);
      expect_sum(head.dweight, reference.dweight, first ? nullptr : &before.dweight);
      expect_sum(head.dbias, reference.dbias, &before.dbias);
      Head again(counted);
      EXPECT_EQ(again.run(true, 3, first).sum, loss.sum);
      EXPECT_EQ(again.dx.values, head.dx.values);
      EXPECT_EQ(again.dweight.values, head.dweight.values);
      EXPECT_EQ(again.dbias.values, head.dbias.values);
    }
    Head forward(counted);
    const auto loss = forward.run(false, 2);
    EXPECT_EQ(loss.counted, std::ssize(counted));
    EXPECT_NEAR(loss.sum, reference.loss, 1e-6 * (1 + reference.loss));
  }
}

}  // namespace
}  // namespace isthmus::runtime
