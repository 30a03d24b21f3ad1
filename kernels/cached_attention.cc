#include "kernels/cached_attention.h"

#include <cstring>

#include "base/assert.h"
#include "kernels/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cached_attention.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// scores[i] = scale · query · key i, and the largest of them.
template <class T>
HWY_INLINE float score(const T* query, const T* keys, std::size_t count, std::size_t head_dim,
                       float scale, float* scores) {
  float largest = 0;
  for (std::size_t key = 0; key < count; ++key) {
    const T* at = keys + key * head_dim;
    const float product = sum_over(head_dim, [=](auto tag, std::size_t i) {
      return hn::Mul(load_as_float(tag, query + i), load_as_float(tag, at + i));
    });
    scores[key] = product * scale;
    largest = key == 0 || scores[key] > largest ? scores[key] : largest;
  }
  return largest;
}

// scores[i] = exp(scores[i] - largest), and their sum.
HWY_INLINE float soften(float* scores, std::size_t count, float largest) {
  for_lanes(count, [=](auto tag, std::size_t i) {
    const auto x = hn::Sub(hn::LoadU(tag, scores + i), hn::Set(tag, largest));
    hn::StoreU(exponential(tag, x), tag, scores + i);
  });
  return sum_over(count, [=](auto tag, std::size_t i) { return hn::LoadU(tag, scores + i); });
}

// sums = Σ weights[i] · value i, in the order of the positions.
template <class T>
HWY_INLINE void mix(const float* weights, const T* values, std::size_t count, std::size_t head_dim,
                    float* sums) {
  for (std::size_t i = 0; i < head_dim; ++i) sums[i] = 0;
  for (std::size_t key = 0; key < count; ++key) {
    const T* at = values + key * head_dim;
    for_lanes(head_dim, [=](auto tag, std::size_t i) {
      const auto weight = hn::Set(tag, weights[key]);
      hn::StoreU(hn::MulAdd(weight, load_as_float(tag, at + i), hn::LoadU(tag, sums + i)), tag,
                 sums + i);
    });
  }
}

// One query head of one row. keys and values: those of its kv head of its text.
void attend(DType dtype, const void* query, const void* keys, const void* values, std::size_t count,
            std::size_t head_dim, float scale, float* scratch, void* out) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    float* sums = scratch;
    float* scores = scratch + head_dim;
    const float largest = score(static_cast<const T*>(query), static_cast<const T*>(keys), count,
                                head_dim, scale, scores);
    const float total = soften(scores, count, largest);
    mix(scores, static_cast<const T*>(values), count, head_dim, sums);
    T* to = static_cast<T*>(out);
    for_lanes(head_dim, [=](auto tag, std::size_t i) {
      store_float(hn::Div(hn::LoadU(tag, sums + i), hn::Set(tag, total)), tag, to + i);
    });
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(attend);

std::size_t cached_attention_scratch_bytes(const CachedAttentionShape& shape, std::size_t workers) {
  const auto bytes = static_cast<std::size_t>(shape.head_dim + shape.length) * sizeof(float);
  return workers * ((bytes + 63) / 64 * 64);
}

void cached_attention(ThreadPool& pool, const CachedAttentionShape& shape, const Rows& q,
                      const Rows& k, const Rows& v, std::span<const std::int32_t> texts,
                      std::span<const std::int32_t> positions, const Rows& keys, const Rows& values,
                      const Rows& out, std::span<std::byte> scratch) {
  const auto d = shape.head_dim;
  ISTHMUS_ASSERT(q.columns == shape.heads * d && q.same_shape(out));
  ISTHMUS_ASSERT(k.columns == shape.kv_heads * d && k.same_shape(v) && k.rows == q.rows);
  ISTHMUS_ASSERT(keys.columns == d && keys.stride == d && values.stride == d &&
                 keys.same_shape(values));
  for (const Rows* rows : {&k, &v, &keys, &values, &out}) ISTHMUS_ASSERT(rows->dtype == q.dtype);
  const auto rows = static_cast<std::size_t>(q.rows);
  ISTHMUS_ASSERT(texts.size() == rows && positions.size() == rows);
  ISTHMUS_ASSERT(scratch.size() >= cached_attention_scratch_bytes(shape, pool.workers()));
  const auto kept_texts = keys.rows / (shape.kv_heads * shape.length);
  const auto bytes = static_cast<std::size_t>(d) * size_of(q.dtype);
  const auto first_of = [&](std::size_t row, std::int64_t kv_head) {
    return (texts[row] * shape.kv_heads + kv_head) * shape.length;
  };
  for (std::size_t row = 0; row < rows; ++row) {
    if (texts[row] == kNoText) continue;
    ISTHMUS_ASSERT(texts[row] >= 0 && texts[row] < kept_texts && positions[row] >= 0 &&
                   positions[row] < shape.length);
    const auto at = static_cast<std::int64_t>(row);
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      const auto place = first_of(row, head) + positions[row];
      std::memcpy(keys.at(place, 0), k.at(at, head * d), bytes);
      std::memcpy(values.at(place, 0), v.at(at, head * d), bytes);
    }
  }
  const auto group = shape.heads / shape.kv_heads;
  pool.parallel_for(rows * static_cast<std::size_t>(shape.kv_heads), [&](std::size_t task,
                                                                         std::size_t worker) {
    const auto row = task / static_cast<std::size_t>(shape.kv_heads);
    if (texts[row] == kNoText) return;
    const auto kv_head = static_cast<std::int64_t>(task % static_cast<std::size_t>(shape.kv_heads));
    const auto first = first_of(row, kv_head);
    const auto at = static_cast<std::int64_t>(row);
    auto* working = reinterpret_cast<float*>(scratch.data() +
                                             worker * cached_attention_scratch_bytes(shape, 1));
    for (auto head = kv_head * group; head < (kv_head + 1) * group; ++head)
      HWY_DYNAMIC_DISPATCH(attend)
    (q.dtype, q.at(at, head * d), keys.at(first, 0), values.at(first, 0),
     static_cast<std::size_t>(positions[row]) + 1, static_cast<std::size_t>(d), shape.scale,
     working, out.at(at, head * d));
  });
}

}  // namespace isthmus::kernels
#endif
