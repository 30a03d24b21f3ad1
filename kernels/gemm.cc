#include "kernels/gemm.h"

#include <omp.h>

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "kernels/cpu_features.h"
#include "kernels/matmul_primitive.h"
#include "kernels/transpose.h"

namespace isthmus::kernels {
namespace {

constexpr std::int64_t kTileRowsMin = 48;
constexpr std::int64_t kTransposedElementsMax = 262144;  // of a tile: 1 MiB
constexpr std::int64_t kRowTilesToPackFor =
    3;  // packing b costs about half a tile's own copy of it

}  // namespace

bool bf16_gemm_is_native() {
  static const bool fast = bf16_matrix_products_are_fast();
  return fast;
}

struct GemmPlan::Parts {
  Parts(const GemmShape& plan_shape, GemmScratch::Memory& memory, bool native_bf16);

  GemmShape shape;
  GemmScratch::Memory* scratch;
  bool converts;     // bf16 in memory, multiplied in f32
  bool transposes;   // tn: tiles of a are turned first
  bool packs_first;  // run() lays b out once, for all row tiles
  DType input;       // as oneDNN sees them
  DType output;
  Cut rows, columns;
  // [shorter rows][shorter columns]; those that do not occur stay empty.
  std::array<std::array<BoundPrimitive, 2>, 2> tiles;
  std::array<BoundPrimitive, 2> packing;  // [shorter columns]
  std::size_t packed_piece_bytes = 0;

  bool rounds() const { return output != shape.output; }  // f32 tiles, rounded one by one
  std::size_t packed_bytes() const {
    return packed_piece_bytes * static_cast<std::size_t>(columns.pieces());
  }
  // Powers of two apart, all rows of a tile would share a few sets of the caches.
  std::int64_t transposed_stride() const { return (shape.k + 15) / 16 * 16 + 16; }

  dnnl::memory::desc a_layout(std::int64_t m) const {
    if (transposes) return matrix_layout(m, shape.k, input, transposed_stride(), 1);
    if (shape.form == GemmForm::tn) return matrix_layout(m, shape.k, input, 1, shape.m);
    return matrix_layout(m, shape.k, input, shape.k, 1);
  }
  dnnl::memory::desc b_layout(std::int64_t n) const {
    return shape.form == GemmForm::nt ? matrix_layout(shape.k, n, input, 1, shape.k)
                                      : matrix_layout(shape.k, n, input, shape.n, 1);
  }

  void make_primitives(bool short_columns);
  void pack(ThreadPool& pool, const void* b, void* packed_b) const;
  void multiply(ThreadPool& pool, const void* a, const void* b, void* c) const;
  void multiply_tile(const void* a, const void* b, void* c, std::int64_t row, std::int64_t column,
                     std::size_t worker) const;
  void* a_tile(const void* a, std::int64_t row, std::size_t worker) const;

  void* b_piece(const void* b, std::int64_t column) const {
    const std::int64_t n = columns.first(column);
    return advance(b, shape.form == GemmForm::nt ? n * shape.k : n, input);
  }
  void* packed_piece(const void* packed_b, std::int64_t column) const {
    return const_cast<char*>(static_cast<const char*>(packed_b)) +
           static_cast<std::size_t>(column) * packed_piece_bytes;
  }
};

GemmPlan::Parts::Parts(const GemmShape& plan_shape, GemmScratch::Memory& memory, bool native_bf16)
    : shape(plan_shape),
      scratch(&memory),
      converts(shape.input == DType::bf16 && !native_bf16),
      input(converts ? DType::f32 : shape.input),
      output(converts ? DType::f32 : shape.output) {
  transposes = shape.form == GemmForm::tn && input == DType::f32 && shape.m % kPageFloats == 0;
  std::int64_t tile_rows = kTileRowsMax;
  if (transposes)
    tile_rows = std::clamp(kTransposedElementsMax / shape.k / 16 * 16, kTileRowsMin, kTileRowsMax);
  rows = cut_evenly(shape.m, tile_rows, 16);
  columns = cut_evenly(shape.n,
                       shape.form == GemmForm::tn ? kGradientTileColumnsMax : kTileColumnsMax, 64);
  packs_first = rows.pieces() >= kRowTilesToPackFor;

  for (const bool short_columns : {false, true}) make_primitives(short_columns);

  if (packs_first) scratch->packed.grow(packed_bytes());
  if (converts && !transposes) scratch->a.grow(offset_bytes(shape.m * shape.k, DType::f32));
  if (converts) scratch->b.grow(offset_bytes(shape.n * shape.k, DType::f32));
  for (auto& worker : scratch->workers) {
    if (rounds()) worker.c_tile.grow(offset_bytes(rows.length * columns.length, DType::f32));
    if (transposes) worker.a_tile.grow(offset_bytes(rows.length * transposed_stride(), DType::f32));
  }
}

void GemmPlan::Parts::make_primitives(bool short_columns) {
  const std::int64_t n = columns.size(short_columns ? columns.pieces() - 1 : 0);
  if (short_columns && n == columns.length) return;
  // Where b is packed, oneDNN chooses with the first how, and all others follow.
  dnnl::memory::desc b = packs_first ? dnnl::memory::desc({shape.k, n}, dnnl_type(input),
                                                          dnnl::memory::format_tag::any)
                                     : b_layout(n);
  for (const bool short_rows : {false, true}) {
    const std::int64_t m = rows.size(short_rows ? rows.pieces() - 1 : 0);
    if (short_rows && m == rows.length) continue;
    const dnnl::memory::desc a = a_layout(m);
    const dnnl::memory::desc c = matrix_layout(m, n, output, rounds() ? n : shape.n, 1);
    tiles[short_rows][short_columns] = BoundPrimitive::matmul(*scratch, a, b, c, shape.accumulate);
    if (packs_first) b = tiles[short_rows][short_columns].b_layout();
  }
  if (!packs_first) return;
  packing[short_columns] = BoundPrimitive::reorder(*scratch, b_layout(n), b);
  const std::size_t bytes = (b.get_size() + kGemmAlignment - 1) / kGemmAlignment * kGemmAlignment;
  packed_piece_bytes = std::max(packed_piece_bytes, bytes);
}

void GemmPlan::Parts::pack(ThreadPool& pool, const void* b, void* packed_b) const {
  pool.parallel_for(static_cast<std::size_t>(columns.pieces()), [&](std::size_t task,
                                                                    std::size_t worker) {
    const auto column = static_cast<std::int64_t>(task);
    packing[columns.is_last_and_shorter(column)].execute(
        *scratch, worker, std::array<void*, 2>{b_piece(b, column), packed_piece(packed_b, column)});
  });
}

void GemmPlan::Parts::multiply(ThreadPool& pool, const void* a, const void* b, void* c) const {
  if (converts) {
    convert_to_float(pool, static_cast<const bf16_t*>(b), shape.n * shape.k,
                     static_cast<float*>(scratch->b.data()));
    b = scratch->b.data();
  }
  if (packs_first) {
    pack(pool, b, scratch->packed.data());
    b = scratch->packed.data();
  }
  if (converts && !transposes) {
    convert_to_float(pool, static_cast<const bf16_t*>(a), shape.m * shape.k,
                     static_cast<float*>(scratch->a.data()));
    a = scratch->a.data();
  }
  const std::int64_t down = rows.pieces();
  pool.parallel_for(static_cast<std::size_t>(down * columns.pieces()),
                    [&](std::size_t task, std::size_t worker) {
                      const auto tile = static_cast<std::int64_t>(task);
                      multiply_tile(a, b, c, tile % down, tile / down, worker);
                    });
}

void GemmPlan::Parts::multiply_tile(const void* a, const void* b, void* c, std::int64_t row,
                                    std::int64_t column, std::size_t worker) const {
  const std::int64_t at = rows.first(row) * shape.n + columns.first(column);
  void* c_tile = rounds() ? scratch->workers[worker].c_tile.data() : advance(c, at, output);
  tiles[rows.is_last_and_shorter(row)][columns.is_last_and_shorter(column)].execute(
      *scratch, worker,
      std::array<void*, 3>{a_tile(a, row, worker),
                           packs_first ? packed_piece(b, column) : b_piece(b, column), c_tile});
  if (rounds())
    round_tile(static_cast<const float*>(c_tile), rows.size(row), columns.size(column),
               static_cast<bf16_t*>(advance(c, at, DType::bf16)), shape.n);
}

void* GemmPlan::Parts::a_tile(const void* a, std::int64_t row, std::size_t worker) const {
  const std::int64_t m = rows.first(row);
  if (shape.form != GemmForm::tn) return advance(a, m * shape.k, input);
  if (!transposes) return advance(a, m, input);
  auto* turned = static_cast<float*>(scratch->workers[worker].a_tile.data());
  transpose_to_float(
      Rows(advance(a, m, shape.input), shape.input, shape.k, rows.size(row), shape.m), turned,
      transposed_stride());
  return turned;
}

GemmPlan::GemmPlan(const GemmShape& shape, GemmScratch& scratch, bool native_bf16) {
  ISTHMUS_ASSERT(shape.m > 0 && shape.n > 0 && shape.k > 0);
  ISTHMUS_ASSERT(shape.output == DType::f32 || (shape.input == DType::bf16 && !shape.accumulate));
  omp_set_num_threads(1);  // oneDNN chooses its blocking by the number of threads it sees
  parts_ = std::make_unique<Parts>(shape, scratch.memory(), native_bf16);
}

GemmPlan::~GemmPlan() = default;
GemmPlan::GemmPlan(GemmPlan&&) noexcept = default;
GemmPlan& GemmPlan::operator=(GemmPlan&&) noexcept = default;
const GemmShape& GemmPlan::shape() const { return parts_->shape; }

void GemmPlan::run(ThreadPool& pool, const void* a, const void* b, void* c) const {
  ISTHMUS_ASSERT(pool.workers() <= parts_->scratch->workers.size());
  parts_->multiply(pool, a, b, c);
}

}  // namespace isthmus::kernels
