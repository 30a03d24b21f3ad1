// Routing of a mixture of experts (Shazeer et al. 2017): which experts compute a token, with which
// weights, and where its rows lie among those of all experts.
//
//   token    experts        rows in the order of the experts, each expert's in that of its tokens
//     0      2, 0                 ┌──────────┬──────────┬──────────┐
//     1      0, 1                 │ 0: 0 1   │ 1: 1     │ 2: 0     │
//                                 └──────────┴──────────┴──────────┘
//                        offsets  0            2          3          4
//
// p = softmax(logits) over all experts; the top_k largest are chosen, of equal ones the first.
// Their weights are p, or, normalised, p over the sum of the chosen: softmax before, or after
// top-k. With a capacity, an expert takes the first tokens of each sequence and drops the others,
// which then have no row: what is dropped depends on the sequence alone, on no other that is
// computed with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/gathered_rows.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

inline constexpr std::int64_t kExpertsMax = 1024;

struct RoutingShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;     // experts of a token
  std::int64_t capacity = 0;  // tokens that an expert takes of a sequence; 0: all
  bool normalised = false;

  std::int64_t tokens() const { return batch * sequence; }
  std::int64_t choices() const { return tokens() * top_k; }
  // Of all experts, at most.
  std::int64_t rows_max() const {
    return capacity > 0 ? std::min(choices(), batch * experts * capacity) : choices();
  }
};

// Where each choice goes. Of `choices()`: experts, rows; of `rows_max()`: row_tokens, row_weights.
struct Routes {
  std::span<std::int32_t> experts;  // [tokens, top_k], the likeliest first
  std::span<std::int32_t> rows;     // [tokens, top_k]; kNoRow where dropped
  std::span<std::int32_t> row_tokens;
  std::span<float> row_weights;
  std::span<std::int32_t> offsets;  // [experts + 1], of an expert's first row
  std::span<std::int32_t> loads;    // [batch, experts]: choices, those dropped too
};

// logits f32 [tokens, experts]; `scratch` of routing_scratch_bytes().
std::size_t routing_scratch_bytes(const RoutingShape& shape);
void routing_forward(ThreadPool& pool, const RoutingShape& shape, const Rows& logits,
                     const Routes& routes, std::span<std::byte> scratch);

// The losses that keep a router in order, each a sum over sequences b:
//   balance   E · sum over experts e of shares[b, e] P_e, P_e the mean of p_e over the tokens of b
//             (Fedus et al. 2021, section 2.2); shares are of the choices that fell on e
//   z         weights[b] · mean over the tokens of b of log(sum of exp(logits))²
//             (Zoph et al. 2022, equation 5)
// in the objective times these factors.
struct RouterLosses {
  double balance = 0;
  double z = 0;
  std::span<const double> shares;   // [batch, experts]
  std::span<const double> weights;  // [batch]
};

// Without the factors.
struct RouterLossSums {
  double balance = 0;
  double z = 0;
};

// dlogits is set to the gradient of what drow_weights is the gradient of, and of both losses; drops
// get none of the former. `scratch` of routing_scratch_bytes().
RouterLossSums routing_backward(ThreadPool& pool, const RoutingShape& shape, const Rows& logits,
                                std::span<const std::int32_t> experts,
                                std::span<const std::int32_t> rows,
                                std::span<const float> drow_weights, const RouterLosses& losses,
                                const Rows& dlogits, std::span<std::byte> scratch);

}  // namespace isthmus::kernels
