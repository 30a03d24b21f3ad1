#include "runtime/op_table.h"

#include <algorithm>
#include <array>

#include "runtime/cpu_ops.h"
#include "runtime/products.h"

namespace isthmus::runtime {
namespace {

using Gemms = std::vector<kernels::GemmShape>;

Gemms linear_gemms(const Program& program, const Op& op) {
  const auto& weight = program.value(op.inputs[1]);
  if (op.pass == Pass::forward) {
    const Products products{program.value(op.inputs[0]).shape[0], weight.shape[0], weight.shape[1],
                            weight.dtype};
    return {products.forward(program.value(op.outputs[0]).dtype)};
  }
  // Backward leaves out what it does not read.
  const auto& dy = program.value(op.inputs[3]);
  const auto other = op.inputs[0] != kNoValue ? op.inputs[0] : op.inputs[1];
  const Products products{dy.shape[0], dy.shape[1], program.value(other).shape[1], dy.dtype};
  Gemms gemms;
  if (const auto dx = op.outputs[0]; dx != kNoValue)
    gemms.push_back(products.input_gradient(program.value(dx).dtype, op.accumulates(0)));
  if (op.outputs[1] != kNoValue)
    gemms.push_back(products.weight_gradient((op.sets_first & bit(1)) == 0));
  return gemms;
}

// Chunk after chunk of rows, of which the last one may be shorter.
Gemms head_gemms(const Program& program, const Op& op) {
  const bool backward = op.pass == Pass::backward;
  const auto& weight = program.value(op.inputs[1]);
  const auto& logits = program.value(op.outputs[backward ? 4 : 0]);
  const auto rows = program.value(op.inputs[0]).shape[0];
  Gemms gemms;
  for (std::int64_t first = 0; first < rows; first += logits.shape[0]) {
    const Products products{std::min(logits.shape[0], rows - first), weight.shape[0],
                            weight.shape[1], weight.dtype};
    gemms.push_back(products.forward(logits.dtype));
    if (!backward) continue;
    if (const auto dx = op.outputs[0]; dx != kNoValue)
      gemms.push_back(products.input_gradient(program.value(dx).dtype, false));
    const bool sets = first == 0 && (op.sets_first & bit(1)) != 0;
    if (op.outputs[1] != kNoValue) gemms.push_back(products.weight_gradient(!sets));
  }
  return gemms;
}

// Two products per head and visible key forward, five backward; a causal query sees half the keys,
// fewer only within documents, which no list knows.
double attention_flops(const Program& program, const Op& op) {
  const auto rows = program.value(op.inputs[0]).shape[0];
  const auto& a = op.attributes;
  return (op.pass == Pass::forward ? 2.0 : 5.0) * (a.causal ? 1.0 : 2.0) *
         static_cast<double>(rows * a.sequence) * static_cast<double>(a.heads * a.head_dim);
}

// t · Bᵀ forward; the gradients of both backward.
double low_rank_flops(const Program& program, const Op& op) {
  const auto rows = program.value(op.inputs[0]).shape[0];
  const auto& weight = program.value(op.inputs[1]).shape;
  const double products = op.pass == Pass::forward ? 1.0
                                                   : (op.outputs[0] != kNoValue ? 1.0 : 0.0) +
                                                         (op.outputs[1] != kNoValue ? 1.0 : 0.0);
  return products * 2.0 * static_cast<double>(rows * weight[0] * weight[1]);
}

// Of experts that take equally many tokens.
Gemms grouped_gemms(const Program& program, const Op& op) {
  const auto& routing = op.attributes.routing;
  const bool backward = op.pass == Pass::backward;
  const auto columns = [&](ValueId id) { return program.value(id).shape[1]; };
  // Backward leaves out what it does not read.
  const auto y = backward ? op.inputs[4] : op.outputs[0];
  const auto in = columns(op.inputs[0] != kNoValue ? op.inputs[0] : op.inputs[1]);
  const auto operand = program.value(backward ? y : op.inputs[1]).dtype;
  const auto used = std::min(routing.experts, routing.choices());
  Gemms gemms;
  for (std::int64_t e = 0; e < used; ++e) {
    const auto rows = routing.choices() / used + (e < routing.choices() % used ? 1 : 0);
    const Products products{rows, columns(y), in, operand};
    if (!backward) gemms.push_back(products.forward(program.value(y).dtype));
    if (backward && op.outputs[0] != kNoValue)
      gemms.push_back(products.input_gradient(program.value(op.outputs[0]).dtype, false));
    if (backward && op.outputs[1] != kNoValue)
      gemms.push_back(products.weight_gradient((op.sets_first & bit(1)) == 0));
  }
  return gemms;
}

// In the order of OpKind.
constexpr std::array<OpRow, kOpKinds> kTable = {{
    {.name = "embed",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(1),
     .backward_inputs = bit(0),
     .forward_on_cpu = cpu::embed_forward,
     .backward_on_cpu = cpu::embed_backward},
    {.name = "norm",
     .inputs = 2,
     .outputs = 2,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1),
     .backward_outputs = bit(1),
     .backward_remakes = true,
     .gradient_dtype = GradientDType::f32,
     .adds_f32 = true,
     .adds_bf16 = true,
     .forward_on_cpu = cpu::norm_forward,
     .backward_on_cpu = cpu::norm_backward},
    {.name = "layer_norm",
     .inputs = 3,
     .outputs = 3,
     .gradients = bit(0) | bit(1) | bit(2),
     .backward_inputs = bit(0) | bit(1),
     .backward_outputs = bit(1) | bit(2),
     .gradient_dtype = GradientDType::f32,
     .adds_f32 = true,
     .adds_bf16 = true,
     .forward_on_cpu = cpu::layer_norm_forward,
     .backward_on_cpu = cpu::layer_norm_backward},
    {.name = "linear",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1),
     .crosswise = true,
     .gradient_dtype = GradientDType::of_operand,
     .adds_f32 = true,
     .sets_parameters = bit(1),
     .gemms = linear_gemms,
     .forward_on_cpu = cpu::linear_forward,
     .backward_on_cpu = cpu::linear_backward},
    {.name = "low_rank",
     .inputs = 3,
     .outputs = 1,
     .gradients = bit(0) | bit(1) | bit(2),
     .backward_inputs = bit(0) | bit(1),
     .identity_gradients = bit(2),
     .gradient_dtype = GradientDType::of_operand,
     .sets_parameters = bit(1),
     .forward_over = 2,
     .other_flops = low_rank_flops,
     .forward_on_cpu = cpu::low_rank_forward,
     .backward_on_cpu = cpu::low_rank_backward},
    {.name = "add_rows",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .identity_gradients = bit(0),
     .forward_over = 0,
     .forward_on_cpu = cpu::add_rows_forward,
     .backward_on_cpu = cpu::add_rows_backward},
    {.name = "rope_table", .inputs = 0, .outputs = 1, .forward_on_cpu = cpu::rope_table_forward},
    {.name = "rope",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(1),
     .forward_over = 0,
     .backward_over = 3,
     .forward_on_cpu = cpu::rope_forward,
     .backward_on_cpu = cpu::rope_backward},
    {.name = "norm_rope",
     .inputs = 4,
     .outputs = 2,
     .gradients = bit(0) | bit(1) | bit(2),
     .backward_inputs = bit(0) | bit(1) | bit(2) | bit(3),
     .backward_outputs = bit(1),
     .backward_over = 6,
     .forward_on_cpu = cpu::norm_rope_forward,
     .backward_on_cpu = cpu::norm_rope_backward},
    {.name = "attention",
     .inputs = 3,
     .outputs = 2,
     .gradients = bit(0),
     .backward_inputs = bit(0) | bit(1) | bit(2),
     .backward_outputs = bit(0) | bit(1),
     .other_flops = attention_flops,
     .forward_on_cpu = cpu::attention_forward,
     .backward_on_cpu = cpu::attention_backward},
    {.name = "gather", .inputs = 2, .outputs = 1, .forward_on_cpu = cpu::embed_forward},
    {.name = "cached_attention",
     .inputs = 5,
     .outputs = 1,
     .forward_on_cpu = cpu::cached_attention_forward},
    {.name = "glu",
     .inputs = 1,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(0),
     .backward_remakes = true,
     .backward_over = 0,
     .forward_on_cpu = cpu::glu_forward,
     .backward_on_cpu = cpu::glu_backward},
    {.name = "gelu",
     .inputs = 1,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(0),
     .backward_remakes = true,
     .backward_over = 0,
     .forward_on_cpu = cpu::gelu_forward,
     .backward_on_cpu = cpu::gelu_backward},
    {.name = "dropout",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(1),
     .forward_over = 0,
     .backward_over = 3,
     .forward_on_cpu = cpu::dropout_forward,
     .backward_on_cpu = cpu::dropout_backward},
    {.name = "sigmoid",
     .inputs = 1,
     .outputs = 1,
     .gradients = bit(0),
     .backward_outputs = bit(0),
     .forward_on_cpu = cpu::sigmoid_forward,
     .backward_on_cpu = cpu::sigmoid_backward},
    {.name = "route",
     .inputs = 2,
     .outputs = 6,
     .gradients = bit(0),
     .backward_inputs = bit(0) | bit(1),
     .backward_outputs = bit(1) | bit(2) | bit(5),
     .forward_on_cpu = cpu::route_forward,
     .backward_on_cpu = cpu::route_backward},
    {.name = "permute",
     .inputs = 4,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(2),
     .repeats = true,
     .gradient_dtype = GradientDType::f32,
     .adds_f32 = true,
     .adds_bf16 = true,
     .forward_on_cpu = cpu::permute_forward,
     .backward_on_cpu = cpu::permute_backward},
    {.name = "grouped_linear",
     .inputs = 3,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1) | bit(2),
     .crosswise = true,
     .gradient_dtype = GradientDType::of_operand,
     .sets_parameters = bit(1),
     .gemms = grouped_gemms,
     .forward_on_cpu = cpu::grouped_linear_forward,
     .backward_on_cpu = cpu::grouped_linear_backward},
    {.name = "expert_glu",
     .inputs = 3,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .backward_inputs = bit(0) | bit(1) | bit(2),
     .backward_remakes = true,
     .backward_over = 0,
     .forward_on_cpu = cpu::expert_glu_forward,
     .backward_on_cpu = cpu::expert_glu_backward},
    {.name = "combine",
     .inputs = 4,
     .outputs = 1,
     .gradients = bit(0),
     .backward_inputs = bit(2) | bit(3),
     .forward_on_cpu = cpu::combine_forward,
     .backward_on_cpu = cpu::combine_backward},
    {.name = "add",
     .inputs = 2,
     .outputs = 1,
     .gradients = bit(0) | bit(1),
     .identity_gradients = bit(0) | bit(1),
     .forward_over = 0,
     .forward_on_cpu = cpu::add_forward},
    {.name = "convert",
     .inputs = 1,
     .outputs = 1,
     .gradients = bit(0),
     .identity_gradients = bit(0),
     .forward_on_cpu = cpu::convert_forward},
    {.name = "head_loss",
     .inputs = 4,
     .outputs = 2,
     .gradients = bit(0) | bit(1) | bit(3),
     .backward_inputs = bit(0) | bit(1) | bit(2) | bit(3),
     .backward_is_forward = true,
     .sets_parameters = bit(1),
     .gemms = head_gemms,
     .forward_on_cpu = cpu::head_loss_forward,
     .backward_on_cpu = cpu::head_loss_backward},
}};

}  // namespace

const OpRow& row_of(OpKind kind) { return kTable[static_cast<std::size_t>(kind)]; }

std::vector<kernels::GemmShape> gemms(const Program& program, const Op& op) {
  const auto of_row = row_of(op.kind).gemms;
  return of_row != nullptr ? of_row(program, op) : Gemms();
}

double flops(const Program& program, const Op& op) {
  double sum = 0;
  for (const auto& gemm : gemms(program, op)) sum += gemm.flops();
  const auto other = row_of(op.kind).other_flops;
  return other != nullptr ? sum + other(program, op) : sum;
}

double flops(const Program& program) {
  double sum = 0;
  for (const auto& op : program.ops) sum += flops(program, op);
  return sum;
}

double head_flops_per_target(const Program& program) {
  double sum = 0;
  for (const auto& op : program.ops)
    if (op.kind == OpKind::head_loss)
      sum += flops(program, op) / static_cast<double>(program.value(op.inputs[0]).shape[0]);
  return sum;
}

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
