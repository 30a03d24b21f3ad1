// The op table: one row per kind of op, with everything passes, planner, cost model and devices ask
// about it. A new op is a row, a new device a column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/tensor_view.h"
#include "kernels/gemm.h"
#include "runtime/program.h"

namespace isthmus::runtime {

class CpuDevice;

// An op whose values have got their places: data is null for kNoValue.
struct BoundOp {
  const Op& op;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
};

// What is left to do at each run.
using PreparedOp = std::function<void()>;
using PrepareOnCpu = PreparedOp (*)(const BoundOp&, CpuDevice&);

constexpr std::uint32_t bit(std::size_t i) { return std::uint32_t{1} << i; }

// In what dtype an op's backward wants the gradient of output 0.
enum class GradientDType : std::uint8_t {
  of_value,    // that of the output
  of_operand,  // that of input 0: it is multiplied with it, or with a weight of that dtype
  f32,         // it is only read, once, so f32 costs little and saves a rounding
};

struct OpRow {
  std::string_view name;
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  std::uint32_t gradients = 0;         // bit i: forward input i can have a gradient
  std::uint32_t backward_inputs = 0;   // bit i: backward reads forward input i
  std::uint32_t backward_outputs = 0;  // bit j: backward reads forward output j
  // Bit i: the output's gradient is that of input i, so that backward need not make it.
  std::uint32_t identity_gradients = 0;
  bool backward_is_forward = false;  // backward computes the outputs too: no forward op with it
  // Backward can make forward's output 0 again, to the same bits, as its last output.
  bool backward_remakes = false;
  // Forward is cheap and can be done again, so that its output 0 need not be kept for backward.
  bool repeats = false;
  // Backward reads inputs 0 and 1 only for each other's gradient, so that it can be done in two.
  bool crosswise = false;
  GradientDType gradient_dtype = GradientDType::of_value;
  // Whether backward can add to an activation's gradient of this dtype instead of setting it.
  bool adds_f32 = false;
  bool adds_bf16 = false;
  // Bit i: where input i is a parameter, backward can set its gradient, too, where it would add to
  // what is zero.
  std::uint32_t sets_parameters = 0;
  // Output 0 may lie over this input of the op (as listed in Op::inputs) if nobody reads that
  // later.
  int forward_over = -1;
  int backward_over = -1;
  // The matrix products that it consists of, in the order in which they run; null: none.
  std::vector<kernels::GemmShape> (*gemms)(const Program&, const Op&) = nullptr;
  double (*other_flops)(const Program&, const Op&) = nullptr;  // null: none that count
  PrepareOnCpu forward_on_cpu = nullptr;
  PrepareOnCpu backward_on_cpu = nullptr;

  bool adds(DType dtype) const { return dtype == DType::f32 ? adds_f32 : adds_bf16; }
};

const OpRow& row_of(OpKind kind);

// The cost model: floating-point operations of an op, and bytes it reads and writes at least.
std::vector<kernels::GemmShape> gemms(const Program& program, const Op& op);
double flops(const Program& program, const Op& op);
double flops(const Program& program);  // of a whole run, in which all targets count
// Of these what the head leaves out for each target that does not count.
double head_flops_per_target(const Program& program);
double bytes_moved(const Program& program, const Op& op);

// "linear", "linear backward".
std::string name_of(const Op& op);

}  // namespace isthmus::runtime
