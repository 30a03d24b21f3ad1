#include "kernels/low_rank.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_rank.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// Of the weight's gradient: rows whose part of dy stays in the nearest cache while it is read for
// one group of columns after the other.
constexpr std::int64_t kRowBlock = 64;

template <int N>
struct Count {
  static constexpr int value = N;
};

template <class T>
HWY_INLINE float element(const T* p) {
  return hn::GetLane(load_as_float(OneFloatTag(), p));
}

// store(r, v, start(r, v) + Σ left(k, r) · right(k, v)), k in [0, count), in that order: kRows
// values with kVectors vectors at each k.
template <int kRows, int kVectors, class D, class Start, class Left, class Right, class Store>
HWY_INLINE void multiply(D d, std::int64_t count, const Start& start, const Left& left,
                         const Right& right, const Store& store) {
  hn::Vec<D> sums[kRows][kVectors];
  ISTHMUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ISTHMUS_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[r][v] = start(r, v);
  }
  for (std::int64_t k = 0; k < count; ++k) {
    hn::Vec<D> vectors[kVectors];
    ISTHMUS_UNROLL
    for (int v = 0; v < kVectors; ++v) vectors[v] = right(k, v);
    ISTHMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, left(k, r));
      ISTHMUS_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(value, vectors[v], sums[r][v]);
    }
  }
  ISTHMUS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ISTHMUS_UNROLL
    for (int v = 0; v < kVectors; ++v) store(r, v, sums[r][v]);
  }
}

// Calls body(tag, vectors, first) over [0, count): two vectors, one, then single lanes.
template <class Body>
HWY_INLINE void for_vectors(std::int64_t count, const Body& body) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) body(d, Count<2>(), i);
  for (; i + lanes <= count; i += lanes) body(d, Count<1>(), i);
  for (; i < count; ++i) body(OneFloatTag(), Count<1>(), i);
}

// Calls body(rows, first) over [first, end): four at once, then one.
template <class Body>
HWY_INLINE void for_four(std::int64_t first, std::int64_t end, const Body& body) {
  for (; first + 4 <= end; first += 4) body(Count<4>(), first);
  for (; first < end; ++first) body(Count<1>(), first);
}

// Bᵀ in f32, scaled.
void turn_rows(const Rows& b, float scale, float* turned, std::int64_t first, std::int64_t end) {
  with_element(b.dtype, [&](auto in) {
    for (std::int64_t o = first; o < end; ++o) {
      const auto* row = static_cast<const decltype(in)*>(b.at(o, 0));
      for (std::int64_t r = 0; r < b.columns; ++r)
        turned[r * b.rows + o] = scale * element(row + r);
    }
  });
}

void forward_rows(const Rows& t, const float* turned, const Rows& y, const Rows& sum,
                  std::int64_t first, std::int64_t end) {
  const auto out = y.columns;
  with_element(t.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto result) {
      using In = decltype(in);
      using Y = decltype(result);
      for_four(first, end, [&](auto rows, std::int64_t row) {
        for_vectors(out, [&](auto d, auto vectors, std::int64_t o) {
          const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
          multiply<decltype(rows)::value, decltype(vectors)::value>(
              d, t.columns,
              [&](int r, int v) {
                return load_as_float(d, static_cast<const Y*>(y.at(row + r, o)) + v * lanes);
              },
              [&](std::int64_t k, int r) {
                return element(static_cast<const In*>(t.at(row + r, k)));
              },
              [&](std::int64_t k, int v) { return hn::LoadU(d, turned + k * out + o + v * lanes); },
              [&](int r, int v, auto total) {
                store_float(total, d, static_cast<Y*>(sum.at(row + r, o)) + v * lanes);
              });
        });
      });
    });
  });
}

void input_gradient_rows(const Rows& dy, const Rows& b, float scale, const Rows& dt,
                         std::int64_t first, std::int64_t end) {
  with_element(dy.dtype, [&](auto in) {
    using In = decltype(in);
    for_four(first, end, [&](auto rows, std::int64_t row) {
      for_vectors(b.columns, [&](auto d, auto vectors, std::int64_t r0) {
        const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
        multiply<decltype(rows)::value, decltype(vectors)::value>(
            d, b.rows, [&](int, int) { return hn::Zero(d); },
            [&](std::int64_t k, int r) {
              return element(static_cast<const In*>(dy.at(row + r, k)));
            },
            [&](std::int64_t k, int v) {
              return load_as_float(d, static_cast<const In*>(b.at(k, r0)) + v * lanes);
            },
            [&](int r, int v, auto total) {
              store_float(hn::Mul(hn::Set(d, scale), total), d,
                          static_cast<In*>(dt.at(row + r, r0)) + v * lanes);
            });
      });
    });
  });
}

// Rows [first, end) of dB.
void weight_gradient_rows(const Rows& dy, const Rows& t, float scale, const Rows& db,
                          bool accumulate, std::int64_t first, std::int64_t end) {
  with_element(dy.dtype, [&](auto in) {
    using In = decltype(in);
    for (std::int64_t row = 0; row < dy.rows; row += kRowBlock) {
      const auto count = dy.rows - row < kRowBlock ? dy.rows - row : kRowBlock;
      const bool adds = accumulate || row > 0;
      for_four(first, end, [&](auto outputs, std::int64_t o) {
        for_vectors(t.columns, [&](auto d, auto vectors, std::int64_t r0) {
          const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
          multiply<decltype(outputs)::value, decltype(vectors)::value>(
              d, count, [&](int, int) { return hn::Zero(d); },
              [&](std::int64_t k, int i) {
                return element(static_cast<const In*>(dy.at(row + k, o)) + i);
              },
              [&](std::int64_t k, int v) {
                return load_as_float(d, static_cast<const In*>(t.at(row + k, r0)) + v * lanes);
              },
              [&](int i, int v, auto total) {
                auto* to = static_cast<float*>(db.at(o + i, r0)) + v * lanes;
                const auto scaled = hn::Mul(hn::Set(d, scale), total);
                hn::StoreU(adds ? hn::Add(hn::LoadU(d, to), scaled) : scaled, d, to);
              });
        });
      });
    }
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(turn_rows);
HWY_EXPORT(forward_rows);
HWY_EXPORT(input_gradient_rows);
HWY_EXPORT(weight_gradient_rows);

std::size_t low_rank_scratch_floats(std::int64_t out, std::int64_t rank) {
  return static_cast<std::size_t>(out * rank);
}

void low_rank_forward(ThreadPool& pool, const Rows& t, const Rows& b, float scale, const Rows& y,
                      const Rows& sum, std::span<float> scratch) {
  ISTHMUS_ASSERT(t.rows == y.rows && t.columns == b.columns && b.rows == y.columns &&
                 t.dtype == b.dtype && y.same_shape(sum) && y.dtype == sum.dtype &&
                 b.columns <= kLowRankMax);
  ISTHMUS_ASSERT(scratch.size() >= low_rank_scratch_floats(b.rows, b.columns));
  for_row_tasks(pool, b.rows, b.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(turn_rows)(b, scale, scratch.data(), first, end);
  });
  for_row_tasks(pool, y.rows, y.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(forward_rows)(t, scratch.data(), y, sum, first, end);
  });
}

void low_rank_input_gradient(ThreadPool& pool, const Rows& dy, const Rows& b, float scale,
                             const Rows& dt) {
  ISTHMUS_ASSERT(dy.rows == dt.rows && dy.columns == b.rows && dt.columns == b.columns &&
                 dy.dtype == b.dtype && dy.dtype == dt.dtype);
  for_row_tasks(pool, dy.rows, dy.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(input_gradient_rows)(dy, b, scale, dt, first, end);
  });
}

void low_rank_weight_gradient(ThreadPool& pool, const Rows& dy, const Rows& t, float scale,
                              const Rows& db, bool accumulate) {
  ISTHMUS_ASSERT(dy.rows == t.rows && db.rows == dy.columns && db.columns == t.columns &&
                 dy.dtype == t.dtype && db.dtype == DType::f32);
  for_row_tasks(pool, db.rows, dy.rows, [&](std::int64_t first, std::int64_t end, auto, auto) {
    HWY_DYNAMIC_DISPATCH(weight_gradient_rows)(dy, t, scale, db, accumulate, first, end);
  });
}

}  // namespace isthmus::kernels
#endif
