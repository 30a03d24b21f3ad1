// The CPU column of the op table for mixtures of experts.
#include <algorithm>

#include "kernels/few_rows.h"
#include "kernels/gathered_rows.h"
#include "kernels/sigmoid.h"
#include "kernels/swiglu.h"
#include "runtime/batch_loss.h"
#include "runtime/cpu_device.h"
#include "runtime/cpu_ops.h"
#include "runtime/cpu_views.h"
#include "runtime/planner.h"
#include "runtime/products.h"

namespace isthmus::runtime::cpu {
namespace {

using kernels::Rows;
using Ints = std::span<const std::int32_t>;

// Of all rows that experts may have, those that they do in this run; all where one expert takes
// each token.
Rows used(const TensorView& view, Ints offsets) {
  const Rows rows(view);
  return offsets.empty() ? rows : rows.row_range(0, offsets.back());
}
template <class T>
std::span<T> used(std::span<T> of_rows, Ints offsets) {
  return offsets.empty() ? of_rows : of_rows.first(static_cast<std::size_t>(offsets.back()));
}

// Where something begins behind so many bytes.
std::size_t place_behind(std::size_t bytes) {
  return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

// What the losses of a layer's router are weighed by, made anew in each run.
class RouterWeights {
 public:
  RouterWeights(const Routing& routing, Ints targets, Ints loads)
      : routing_(routing), targets_(targets), loads_(loads) {}

  // Of what losses() works in.
  std::size_t scratch_bytes() const { return batch() * (1 + experts()) * sizeof(double); }

  // A sequence weighs as much as it has targets that count, so that the sum over a step is the same
  // however it is cut into micro-batches.
  kernels::RouterLosses losses(std::span<std::byte> scratch) const {
    const std::span counted(reinterpret_cast<double*>(scratch.data()), batch());
    const std::span shares(counted.data() + batch(), batch() * experts());  // [batch, experts]
    const auto sequence = static_cast<std::size_t>(routing_.sequence);
    double all = 0;
    for (std::size_t b = 0; b < batch(); ++b) {
      const auto of_sequence = targets_.subspan(b * sequence, sequence);
      counted[b] = static_cast<double>(sequence) -
                   static_cast<double>(std::ranges::count(of_sequence, kIgnoredTarget));
      all += counted[b];
    }
    for (std::size_t b = 0; b < batch(); ++b)
      for (std::size_t e = 0; e < experts(); ++e)
        shares[b * experts() + e] =
            routing_.options.scope == BalanceScope::sequence
                ? counted[b] * share_of_sequence(b, e)
                : all / static_cast<double>(batch()) * share_of_micro_batch(e);
    const auto layers = static_cast<double>(routing_.layers);
    return {.balance = routing_.options.balance / layers,
            .z = routing_.options.z / layers,
            .shares = shares,
            .weights = counted};
  }

 private:
  std::size_t batch() const { return static_cast<std::size_t>(routing_.batch()); }
  std::size_t experts() const { return static_cast<std::size_t>(routing_.experts); }

  double share_of_sequence(std::size_t b, std::size_t e) const {
    const auto row = static_cast<std::size_t>(routing_.layer) * batch() + b;
    return loads_[row * experts() + e] / static_cast<double>(routing_.sequence);
  }
  // Of all layers, too.
  double share_of_micro_batch(std::size_t e) const {
    double sum = 0;
    for (std::size_t at = e; at < loads_.size(); at += experts()) sum += loads_[at];
    return sum / static_cast<double>(routing_.layers * routing_.tokens);
  }

  Routing routing_;
  Ints targets_, loads_;
};

}  // namespace

PreparedOp route_forward(const BoundOp& bound, CpuDevice& device) {
  const auto& routing = bound.op.attributes.routing;
  const auto shape = routing.shape();
  const auto loads_at = kernels::routing_scratch_bytes(shape);
  const auto loads_size = static_cast<std::size_t>(shape.batch * shape.experts);
  device.reserve_scratch(loads_at + loads_size * sizeof(std::int32_t));
  auto loads = flat<std::int32_t>(bound.outputs[5]);  // of all layers
  if (!loads.empty())
    loads = loads.subspan(static_cast<std::size_t>(routing.layer) * loads_size, loads_size);
  const kernels::Routes routes{.experts = flat<std::int32_t>(bound.outputs[1]),
                               .rows = flat<std::int32_t>(bound.outputs[2]),
                               .row_tokens = flat<std::int32_t>(bound.outputs[3]),
                               .row_weights = flat(bound.outputs[0]),
                               .offsets = flat<std::int32_t>(bound.outputs[4]),
                               .loads = loads};
  return [&device, shape, routes, loads_at, loads_size, logits = Rows(bound.inputs[0])] {
    auto to = routes;
    if (to.loads.empty())
      to.loads = {reinterpret_cast<std::int32_t*>(device.scratch().data() + loads_at), loads_size};
    kernels::routing_forward(device.pool, shape, logits, to, device.scratch().first(loads_at));
  };
}

PreparedOp route_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& routing = bound.op.attributes.routing;
  const auto shape = routing.shape();
  const RouterWeights weights(routing, flat<const std::int32_t>(bound.inputs[1]),
                              flat<const std::int32_t>(bound.inputs[7]));
  const auto kernel_bytes = kernels::routing_scratch_bytes(shape);
  const auto weights_at = place_behind(kernel_bytes);
  device.reserve_scratch(weights_at + weights.scratch_bytes());
  return [&device, shape, weights, kernel_bytes, weights_at, logits = Rows(bound.inputs[0]),
          experts = flat<const std::int32_t>(bound.inputs[3]),
          rows = flat<const std::int32_t>(bound.inputs[4]),
          drow_weights = flat<const float>(bound.inputs[8]), dlogits = Rows(bound.outputs[0]),
          layers = static_cast<double>(routing.layers)] {
    const auto losses =
        weights.losses(device.scratch().subspan(weights_at, weights.scratch_bytes()));
    const auto sums =
        kernels::routing_backward(device.pool, shape, logits, experts, rows, drow_weights, losses,
                                  dlogits, device.scratch().first(kernel_bytes));
    device.router_losses.balance += sums.balance / layers;
    device.router_losses.z += sums.z / layers;
  };
}

PreparedOp permute_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0],
          row_tokens = flat<const std::int32_t>(bound.inputs[1]),
          offsets = flat<const std::int32_t>(bound.inputs[3]),
          y = bound.outputs[0]] { kernels::gather_rows(pool, x, used(row_tokens, offsets), y); };
}

PreparedOp permute_backward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, rows = flat<const std::int32_t>(bound.inputs[2]),
          dy = bound.inputs[5], dx = bound.outputs[0], accumulate = bound.op.accumulates(0)] {
    kernels::sum_gathered_rows(pool, dy, rows, accumulate, dx);
  };
}

PreparedOp grouped_linear_forward(const BoundOp& bound, CpuDevice& device) {
  const auto& routing = bound.op.attributes.routing;
  const auto& x = bound.inputs[0];
  const auto& weight = bound.inputs[1];
  const auto& y = bound.outputs[0];
  const auto offsets = flat<const std::int32_t>(bound.inputs[2]);
  const auto out = y.shape[1];
  if (routing.tokens <= kernels::kFewRows)
    return [&pool = device.pool, x = Rows(x), weight = Rows(weight), y = Rows(y), offsets, out] {
      for (std::int64_t e = 0; e + 1 < std::ssize(offsets); ++e) {
        const auto first = offsets[static_cast<std::size_t>(e)];
        const auto rows = offsets[static_cast<std::size_t>(e) + 1] - first;
        if (rows > 0)
          kernels::few_rows_product(pool, x.row_range(first, rows), weight.row_range(e * out, out),
                                    y.row_range(first, rows));
      }
    };
  const GroupedProducts products{routing, out, weight.shape[1], weight.dtype};
  return [&pool = device.pool, &plan = device.gemm(products.forward(y.dtype)), offsets, x = x.data,
          weight = weight.data, y = y.data] { plan.run(pool, x, weight, y, offsets); };
}

PreparedOp grouped_linear_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& routing = bound.op.attributes.routing;
  const auto& x = bound.inputs[0];
  const auto& weight = bound.inputs[1];
  const auto& dy = bound.inputs[4];
  const auto& dx = bound.outputs[0];
  const auto& dweight = bound.outputs[1];
  // What makes no gradient is not there.
  const auto in = (x.data != nullptr ? x : weight).shape[1];
  const GroupedProducts products{routing, dy.shape[1], in, dy.dtype};
  const auto* for_x =
      dx.data == nullptr ? nullptr : &device.gemm(products.input_gradient(dx.dtype));
  const kernels::GroupedGemmPlan *for_weight = nullptr, *first_for_weight = nullptr;
  if (dweight.data != nullptr) {
    for_weight = &device.gemm(products.weight_gradient(true));
    first_for_weight = &device.gemm(products.weight_gradient((bound.op.sets_first & bit(1)) == 0));
  }
  return [=, &device, offsets = flat<const std::int32_t>(bound.inputs[2]), x = x.data,
          weight = weight.data, dy = dy.data, dx = dx.data, dweight = dweight.data] {
    if (for_x != nullptr) for_x->run(device.pool, dy, weight, dx, offsets);
    if (for_weight == nullptr) return;
    (device.first_micro_batch ? first_for_weight : for_weight)
        ->run(device.pool, dy, x, dweight, offsets);
  };
}

PreparedOp sigmoid_forward(const BoundOp& bound, CpuDevice&) {
  return [x = bound.inputs[0], y = bound.outputs[0]] { kernels::sigmoid_forward(x, y); };
}

PreparedOp sigmoid_backward(const BoundOp& bound, CpuDevice&) {
  return [y = bound.inputs[1], dy = bound.inputs[2], dx = bound.outputs[0]] {
    kernels::sigmoid_backward(dy, y, dx);
  };
}

PreparedOp expert_glu_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0], weights = flat<const float>(bound.inputs[1]),
          offsets = flat<const std::int32_t>(bound.inputs[2]), y = bound.outputs[0]] {
    const Halves halves(used(x, offsets));
    kernels::weighted_swiglu_forward(pool, halves.gate, halves.up, used(weights, offsets),
                                     used(y, offsets));
  };
}

// The kernel makes both gradients; one that is not wanted goes nowhere.
PreparedOp expert_glu_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& x = bound.inputs[0];
  const auto weights_bytes = static_cast<std::size_t>(x.shape[0]) * sizeof(float);
  const auto unused_at = place_behind(weights_bytes);
  device.reserve_scratch(unused_at + (bound.outputs[0].data == nullptr ? x.bytes() : 0));
  return [&device, x, unused_at, weights = flat<const float>(bound.inputs[1]),
          offsets = flat<const std::int32_t>(bound.inputs[2]), dy = bound.inputs[4],
          to = bound.outputs[0], to_weights = flat(bound.outputs[1]), y = bound.outputs[3]] {
    auto dx = to;
    if (dx.data == nullptr) {
      dx = x;
      dx.data = device.scratch().data() + unused_at;
    }
    const auto dweights =
        to_weights.empty() ? device.scratch_of<float>(weights.size()) : to_weights;
    const Halves halves(used(x, offsets)), gradients(used(dx, offsets));
    const auto again = y.data == nullptr ? Rows() : used(y, offsets);
    kernels::weighted_swiglu_backward(device.pool, used(dy, offsets), halves.gate, halves.up,
                                      used(weights, offsets), gradients.gate, gradients.up,
                                      used(dweights, offsets),
                                      y.data == nullptr ? nullptr : &again);
  };
}

PreparedOp combine_forward(const BoundOp& bound, CpuDevice& device) {
  return
      [&pool = device.pool, y = bound.inputs[0], rows = flat<const std::int32_t>(bound.inputs[1]),
       sum = bound.outputs[0]] { kernels::sum_gathered_rows(pool, y, rows, false, sum); };
}

PreparedOp combine_backward(const BoundOp& bound, CpuDevice& device) {
  return
      [&pool = device.pool, row_tokens = flat<const std::int32_t>(bound.inputs[2]),
       offsets = flat<const std::int32_t>(bound.inputs[3]), dsum = bound.inputs[5],
       dy = bound.outputs[0]] { kernels::gather_rows(pool, dsum, used(row_tokens, offsets), dy); };
}

}  // namespace isthmus::runtime::cpu
