#include "runtime/op_table.h"

#include <array>

#include "runtime/cpu_ops.h"

namespace isthmus::runtime {
namespace {

double no_flops(const Program&, const Op&) { return 0; }

// The number of gradients that a backward op has to make.
double wanted(const Op& op, std::size_t gradients) {
  double count = 0;
  for (std::size_t i = 0; i < gradients; ++i) count += op.outputs[i] != kNoValue ? 1 : 0;
  return count;
}

// y = x · Wᵀ, or per gradient a product of the same size.
double product_flops(const Program& program, const Op& op) {
  const auto& x = program.value(op.inputs[0]).shape;
  const auto& weight = program.value(op.inputs[1]).shape;
  return 2.0 * static_cast<double>(x[0]) * static_cast<double>(weight.elements());
}

double linear_flops(const Program& program, const Op& op) {
  // Forward has x and W as its inputs; backward leaves out what it does not read.
  if (op.pass == Pass::forward) return product_flops(program, op);
  const auto& gradient = program.value(op.inputs.back()).shape;
  const auto other = op.inputs[0] != kNoValue ? op.inputs[0] : op.inputs[1];
  return 2.0 * static_cast<double>(gradient.elements()) *
         static_cast<double>(program.value(other).shape[1]) * wanted(op, 2);
}

double head_flops(const Program& program, const Op& op) {
  return product_flops(program, op) * (op.pass == Pass::forward ? 1.0 : 1.0 + wanted(op, 2));
}

// Two products per head and visible key forward, five backward; half the keys are visible.
double attention_flops(const Program& program, const Op& op) {
  const auto rows = program.value(op.inputs[0]).shape[0];
  const auto& a = op.attributes;
  return (op.pass == Pass::forward ? 2.0 : 5.0) * static_cast<double>(rows * a.sequence) *
         static_cast<double>(a.heads * a.head_dim);
}

// In the order of OpKind.
constexpr std::array<OpRow, kOpKinds> kTable = {{
    {.name = "embed",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(1),
     .backward_inputs = bit(0),
     .flops = no_flops,
     .forward_on_cpu = cpu::embed_forward,
     .backward_on_cpu = cpu::embed_backward},
    {.name = "norm",
     .inputs = 2,
     .outputs = 2,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1),
     .backward_outputs = bit(1),
     .gradient_dtype = GradientDType::f32,
     .adds_f32 = true,
     .adds_bf16 = true,
     .flops = no_flops,
     .forward_on_cpu = cpu::norm_forward,
     .backward_on_cpu = cpu::norm_backward},
    {.name = "linear",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1),
     .gradient_dtype = GradientDType::of_operand,
     .adds_f32 = true,
     .flops = linear_flops,
     .forward_on_cpu = cpu::linear_forward,
     .backward_on_cpu = cpu::linear_backward},
    {.name = "rope_table",
     .inputs = 0,
     .outputs = 1,
     .flops = no_flops,
     .forward_on_cpu = cpu::rope_table_forward},
    {.name = "rope",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(1),
     .forward_over = 0,
     .backward_over = 3,
     .flops = no_flops,
     .forward_on_cpu = cpu::rope_forward,
     .backward_on_cpu = cpu::rope_backward},
    {.name = "norm_rope",
     .inputs = 4,
     .outputs = 2,
     .gradients = bit(0) | bit(1) | bit(2),
     .backward_inputs = bit(0) | bit(1) | bit(2) | bit(3),
     .backward_outputs = bit(1),
     .backward_over = 6,
     .flops = no_flops,
     .forward_on_cpu = cpu::norm_rope_forward,
     .backward_on_cpu = cpu::norm_rope_backward},
    {.name = "attention",
     .inputs = 1,
     .outputs = 2,
     .gradients = bit(0),
     .backward_inputs = bit(0),
     .backward_outputs = bit(0) | bit(1),
     .flops = attention_flops,
     .forward_on_cpu = cpu::attention_forward,
     .backward_on_cpu = cpu::attention_backward},
    {.name = "glu",
     .inputs = 1,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(0),
     .backward_over = 0,
     .flops = no_flops,
     .forward_on_cpu = cpu::glu_forward,
     .backward_on_cpu = cpu::glu_backward},
    {.name = "add",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .identity_gradient = true,
     .forward_over = 0,
     .flops = no_flops,
     .forward_on_cpu = cpu::add_forward},
    {.name = "convert",
     .inputs = 1,
     .outputs = 1,
     .gradients = bit(0),
     .identity_gradient = true,
     .flops = no_flops,
     .forward_on_cpu = cpu::convert_forward},
    {.name = "head_loss",
     .inputs = 3,
     .outputs = 2,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1) | bit(2),
     .backward_is_forward = true,
     .flops = head_flops,
     .forward_on_cpu = cpu::head_loss_forward,
     .backward_on_cpu = cpu::head_loss_backward},
}};

}  // namespace

const OpRow& row_of(OpKind kind) { return kTable[static_cast<std::size_t>(kind)]; }

double flops(const Program& program, const Op& op) { return row_of(op.kind).flops(program, op); }

double bytes_moved(const Program& program, const Op& op) {
  double bytes = 0;
  for (const auto id : op.inputs)
    if (id != kNoValue) bytes += static_cast<double>(program.value(id).bytes());
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    if (op.outputs[i] != kNoValue)
      bytes += static_cast<double>(program.value(op.outputs[i]).bytes()) *
               (op.accumulates(i) ? 2.0 : 1.0);
  return bytes;
}

std::string name_of(const Op& op) {
  return std::string(row_of(op.kind).name) + (op.pass == Pass::backward ? " backward" : "");
}

}  // namespace isthmus::runtime
