// The CPU column of the op table for what encoders have and decoders have not.
#include "kernels/dropout.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/repeated_rows.h"
#include "runtime/cpu_device.h"
#include "runtime/cpu_ops.h"
#include "runtime/cpu_views.h"

namespace isthmus::runtime::cpu {
namespace {

using kernels::Rows;

PreparedOp drop(const TensorView& x, const TensorView& keys, const TensorView& y,
                const Attributes& attributes, CpuDevice& device) {
  return [=, &pool = device.pool, sequence = attributes.sequence,
          mask = dropout_mask(attributes, keys)] { kernels::dropout(pool, x, sequence, mask, y); };
}

// The rows of a table that an op adds.
Rows period_of(const TensorView& table, const Attributes& attributes) {
  return Rows(table).row_range(0, attributes.period);
}

}  // namespace

PreparedOp layer_norm_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0], weight = flat(bound.inputs[1]),
          bias = flat(bound.inputs[2]), y = bound.outputs[0], mean = flat(bound.outputs[1]),
          inverse = flat(bound.outputs[2]),
          epsilon = static_cast<float>(bound.op.attributes.epsilon)] {
    kernels::layer_norm_forward(pool, x, weight, bias, epsilon, y, mean, inverse);
  };
}

PreparedOp layer_norm_backward(const BoundOp& bound, CpuDevice& device) {
  const auto& x = bound.inputs[0];
  const auto columns = static_cast<std::size_t>(x.shape[1]);
  // The kernel makes all gradients, or leaves out both of the parameters; what is not wanted goes
  // nowhere.
  const auto scratch = kernels::layer_norm_scratch_floats(x.shape[0], x.shape[1]);
  const auto unused_dx = bound.outputs[0].data == nullptr ? x.elements() : 0;
  const auto all = scratch + columns + static_cast<std::size_t>(unused_dx);
  device.reserve_scratch(all * sizeof(float));
  return [&device, x, columns, scratch, all, dx = bound.outputs[0], weight = flat(bound.inputs[1]),
          mean = flat(bound.inputs[4]), inverse = flat(bound.inputs[5]), dy = bound.inputs[6],
          dweight = flat(bound.outputs[1]), dbias = flat(bound.outputs[2]),
          accumulate = bound.op.accumulates(0)] {
    const auto working = device.scratch_of<float>(all);
    const auto unused = working.subspan(scratch, columns);
    const bool any = !dweight.empty() || !dbias.empty();
    auto to = dx;
    if (to.data == nullptr) {
      to = x;
      to.data = working.data() + scratch + columns;
    }
    kernels::layer_norm_backward(device.pool, dy, x, weight, mean, inverse, to, accumulate,
                                 any && dweight.empty() ? unused : dweight,
                                 any && dbias.empty() ? unused : dbias, working.first(scratch));
  };
}

PreparedOp add_rows_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0],
          table = period_of(bound.inputs[1], bound.op.attributes),
          y = bound.outputs[0]] { kernels::add_repeated_rows(pool, x, table, y); };
}

PreparedOp add_rows_backward(const BoundOp& bound, CpuDevice& device) {
  if (bound.outputs[1].data == nullptr) return [] {};  // the gradient of x is that of the sum
  const auto dtable = period_of(bound.outputs[1], bound.op.attributes);
  const auto& dy = bound.inputs[3];
  const auto scratch = kernels::repeated_rows_scratch_floats(dy.shape[0], dy.shape[1], dtable.rows);
  device.reserve_scratch(scratch * sizeof(float));
  return [&device, dy, dtable, scratch] {
    kernels::sum_repeated_rows(device.pool, dy, dtable, device.scratch_of<float>(scratch));
  };
}

PreparedOp gelu_forward(const BoundOp& bound, CpuDevice& device) {
  return [&pool = device.pool, x = bound.inputs[0], y = bound.outputs[0]] {
    kernels::gelu_forward(pool, x, y);
  };
}

PreparedOp gelu_backward(const BoundOp& bound, CpuDevice& device) {
  return
      [&pool = device.pool, x = bound.inputs[0], dy = bound.inputs[2], dx = bound.outputs[0],
       y = again(bound.outputs[1])] { kernels::gelu_backward(pool, dy, x, dx, y ? &*y : nullptr); };
}

PreparedOp dropout_forward(const BoundOp& bound, CpuDevice& device) {
  return drop(bound.inputs[0], bound.inputs[1], bound.outputs[0], bound.op.attributes, device);
}

// As forward: what was dropped had no say.
PreparedOp dropout_backward(const BoundOp& bound, CpuDevice& device) {
  return drop(bound.inputs[3], bound.inputs[1], bound.outputs[0], bound.op.attributes, device);
}

}  // namespace isthmus::runtime::cpu
