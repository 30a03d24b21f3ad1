// Rows by their numbers: those of tokens gathered for experts, or for the head, and summed back.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

inline constexpr std::int32_t kNoRow = -1;  // in place of a row: there is none

// out row r = x row numbers[r]; of the first numbers.size() rows.
void gather_rows(ThreadPool& pool, const Rows& x, std::span<const std::int32_t> numbers,
                 const Rows& out);

// out [tokens, columns] row t = the sum of y's rows numbers[t, 0], numbers[t, 1], … in this order,
// without kNoRow; or that added to it.
void sum_gathered_rows(ThreadPool& pool, const Rows& y, std::span<const std::int32_t> numbers,
                       bool accumulate, const Rows& out);

}  // namespace isthmus::kernels
