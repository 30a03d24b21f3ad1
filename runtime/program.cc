#include "runtime/program.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace isthmus::runtime {
namespace {

// Logits of this many bytes at most are held at once.
constexpr std::int64_t kHeadChunkBytes = std::int64_t{16} << 20;
constexpr std::int64_t kHeadChunkRowsMin = 256;  // a GEMM tile

std::int64_t head_chunk_rows(std::int64_t rows, std::int64_t vocabulary) {
  const auto fitting = kHeadChunkBytes / (4 * vocabulary) / kHeadChunkRowsMin * kHeadChunkRowsMin;
  return std::min(rows, std::max(fitting, kHeadChunkRowsMin));
}

}  // namespace

std::size_t Program::add_parameter(std::vector<CanonicalRows> canonical, Shape shape, DType operand,
                                   Initial initial) {
  const auto index = parameters.size();
  const auto& name = canonical.front().name;
  Parameter p;
  p.initial = initial;
  p.master = p.operand = add(name, shape, DType::f32, ValueKind::parameter);
  if (operand != DType::f32) p.operand = add(name + " copy", shape, operand, ValueKind::parameter);
  for (const auto id : {p.master, p.operand})
    values[static_cast<std::size_t>(id)].parameter = static_cast<std::int32_t>(index);
  p.canonical = std::move(canonical);
  parameters.push_back(std::move(p));
  return index;
}

ValueId ProgramBuilder::activation(std::string_view name, std::int64_t columns, DType dtype) {
  return program_.add(std::string(name) + "." + std::to_string(program_.ops.size()),
                      {shape_.tokens(), columns}, dtype, ValueKind::activation);
}

std::size_t ProgramBuilder::parameter(const std::vector<Part>& parts, Shape shape,
                                      Initial initial) {
  std::vector<CanonicalRows> canonical;
  std::int64_t row = 0;
  for (const auto& part : parts) {
    canonical.push_back({part.name, row, part.rows});
    row += part.rows;
  }
  ISTHMUS_ASSERT(row == shape[0]);
  const bool is_matrix = shape.rank() > 1;
  const auto index = program_.add_parameter(std::move(canonical), shape,
                                            is_matrix ? product_dtype() : DType::f32, initial);
  program_.parameters[index].decays = is_matrix;
  return index;
}

std::size_t ProgramBuilder::matrix(const std::vector<Part>& parts, std::int64_t columns) {
  std::int64_t rows = 0;
  for (const auto& part : parts) rows += part.rows;
  return parameter(parts, {rows, columns}, Initial::normal);
}

std::size_t ProgramBuilder::norm_weight(const std::string& name, std::int64_t elements) {
  return parameter({{name, elements}}, {elements}, Initial::ones);
}

std::size_t ProgramBuilder::bias(const std::vector<Part>& parts) {
  std::int64_t elements = 0;
  for (const auto& part : parts) elements += part.rows;
  return parameter(parts, {elements}, Initial::zeros);
}

void ProgramBuilder::begin_block() {
  end_blocks();
  program_.blocks.push_back({program_.ops.size(), 0});
}

void ProgramBuilder::end_blocks() {
  if (program_.blocks.empty() || program_.blocks.back().end != 0) return;
  program_.blocks.back().end = program_.ops.size();
}

Op& ProgramBuilder::append(OpKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
  Op op;
  op.kind = kind;
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  program_.ops.push_back(std::move(op));
  return program_.ops.back();
}

ValueId ProgramBuilder::embed(std::size_t table) {
  const auto master = program_.parameters[table].master;
  if (program_.tokens == kNoValue)
    program_.tokens = program_.add("tokens", {shape_.tokens()}, DType::i32, ValueKind::input);
  const auto out = activation("embed", program_.value(master).shape[1], DType::f32);
  append(OpKind::embed, {program_.tokens, master}, {out});
  return out;
}

ValueId ProgramBuilder::norm(ValueId x, std::size_t weight, double epsilon) {
  const auto columns = program_.value(x).shape[1];
  const auto out = activation("norm", columns, product_dtype());
  const auto inverse_rms = activation("inverse_rms", 1, DType::f32);
  append(OpKind::norm, {x, program_.parameters[weight].master}, {out, inverse_rms})
      .attributes.epsilon = epsilon;
  return out;
}

ValueId ProgramBuilder::layer_norm(ValueId x, std::size_t weight, std::size_t bias,
                                   double epsilon) {
  const auto out = activation("layer_norm", program_.value(x).shape[1], DType::f32);
  const auto mean = activation("mean", 1, DType::f32);
  const auto inverse = activation("inverse_deviation", 1, DType::f32);
  append(OpKind::layer_norm,
         {x, program_.parameters[weight].master, program_.parameters[bias].master},
         {out, mean, inverse})
      .attributes.epsilon = epsilon;
  return out;
}

ValueId ProgramBuilder::operand(ValueId x) {
  if (program_.value(x).dtype == product_dtype()) return x;
  const auto out = activation("operand", program_.value(x).shape[1], product_dtype());
  append(OpKind::convert, {x}, {out});
  return out;
}

ValueId ProgramBuilder::linear(ValueId x, std::size_t weight) {
  return linear(x, weight, product_dtype());
}

ValueId ProgramBuilder::linear_to_residual(ValueId x, std::size_t weight) {
  return linear(x, weight, DType::f32);
}

ValueId ProgramBuilder::linear(ValueId x, std::size_t weight, DType output) {
  const auto operand = program_.parameters[weight].operand;
  const auto& shape = program_.value(operand).shape;
  ISTHMUS_ASSERT(program_.value(x).shape[1] == shape[1]);
  const auto out = activation("linear", shape[0], output);
  append(OpKind::linear, {x, operand}, {out});
  return out;
}

ValueId ProgramBuilder::biased_linear(ValueId x, std::size_t weight, std::size_t bias) {
  return biased_linear(x, weight, bias, product_dtype());
}

ValueId ProgramBuilder::biased_linear_to_residual(ValueId x, std::size_t weight, std::size_t bias) {
  return biased_linear(x, weight, bias, DType::f32);
}

ValueId ProgramBuilder::biased_linear(ValueId x, std::size_t weight, std::size_t bias,
                                      DType output) {
  return add_rows(linear(x, weight, DType::f32), bias, 1, output);
}

ValueId ProgramBuilder::add_rows(ValueId x, std::size_t table, std::int64_t period) {
  return add_rows(x, table, period, program_.value(x).dtype);
}

ValueId ProgramBuilder::add_rows(ValueId x, std::size_t table, std::int64_t period, DType output) {
  const auto master = program_.parameters[table].master;
  const auto& shape = program_.value(master).shape;
  const auto columns = shape[shape.rank() - 1];
  ISTHMUS_ASSERT(program_.value(x).shape[1] == columns && period * columns <= shape.elements());
  const auto out = activation("add_rows", columns, output);
  append(OpKind::add_rows, {x, master}, {out}).attributes.period = period;
  return out;
}

ValueId ProgramBuilder::rope_table(double theta, const RopeScaling& scaling,
                                   std::int64_t head_dim) {
  const auto positions = continues() ? shape_.kept_length : shape_.sequence;
  const auto table =
      program_.add("rope_table", {positions, head_dim}, DType::f32, ValueKind::state);
  Op op;
  op.kind = OpKind::rope_table;
  op.outputs = {table};
  op.attributes.theta = theta;
  op.attributes.rope_scaling = scaling;
  op.attributes.head_dim = head_dim;
  program_.once.push_back(std::move(op));
  if (!continues()) return table;
  program_.texts = program_.add("texts", {shape_.tokens()}, DType::i32, ValueKind::input);
  program_.positions = program_.add("positions", {shape_.tokens()}, DType::i32, ValueKind::input);
  const auto rows = activation("rotations", head_dim, DType::f32);
  append(OpKind::gather, {program_.positions, table}, {rows});
  return rows;
}

ValueId ProgramBuilder::rope(ValueId x, ValueId table, std::int64_t heads, std::int64_t head_dim) {
  const auto columns = program_.value(x).shape[1];
  ISTHMUS_ASSERT(heads * head_dim <= columns);
  const auto out = activation("rope", columns, program_.value(x).dtype);
  auto& attributes = append(OpKind::rope, {x, table}, {out}).attributes;
  attributes.sequence = rotated_rows();
  attributes.heads = heads;
  attributes.head_dim = head_dim;
  return out;
}

ValueId ProgramBuilder::norm_rope(ValueId qkv, std::size_t q_weight, std::size_t k_weight,
                                  ValueId table, std::int64_t heads, std::int64_t kv_heads,
                                  double epsilon) {
  const auto q = program_.parameters[q_weight].master;
  const auto k = program_.parameters[k_weight].master;
  const auto head_dim = program_.value(q).shape[0];
  const auto columns = program_.value(qkv).shape[1];
  ISTHMUS_ASSERT(columns == (heads + 2 * kv_heads) * head_dim &&
                 program_.value(k).shape[0] == head_dim);
  const auto out = activation("norm_rope", columns, program_.value(qkv).dtype);
  const auto inverse_rms = activation("inverse_rms", heads + kv_heads, DType::f32);
  auto& attributes = append(OpKind::norm_rope, {qkv, q, k, table}, {out, inverse_rms}).attributes;
  attributes.sequence = rotated_rows();
  attributes.heads = heads;
  attributes.kv_heads = kv_heads;
  attributes.head_dim = head_dim;
  attributes.epsilon = epsilon;
  return out;
}

ValueId ProgramBuilder::attention(ValueId qkv, std::int64_t heads, std::int64_t kv_heads,
                                  std::int64_t head_dim) {
  ISTHMUS_ASSERT(program_.value(qkv).shape[1] == (heads + 2 * kv_heads) * head_dim);
  Attributes attributes;
  attributes.sequence = shape_.sequence;
  attributes.heads = heads;
  attributes.kv_heads = kv_heads;
  attributes.head_dim = head_dim;
  return continues() ? cached_attention(qkv, attributes) : attention(qkv, attributes);
}

ValueId ProgramBuilder::attention_both_ways(ValueId qkv, std::int64_t heads, std::int64_t head_dim,
                                            double dropout) {
  ISTHMUS_ASSERT(program_.value(qkv).shape[1] == 3 * heads * head_dim && !continues());
  Attributes attributes;
  attributes.sequence = shape_.sequence;
  attributes.heads = attributes.kv_heads = heads;
  attributes.head_dim = head_dim;
  attributes.causal = false;
  attributes.dropout = dropout;
  return attention(qkv, attributes);
}

ValueId ProgramBuilder::attention(ValueId qkv, const Attributes& wanted) {
  auto attributes = wanted;
  const auto keys = dropout_keys(wanted.dropout, attributes);
  const auto out =
      activation("attention", attributes.heads * attributes.head_dim, program_.value(qkv).dtype);
  const auto log_sums = activation("log_sums", attributes.heads, DType::f32);
  if (shape_.documents == Documents::apart && program_.document_starts == kNoValue)
    program_.document_starts =
        program_.add("document_starts", {shape_.tokens()}, DType::i32, ValueKind::input);
  append(OpKind::attention, {qkv, program_.document_starts, keys}, {out, log_sums}).attributes =
      attributes;
  return out;
}

ValueId ProgramBuilder::dropout(ValueId x, double share) {
  Attributes attributes;
  attributes.sequence = shape_.sequence;
  const auto keys = dropout_keys(share, attributes);
  if (keys == kNoValue) return x;
  const auto out = activation("dropout", program_.value(x).shape[1], program_.value(x).dtype);
  append(OpKind::dropout, {x, keys}, {out}).attributes = attributes;
  return out;
}

ValueId ProgramBuilder::dropout_keys(double share, Attributes& attributes) {
  attributes.dropout = 0;
  if (share == 0 || !shape_.drops || !trains_) return kNoValue;
  attributes.dropout = share;
  attributes.stream = streams_++;
  if (program_.dropout_keys == kNoValue)
    program_.dropout_keys =
        program_.add("dropout_keys", {2 * shape_.micro_batch}, DType::i32, ValueKind::input);
  return program_.dropout_keys;
}

ValueId ProgramBuilder::cached_attention(ValueId qkv, const Attributes& attributes) {
  const auto dtype = program_.value(qkv).dtype;
  const Shape shape{shape_.kept_texts * attributes.kv_heads * shape_.kept_length,
                    attributes.head_dim};
  const auto keys = program_.add("keys", shape, dtype, ValueKind::kept);
  const auto values = program_.add("values", shape, dtype, ValueKind::kept);
  program_.kept.insert(program_.kept.end(), {keys, values});
  const auto out = activation("attention", attributes.heads * attributes.head_dim, dtype);
  auto& op = append(OpKind::cached_attention,
                    {qkv, program_.texts, program_.positions, keys, values}, {out});
  op.attributes = attributes;
  op.attributes.sequence = shape_.kept_length;
  return out;
}

ValueId ProgramBuilder::glu(ValueId gate_up) {
  const auto& v = program_.value(gate_up);
  ISTHMUS_ASSERT(v.shape[1] % 2 == 0);
  const auto out = activation("glu", v.shape[1] / 2, v.dtype);
  append(OpKind::glu, {gate_up}, {out});
  return out;
}

ValueId ProgramBuilder::gelu(ValueId x) {
  const auto out = activation("gelu", program_.value(x).shape[1], program_.value(x).dtype);
  append(OpKind::gelu, {x}, {out});
  return out;
}

ValueId ProgramBuilder::i32_activation(std::string_view name, Shape shape) {
  return program_.add(std::string(name) + "." + std::to_string(program_.ops.size()), shape,
                      DType::i32, ValueKind::activation);
}

ValueId ProgramBuilder::grouped_linear(ValueId x, std::size_t weights, ValueId offsets,
                                       const Routing& routing, DType output) {
  const auto operand = program_.parameters[weights].operand;
  const auto& shape = program_.value(operand).shape;
  ISTHMUS_ASSERT(program_.value(x).shape[1] == shape[1] && shape[0] % routing.experts == 0);
  const auto out = program_.add("grouped_linear." + std::to_string(program_.ops.size()),
                                {program_.value(x).shape[0], shape[0] / routing.experts}, output,
                                ValueKind::activation);
  append(OpKind::grouped_linear, {x, operand, offsets}, {out}).attributes.routing = routing;
  return out;
}

ValueId ProgramBuilder::experts(ValueId x, std::size_t router, std::size_t gate_up,
                                std::size_t down, Routing routing) {
  const auto logits = linear(x, router, DType::f32);
  const auto tokens = shape_.tokens();
  routing.tokens = tokens;
  routing.sequence = shape_.sequence;
  routing.experts = program_.value(logits).shape[1];
  if (trains_) routing.options = shape_.router;
  const auto rows = routing.shape().rows_max();
  const auto weights = program_.add("row weights." + std::to_string(program_.ops.size()), {rows, 1},
                                    DType::f32, ValueKind::activation);
  const auto chosen = i32_activation("experts", {tokens, routing.top_k});
  const auto of_choice = i32_activation("rows", {tokens, routing.top_k});
  const auto row_tokens = i32_activation("row tokens", {rows});
  const auto offsets = i32_activation("offsets", {routing.experts + 1});
  if (trains_ && program_.loads == kNoValue)
    program_.loads = program_.add("loads", {routing.layers * shape_.micro_batch, routing.experts},
                                  DType::i32, ValueKind::activation);
  append(OpKind::route, {logits, trains_ ? targets() : kNoValue},
         {weights, chosen, of_choice, row_tokens, offsets, program_.loads})
      .attributes.routing = routing;

  const auto hidden = program_.value(x).shape[1];
  const auto product = [&](std::string_view name, std::int64_t columns, DType dtype) {
    return program_.add(std::string(name) + "." + std::to_string(program_.ops.size()),
                        {rows, columns}, dtype, ValueKind::activation);
  };
  const auto permuted = product("permute", hidden, program_.value(x).dtype);
  append(OpKind::permute, {x, row_tokens, of_choice, offsets}, {permuted});
  const auto h = grouped_linear(permuted, gate_up, offsets, routing, product_dtype());
  const auto y = product("expert_glu", program_.value(h).shape[1] / 2, program_.value(h).dtype);
  append(OpKind::expert_glu, {h, weights, offsets}, {y});
  const auto of_rows = grouped_linear(y, down, offsets, routing, DType::f32);
  const auto out = activation("combine", program_.value(of_rows).shape[1], DType::f32);
  append(OpKind::combine, {of_rows, of_choice, row_tokens, offsets}, {out});
  return out;
}

ValueId ProgramBuilder::shared_expert(ValueId x, std::size_t gate, std::size_t gate_up,
                                      std::size_t down) {
  const auto logits = linear(x, gate, DType::f32);
  const auto weights = activation("sigmoid", 1, DType::f32);
  append(OpKind::sigmoid, {logits}, {weights});
  const auto h = linear(x, gate_up);
  const auto y = activation("expert_glu", program_.value(h).shape[1] / 2, program_.value(h).dtype);
  append(OpKind::expert_glu, {h, weights, kNoValue}, {y});
  return linear_to_residual(y, down);
}

ValueId ProgramBuilder::targets() {
  if (program_.targets == kNoValue)
    program_.targets = program_.add("targets", {shape_.tokens()}, DType::i32, ValueKind::input);
  return program_.targets;
}

ValueId ProgramBuilder::add(ValueId x, ValueId y) {
  ISTHMUS_ASSERT(program_.value(x).shape == program_.value(y).shape);
  const auto out = activation("add", program_.value(x).shape[1], program_.value(x).dtype);
  append(OpKind::add, {x, y}, {out});
  return out;
}

void ProgramBuilder::head_loss(ValueId x, std::size_t weight, std::optional<std::size_t> bias) {
  const auto operand = program_.parameters[weight].operand;
  const auto vocabulary = program_.value(operand).shape[0];
  const auto rows = head_chunk_rows(shape_.tokens(), vocabulary);
  const auto chunk =
      program_.add("head chunk", {rows, vocabulary}, DType::f32, ValueKind::activation);
  const auto chunk_gradient = product_dtype() == DType::f32
                                  ? kNoValue  // lies over the chunk
                                  : program_.add("head chunk gradient", {rows, vocabulary},
                                                 product_dtype(), ValueKind::activation);
  append(OpKind::head_loss,
         {x, operand, targets(), bias ? program_.parameters[*bias].master : kNoValue},
         {chunk, chunk_gradient});
}

void ProgramBuilder::head_logits(ValueId x, std::size_t weight, std::optional<std::size_t> bias) {
  program_.logits = linear(x, weight, DType::f32);
  program_.ops.back().attributes.of_head = true;
  if (bias) program_.logits = add_rows(program_.logits, *bias, 1);
}

void ProgramBuilder::no_head() {
  auto& ops = program_.ops;
  while (ops.back().kind != OpKind::cached_attention) ops.pop_back();
  for (auto& block : program_.blocks) block.end = std::min(block.end, ops.size());
}

}  // namespace isthmus::runtime
