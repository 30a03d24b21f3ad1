#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/elements.h"

namespace isthmus::kernels {
namespace {

void check(const AttentionShape& shape, const Rows& q, const Rows& k, const Rows& v,
           const Rows& out, std::size_t log_sums) {
  ISTHMUS_ASSERT(shape.heads % shape.kv_heads == 0);
  ISTHMUS_ASSERT(q.rows == shape.batch * shape.sequence &&
                 q.columns == shape.heads * shape.head_dim && q.same_shape(out));
  ISTHMUS_ASSERT(k.rows == shape.batch * (shape.past + shape.sequence) &&
                 k.columns == shape.kv_heads * shape.head_dim && k.same_shape(v));
  ISTHMUS_ASSERT(q.dtype == k.dtype && q.dtype == v.dtype && q.dtype == out.dtype);
  ISTHMUS_ASSERT(static_cast<std::int64_t>(log_sums) == shape.batch * shape.heads * shape.sequence);
}

template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += load(a + i) * load(b + i);
  return sum;
}

// One query of one head; `sums` holds head_dim floats.
template <class T>
float attend(const T* q, const Rows& k, const Rows& v, std::int64_t first_key, std::int64_t keys,
             std::int64_t column, std::int64_t d, float scale, float* sums, T* out) {
  float largest = -std::numeric_limits<float>::infinity();
  float total = 0;
  std::fill_n(sums, d, 0.0F);
  for (std::int64_t j = 0; j < keys; ++j) {
    const float score = scale * dot(q, static_cast<const T*>(k.at(first_key + j, column)), d);
    if (score > largest) {
      const float shrink = std::exp(largest - score);
      total *= shrink;
      for (std::int64_t i = 0; i < d; ++i) sums[i] *= shrink;
      largest = score;
    }
    const float weight = std::exp(score - largest);
    total += weight;
    const T* value = static_cast<const T*>(v.at(first_key + j, column));
    for (std::int64_t i = 0; i < d; ++i) sums[i] += weight * load(value + i);
  }
  for (std::int64_t i = 0; i < d; ++i) store(sums[i] / total, out + i);
  return largest + std::log(total);
}

}  // namespace

std::size_t attention_scratch_bytes(const AttentionShape& shape, std::size_t workers) {
  return workers * sizeof(float) *
         static_cast<std::size_t>((2 * shape.sequence + 2) * shape.head_dim);
}

void attention_forward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                       const Rows& v, const Rows& out, std::span<float> log_sums,
                       std::span<std::byte> scratch) {
  check(shape, q, k, v, out, log_sums.size());
  ISTHMUS_ASSERT(scratch.size() >= attention_scratch_bytes(shape, pool.workers()));
  const std::int64_t d = shape.head_dim;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::size_t per_worker = attention_scratch_bytes(shape, 1);
  pool.parallel_for(static_cast<std::size_t>(shape.batch * shape.heads), [&](std::size_t task,
                                                                             std::size_t worker) {
    const auto b = static_cast<std::int64_t>(task) / shape.heads;
    const auto h = static_cast<std::int64_t>(task) % shape.heads;
    auto* sums = reinterpret_cast<float*>(scratch.data() + worker * per_worker);
    with_element(q.dtype, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t t = 0; t < shape.sequence; ++t) {
        const std::int64_t row = b * shape.sequence + t;
        log_sums[task * static_cast<std::size_t>(shape.sequence) + static_cast<std::size_t>(t)] =
            attend(static_cast<const T*>(q.at(row, h * d)), k, v, b * (shape.past + shape.sequence),
                   shape.past + t + 1, h / group * d, d, shape.scale, sums,
                   static_cast<T*>(out.at(row, h * d)));
      }
    });
  });
}

void attention_backward(ThreadPool& pool, const AttentionShape& shape, const Rows& q, const Rows& k,
                        const Rows& v, const Rows& out, std::span<const float> log_sums,
                        const Rows& dout, const Rows& dq, const Rows& dk, const Rows& dv,
                        std::span<std::byte> scratch) {
  check(shape, q, k, v, out, log_sums.size());
  ISTHMUS_ASSERT(shape.past == 0 && q.same_shape(dout) && q.same_shape(dq) && k.same_shape(dk) &&
                 k.same_shape(dv) && dout.dtype == q.dtype && dq.dtype == q.dtype &&
                 dk.dtype == q.dtype && dv.dtype == q.dtype);
  ISTHMUS_ASSERT(scratch.size() >= attention_scratch_bytes(shape, pool.workers()));
  const std::int64_t d = shape.head_dim;
  const std::int64_t length = shape.sequence;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::size_t per_worker = attention_scratch_bytes(shape, 1);
  pool.parallel_for(
      static_cast<std::size_t>(shape.batch * shape.kv_heads),
      [&](std::size_t task, std::size_t worker) {
        const auto b = static_cast<std::int64_t>(task) / shape.kv_heads;
        const auto kv = static_cast<std::int64_t>(task) % shape.kv_heads;
        auto* dk_sum = reinterpret_cast<float*>(scratch.data() + worker * per_worker);
        float* dv_sum = dk_sum + length * d;
        float* dq_sum = dv_sum + length * d;
        std::fill_n(dk_sum, 2 * length * d, 0.0F);
        with_element(q.dtype, [&](auto element) {
          using T = decltype(element);
          for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
            for (std::int64_t t = 0; t < length; ++t) {
              const std::int64_t row = b * length + t;
              const T* query = static_cast<const T*>(q.at(row, h * d));
              const T* gradient = static_cast<const T*>(dout.at(row, h * d));
              const float delta = dot(gradient, static_cast<const T*>(out.at(row, h * d)), d);
              const float log_sum = log_sums[(b * shape.heads + h) * length + t];
              std::fill_n(dq_sum, d, 0.0F);
              for (std::int64_t j = 0; j <= t; ++j) {
                const T* key = static_cast<const T*>(k.at(b * length + j, kv * d));
                const T* value = static_cast<const T*>(v.at(b * length + j, kv * d));
                const float p = std::exp(shape.scale * dot(query, key, d) - log_sum);
                const float ds = shape.scale * p * (dot(gradient, value, d) - delta);
                for (std::int64_t i = 0; i < d; ++i) {
                  dv_sum[j * d + i] += p * load(gradient + i);
                  dk_sum[j * d + i] += ds * load(query + i);
                  dq_sum[i] += ds * load(key + i);
                }
              }
              T* to = static_cast<T*>(dq.at(row, h * d));
              for (std::int64_t i = 0; i < d; ++i) store(dq_sum[i], to + i);
            }
          for (std::int64_t j = 0; j < length; ++j)
            for (std::int64_t i = 0; i < d; ++i) {
              store(dk_sum[j * d + i], static_cast<T*>(dk.at(b * length + j, kv * d + i)));
              store(dv_sum[j * d + i], static_cast<T*>(dv.at(b * length + j, kv * d + i)));
            }
        });
      });
}

}  // namespace isthmus::kernels
