#include "kernels/grouped_gemm.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "kernels/matmul_primitive.h"
#include "kernels/transpose.h"

namespace isthmus::kernels {
namespace {

// Inner side of one primitive of a weight gradient; what is longer is added up in pieces.
constexpr std::int64_t kInnerMax = 512;

std::size_t step_index(std::int64_t rows) {
  return static_cast<std::size_t>(rows / kGroupRowStep) - 1;
}

// A part of one group's result.
struct Tile {
  std::int64_t group = 0;
  std::int64_t first_row = 0, rows = 0;  // of c
  std::int64_t column = 0;               // piece
};

}  // namespace

struct GroupedGemmPlan::Parts {
  Parts(const GroupedGemmShape& plan_shape, GemmScratch::Memory& memory, bool native_bf16);

  GroupedGemmShape shape;
  GemmScratch::Memory* scratch;
  bool converts;    // bf16 in memory, multiplied in f32
  bool transposes;  // tn: tiles of a are turned first
  DType input;      // as oneDNN sees them
  DType output;
  std::int64_t n = 0;  // columns of c
  std::int64_t k = 0;  // inner side; of tn at most
  Cut gradient_rows;   // tn
  Cut columns;
  // By the size of what varies, [rows of c, or of tn the inner side][shorter columns], of tn also
  // [adds to c][shorter rows].
  using BySize = std::vector<std::array<BoundPrimitive, 2>>;
  std::array<std::array<BySize, 2>, 2> tiles;
  mutable std::vector<Tile> tasks;  // of the run() that is under way; never more than its capacity

  bool is_gradient() const { return shape.form == GemmForm::tn; }
  bool rounds() const { return output != shape.output; }
  std::int64_t transposed_stride() const { return k + 16; }
  std::int64_t weight_elements() const { return shape.out * shape.in; }

  void make_tiles(bool short_columns);
  void make_gradients(bool short_rows, bool short_columns);
  void run(ThreadPool& pool, const void* a, const void* b, void* c,
           std::span<const std::int32_t> offsets) const;
  void run_groups(ThreadPool& pool, const void* a, const void* b, void* c,
                  std::span<const std::int32_t> offsets, std::int64_t first_group) const;
  void list_tiles(std::span<const std::int32_t> offsets, std::int64_t first_group) const;
  void multiply(const Tile& tile, const void* a, const void* weight, void* c,
                std::size_t worker) const;
  void add_up(const Tile& tile, const void* a, const void* b, float* c, std::int64_t first,
              std::int64_t end, std::size_t worker) const;
};

GroupedGemmPlan::Parts::Parts(const GroupedGemmShape& plan_shape, GemmScratch::Memory& memory,
                              bool native_bf16)
    : shape(plan_shape),
      scratch(&memory),
      converts(shape.input == DType::bf16 && !native_bf16),
      transposes(shape.form == GemmForm::tn && (converts || shape.input == DType::f32) &&
                 shape.out % kPageFloats == 0),
      input(converts ? DType::f32 : shape.input),
      output(converts ? DType::f32 : shape.output) {
  const auto groups = static_cast<std::size_t>(shape.groups);
  std::size_t tiles_max = 0;
  if (is_gradient()) {
    n = shape.in;
    k = std::min(kInnerMax, shape.rows_max);
    gradient_rows = cut_evenly(shape.out, kTileRowsMax, 16);
    columns = cut_evenly(n, kGradientTileColumnsMax, 64);
    tiles_max = groups * static_cast<std::size_t>(gradient_rows.pieces() * columns.pieces());
    for (const bool short_rows : {false, true})
      for (const bool short_columns : {false, true}) make_gradients(short_rows, short_columns);
  } else {
    n = shape.form == GemmForm::nt ? shape.out : shape.in;
    k = shape.form == GemmForm::nt ? shape.in : shape.out;
    columns = cut_evenly(n, kTileColumnsMax, 64);
    tiles_max = (static_cast<std::size_t>(shape.rows_max / kTileRowsMax) + 2 * groups) *
                static_cast<std::size_t>(columns.pieces());
    for (const bool short_columns : {false, true}) make_tiles(short_columns);
  }
  tasks.reserve(tiles_max);
  if (converts) {
    const auto a_columns = is_gradient() ? shape.out : k;
    scratch->a.grow(offset_bytes(shape.rows_max * a_columns, DType::f32));
    scratch->b.grow(
        offset_bytes(is_gradient() ? shape.rows_max * shape.in : weight_elements(), DType::f32));
  }
  for (auto& worker : scratch->workers) {
    if (rounds()) worker.c_tile.grow(offset_bytes(kTileRowsMax * columns.length, DType::f32));
    if (transposes)
      worker.a_tile.grow(offset_bytes(gradient_rows.length * transposed_stride(), DType::f32));
  }
}

void GroupedGemmPlan::Parts::make_tiles(bool short_columns) {
  auto& by_size = tiles[0][0];
  by_size.resize(step_index(std::min(kTileRowsMax, shape.rows_max)) + 1);
  const std::int64_t width = columns.size(short_columns ? columns.pieces() - 1 : 0);
  if (short_columns && width == columns.length) return;
  const auto b = shape.form == GemmForm::nt ? matrix_layout(k, width, input, 1, k)
                                            : matrix_layout(k, width, input, n, 1);
  for (std::size_t i = 0; i < by_size.size(); ++i) {
    const auto m = static_cast<std::int64_t>(i + 1) * kGroupRowStep;
    by_size[i][short_columns] =
        BoundPrimitive::matmul(*scratch, matrix_layout(m, k, input, k, 1), b,
                               matrix_layout(m, width, output, rounds() ? width : n, 1), false);
  }
}

void GroupedGemmPlan::Parts::make_gradients(bool short_rows, bool short_columns) {
  const std::int64_t m = gradient_rows.size(short_rows ? gradient_rows.pieces() - 1 : 0);
  const std::int64_t width = columns.size(short_columns ? columns.pieces() - 1 : 0);
  for (const bool adds : {false, true}) {
    auto& by_size = tiles[adds][short_rows];
    by_size.resize(step_index(k) + 1);
    if ((short_rows && m == gradient_rows.length) || (short_columns && width == columns.length))
      continue;
    if (!adds && shape.accumulate) continue;
    if (adds && !shape.accumulate && shape.rows_max <= k) continue;  // there is only one piece
    for (std::size_t i = 0; i < by_size.size(); ++i) {
      const auto inner = static_cast<std::int64_t>(i + 1) * kGroupRowStep;
      const auto a = transposes ? matrix_layout(m, inner, input, transposed_stride(), 1)
                                : matrix_layout(m, inner, input, 1, shape.out);
      by_size[i][short_columns] =
          BoundPrimitive::matmul(*scratch, a, matrix_layout(inner, width, input, n, 1),
                                 matrix_layout(m, width, output, n, 1), adds);
    }
  }
}

void GroupedGemmPlan::Parts::list_tiles(std::span<const std::int32_t> offsets,
                                        std::int64_t first_group) const {
  tasks.clear();
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    const auto group = first_group + static_cast<std::int64_t>(g);
    const std::int64_t rows = offsets[g + 1] - offsets[g];
    if (rows == 0 && (!is_gradient() || shape.accumulate)) continue;
    auto cut = is_gradient() ? gradient_rows : cut_evenly(rows, kTileRowsMax, kGroupRowStep);
    const std::int64_t first = is_gradient() ? 0 : offsets[g];
    for (std::int64_t column = 0; column < columns.pieces(); ++column)
      for (std::int64_t piece = 0; piece < cut.pieces(); ++piece)
        tasks.push_back({group, first + cut.first(piece), cut.size(piece), column});
  }
}

void GroupedGemmPlan::Parts::run(ThreadPool& pool, const void* a, const void* b, void* c,
                                 std::span<const std::int32_t> offsets) const {
  if (!converts) return run_groups(pool, a, b, c, offsets, 0);
  const std::int64_t rows = offsets.back();
  auto* floats = static_cast<float*>(scratch->a.data());
  auto* others = static_cast<float*>(scratch->b.data());
  const auto convert = [&](const void* from, std::int64_t elements, float* to) {
    convert_to_float(pool, static_cast<const bf16_t*>(from), elements, to);
  };
  convert(a, rows * (is_gradient() ? shape.out : k), floats);
  if (is_gradient()) {
    convert(b, rows * shape.in, others);
    return run_groups(pool, floats, others, c, offsets, 0);
  }
  // One after another, as the weights of all of them in f32 might take much memory.
  for (std::int64_t g = 0; g < shape.groups; ++g) {
    const auto of_group = offsets.subspan(static_cast<std::size_t>(g), 2);
    if (of_group[0] == of_group[1]) continue;
    convert(advance(b, g * weight_elements(), shape.input), weight_elements(), others);
    run_groups(pool, floats, others, c, of_group, g);
  }
}

// Of the groups that `offsets` has; `b` are their weights, or of tn all rows of x.
void GroupedGemmPlan::Parts::run_groups(ThreadPool& pool, const void* a, const void* b, void* c,
                                        std::span<const std::int32_t> offsets,
                                        std::int64_t first_group) const {
  list_tiles(offsets, first_group);
  pool.parallel_for(tasks.size(), [&](std::size_t task, std::size_t worker) {
    const auto& tile = tasks[task];
    const auto g = tile.group - first_group;
    if (!is_gradient())
      return multiply(tile, a, advance(b, g * weight_elements(), input), c, worker);
    const auto at = static_cast<std::size_t>(g);
    add_up(tile, a, b, static_cast<float*>(c) + tile.group * weight_elements(), offsets[at],
           offsets[at + 1], worker);
  });
}

void GroupedGemmPlan::Parts::multiply(const Tile& tile, const void* a, const void* weight, void* c,
                                      std::size_t worker) const {
  const auto first_column = columns.first(tile.column);
  const auto at = tile.first_row * n + first_column;
  void* to = rounds() ? scratch->workers[worker].c_tile.data() : advance(c, at, output);
  const auto& primitive =
      tiles[0][0][step_index(tile.rows)][columns.is_last_and_shorter(tile.column)];
  primitive.execute(
      *scratch, worker,
      std::array<void*, 3>{
          advance(a, tile.first_row * k, input),
          advance(weight, shape.form == GemmForm::nt ? first_column * k : first_column, input),
          to});
  if (rounds())
    round_tile(static_cast<const float*>(to), tile.rows, columns.size(tile.column),
               static_cast<bf16_t*>(advance(c, at, DType::bf16)), n);
}

// One tile of a group's weight gradient, over the rows [first, end) of dy and x.
void GroupedGemmPlan::Parts::add_up(const Tile& tile, const void* a, const void* b, float* c,
                                    std::int64_t first, std::int64_t end,
                                    std::size_t worker) const {
  const auto first_column = columns.first(tile.column);
  float* to = c + tile.first_row * n + first_column;
  if (first == end)
    for (std::int64_t row = 0; row < tile.rows; ++row)
      std::memset(to + row * n, 0, offset_bytes(columns.size(tile.column), DType::f32));
  bool adds = shape.accumulate;
  const bool short_rows = tile.rows < gradient_rows.length;
  for (auto row = first; row < end; row += k) {
    const auto inner = std::min(k, end - row);
    void* from = advance(a, row * shape.out + tile.first_row, input);
    if (transposes) {
      auto* turned = static_cast<float*>(scratch->workers[worker].a_tile.data());
      transpose_to_float(Rows(from, input, inner, tile.rows, shape.out), turned,
                         transposed_stride());
      from = turned;
    }
    tiles[adds][short_rows][step_index(inner)][columns.is_last_and_shorter(tile.column)].execute(
        *scratch, worker,
        std::array<void*, 3>{from, advance(b, row * n + first_column, input), to});
    adds = true;
  }
}

GroupedGemmPlan::GroupedGemmPlan(const GroupedGemmShape& shape, GemmScratch& scratch,
                                 bool native_bf16) {
  ISTHMUS_ASSERT(shape.groups > 0 && shape.out > 0 && shape.in > 0);
  ISTHMUS_ASSERT(shape.rows_max > 0 && shape.rows_max % kGroupRowStep == 0);
  ISTHMUS_ASSERT(shape.form == GemmForm::tn ? shape.output == DType::f32
                                            : !shape.accumulate && (shape.output == DType::f32 ||
                                                                    shape.input == DType::bf16));
  omp_set_num_threads(1);  // oneDNN chooses its blocking by the number of threads it sees
  parts_ = std::make_unique<Parts>(shape, scratch.memory(), native_bf16);
}

GroupedGemmPlan::~GroupedGemmPlan() = default;
GroupedGemmPlan::GroupedGemmPlan(GroupedGemmPlan&&) noexcept = default;
GroupedGemmPlan& GroupedGemmPlan::operator=(GroupedGemmPlan&&) noexcept = default;
const GroupedGemmShape& GroupedGemmPlan::shape() const { return parts_->shape; }

void GroupedGemmPlan::run(ThreadPool& pool, const void* a, const void* b, void* c,
                          std::span<const std::int32_t> offsets) const {
  const auto& parts = *parts_;
  ISTHMUS_ASSERT(pool.workers() <= parts.scratch->workers.size());
  ISTHMUS_ASSERT(std::ssize(offsets) == parts.shape.groups + 1 && offsets.front() == 0 &&
                 offsets.back() <= parts.shape.rows_max);
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g)
    ISTHMUS_ASSERT(offsets[g + 1] >= offsets[g] && offsets[g + 1] % kGroupRowStep == 0);
  parts.run(pool, a, b, c, offsets);
}

}  // namespace isthmus::kernels
