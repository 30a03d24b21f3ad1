// The CPU column of the op table: each function prepares one op, given its places, and returns what
// to do at each run. Inputs and outputs are in the order that program.h gives for the kind.
#pragma once

#include "runtime/op_table.h"

namespace isthmus::runtime::cpu {

PreparedOp embed_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp embed_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp layer_norm_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp layer_norm_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp add_rows_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp add_rows_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp gelu_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp gelu_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp dropout_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp dropout_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp norm_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp norm_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp norm_rope_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp norm_rope_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp linear_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp linear_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp low_rank_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp low_rank_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp rope_table_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp rope_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp rope_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp attention_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp attention_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp cached_attention_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp glu_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp glu_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp sigmoid_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp sigmoid_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp route_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp route_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp permute_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp permute_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp grouped_linear_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp grouped_linear_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp expert_glu_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp expert_glu_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp combine_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp combine_backward(const BoundOp& bound, CpuDevice& device);
PreparedOp add_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp convert_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp head_loss_forward(const BoundOp& bound, CpuDevice& device);
PreparedOp head_loss_backward(const BoundOp& bound, CpuDevice& device);

}  // namespace isthmus::runtime::cpu
