#include "kernels/routing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/assert.h"
#include "kernels/bf16.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {
namespace {

constexpr std::int64_t kCostOfChoice = 64;  // in elements, for the size of tasks

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

const float* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<const float*>(rows.at(row, 0));
}

// Softmax of one token's logits. In f64: a few values per token, and choices near a tie should
// weigh what they do elsewhere.
class Softmax {
 public:
  Softmax(const float* logits, std::int64_t experts) {
    const auto largest = static_cast<double>(*std::max_element(logits, logits + experts));
    double sum = 0;
    for (std::int64_t e = 0; e < experts; ++e)
      sum += p_[index(e)] = std::exp(static_cast<double>(logits[e]) - largest);
    for (std::int64_t e = 0; e < experts; ++e) p_[index(e)] /= sum;
    log_sum_ = largest + std::log(sum);
  }
  double operator[](std::int64_t expert) const { return p_[index(expert)]; }
  double log_sum() const { return log_sum_; }

 private:
  std::array<double, kExpertsMax> p_;  // of the first experts
  double log_sum_ = 0;
};

// The top_k largest in descending order, of equal ones the first.
void choose(const float* logits, const RoutingShape& shape, std::int32_t* chosen) {
  std::int64_t count = 0;
  for (std::int32_t e = 0; e < shape.experts; ++e) {
    auto at = count;
    while (at > 0 && logits[e] > logits[chosen[at - 1]]) --at;
    if (at == shape.top_k) continue;
    count = std::min(count + 1, shape.top_k);
    std::copy_backward(chosen + at, chosen + count - 1, chosen + count);
    chosen[at] = e;
  }
}

// What the probabilities of the chosen are divided by.
double weight_divisor(const RoutingShape& shape, const Softmax& p, const std::int32_t* chosen) {
  if (!shape.normalised) return 1;
  double sum = 0;
  for (std::int64_t j = 0; j < shape.top_k; ++j) sum += p[chosen[j]];
  return sum;
}

void check(const RoutingShape& shape, const Rows& logits) {
  ISTHMUS_ASSERT(shape.top_k >= 1 && shape.top_k <= shape.experts);
  ISTHMUS_ASSERT(shape.experts <= kExpertsMax);
  ISTHMUS_ASSERT(logits.dtype == DType::f32 && logits.rows == shape.tokens() &&
                 logits.columns == shape.experts);
}

// Calls body(b) for each sequence.
template <class Body>
void for_sequences(ThreadPool& pool, const RoutingShape& shape, const Body& body) {
  for_row_tasks(pool, shape.batch, shape.sequence * shape.top_k * kCostOfChoice,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  for (auto b = first; b < end; ++b) body(b);
                });
}

// The rows of an expert that the choices of one sequence get.
struct Share {
  std::int32_t next = 0;
  std::int32_t left = 0;
};

// Where each expert's rows begin, and which of them each sequence gets; `shares` [batch, experts].
void share_out(const RoutingShape& shape, const Routes& routes, Share* shares) {
  std::int32_t row = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    routes.offsets[index(e)] = row;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const auto at = b * shape.experts + e;
      const auto load = routes.loads[index(at)];
      const auto taken =
          shape.capacity > 0 ? std::min(load, static_cast<std::int32_t>(shape.capacity)) : load;
      shares[at] = {row, taken};
      row += taken;
    }
  }
  routes.offsets[index(shape.experts)] = row;
}

// The gradient of one token's logits.
class LogitGradient {
 public:
  LogitGradient(const float* logits, const RoutingShape& shape)
      : shape_(shape), p_(logits, shape.experts) {
    std::fill_n(d_.begin(), shape.experts, 0.0);
  }

  // From those of the weights of the chosen.
  void add_weights(const std::int32_t* chosen, const std::int32_t* rows,
                   const float* drow_weights) {
    const auto divisor = weight_divisor(shape_, p_, chosen);
    const auto of_row = [&](std::int64_t j) {
      return rows[j] == kNoRow ? 0.0 : static_cast<double>(drow_weights[rows[j]]);
    };
    double mean = 0;
    for (std::int64_t j = 0; j < shape_.top_k; ++j) mean += p_[chosen[j]] / divisor * of_row(j);
    for (std::int64_t j = 0; j < shape_.top_k; ++j)
      d_[index(chosen[j])] += p_[chosen[j]] / divisor * of_row(j);
    // Softmax over the chosen alone, or over all.
    if (shape_.normalised)
      for (std::int64_t j = 0; j < shape_.top_k; ++j)
        d_[index(chosen[j])] -= p_[chosen[j]] / divisor * mean;
    else
      for (std::int64_t e = 0; e < shape_.experts; ++e) d_[index(e)] -= p_[e] * mean;
  }

  // Of factor · sum over e of shares[e] p_e; returns that sum.
  double add_balance(double factor, const double* shares) {
    double sum = 0;
    for (std::int64_t e = 0; e < shape_.experts; ++e) sum += shares[e] * p_[e];
    for (std::int64_t e = 0; e < shape_.experts; ++e)
      d_[index(e)] += factor * p_[e] * (shares[e] - sum);
    return sum;
  }

  // Of factor · log_sum²; returns that square.
  double add_z(double factor) {
    for (std::int64_t e = 0; e < shape_.experts; ++e)
      d_[index(e)] += factor * 2 * p_.log_sum() * p_[e];
    return p_.log_sum() * p_.log_sum();
  }

  template <class T>
  void store(T* to) const {
    for (std::int64_t e = 0; e < shape_.experts; ++e) {
      const auto value = static_cast<float>(d_[index(e)]);
      if constexpr (std::is_same_v<T, float>)
        to[e] = value;
      else
        to[e] = to_bf16(value);
    }
  }

 private:
  const RoutingShape& shape_;
  Softmax p_;
  std::array<double, kExpertsMax> d_;
};

}  // namespace

std::size_t routing_scratch_bytes(const RoutingShape& shape) {
  const auto forward =
      index(shape.batch * shape.experts) * sizeof(Share) + index(shape.choices()) * sizeof(float);
  const auto backward = 2 * index(shape.tokens()) * sizeof(double);
  return std::max(forward, backward);
}

void routing_forward(ThreadPool& pool, const RoutingShape& shape, const Rows& logits,
                     const Routes& routes, std::span<std::byte> scratch) {
  check(shape, logits);
  ISTHMUS_ASSERT(scratch.size() >= routing_scratch_bytes(shape));
  ISTHMUS_ASSERT(std::ssize(routes.experts) == shape.choices() &&
                 std::ssize(routes.rows) == shape.choices() &&
                 std::ssize(routes.row_tokens) == shape.rows_max() &&
                 std::ssize(routes.row_weights) == shape.rows_max() &&
                 std::ssize(routes.offsets) == shape.experts + 1 &&
                 std::ssize(routes.loads) == shape.batch * shape.experts);
  auto* shares = reinterpret_cast<Share*>(scratch.data());
  auto* weights = reinterpret_cast<float*>(shares + shape.batch * shape.experts);

  for_row_tasks(pool, shape.tokens(), (shape.top_k + shape.experts) * kCostOfChoice,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  for (auto t = first; t < end; ++t) {
                    const auto* row = row_of(logits, t);
                    auto* chosen = routes.experts.data() + t * shape.top_k;
                    choose(row, shape, chosen);
                    const Softmax p(row, shape.experts);
                    const auto divisor = weight_divisor(shape, p, chosen);
                    for (std::int64_t j = 0; j < shape.top_k; ++j)
                      weights[t * shape.top_k + j] = static_cast<float>(p[chosen[j]] / divisor);
                  }
                });
  const auto choices = shape.sequence * shape.top_k;  // of a sequence
  for_sequences(pool, shape, [&](std::int64_t b) {
    auto* loads = routes.loads.data() + b * shape.experts;
    std::fill_n(loads, shape.experts, 0);
    for (auto c = b * choices; c < (b + 1) * choices; ++c) ++loads[routes.experts[index(c)]];
  });
  share_out(shape, routes, shares);
  for_sequences(pool, shape, [&](std::int64_t b) {
    for (auto c = b * choices; c < (b + 1) * choices; ++c) {
      auto& share = shares[b * shape.experts + routes.experts[index(c)]];
      auto& row = routes.rows[index(c)];
      row = kNoRow;
      if (share.left == 0) continue;
      --share.left;
      row = share.next++;
      routes.row_tokens[index(row)] = static_cast<std::int32_t>(c / shape.top_k);
      routes.row_weights[index(row)] = weights[c];
    }
  });
}

RouterLossSums routing_backward(ThreadPool& pool, const RoutingShape& shape, const Rows& logits,
                                std::span<const std::int32_t> experts,
                                std::span<const std::int32_t> rows,
                                std::span<const float> drow_weights, const RouterLosses& losses,
                                const Rows& dlogits, std::span<std::byte> scratch) {
  check(shape, logits);
  ISTHMUS_ASSERT(dlogits.same_shape(logits) && scratch.size() >= routing_scratch_bytes(shape));
  ISTHMUS_ASSERT(std::ssize(losses.weights) == shape.batch &&
                 std::ssize(losses.shares) == shape.batch * shape.experts);
  const auto sequence = static_cast<double>(shape.sequence);
  const auto width = static_cast<double>(shape.experts) / sequence;
  auto* balances = reinterpret_cast<double*>(scratch.data());  // per token
  auto* squares = balances + shape.tokens();
  for_row_tasks(pool, shape.tokens(), (shape.top_k + shape.experts) * kCostOfChoice,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  for (auto t = first; t < end; ++t) {
                    const auto b = t / shape.sequence;
                    const auto at = t * shape.top_k;
                    const auto* shares = losses.shares.data() + b * shape.experts;
                    LogitGradient gradient(row_of(logits, t), shape);
                    gradient.add_weights(experts.data() + at, rows.data() + at,
                                         drow_weights.data());
                    balances[t] = width * gradient.add_balance(losses.balance * width, shares);
                    const auto weight = losses.weights[index(b)] / sequence;
                    squares[t] = weight * gradient.add_z(losses.z * weight);
                    if (dlogits.dtype == DType::f32)
                      gradient.store(static_cast<float*>(dlogits.at(t, 0)));
                    else
                      gradient.store(static_cast<bf16_t*>(dlogits.at(t, 0)));
                  }
                });
  RouterLossSums sums;
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    sums.balance += balances[t];
    sums.z += squares[t];
  }
  return sums;
}

}  // namespace isthmus::kernels
