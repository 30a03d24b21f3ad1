#include "kernels/embedding.h"

#include <algorithm>
#include <cstddef>

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void copy_columns(const Rows& from, std::int64_t from_row, const Rows& to, std::int64_t to_row) {
  with_element(from.dtype, [&](auto in) {
    with_element(to.dtype, [&](auto out) {
      const auto* source = static_cast<const decltype(in)*>(from.at(from_row, 0));
      auto* target = static_cast<decltype(out)*>(to.at(to_row, 0));
      for_lanes(static_cast<std::size_t>(to.columns), [=](auto tag, std::size_t i) {
        store_float(load_as_float(tag, source + i), tag, target + i);
      });
    });
  });
}

// dtable row tokens[r] += dout row r, in the order of r, for some columns.
void add_columns(const std::int32_t* tokens, const Rows& dout, const Rows& dtable,
                 std::int64_t first, std::int64_t count) {
  with_element(dout.dtype, [&](auto in) {
    for (std::int64_t row = 0; row < dout.rows; ++row) {
      const auto* from = static_cast<const decltype(in)*>(dout.at(row, first));
      auto* to = static_cast<float*>(dtable.at(tokens[row], first));
      for_lanes(static_cast<std::size_t>(count), [=](auto tag, std::size_t i) {
        hn::StoreU(hn::Add(hn::LoadU(tag, to + i), load_as_float(tag, from + i)), tag, to + i);
      });
    }
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(copy_columns);
HWY_EXPORT(add_columns);

namespace {

void check_tokens(std::span<const std::int32_t> tokens, const Rows& table) {
  for (const std::int32_t token : tokens) ISTHMUS_ASSERT(token >= 0 && token < table.rows);
}

}  // namespace

void embedding_forward(ThreadPool& pool, std::span<const std::int32_t> tokens, const Rows& table,
                       const Rows& out) {
  ISTHMUS_ASSERT(static_cast<std::int64_t>(tokens.size()) == out.rows &&
                 table.columns == out.columns);
  check_tokens(tokens, table);
  for_row_tasks(pool, out.rows, out.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    for (std::int64_t row = first; row < end; ++row)
      HWY_DYNAMIC_DISPATCH(copy_columns)(table, tokens[static_cast<std::size_t>(row)], out, row);
  });
}

void embedding_backward(ThreadPool& pool, std::span<const std::int32_t> tokens, const Rows& dout,
                        const Rows& dtable) {
  ISTHMUS_ASSERT(static_cast<std::int64_t>(tokens.size()) == dout.rows &&
                 dtable.columns == dout.columns && dtable.dtype == DType::f32);
  check_tokens(tokens, dtable);
  // A token can occur anywhere, so a task owns columns, not tokens.
  constexpr std::int64_t kColumns = 64;
  const std::int64_t tasks = (dout.columns + kColumns - 1) / kColumns;
  pool.parallel_for(static_cast<std::size_t>(tasks), [&](std::size_t task, std::size_t) {
    const std::int64_t first = static_cast<std::int64_t>(task) * kColumns;
    HWY_DYNAMIC_DISPATCH(add_columns)
    (tokens.data(), dout, dtable, first, std::min(kColumns, dout.columns - first));
  });
}

}  // namespace isthmus::kernels
#endif
