#include "kernels/cached_attention.h"

#include "kernels/attention.h"
#include "reference.h"

namespace isthmus::kernels {
namespace {

struct CachedCase {
  std::int64_t heads, kv_heads, head_dim;
  DType dtype;
};

class CachedAttention : public testing::TestWithParam<CachedCase> {};

std::span<std::byte> bytes_of(std::vector<float>& scratch) {
  return std::as_writable_bytes(std::span(scratch));
}

// Tokens of a text that come in pieces, beside those of another text and rows of none, see what
// attention over the whole text sees.
TEST_P(CachedAttention, AgreesWithAttentionOverTheWholeText) {
  const auto [heads, kv_heads, d, dtype] = GetParam();
  constexpr std::int64_t kTokens = 45, kLength = 50;
  const Matrix q = Matrix::random("q", dtype, kTokens, heads * d, 2);
  const Matrix k = Matrix::random("k", dtype, kTokens, kv_heads * d, 1);
  const Matrix v = Matrix::random("v", dtype, kTokens, kv_heads * d);
  const AttentionShape whole{.batch = 1,
                             .sequence = kTokens,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_dim = d,
                             .scale = 0.3F};
  const CachedAttentionShape kept{
      .length = kLength, .heads = heads, .kv_heads = kv_heads, .head_dim = d, .scale = 0.3F};
  on_every_target_and_thread_count(
      [&, heads = heads, kv_heads = kv_heads, d = d, dtype = dtype](ThreadPool& pool) {
        Matrix expected(dtype, kTokens, heads * d);
        std::vector<float> log_sums(static_cast<std::size_t>(heads * kTokens));
        std::vector<float> scratch(attention_scratch_bytes(whole, pool.workers()) / sizeof(float));
        attention_forward(pool, whole, q.view(), k.view(), v.view(), {}, nullptr, expected.view(),
                          log_sums, bytes_of(scratch), false);

        Matrix keys(dtype, 3 * kv_heads * kLength, d), values(dtype, 3 * kv_heads * kLength, d);
        std::vector<float> working(cached_attention_scratch_bytes(kept, pool.workers()) /
                                   sizeof(float));
        Matrix out(dtype, kTokens, heads * d, 1);
        for (std::int64_t first = 0; first < kTokens;) {
          const auto count = std::min<std::int64_t>(first == 0 ? 20 : 7, kTokens - first);
          // Two rows of text 2, one of none, and the piece of text 1.
          std::vector<std::int32_t> texts(static_cast<std::size_t>(count), 1), positions;
          for (std::int64_t i = 0; i < count; ++i)
            positions.push_back(static_cast<std::int32_t>(first + i));
          Matrix piece(dtype, count + 3, heads * d);
          Matrix piece_q(dtype, count + 3, heads * d), piece_k(dtype, count + 3, kv_heads * d),
              piece_v(dtype, count + 3, kv_heads * d);
          for (std::int64_t i = 0; i < count + 3; ++i) {
            for (std::int64_t c = 0; c < heads * d; ++c)
              piece_q.set(i, c, q.at(i < count ? first + i : 0, c));
            for (std::int64_t c = 0; c < kv_heads * d; ++c) {
              piece_k.set(i, c, k.at(i < count ? first + i : 0, c));
              piece_v.set(i, c, v.at(i < count ? first + i : 0, c));
            }
          }
          texts.insert(texts.end(), {2, 2, kNoText});
          positions.insert(positions.end(), {0, 1, 0});
          cached_attention(pool, kept, piece_q.view(), piece_k.view(), piece_v.view(), texts,
                           positions, keys.view(), values.view(), piece.view(), bytes_of(working));
          for (std::int64_t i = 0; i < count; ++i)
            for (std::int64_t c = 0; c < heads * d; ++c) out.set(first + i, c, piece.at(i, c));
          for (std::int64_t c = 0; c < heads * d; ++c)
            EXPECT_EQ(piece.at(count + 2, c), Matrix(dtype, 1, 1).at(0, 0)) << "a row of no text";
          first += count;
        }
        EXPECT_LT(relative_error(out.values(), expected.values()), tolerance(dtype));
        return std::vector<Matrix>{out, keys, values};
      });
}

INSTANTIATE_TEST_SUITE_P(Shapes, CachedAttention,
                         testing::Values(CachedCase{1, 1, 2, DType::f32},
                                         CachedCase{6, 2, 33, DType::f32},
                                         CachedCase{4, 4, 64, DType::f32},
                                         CachedCase{6, 2, 34, DType::bf16}));

}  // namespace
}  // namespace isthmus::kernels
