// Rows of tokens to rows of experts, and back (kernels/routing.h says which).
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// out row r = x row row_tokens[r]; of the first row_tokens.size() rows.
void gather_expert_rows(ThreadPool& pool, const Rows& x, std::span<const std::int32_t> row_tokens,
                        const Rows& out);

// out [tokens, columns] row t = the sum of y's rows rows[t, 0], rows[t, 1], … in this order,
// without kNoRow; or that added to it.
void sum_expert_rows(ThreadPool& pool, const Rows& y, std::span<const std::int32_t> rows,
                     bool accumulate, const Rows& out);

}  // namespace isthmus::kernels
