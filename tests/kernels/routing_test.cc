#include "kernels/routing.h"

#include <algorithm>
#include <numeric>

#include "reference.h"

namespace isthmus::kernels {
namespace {

constexpr double kBalance = 0.3;
constexpr double kZ = 0.05;
const std::vector<double> kSequenceWeights = {5, 0, 7};

RoutingShape shape_of(bool normalised, std::int64_t capacity) {
  return {.batch = 3,
          .sequence = 11,
          .experts = 5,
          .top_k = 2,
          .capacity = capacity,
          .normalised = normalised};
}

// What routing_forward() writes, with the memory for it.
struct Routed {
  explicit Routed(const RoutingShape& shape)
      : experts(static_cast<std::size_t>(shape.choices())),
        rows(experts.size()),
        row_tokens(static_cast<std::size_t>(shape.rows_max())),
        offsets(static_cast<std::size_t>(shape.experts + 1)),
        loads(static_cast<std::size_t>(shape.batch * shape.experts)),
        row_weights(row_tokens.size()) {}
  Routes routes() { return {experts, rows, row_tokens, row_weights, offsets, loads}; }

  std::vector<std::int32_t> experts, rows, row_tokens, offsets, loads;
  std::vector<float> row_weights;
};

Routed route(ThreadPool& pool, const RoutingShape& shape, const Matrix& logits) {
  Routed routed(shape);
  std::vector<std::byte> scratch(routing_scratch_bytes(shape));
  routing_forward(pool, shape, logits.view(), routed.routes(), scratch);
  return routed;
}

std::vector<double> softmax(const std::vector<double>& x) {
  std::vector<double> p;
  for (const double value : x) p.push_back(std::exp(value));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

std::vector<double> row_values(const Matrix& m, std::int64_t row) {
  std::vector<double> values;
  for (std::int64_t c = 0; c < m.columns(); ++c) values.push_back(m.at(row, c));
  return values;
}

// The experts of a token, by sorting, and their weights.
std::vector<std::pair<std::int32_t, double>> chosen(const std::vector<double>& logits,
                                                    const RoutingShape& shape) {
  const auto p = softmax(logits);
  std::vector<std::int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
  std::vector<std::pair<std::int32_t, double>> all;
  double sum = 0;
  for (std::int64_t j = 0; j < shape.top_k; ++j) {
    const auto expert = order[static_cast<std::size_t>(j)];
    all.emplace_back(expert, p[static_cast<std::size_t>(expert)]);
    sum += all.back().second;
  }
  if (shape.normalised)
    for (auto& [expert, weight] : all) weight /= sum;
  return all;
}

TEST(Routing, GivesEachChoiceARowOfItsExpert) {
  for (const bool normalised : {false, true})
    for (const std::int64_t capacity : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << normalised << " " << capacity);
      const auto shape = shape_of(normalised, capacity);
      const auto logits = Matrix::random("logits", DType::f32, shape.tokens(), shape.experts, 2, 2);
      ThreadPool pool(unpinned(2));
      const auto routed = route(pool, shape, logits);

      std::vector<std::int64_t> taken(static_cast<std::size_t>(shape.batch * shape.experts));
      std::vector<std::int64_t> loads(taken.size());
      std::vector<bool> used(routed.row_tokens.size());
      std::int64_t dropped = 0;
      for (std::int64_t t = 0; t < shape.tokens(); ++t) {
        const auto expected = chosen(row_values(logits, t), shape);
        for (std::int64_t j = 0; j < shape.top_k; ++j) {
          const auto [expert, weight] = expected[static_cast<std::size_t>(j)];
          const auto at = static_cast<std::size_t>(t * shape.top_k + j);
          const auto of_sequence =
              static_cast<std::size_t>(t / shape.sequence * shape.experts + expert);
          EXPECT_EQ(routed.experts[at], expert);
          ++loads[of_sequence];
          if (capacity > 0 && taken[of_sequence] == capacity) {
            EXPECT_EQ(routed.rows[at], kNoRow);
            ++dropped;
            continue;
          }
          ++taken[of_sequence];
          const auto row = static_cast<std::size_t>(routed.rows[at]);
          EXPECT_GE(routed.rows[at], routed.offsets[static_cast<std::size_t>(expert)]);
          EXPECT_LT(routed.rows[at], routed.offsets[static_cast<std::size_t>(expert) + 1]);
          EXPECT_FALSE(used[row]) << "two choices in one row";
          used[row] = true;
          EXPECT_EQ(routed.row_tokens[row], t);
          EXPECT_NEAR(routed.row_weights[row], weight, 1e-6);
        }
      }
      EXPECT_EQ(dropped > 0, capacity > 0);
      EXPECT_TRUE(std::ranges::equal(routed.loads, loads));
      EXPECT_EQ(routed.offsets.front(), 0);
      for (std::size_t e = 0; e + 1 < routed.offsets.size(); ++e) {
        std::int32_t last = -1;  // an expert's rows are in the order of its tokens
        for (auto r = routed.offsets[e]; r < routed.offsets[e + 1]; ++r) {
          const auto row = static_cast<std::size_t>(r);
          EXPECT_TRUE(used[row]) << "a row of no choice";
          EXPECT_GT(routed.row_tokens[row], last);
          last = routed.row_tokens[row];
        }
      }
    }
}

TEST(Routing, OfEqualLogitsTakesTheFirst) {
  const RoutingShape shape{.batch = 1, .sequence = 1, .experts = 6, .top_k = 3};
  Matrix logits(DType::f32, 1, 6);
  const double values[] = {1, 2, 1, 2, 1, 1};
  for (int e = 0; e < 6; ++e) logits.set(0, e, values[e]);
  ThreadPool pool(unpinned(1));
  EXPECT_EQ(route(pool, shape, logits).experts, (std::vector<std::int32_t>{1, 3, 0}));
}

// However the tokens fall, the rows suffice.
TEST(Routing, HasRoomForTheWorstCase) {
  for (const std::int64_t experts : {1, 3, 40})
    for (const std::int64_t tokens : {1, 2, 17}) {
      const RoutingShape shape{.batch = 1, .sequence = tokens, .experts = experts, .top_k = 1};
      for (std::int64_t stride = 0; stride <= 1; ++stride) {
        Matrix logits(DType::f32, tokens, experts);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t e = 0; e < experts; ++e)
            logits.set(t, e, e == t * stride % experts ? 1 : 0);
        ThreadPool pool(unpinned(1));
        EXPECT_LE(route(pool, shape, logits).offsets.back(), shape.rows_max());
      }
    }
}

// The value whose gradient routing_backward() makes: the row weights, each times its `drow`, and
// the two losses, by their definitions. Choices and loads stay as they are.
double objective(const RoutingShape& shape, const Matrix& logits, const Routed& routed,
                 const std::vector<float>& drow, const std::vector<double>& shares,
                 RouterLossSums* sums = nullptr) {
  double value = 0;
  RouterLossSums losses;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    std::vector<double> mean(static_cast<std::size_t>(shape.experts));
    double squares = 0;
    for (std::int64_t t = b * shape.sequence; t < (b + 1) * shape.sequence; ++t) {
      const auto row = row_values(logits, t);
      const auto p = softmax(row);
      double log_sum = 0;
      for (const double x : row) log_sum += std::exp(x);
      log_sum = std::log(log_sum);
      squares += log_sum * log_sum / static_cast<double>(shape.sequence);
      double chosen_sum = 0;
      for (std::int64_t j = 0; j < shape.top_k; ++j)
        chosen_sum += p[static_cast<std::size_t>(
            routed.experts[static_cast<std::size_t>(t * shape.top_k + j)])];
      for (std::int64_t j = 0; j < shape.top_k; ++j) {
        const auto at = static_cast<std::size_t>(t * shape.top_k + j);
        const auto weight =
            p[static_cast<std::size_t>(routed.experts[at])] / (shape.normalised ? chosen_sum : 1.0);
        if (routed.rows[at] != kNoRow)
          value += static_cast<double>(drow[static_cast<std::size_t>(routed.rows[at])]) * weight;
      }
      for (std::size_t e = 0; e < p.size(); ++e)
        mean[e] += p[e] / static_cast<double>(shape.sequence);
    }
    const auto weight = kSequenceWeights[static_cast<std::size_t>(b)];
    for (std::size_t e = 0; e < mean.size(); ++e)
      losses.balance += static_cast<double>(shape.experts) * mean[e] *
                        shares[static_cast<std::size_t>(b * shape.experts) + e];
    losses.z += weight * squares;
  }
  if (sums != nullptr) *sums = losses;
  return value + kBalance * losses.balance + kZ * losses.z;
}

TEST(Routing, GradientIsThatOfCentralDifferences) {
  for (const bool normalised : {false, true})
    for (const std::int64_t capacity : {0, 3})
      for (const DType dtype : kDTypes) {
        SCOPED_TRACE(testing::Message() << normalised << " " << capacity);
        const auto shape = shape_of(normalised, capacity);
        const auto logits =
            Matrix::random("logits", DType::f32, shape.tokens(), shape.experts, 0, 2);
        ThreadPool pool(unpinned(2));
        const auto routed = route(pool, shape, logits);
        std::vector<float> drow;
        std::vector<double> shares;
        const Random random(5);
        for (std::size_t i = 0; i < routed.row_weights.size(); ++i)
          drow.push_back(static_cast<float>(random.normal_at(i)));
        for (std::size_t i = 0; i < routed.loads.size(); ++i)
          shares.push_back(random.uniform_at(1000 + i));
        std::vector<double> expected;
        constexpr double kStep = 1e-3;
        for (std::int64_t t = 0; t < shape.tokens(); ++t)
          for (std::int64_t e = 0; e < shape.experts; ++e) {
            // In f64, which no f32 matrix holds: by Richardson from two steps that it does.
            const auto difference = [&](double step) {
              Matrix high = logits;
              Matrix low = logits;
              high.set(t, e, logits.at(t, e) + step);
              low.set(t, e, logits.at(t, e) - step);
              return (objective(shape, high, routed, drow, shares) -
                      objective(shape, low, routed, drow, shares)) /
                     (high.at(t, e) - low.at(t, e));
            };
            expected.push_back((4 * difference(kStep) - difference(2 * kStep)) / 3);
          }
        RouterLossSums expected_sums;
        objective(shape, logits, routed, drow, shares, &expected_sums);

        std::vector<Matrix> made;
        for (const std::size_t threads : {1, 2, 3}) {
          ThreadPool some(unpinned(threads));
          Matrix dlogits(dtype, shape.tokens(), shape.experts);
          std::vector<std::byte> scratch(routing_scratch_bytes(shape));
          const auto sums = routing_backward(
              some, shape, logits.view(), routed.experts, routed.rows, drow,
              {.balance = kBalance, .z = kZ, .shares = shares, .weights = kSequenceWeights},
              dlogits.view(), scratch);
          EXPECT_NEAR(sums.balance, expected_sums.balance, 1e-9 * expected_sums.balance);
          EXPECT_NEAR(sums.z, expected_sums.z, 1e-9 * expected_sums.z);
          EXPECT_LT(relative_error(dlogits.values(), expected),
                    dtype == DType::f32 ? 1e-5 : tolerance(dtype));
          made.push_back(dlogits);
          EXPECT_TRUE(dlogits.same_bits(made.front()));
        }
      }
}

}  // namespace
}  // namespace isthmus::kernels
