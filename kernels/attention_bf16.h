// The tasks of attention for bf16 inputs, with AVX512_BF16 products: pairs of bf16 multiplied and
// summed in f32. Weights and their gradients are rounded to bf16 for the products. Private to
// attention.cc, which cuts the tasks; a task runs only where the CPU has the instructions.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_layout.h"

namespace isthmus::kernels {

// The queries [first_query, end_query) of one head; log_sums and scratch as in attention.cc.
void bf16_forward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                       const FirstKeys& first_keys, const Rows& out, float* log_sums,
                       float* scratch, std::int64_t b, std::int64_t h, std::int64_t first_query,
                       std::int64_t end_query);

// All queries of the heads that share one kv head.
void bf16_backward_task(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
                        const FirstKeys& first_keys, const Rows& out, const float* log_sums,
                        const Rows& dout, const Rows& dq, const Rows& dk, const Rows& dv,
                        float* scratch, std::int64_t b, std::int64_t kv_head);

}  // namespace isthmus::kernels
