// Program: a model as a list. A flat list of ops over values, built once before the first step by a
// family (runtime/family.h) and rewritten by passes, list → list (runtime/backward.h). No tape, no
// control flow, no rank, device or address in it: the planner (runtime/planner.h) gives values
// places, the executor (runtime/executor.h) walks the list.
//
//   values   tokens  embedding   x0      norm weight   h0   …        who reads and writes what is
//              │        │        │           │         │           all in the ops; a value is
//   ops      [ embed ──────────▶ x0 ] [ norm ────────▶ h0 ] …       written before it is read
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "runtime/model_config.h"
#include "runtime/routing.h"

namespace isthmus::runtime {

using ValueId = std::int32_t;
inline constexpr ValueId kNoValue = -1;

enum class ValueKind : std::uint8_t {
  parameter,   // lives in the flat buffers of Model; f32, or its copy for the products in bf16
  input,       // written by the caller before each run
  activation,  // of one run: placed in the arena for as long as the list needs it
  gradient,    // as activation; gradients of parameters live in a flat buffer and are added to
  state,       // made once by Program::once, read ever after
  kept,        // of the texts that are continued: read and written by all lists that continue them
};

// Which mesh axis cuts each dimension; none: every rank has all of it.
enum class MeshAxis : std::uint8_t { none, data, pipeline, tensor, expert };
using Sharding = std::array<MeshAxis, Shape::kRankMax>;

struct Value {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  ValueKind kind = ValueKind::activation;
  Sharding sharding{};
  std::int32_t parameter = -1;  // of parameters and their gradients: index in Program::parameters

  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
};

// A tensor as it is named on disk and between sites: rows of a parameter.
struct CanonicalRows {
  std::string name;
  std::int64_t first_row = 0;  // of a vector: its first element
  std::int64_t rows = 0;
};

enum class Initial : std::uint8_t {
  normal,
  ones,
  zeros,
  uniform,  // within 1 / sqrt(columns)
};

struct Parameter {
  ValueId master = kNoValue;    // f32; what the optimizer updates
  ValueId operand = kNoValue;   // what products read: the master, or its bf16 copy
  ValueId gradient = kNoValue;  // f32, added to; none unless it trains and backward is derived
  std::vector<CanonicalRows> canonical;  // cover all rows once, in order
  Initial initial = Initial::normal;
  bool trains = true;
  bool decays = true;  // weight decay applies
};

enum class OpKind : std::uint8_t {
  embed,       // tokens, table → x
  norm,        // x, weight → y, inverse_rms
  layer_norm,  // x, weight, bias → y, mean, inverse deviation
  linear,      // x, weight → y
  low_rank,    // t, weight, y → sum: what an adapter adds to some columns of y
  add_rows,    // x, table → sum: row r of x and row r mod `period` of the table, as a bias
  rope_table,  // → table
  rope,        // x, table → y
  norm_rope,   // qkv, q weight, k weight, table → qkv, inverse_rms: each head of q and of k is
               // normalised and rotated
  attention,   // qkv, document_starts or none, dropout keys or none → y, log_sums
  gather,      // rows, table → the table's rows
  cached_attention,  // qkv, texts, positions, keys, values → y; keys and values are added to
  glu,               // gate_up → y
  gelu,              // x → y
  dropout,           // x, keys → y
  sigmoid,           // x → y
  // A mixture of experts; its rows are laid out as kernels/routing.h says.
  route,    // logits, targets or none → row weights, experts, rows, row tokens, offsets, loads or
            // none; backward adds the router's losses
  permute,  // x, row tokens, rows, offsets → x of each row
  grouped_linear,  // x, weights of all experts, offsets → y
  expert_glu,      // gate_up, row weights, offsets, or none of one expert that takes all → y
  combine,         // y, rows, row tokens, offsets → the sum over each token's rows
  add,             // x, y → sum
  convert,         // x → y: a copy, in another dtype
  head_loss,  // x, weight, targets, bias or none → chunk, chunk_gradient (working memory); adds to
              // the run's loss
};
inline constexpr std::size_t kOpKinds = 24;

enum class Pass : std::uint8_t { forward, backward };

// What an op needs to know besides its values; each kind reads its own.
struct Attributes {
  std::int64_t sequence = 0;  // rope, norm_rope, attention: rows are batch × sequence;
                              // cached_attention: positions that are kept of each text
  std::int64_t heads =
      0;  // attentions, norm_rope; rope: heads it rotates, from the first column on
  std::int64_t kv_heads = 0;      // attentions, norm_rope
  std::int64_t head_dim = 0;      // rope, rope_table, attentions, norm_rope
  double theta = 0;               // rope_table
  RopeScaling rope_scaling;       // rope_table
  bool causal = true;             // attention: a query sees no later keys
  double epsilon = 0;             // norm, layer_norm, norm_rope
  std::int64_t period = 0;        // add_rows
  double dropout = 0;             // dropout, attention: the share of elements that become 0
  std::uint32_t stream = 0;       // dropout, attention: no two ops drop by the same draws
  bool of_head = false;           // linear: makes logits, so that no adapter goes beside it
  std::int64_t first_column = 0;  // low_rank: of y, where it adds
  double scale = 0;               // low_rank: of what it adds
  Routing routing;                // route, grouped_linear
};

// A forward op has the inputs and outputs of its kind. The backward op of the same kind has
//   inputs    the forward inputs, the forward outputs, the gradient of output 0;
//   outputs   the gradients of the forward inputs (then, where backward replaces forward, the
//             forward outputs, or, where it can make it again, forward output 0);
// each in its place, kNoValue where it is not needed (runtime/op_table.h).
struct Op {
  OpKind kind = OpKind::embed;
  Pass pass = Pass::forward;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::uint32_t accumulate = 0;  // bit i: output i is added to, not set
  std::uint32_t sets_first = 0;  // bit i: it is set all the same in a step's first micro-batch
  Attributes attributes;

  bool accumulates(std::size_t output) const { return ((accumulate >> output) & 1U) != 0; }
};

// A part of the forward list that repeats, as a decoder's layer: ops [first, end).
struct Block {
  std::size_t first = 0;
  std::size_t end = 0;
};

struct Program {
  std::vector<Value> values;
  std::vector<Parameter> parameters;
  std::vector<Op> once;       // run when the program is prepared
  std::vector<Op> ops;        // run for each micro-batch
  std::vector<Block> blocks;  // in order; the forward list begins `ops`
  ValueId tokens = kNoValue;
  ValueId targets = kNoValue;          // none in a program that ends in logits
  ValueId document_starts = kNoValue;  // none where a sequence is seen as a whole
  ValueId dropout_keys = kNoValue;  // [2 · batch], low and high halves; none: nothing is dropped
  ValueId logits = kNoValue;        // none in a program that ends in a loss
  // [layers with experts · batch, experts]: how many choices fell on each, in a run; none where
  // nothing is routed, or nobody trains.
  ValueId loads = kNoValue;
  // Of a list that continues texts: which text each row is of and where in it, and what is kept, by
  // layer the keys and the values.
  ValueId texts = kNoValue;
  ValueId positions = kNoValue;
  std::vector<ValueId> kept;

  const Value& value(ValueId id) const { return values[static_cast<std::size_t>(id)]; }
  ValueId add(Value value) {
    values.push_back(std::move(value));
    return static_cast<ValueId>(values.size() - 1);
  }
  ValueId add(std::string name, Shape shape, DType dtype, ValueKind kind) {
    Value made;
    made.name = std::move(name);
    made.shape = shape;
    made.dtype = dtype;
    made.kind = kind;
    return add(std::move(made));
  }
  // A parameter of these canonical rows, with a copy for the products where they read another
  // dtype. Returns its index.
  std::size_t add_parameter(std::vector<CanonicalRows> canonical, Shape shape, DType operand,
                            Initial initial);
};

// Appends values and ops; checks shapes by assertion, since configurations are checked before.
class ProgramBuilder {
 public:
  // `trains`: the list ends in a loss, and routers have losses of their own.
  ProgramBuilder(const BatchShape& shape, bool trains) : shape_(shape), trains_(trains) {}

  // A matrix {rows, columns} of the canonical tensors stacked in order, or a vector (columns 0).
  struct Part {
    std::string name;
    std::int64_t rows = 0;
  };
  std::size_t matrix(const std::vector<Part>& parts, std::int64_t columns);
  std::size_t norm_weight(const std::string& name, std::int64_t elements);
  // A vector of the canonical ones, one after the other.
  std::size_t bias(const std::vector<Part>& parts);

  // What is appended until the next block, or end_blocks(), is one.
  void begin_block();
  void end_blocks();

  ValueId embed(std::size_t table);
  ValueId norm(ValueId x, std::size_t weight, double epsilon);
  // In f32.
  ValueId layer_norm(ValueId x, std::size_t weight, std::size_t bias, double epsilon);
  // x as products read it.
  ValueId operand(ValueId x);
  // As an operand of further products.
  ValueId linear(ValueId x, std::size_t weight);
  // In f32, to be added to the residual stream: saves a rounding.
  ValueId linear_to_residual(ValueId x, std::size_t weight);
  // With a bias; the sum is rounded once.
  ValueId biased_linear(ValueId x, std::size_t weight, std::size_t bias);
  ValueId biased_linear_to_residual(ValueId x, std::size_t weight, std::size_t bias);
  // Rows 0 … period − 1 of a table, again and again: learnt positions.
  ValueId add_rows(ValueId x, std::size_t table, std::int64_t period);
  // What rope and norm_rope rotate each row by.
  ValueId rope_table(double theta, const RopeScaling& scaling, std::int64_t head_dim);
  ValueId rope(ValueId x, ValueId table, std::int64_t heads, std::int64_t head_dim);
  // qkv {tokens, (heads + 2 kv_heads) · d}; weights of d elements.
  ValueId norm_rope(ValueId qkv, std::size_t q_weight, std::size_t k_weight, ValueId table,
                    std::int64_t heads, std::int64_t kv_heads, double epsilon);
  ValueId attention(ValueId qkv, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim);
  // Each query sees all of its sequence, or of its document; `dropout` of its weights.
  ValueId attention_both_ways(ValueId qkv, std::int64_t heads, std::int64_t head_dim,
                              double dropout);
  ValueId glu(ValueId gate_up);
  ValueId gelu(ValueId x);
  // x itself unless the batch drops anything.
  ValueId dropout(ValueId x, double share);
  // Experts' weights stacked, as matrix(): gate and up of one expert together, then those of the
  // next; down likewise. In f32, to be added to the residual stream. `routing` as the model says;
  // the builder fills in what the batch does.
  ValueId experts(ValueId x, std::size_t router, std::size_t gate_up, std::size_t down,
                  Routing routing);
  // A SwiGLU that each token takes, weighted by the sigmoid of its product with `gate`. In f32.
  ValueId shared_expert(ValueId x, std::size_t gate, std::size_t gate_up, std::size_t down);
  ValueId add(ValueId x, ValueId y);
  void head_loss(ValueId x, std::size_t weight, std::optional<std::size_t> bias = {});
  void head_logits(ValueId x, std::size_t weight, std::optional<std::size_t> bias = {});
  // Nothing but what is kept: ends with the last op that adds to it.
  void no_head();

  Program take() { return std::move(program_); }

 private:
  ValueId activation(std::string_view name, std::int64_t columns, DType dtype);
  std::size_t parameter(const std::vector<Part>& parts, Shape shape, Initial initial);
  ValueId linear(ValueId x, std::size_t weight, DType output);
  ValueId biased_linear(ValueId x, std::size_t weight, std::size_t bias, DType output);
  ValueId add_rows(ValueId x, std::size_t table, std::int64_t period, DType output);
  ValueId attention(ValueId qkv, const Attributes& attributes);
  ValueId i32_activation(std::string_view name, Shape shape);
  ValueId grouped_linear(ValueId x, std::size_t weights, ValueId offsets, const Routing& routing,
                         DType output);
  ValueId cached_attention(ValueId qkv, const Attributes& attributes);
  // Rows of a rotation that repeat, or, where each row has a position of its own, all of them.
  std::int64_t rotated_rows() const { return continues() ? shape_.tokens() : shape_.sequence; }
  bool continues() const { return shape_.kept_texts > 0; }
  Op& append(OpKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs);
  ValueId output() const { return program_.ops.back().outputs[0]; }
  // What products read and write; the residual stream is f32.
  DType product_dtype() const {
    return shape_.precision == Precision::bf16 ? DType::bf16 : DType::f32;
  }

  ValueId targets();
  // What an op drops by; sets its attributes. None where nothing is dropped.
  ValueId dropout_keys(double share, Attributes& attributes);

  BatchShape shape_;
  bool trains_;
  std::uint32_t streams_ = 0;  // so far
  Program program_;
};

}  // namespace isthmus::runtime
