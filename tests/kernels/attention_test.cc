#include "kernels/attention.h"

#include <fmt/format.h>

#include "dropout_reference.h"
#include "reference.h"

namespace isthmus::kernels {
namespace {

struct Tensors {
  std::vector<double> q, k, v;  // [batch * sequence, heads * d], [batch * sequence, kv_heads * d]
};

struct Reference {
  std::vector<double> out, log_sums, dq, dk, dv;
};

using FirstKeys = std::vector<std::int32_t>;

// The definition, with the whole [queries, keys] matrix. Backward if dout is not empty.
Reference reference(const AttentionShape& s, const Tensors& in, const FirstKeys& first_keys,
                    const DropoutMask* dropout, const std::vector<double>& dout) {
  const std::int64_t d = s.head_dim;
  const std::int64_t q_row = s.heads * d;
  const std::int64_t k_row = s.kv_heads * d;
  Reference ref;
  ref.out.resize(in.q.size());
  ref.log_sums.resize(static_cast<std::size_t>(s.batch * s.heads * s.sequence));
  ref.dq.resize(in.q.size());
  ref.dk.resize(in.k.size());
  ref.dv.resize(in.v.size());
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t t = 0; t < s.sequence; ++t) {
        const std::int64_t query = (b * s.sequence + t) * q_row + h * d;
        const std::int64_t first = b * s.sequence * k_row + h / (s.heads / s.kv_heads) * d;
        const auto at = [](const std::vector<double>& x, std::int64_t i) {
          return x[static_cast<std::size_t>(i)];
        };
        std::vector<double> p;
        double largest = -INFINITY;
        const auto document_of = [&](std::int64_t token) {
          return first_keys.empty() ? 0
                                    : first_keys[static_cast<std::size_t>(b * s.sequence + token)];
        };
        for (std::int64_t j = 0; j < s.sequence; ++j) {
          const bool seen =
              s.causal ? document_of(t) <= j && j <= t : document_of(t) == document_of(j);
          if (!seen) {
            p.push_back(-INFINITY);
            continue;
          }
          double score = 0;
          for (std::int64_t i = 0; i < d; ++i)
            score += at(in.q, query + i) * at(in.k, first + j * k_row + i);
          p.push_back(score * static_cast<double>(s.scale));
          largest = std::max(largest, p.back());
        }
        double sum = 0;
        for (const double score : p) sum += std::exp(score - largest);
        const double log_sum = largest + std::log(sum);
        ref.log_sums[static_cast<std::size_t>((b * s.heads + h) * s.sequence + t)] = log_sum;
        double delta = 0;
        std::vector<double> m(p.size(), 1.0);
        for (std::size_t j = 0; j < p.size(); ++j) {
          p[j] = std::exp(p[j] - log_sum);
          if (dropout != nullptr)
            m[j] = dropout_factor(*dropout, b, t, static_cast<std::int64_t>(j), h);
          for (std::int64_t i = 0; i < d; ++i)
            ref.out[static_cast<std::size_t>(query + i)] +=
                p[j] * m[j] * at(in.v, first + static_cast<std::int64_t>(j) * k_row + i);
        }
        if (dout.empty()) continue;
        for (std::int64_t i = 0; i < d; ++i) delta += at(dout, query + i) * at(ref.out, query + i);
        for (std::size_t j = 0; j < p.size(); ++j) {
          const std::int64_t key = first + static_cast<std::int64_t>(j) * k_row;
          double dp = 0;
          for (std::int64_t i = 0; i < d; ++i) dp += at(dout, query + i) * at(in.v, key + i);
          const double ds = static_cast<double>(s.scale) * p[j] * (m[j] * dp - delta);
          for (std::int64_t i = 0; i < d; ++i) {
            ref.dq[static_cast<std::size_t>(query + i)] += ds * at(in.k, key + i);
            ref.dk[static_cast<std::size_t>(key + i)] += ds * at(in.q, query + i);
            ref.dv[static_cast<std::size_t>(key + i)] += p[j] * m[j] * at(dout, query + i);
          }
        }
      }
  return ref;
}

AttentionShape shape_of(std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim) {
  AttentionShape s;
  s.batch = batch;
  s.sequence = sequence;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  return s;
}

// Documents of these lengths, then one to the end: of each batch item, the later ones with longer
// first ones.
FirstKeys documents_of(const AttentionShape& s, const std::vector<std::int64_t>& lengths) {
  FirstKeys first_keys;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    std::int64_t begin = 0;
    std::size_t next = 0;
    std::int64_t end = lengths.empty() ? s.sequence : lengths[0] + b;
    for (std::int64_t t = 0; t < s.sequence; ++t) {
      if (t == end) {
        begin = t;
        end = ++next < lengths.size() ? t + lengths[next] : s.sequence;
      }
      first_keys.push_back(static_cast<std::int32_t>(begin));
    }
  }
  return first_keys;
}

struct AttentionCase {
  AttentionShape shape;
  DType dtype;
  bool native;  // bf16 products
  std::string documents;
  FirstKeys first_keys;
  float dropout = 0;
};

// Dtypes, and bf16 as such where the CPU multiplies it.
struct Variant {
  DType dtype;
  bool native;
};
std::vector<Variant> variants() {
  std::vector<Variant> all = {{DType::f32, false}, {DType::bf16, false}};
  if (__builtin_cpu_supports("avx512bf16") != 0) all.push_back({DType::bf16, true});
  return all;
}

struct Forward {
  Matrix out, log_sums;
};
// Of one batch item with garbage in the scratch.
Forward forward_of(ThreadPool& pool, const AttentionShape& s, const Variant& variant,
                   const Matrix& q, const Matrix& k, const Matrix& v,
                   const FirstKeys& first_keys = {}) {
  Forward made{Matrix(variant.dtype, s.sequence, s.heads * s.head_dim),
               Matrix(DType::f32, 1, s.heads * s.sequence)};
  std::vector<std::byte> scratch(attention_scratch_bytes(s, pool.workers()), std::byte{0xff});
  attention_forward(pool, s, q.view(), k.view(), v.view(), first_keys, nullptr, made.out.view(),
                    floats(made.log_sums), scratch, variant.native);
  return made;
}

// Of up to three batch items.
const std::vector<std::int32_t> kAttentionKeys = {1, -2, 3000000, -400000000, 5, 6};

class Attention : public testing::TestWithParam<AttentionCase> {};

TEST_P(Attention, AgreesWithDouble) {
  const AttentionShape s = GetParam().shape;
  const DType dtype = GetParam().dtype;
  const bool native = GetParam().native;
  const double once = (native ? 2 : 1) * tolerance(dtype);  // weights are rounded too
  const std::int64_t d = s.head_dim;
  const std::int64_t rows = s.batch * s.sequence;
  const Matrix q = Matrix::random("q", dtype, rows, s.heads * d, 3, 1.5);
  const Matrix k = Matrix::random("k", dtype, rows, s.kv_heads * d, 5, 1.5);
  const Matrix v = Matrix::random("v", dtype, rows, s.kv_heads * d, 1);
  const Matrix dout = Matrix::random("dout", dtype, rows, s.heads * d, 2);
  const auto& first_keys = GetParam().first_keys;
  const DropoutMask mask{
      .rate = GetParam().dropout,
      .stream = 0x90000001,
      .keys = std::span(kAttentionKeys).first(static_cast<std::size_t>(2 * s.batch))};
  const DropoutMask* dropout = mask.rate > 0 ? &mask : nullptr;
  const Reference expected =
      reference(s, {q.values(), k.values(), v.values()}, first_keys, dropout, dout.values());
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix out(dtype, rows, s.heads * d, 4);
    Matrix log_sums(DType::f32, 1, s.batch * s.heads * s.sequence);
    // Garbage in the scratch: nothing may be taken for granted there.
    std::vector<std::byte> scratch(attention_scratch_bytes(s, pool.workers()), std::byte{0xff});
    attention_forward(pool, s, q.view(), k.view(), v.view(), first_keys, dropout, out.view(),
                      floats(log_sums), scratch, native);
    EXPECT_LT(relative_error(out.values(), expected.out), once);
    EXPECT_LT(relative_error(log_sums.values(), expected.log_sums), tolerance(DType::f32));
    EXPECT_TRUE(out.padding_is_untouched());
    std::fill(scratch.begin(), scratch.end(), std::byte{0xff});
    Matrix dq(dtype, rows, s.heads * d, 1);
    Matrix dk(dtype, rows, s.kv_heads * d, 2);
    Matrix dv(dtype, rows, s.kv_heads * d, 3);
    attention_backward(pool, s, q.view(), k.view(), v.view(), first_keys, dropout, out.view(),
                       floats(log_sums), dout.view(), dq.view(), dk.view(), dv.view(), scratch,
                       native);
    if (s.sequence > 1) {  // with one key the weights are 1, and dq and dk rounding alone
      EXPECT_LT(relative_error(dq.values(), expected.dq), 3 * tolerance(dtype));
      EXPECT_LT(relative_error(dk.values(), expected.dk), 3 * tolerance(dtype));
    }
    EXPECT_LT(relative_error(dv.values(), expected.dv), once);
    EXPECT_TRUE(dq.padding_is_untouched() && dk.padding_is_untouched() &&
                dv.padding_is_untouched());
    return std::vector<Matrix>{out, log_sums, dq, dk, dv};
  });
}

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> all;
  const auto add = [&](const AttentionShape& shape, const std::string& documents,
                       const FirstKeys& first_keys) {
    for (const auto& [dtype, native] : variants())
      all.push_back({shape, dtype, native, documents, first_keys});
  };
  for (const AttentionShape& shape :
       {shape_of(1, 1, 1, 1, 1), shape_of(2, 1, 2, 1, 48), shape_of(1, 3, 2, 2, 5),
        shape_of(2, 63, 4, 2, 48), shape_of(1, 64, 2, 1, 64), shape_of(1, 65, 4, 1, 80),
        shape_of(2, 131, 4, 4, 32), shape_of(1, 200, 2, 1, 64), shape_of(1, 17, 3, 1, 33)})
    add(shape, "", {});
  const auto with = [&](const std::string& name, const AttentionShape& shape,
                        const std::vector<std::int64_t>& lengths) {
    add(shape, "_" + name, documents_of(shape, lengths));
  };
  with("one_document", shape_of(1, 70, 2, 1, 33), {});
  with("at_blocks", shape_of(1, 200, 2, 1, 64), {64, 64});
  with("beside_blocks", shape_of(2, 200, 4, 2, 80), {63, 2, 62, 10});
  with("short", shape_of(1, 131, 2, 2, 16), {1, 1, 3, 1, 2, 5, 1, 1, 60, 1, 4, 2, 2, 17});
  with("long_then_short", shape_of(1, 259, 3, 1, 48), {190, 1, 66});
  // A sliding window: of four neighbours two see keys of a block, and two do not any more.
  FirstKeys window;
  for (std::int32_t t = 0; t < 200; ++t) window.push_back(std::max(0, t - 66));
  add(shape_of(1, 200, 2, 1, 64), "_window", window);

  // Both ways, or with dropout: never as bf16 products, even where they are asked for. The last
  // documents are padding.
  for (const bool causal : {false, true})
    for (const float rate : {0.0F, 0.1F, 0.6F}) {
      if (causal && rate == 0) continue;
      const auto add_variant = [&](AttentionShape shape, const std::vector<std::int64_t>& lengths) {
        shape.causal = causal;
        const auto first_keys = lengths.empty() ? FirstKeys() : documents_of(shape, lengths);
        const auto name = fmt::format("_{}{}_{}", causal ? "causal" : "both_ways",
                                      rate == 0 ? "" : fmt::format("_drops{}", rate * 10),
                                      fmt::join(lengths, "_"));
        all.push_back({shape, DType::f32, false, name, first_keys, rate});
        all.push_back({shape, DType::bf16, rate > 0.5F, name, first_keys, rate});
      };
      add_variant(shape_of(1, 1, 1, 1, 5), {});
      add_variant(shape_of(2, 77, 6, 2, 48), {});
      add_variant(shape_of(3, 130, 6, 2, 33), {});
      add_variant(shape_of(1, 128, 2, 2, 64), {});
      add_variant(shape_of(2, 130, 6, 2, 16), {50, 61});
      add_variant(shape_of(1, 200, 2, 1, 64), {64, 64});
      add_variant(shape_of(2, 77, 6, 2, 16), {1, 1, 3, 20, 1, 40});
      add_variant(shape_of(1, 330, 2, 1, 17), {3, 259, 1});
    }
  return all;
}

std::string name_of(const testing::TestParamInfo<AttentionCase>& info) {
  const AttentionShape& s = info.param.shape;
  return fmt::format("b{}_t{}_h{}_kv{}_d{}_{}{}{}", s.batch, s.sequence, s.heads, s.kv_heads,
                     s.head_dim, to_string(info.param.dtype), info.param.native ? "_native" : "",
                     info.param.documents);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention, testing::ValuesIn(attention_cases()), name_of);

// More queries than one task takes; the second document lies in two.
TEST(AttentionLong, ForwardInPieces) {
  for (const auto& variant : variants()) {
    const Matrix q = Matrix::random("q", variant.dtype, 1100, 16);
    const Matrix k = Matrix::random("k", variant.dtype, 1100, 16);
    const Matrix v = Matrix::random("v", variant.dtype, 1100, 16);
    for (const auto& [causal, lengths] : std::vector<std::pair<bool, std::vector<std::int64_t>>>{
             {true, {}}, {true, {900, 90, 40}}, {false, {}}, {false, {900, 190}}}) {
      AttentionShape s = shape_of(1, 1100, 1, 1, 16);
      s.causal = causal;
      const auto first_keys = documents_of(s, lengths);
      const Reference expected =
          reference(s, {q.values(), k.values(), v.values()}, first_keys, nullptr, {});
      on_every_target_and_thread_count([&](ThreadPool& pool) {
        const auto [out, log_sums] = forward_of(pool, s, variant, q, k, v, first_keys);
        EXPECT_LT(relative_error(out.values(), expected.out),
                  (variant.native ? 2 : 1) * tolerance(variant.dtype));
        return std::vector<Matrix>{out, log_sums};
      });
    }
  }
}

// Scores of hundreds, of both signs: the softmax must neither overflow nor lose the largest.
TEST(AttentionRange, LargeScores) {
  AttentionShape s = shape_of(1, 90, 1, 1, 16);
  s.scale = 20.0F;
  for (const auto& variant : variants()) {
    const Matrix q = Matrix::random("q", variant.dtype, 90, 16, 0, 2.0);
    const Matrix k = Matrix::random("k", variant.dtype, 90, 16, 0, 2.0);
    const Matrix v = Matrix::random("v", variant.dtype, 90, 16);
    const Reference expected = reference(s, {q.values(), k.values(), v.values()}, {}, nullptr, {});
    on_every_target_and_thread_count([&](ThreadPool& pool) {
      const auto [out, log_sums] = forward_of(pool, s, variant, q, k, v);
      EXPECT_LT(relative_error(out.values(), expected.out),
                variant.dtype == DType::f32 ? 1e-4 : 2 * tolerance(variant.dtype));
      EXPECT_LT(relative_error(log_sums.values(), expected.log_sums), 2e-6);
      return std::vector<Matrix>{out};
    });
  }
}

// A key that is not a number makes all that see it so.
TEST(AttentionRange, NaNStays) {
  const AttentionShape s = shape_of(1, 70, 1, 1, 16);
  for (const auto& variant : variants())
    for (const std::int64_t key : {3, 60}) {
      SCOPED_TRACE(testing::Message()
                   << to_string(variant.dtype) << " " << variant.native << " " << key);
      const Matrix q = Matrix::random("q", variant.dtype, 70, 16);
      Matrix k = Matrix::random("k", variant.dtype, 70, 16);
      k.set(key, 5, NAN);
      const Matrix v = Matrix::random("v", variant.dtype, 70, 16);
      on_every_target_and_thread_count([&](ThreadPool& pool) {
        const auto [out, log_sums] = forward_of(pool, s, variant, q, k, v);
        for (std::int64_t row = 0; row < 70; ++row)
          EXPECT_EQ(std::isnan(out.at(row, 7)), row >= key) << row;
        return std::vector<Matrix>{};
      });
    }
}

// What is beside a document is nothing to it: its results are those of a sequence of its own, bit
// for bit where it begins with a block. The blocks after it are not even read.
TEST(AttentionDocuments, AreAsEachAlone) {
  for (const bool causal : {true, false}) {
    AttentionShape s = shape_of(1, 256, 2, 1, 32);
    AttentionShape alone = shape_of(1, 64, 2, 1, 32);
    s.causal = alone.causal = causal;
    Matrix q = Matrix::random("q", DType::f32, 256, 64);
    Matrix k = Matrix::random("k", DType::f32, 256, 32);
    Matrix v = Matrix::random("v", DType::f32, 256, 32);
    for (const Matrix* of : {&q, &k, &v})
      std::ranges::fill(floats(*of).subspan(static_cast<std::size_t>(192 * of->columns())), NAN);
    on_every_target_and_thread_count([&](ThreadPool& pool) {
      Matrix out(DType::f32, 256, 64), out_alone(DType::f32, 64, 64);
      Matrix log_sums(DType::f32, 1, 2 * 256), log_sums_alone(DType::f32, 1, 2 * 64);
      std::vector<std::byte> scratch(attention_scratch_bytes(s, pool.workers()));
      attention_forward(pool, s, q.view(), k.view(), v.view(), documents_of(s, {64, 64, 64}),
                        nullptr, out.view(), floats(log_sums), scratch);
      const auto third = [](const Matrix& all) { return all.view().row_range(128, 64); };
      attention_forward(pool, alone, third(q), third(k), third(v), {}, nullptr, out_alone.view(),
                        floats(log_sums_alone), scratch);
      const auto values = out.values();
      EXPECT_EQ(std::vector<double>(values.begin() + 128 * 64, values.begin() + 192 * 64),
                out_alone.values());
      return std::vector<Matrix>{out_alone};
    });
  }
}

// Who sees both ways must know where each document ends.
TEST(AttentionDocuments, AreTrueOnesWhereAQuerySeesBothWays) {
  AttentionShape s = shape_of(1, 4, 1, 1, 8);
  const Matrix x = Matrix::random("x", DType::f32, 4, 8);
  Matrix out(DType::f32, 4, 8), log_sums(DType::f32, 1, 4);
  ThreadPool pool(unpinned(1));
  std::vector<std::byte> scratch(attention_scratch_bytes(s, 1));
  const auto forward = [&](const FirstKeys& first_keys) {
    attention_forward(pool, s, x.view(), x.view(), x.view(), first_keys, nullptr, out.view(),
                      floats(log_sums), scratch);
  };
  const FirstKeys window = {0, 0, 1, 2};  // as of a sliding window
  forward(window);
  s.causal = false;
  forward({0, 0, 2, 2});
  EXPECT_DEATH(forward(window), "causal");
}

// A batch item's mask is that of its key, whatever lies beside it; and no rate is no dropout.
TEST(AttentionDropout, DependsOnNoOtherSequence) {
  AttentionShape s = shape_of(3, 70, 4, 2, 32);
  s.causal = false;
  AttentionShape alone = s;
  alone.batch = 1;
  const Matrix q = Matrix::random("q", DType::f32, 3 * 70, 4 * 32);
  const Matrix k = Matrix::random("k", DType::f32, 3 * 70, 2 * 32);
  const Matrix v = Matrix::random("v", DType::f32, 3 * 70, 2 * 32);
  on_every_target_and_thread_count([&](ThreadPool& pool) {
    Matrix out(DType::f32, 3 * 70, 4 * 32), out_alone(DType::f32, 3 * 70, 4 * 32);
    Matrix log_sums(DType::f32, 1, 3 * 4 * 70), log_sums_alone(DType::f32, 1, 3 * 4 * 70);
    std::vector<std::byte> scratch(attention_scratch_bytes(s, pool.workers()));
    const DropoutMask all{.rate = 0.25F, .stream = 9, .keys = kAttentionKeys};
    attention_forward(pool, s, q.view(), k.view(), v.view(), {}, &all, out.view(), floats(log_sums),
                      scratch);
    for (std::int64_t b = 2; b >= 0; --b) {
      DropoutMask one = all;
      one.keys = all.keys.subspan(static_cast<std::size_t>(2 * b), 2);
      const auto item = [&](const Matrix& of) { return of.view().row_range(b * 70, 70); };
      attention_forward(
          pool, alone, item(q), item(k), item(v), {}, &one, item(out_alone),
          floats(log_sums_alone).subspan(static_cast<std::size_t>(b * 4 * 70), 4 * 70), scratch);
    }
    EXPECT_TRUE(out.same_bits(out_alone) && log_sums.same_bits(log_sums_alone));
    Matrix plain(DType::f32, 3 * 70, 4 * 32), of_rate_zero(DType::f32, 3 * 70, 4 * 32);
    attention_forward(pool, s, q.view(), k.view(), v.view(), {}, nullptr, plain.view(),
                      floats(log_sums), scratch);
    const DropoutMask none;
    attention_forward(pool, s, q.view(), k.view(), v.view(), {}, &none, of_rate_zero.view(),
                      floats(log_sums), scratch);
    EXPECT_TRUE(plain.same_bits(of_rate_zero) && log_sums.same_bits(log_sums_alone));
    return std::vector<Matrix>{out};
  });
}

// The reference's own backward, by differences of its forward.
TEST(AttentionReference, BackwardIsTheGradientOfForward) {
  AttentionShape s = shape_of(1, 5, 2, 1, 4);
  Tensors in{Matrix::random("q", DType::f32, 5, 8).values(),
             Matrix::random("k", DType::f32, 5, 4).values(),
             Matrix::random("v", DType::f32, 5, 4).values()};
  const std::vector<double> dout = Matrix::random("dout", DType::f32, 5, 8).values();
  const FirstKeys first_keys = {0, 0, 2, 2, 2};
  const DropoutMask mask{.rate = 0.4F, .keys = kAttentionKeys};
  for (const bool causal : {true, false})
    for (const DropoutMask* dropout : {static_cast<const DropoutMask*>(nullptr), &mask}) {
      s.causal = causal;
      const Reference analytic = reference(s, in, first_keys, dropout, dout);
      const auto by = [&](std::vector<double> Tensors::*member) {
        return numeric_gradient(in.*member, dout, [&](const std::vector<double>& x) {
          Tensors changed = in;
          changed.*member = x;
          return reference(s, changed, first_keys, dropout, {}).out;
        });
      };
      EXPECT_LT(relative_error(analytic.dq, by(&Tensors::q)), 1e-8);
      EXPECT_LT(relative_error(analytic.dk, by(&Tensors::k)), 1e-8);
      EXPECT_LT(relative_error(analytic.dv, by(&Tensors::v)), 1e-8);
    }
}

}  // namespace
}  // namespace isthmus::kernels
