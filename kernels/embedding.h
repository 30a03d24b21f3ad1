// Embedding: rows of a table by token, and the gradient of that.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// out [tokens, hidden] = table [vocabulary, hidden] row tokens[i]. Every token must be in
// [0, vocabulary): the data set checks its files.
void embedding_forward(ThreadPool& pool, std::span<const std::int32_t> tokens, const Rows& table,
                       const Rows& out);

// dtable (f32) += dout, summed per table row in the order of the tokens.
void embedding_backward(ThreadPool& pool, std::span<const std::int32_t> tokens, const Rows& dout,
                        const Rows& dtable);

}  // namespace isthmus::kernels
