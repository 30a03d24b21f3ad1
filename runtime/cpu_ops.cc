#include "runtime/cpu_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "kernels/attention.h"
#include "kernels/cached_attention.h"
#include "kernels/embedding.h"
#include "kernels/few_rows.h"
#include "kernels/low_rank.h"
#include "kernels/norm_rope.h"
#include "kernels/repeated_rows.h"
#include "kernels/residual.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "runtime/cpu_device.h"
#include "runtime/cpu_views.h"
#include "runtime/products.h"

namespace isthmus::runtime::cpu {
namespace {

using kernels::Rows;

std::span<const std::int32_t> tokens_of(const TensorView& view) {
  return {view.i32(), static_cast<std::size_t>(view.elements())};
}

void copy_unless_same_place(ThreadPool& pool, const TensorView& from, const TensorView& to) {
  if (from.data != to.data) kernels::copy_rows(pool, from, to);
}

PreparedOp rope_in_place(const TensorView& from, const TensorView& table, const TensorView& to,
                         const Attributes& a, kernels::RopeDirection direction, CpuDevice& device) {
  return [=, &pool = device.pool] {
    copy_unless_same_place(pool, from, to);
    kernels::rope(pool, Rows(to).column_range(0, a.heads * a.head_dim), a.head_dim, {}, a.sequence,
                  flat(table), direction);
  };
}

float scale_of(const Attributes& a) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
}

kernels::AttentionShape attention_shape(const Attributes& a, const TensorView& qkv) {
  kernels::AttentionShape shape;
  shape.batch = qkv.shape[0] / a.sequence;
  shape.sequence = a.sequence;
  shape.heads = a.heads;
  shape.kv_heads = a.kv_heads;
  shape.head_dim = a.head_dim;
  shape.scale = scale_of(a);
  shape.causal = a.causal;
  return shape;
}

// The mask of an attention; none where it drops nothing.
std::optional<kernels::DropoutMask> attention_mask(const BoundOp& bound) {
  if (bound.inputs[2].data == nullptr) return std::nullopt;
  return dropout_mask(bound.op.attributes, bound.inputs[2]);
}

// The columns of q, k and v in a row of them side by side.
struct Heads {
  Heads(const TensorView& qkv, const Attributes& a)
      : q(Rows(qkv).column_range(0, a.heads * a.head_dim)),
        k(Rows(qkv).column_range(a.heads * a.head_dim, a.kv_heads * a.head_dim)),
        v(Rows(qkv).column_range((a.heads + a.kv_heads) * a.head_dim, a.kv_heads * a.head_dim)) {}
  Rows q, k, v;
};

// What norm_rope multiplies with: of all heads of q, then of those of k.
struct HeadScales {
  HeadScales(const TensorView& all, const Attributes& a)
      : q(flat(all).first(static_cast<std::size_t>(all.shape[0] * a.heads))),
        k(flat(all).subspan(q.size())) {}
  std::span<float> q, k;
};

}  // namespace

PreparedOp embed_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, tokens = tokens_of(bound.inputs[0]), table = bound.inputs[1],
          x = bound.outputs[0]] { kernels::embedding_forward(pool, tokens, table, x); };
}

PreparedOp embed_backward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, tokens = tokens_of(bound.inputs[0]), dx = bound.inputs[3],
          dtable = bound.outputs[1]] { kernels::embedding_backward(pool, tokens, dx, dtable); };
}

PreparedOp norm_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0], weight = flat(bound.inputs[1]),
          y = bound.outputs[0], inverse_rms = flat(bound.outputs[1]),
          epsilon = static_cast<float>(bound.op.attributes.epsilon)] {
    kernels::rms_norm_forward(pool, x, weight, epsilon, y, inverse_rms);
  };
}

PreparedOp norm_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& x = bound.inputs[0];
  const auto& dx = bound.outputs[0];
  // The kernel makes both gradients; a norm whose input needs none (frozen embedding) discards one.
  const auto scratch = kernels::rms_norm_scratch_floats(x.shape[0], x.shape[1]);
  const auto unused = dx.data == nullptr ? x.elements() : 0;
  device.reserve_scratch((scratch + static_cast<std::size_t>(unused)) * sizeof(float));
  return [&device, x, dx, scratch, weight = flat(bound.inputs[1]),
          inverse_rms = flat(bound.inputs[3]), dy = bound.inputs[4],
          dweight = flat(bound.outputs[1]), y = again(bound.outputs[2]),
          accumulate = bound.op.accumulates(0)] {
    auto to = dx;
    if (to.data == nullptr) {
      to = x;
      to.data = device.scratch_of<float>(scratch + static_cast<std::size_t>(x.elements())).data() +
                scratch;
    }
    kernels::rms_norm_backward(device.pool, dy, x, weight, inverse_rms, to, accumulate, dweight,
                               device.scratch_of<float>(scratch), y ? &*y : nullptr);
  };
}

PreparedOp linear_forward(const BoundOp& bound, CpuDevice& device) {
  const auto& x = bound.inputs[0];
  const auto& weight = bound.inputs[1];
  const auto& y = bound.outputs[0];
  if (x.shape[0] <= kernels::kFewRows)
    return [&pool = device.pool, x, weight, y] { kernels::few_rows_product(pool, x, weight, y); };
  const Products products{x.shape[0], weight.shape[0], weight.shape[1], weight.dtype};
  return [&pool = device.pool, &plan = device.gemm(products.forward(y.dtype)), x = x.data,
          weight = weight.data, y = y.data] { plan.run(pool, x, weight, y); };
}

PreparedOp linear_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& x = bound.inputs[0];
  const auto& weight = bound.inputs[1];
  const auto& dy = bound.inputs[3];
  const auto& dx = bound.outputs[0];
  const auto& dweight = bound.outputs[1];
  // What makes no gradient is not there.
  const auto in = (x.data != nullptr ? x : weight).shape[1];
  const Products products{dy.shape[0], dy.shape[1], in, dy.dtype};
  const auto* for_x =
      dx.data == nullptr ? nullptr
                         : &device.gemm(products.input_gradient(dx.dtype, bound.op.accumulates(0)));
  const kernels::GemmPlan *for_weight = nullptr, *first_for_weight = nullptr;
  if (dweight.data != nullptr) {
    for_weight = &device.gemm(products.weight_gradient(true));
    first_for_weight = &device.gemm(products.weight_gradient((bound.op.sets_first & bit(1)) == 0));
  }
  return [=, &device, x = x.data, weight = weight.data, dy = dy.data, dx = dx.data,
          dweight = dweight.data] {
    if (for_x != nullptr) for_x->run(device.pool, dy, weight, dx);
    if (for_weight == nullptr) return;
    (device.first_micro_batch ? first_for_weight : for_weight)->run(device.pool, dy, x, dweight);
  };
}

PreparedOp low_rank_forward(const BoundOp& bound, CpuDevice& device) {
  const Rows weight(bound.inputs[1]);
  const auto scratch = kernels::low_rank_scratch_floats(weight.rows, weight.columns);
  device.reserve_scratch(scratch * sizeof(float));
  const auto& a = bound.op.attributes;
  return [&device, t = bound.inputs[0], weight, scratch, y = bound.inputs[2],
          sum = bound.outputs[0], scale = static_cast<float>(a.scale),
          columns = Rows(bound.outputs[0]).column_range(a.first_column, weight.rows)] {
    copy_unless_same_place(device.pool, y, sum);
    kernels::low_rank_forward(device.pool, t, weight, scale, columns, columns,
                              device.scratch_of<float>(scratch));
  };
}

PreparedOp low_rank_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& a = bound.op.attributes;
  const Rows weight(bound.inputs[1]);
  return [&device, t = bound.inputs[0], weight, dt = bound.outputs[0], dweight = bound.outputs[1],
          scale = static_cast<float>(a.scale),
          dy = Rows(bound.inputs[4]).column_range(a.first_column, weight.rows),
          sets_first = (bound.op.sets_first & bit(1)) != 0] {
    if (dt.data != nullptr) kernels::low_rank_input_gradient(device.pool, dy, weight, scale, dt);
    if (dweight.data != nullptr)
      kernels::low_rank_weight_gradient(device.pool, dy, t, scale, dweight,
                                        !(device.first_micro_batch && sets_first));
  };
}

PreparedOp rope_table_forward(const BoundOp& bound, CpuDevice&) {
  return [table = bound.outputs[0], a = bound.op.attributes] {
    kernels::rope_table(rope_frequencies(a.theta, a.head_dim, a.rope_scaling),
                        rope_amplitude(a.rope_scaling), table.shape[0], flat(table));
  };
}

PreparedOp rope_forward(const BoundOp& bound, CpuDevice& device) {
  return rope_in_place(bound.inputs[0], bound.inputs[1], bound.outputs[0], bound.op.attributes,
                       kernels::RopeDirection::forward, device);
}

PreparedOp rope_backward(const BoundOp& bound, CpuDevice& device) {
  return rope_in_place(bound.inputs[3], bound.inputs[1], bound.outputs[0], bound.op.attributes,
                       kernels::RopeDirection::backward, device);
}

PreparedOp norm_rope_forward(const BoundOp& bound, CpuDevice& device) {
  const auto& a = bound.op.attributes;
  return [&pool = device.pool, x = Heads(bound.inputs[0], a), y = Heads(bound.outputs[0], a),
          q_weight = flat(bound.inputs[1]), k_weight = flat(bound.inputs[2]),
          table = flat(bound.inputs[3]), inverse = HeadScales(bound.outputs[1], a),
          epsilon = static_cast<float>(a.epsilon), sequence = a.sequence] {
    kernels::norm_rope_forward(pool, x.q, q_weight, epsilon, sequence, table, y.q, inverse.q);
    kernels::norm_rope_forward(pool, x.k, k_weight, epsilon, sequence, table, y.k, inverse.k);
    kernels::copy_rows(pool, x.v, y.v);
  };
}

PreparedOp norm_rope_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& a = bound.op.attributes;
  const auto& qkv = bound.inputs[0];
  const auto scratch =
      kernels::norm_rope_scratch_floats(qkv.shape[0], a.heads * a.head_dim, a.head_dim);
  // Where nothing before trains, the gradient of x is made all the same, and goes nowhere.
  const auto unused = bound.outputs[0].data == nullptr ? qkv.bytes() : 0;
  const auto unused_at = scratch * sizeof(float);
  device.reserve_scratch(unused_at + unused);
  return [&device, a, qkv, scratch, unused_at, to = bound.outputs[0], dy_view = bound.inputs[6],
          q_weight = flat(bound.inputs[1]), k_weight = flat(bound.inputs[2]),
          table = flat(bound.inputs[3]), inverse = HeadScales(bound.inputs[5], a),
          dq_weight = flat(bound.outputs[1]), dk_weight = flat(bound.outputs[2])] {
    auto dx_view = to;
    if (dx_view.data == nullptr) {
      dx_view = qkv;
      dx_view.data = device.scratch().data() + unused_at;
    }
    const Heads x(qkv, a), dy(dy_view, a), dx(dx_view, a);
    const auto working = device.scratch_of<float>(scratch);
    kernels::norm_rope_backward(device.pool, dy.q, x.q, q_weight, inverse.q, a.sequence, table,
                                dx.q, dq_weight, working);
    kernels::norm_rope_backward(device.pool, dy.k, x.k, k_weight, inverse.k, a.sequence, table,
                                dx.k, dk_weight, working);
    if (dx.v.data != dy.v.data) kernels::copy_rows(device.pool, dy.v, dx.v);
  };
}

PreparedOp attention_forward(const BoundOp& bound, CpuDevice& device) {
  const auto shape = attention_shape(bound.op.attributes, bound.inputs[0]);
  device.reserve_scratch(kernels::attention_scratch_bytes(shape, device.workers));
  return [&device, shape, x = Heads(bound.inputs[0], bound.op.attributes), y = bound.outputs[0],
          first_keys = flat<const std::int32_t>(bound.inputs[1]), mask = attention_mask(bound),
          log_sums = flat(bound.outputs[1])] {
    kernels::attention_forward(device.pool, shape, x.q, x.k, x.v, first_keys,
                               mask ? &*mask : nullptr, y, log_sums, device.scratch());
  };
}

PreparedOp attention_backward(const BoundOp& bound, CpuDevice& device) {
  const auto shape = attention_shape(bound.op.attributes, bound.inputs[0]);
  device.reserve_scratch(kernels::attention_scratch_bytes(shape, device.workers));
  return [&device, shape, x = Heads(bound.inputs[0], bound.op.attributes),
          first_keys = flat<const std::int32_t>(bound.inputs[1]), mask = attention_mask(bound),
          y = bound.inputs[3], log_sums = flat(bound.inputs[4]), dy = bound.inputs[5],
          dx = Heads(bound.outputs[0], bound.op.attributes)] {
    kernels::attention_backward(device.pool, shape, x.q, x.k, x.v, first_keys,
                                mask ? &*mask : nullptr, y, log_sums, dy, dx.q, dx.k, dx.v,
                                device.scratch());
  };
}

PreparedOp cached_attention_forward(const BoundOp& bound, CpuDevice& device) {
  const auto& a = bound.op.attributes;
  const kernels::CachedAttentionShape shape{.length = a.sequence,
                                            .heads = a.heads,
                                            .kv_heads = a.kv_heads,
                                            .head_dim = a.head_dim,
                                            .scale = scale_of(a)};
  device.reserve_scratch(kernels::cached_attention_scratch_bytes(shape, device.workers));
  return [&device, shape, x = Heads(bound.inputs[0], a), texts = tokens_of(bound.inputs[1]),
          positions = tokens_of(bound.inputs[2]), keys = bound.inputs[3], values = bound.inputs[4],
          y = bound.outputs[0]] {
    kernels::cached_attention(device.pool, shape, x.q, x.k, x.v, texts, positions, keys, values, y,
                              device.scratch());
  };
}

PreparedOp glu_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = Halves(bound.inputs[0]), y = bound.outputs[0]] {
    kernels::swiglu_forward(pool, x.gate, x.up, y);
  };
}

PreparedOp glu_backward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = Halves(bound.inputs[0]), dy = bound.inputs[2],
          dx = Halves(bound.outputs[0]), y = again(bound.outputs[1])] {
    kernels::swiglu_backward(pool, dy, x.gate, x.up, dx.gate, dx.up, y ? &*y : nullptr);
  };
}

PreparedOp add_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0], y = bound.inputs[1], sum = bound.outputs[0]] {
    kernels::residual_add(pool, x, y, sum);
  };
}

PreparedOp convert_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, from = bound.inputs[0], to = bound.outputs[0]] {
    kernels::copy_rows(pool, from, to);
  };
}

}  // namespace isthmus::runtime::cpu
