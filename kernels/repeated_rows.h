// What is added to rows again and again: a bias (a table of one row), or learnt positions (a row
// for each position, again for each sequence). Sums in f32; results do not depend on the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace isthmus::kernels {

// y[r] = x[r] + table[r mod table.rows]. x, y [rows, columns]; table [table rows, columns]; of any
// dtypes. y may be x.
void add_repeated_rows(ThreadPool& pool, const Rows& x, const Rows& table, const Rows& y);

// Floats of scratch that sum_repeated_rows needs; none if the table has more than one row.
std::size_t repeated_rows_scratch_floats(std::int64_t rows, std::int64_t columns,
                                         std::int64_t table_rows);

// The gradient of the table: dtable[p], in f32, += the sum of dy[r] with r mod dtable.rows = p, in
// the order of the rows. One row is summed by many tasks, of several rows each by one.
void sum_repeated_rows(ThreadPool& pool, const Rows& dy, const Rows& dtable,
                       std::span<float> scratch);

}  // namespace isthmus::kernels
