#include "kernels/gemm.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <dnnl.hpp>
#include <span>
#include <vector>

#include "base/assert.h"
#include "kernels/bf16.h"
#include "kernels/cpu_features.h"
#include "kernels/transpose.h"

namespace isthmus::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
// Measured on CPUs with 1 and 2 MiB of second-level cache: wider tiles fall out of it, narrower
// ones copy their operands too often. Weight gradients have few columns and a long inner side.
constexpr std::int64_t kTileRowsMax = 192;
constexpr std::int64_t kTileColumnsMax = 512;
constexpr std::int64_t kGradientTileColumnsMax = 1024;
// Rows of a whole number of pages apart: a column of them lies in one set of every cache.
constexpr std::int64_t kPageFloats = 1024;
constexpr std::int64_t kTileRowsMin = 48;
constexpr std::int64_t kTransposedElementsMax = 262144;  // of a tile: 1 MiB
constexpr std::int64_t kRowTilesToPackFor =
    3;  // packing b costs about half a tile's own copy of it
constexpr std::int64_t kConvertElements = 32768;  // per task

struct Free {
  void operator()(void* p) const { std::free(p); }
};

class Buffer {
 public:
  void grow(std::size_t bytes) {
    if (bytes <= bytes_) return;
    bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset(std::aligned_alloc(kAlignment, bytes_));
    ISTHMUS_ASSERT(memory_ != nullptr);
  }
  void* data() const { return memory_.get(); }

 private:
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

std::size_t offset_bytes(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

void* advance(const void* p, std::int64_t elements, DType dtype) {
  return const_cast<char*>(static_cast<const char*>(p)) + offset_bytes(elements, dtype);
}

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// How one side of c is cut: equal lengths, the last one shorter.
struct Cut {
  std::int64_t total = 0;
  std::int64_t length = 0;

  std::int64_t pieces() const { return (total + length - 1) / length; }
  std::int64_t first(std::int64_t piece) const { return piece * length; }
  std::int64_t size(std::int64_t piece) const { return std::min(length, total - first(piece)); }
  bool is_last_and_shorter(std::int64_t piece) const { return size(piece) < length; }
};

// At most `longest`, in an even number of pieces where that is more than one, so that two or four
// threads finish together; lengths a multiple of `step`.
Cut cut_evenly(std::int64_t total, std::int64_t longest, std::int64_t step) {
  std::int64_t pieces = (total + longest - 1) / longest;
  if (pieces > 1) pieces += pieces % 2;
  const std::int64_t length = (total + pieces - 1) / pieces;
  return {total, std::min(total, (length + step - 1) / step * step)};
}

void convert_to_float(ThreadPool& pool, const bf16_t* in, std::int64_t count, float* out) {
  pool.parallel_for(static_cast<std::size_t>((count + kConvertElements - 1) / kConvertElements),
                    [&](std::size_t task, std::size_t) {
                      const std::int64_t first = static_cast<std::int64_t>(task) * kConvertElements;
                      const auto size =
                          static_cast<std::size_t>(std::min(kConvertElements, count - first));
                      bf16_to_float({in + first, size}, {out + first, size});
                    });
}

}  // namespace

bool bf16_gemm_is_native() {
  static const bool fast = bf16_matrix_products_are_fast();
  return fast;
}

struct GemmScratch::Memory {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  struct Worker {
    dnnl::stream stream;
    Buffer scratchpad;
    Buffer a_tile;  // transposed
    Buffer c_tile;  // in f32, where bf16 is not native
  };
  std::vector<Worker> workers;
  Buffer a;       // in f32, where bf16 is not native
  Buffer packed;  // b, for the run() that is under way
};

GemmScratch::GemmScratch(std::size_t workers) : memory_(std::make_unique<Memory>()) {
  for (std::size_t i = 0; i < workers; ++i)
    memory_->workers.push_back({dnnl::stream(memory_->engine), {}, {}, {}});
}
GemmScratch::~GemmScratch() = default;

namespace {

// One oneDNN primitive and, per worker, the memory objects that its arguments are set in.
class BoundPrimitive {
 public:
  BoundPrimitive() = default;

  // c = a · b, or c += a · b.
  static BoundPrimitive matmul(GemmScratch::Memory& scratch, const dnnl::memory::desc& a,
                               const dnnl::memory::desc& b, const dnnl::memory::desc& c,
                               bool accumulate) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes,
                                                   scratch.engine);
    BoundPrimitive made;
    made.b_layout_ = description.weights_desc();
    made.bind(scratch, dnnl::matmul(description),
              {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, made.b_layout_}, {DNNL_ARG_DST, c}},
              description.scratchpad_desc());
    return made;
  }

  // Lays a matrix out anew.
  static BoundPrimitive reorder(GemmScratch::Memory& scratch, const dnnl::memory::desc& from,
                                const dnnl::memory::desc& to) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::reorder::primitive_desc description(scratch.engine, from, scratch.engine, to,
                                                    attributes);
    BoundPrimitive made;
    made.bind(scratch, dnnl::reorder(description), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}},
              description.scratchpad_desc());
    return made;
  }

  // The layout oneDNN chose, where it was given the choice.
  const dnnl::memory::desc& b_layout() const { return b_layout_; }

  // Pointers in the order the arguments were given.
  template <std::size_t N>
  void execute(const GemmScratch::Memory& scratch, std::size_t worker,
               const std::array<void*, N>& pointers) const {
    omp_set_num_threads(1);
    const Bound& bound = bound_[worker];
    const auto& memory = scratch.workers[worker];
    for (std::size_t i = 0; i < N; ++i) set_handle(bound.arguments[i].memory, pointers[i]);
    set_handle(bound.arguments[N].memory, memory.scratchpad.data());
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), memory.stream.get(),
                               static_cast<int>(bound.arguments.size()), bound.arguments.data());
    ISTHMUS_ASSERT(status == dnnl_success);
  }

 private:
  struct Bound {
    std::vector<dnnl::memory> memories;  // owners of what `arguments` points to
    std::vector<dnnl_exec_arg_t> arguments;
  };

  static void set_handle(dnnl_memory_t memory, void* pointer) {
    const dnnl_status_t status = dnnl_memory_set_data_handle(memory, pointer);
    ISTHMUS_ASSERT(status == dnnl_success);
  }

  void bind(GemmScratch::Memory& scratch, dnnl::primitive primitive,
            const std::vector<std::pair<int, dnnl::memory::desc>>& arguments,
            const dnnl::memory::desc& scratchpad) {
    primitive_ = std::move(primitive);
    for (auto& worker : scratch.workers) {
      worker.scratchpad.grow(std::max<std::size_t>(scratchpad.get_size(), kAlignment));
      Bound& bound = bound_.emplace_back();
      auto add = [&](int argument, const dnnl::memory::desc& layout) {
        bound.memories.push_back(dnnl::memory(layout, scratch.engine, DNNL_MEMORY_NONE));
        bound.arguments.push_back({argument, bound.memories.back().get()});
      };
      for (const auto& [argument, layout] : arguments) add(argument, layout);
      add(DNNL_ARG_SCRATCHPAD, scratchpad);
    }
  }

  dnnl::primitive primitive_;
  dnnl::memory::desc b_layout_;
  std::vector<Bound> bound_;  // one per worker
};

}  // namespace

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

  dnnl::memory::desc matrix(std::int64_t m, std::int64_t n, DType dtype, std::int64_t row_stride,
                            std::int64_t column_stride) const {
    return {{m, n}, dnnl_type(dtype), {row_stride, column_stride}};
  }
  dnnl::memory::desc a_layout(std::int64_t m) const {
    if (transposes) return matrix(m, shape.k, input, transposed_stride(), 1);
    if (shape.form == GemmForm::tn) return matrix(m, shape.k, input, 1, shape.m);
    return matrix(m, shape.k, input, shape.k, 1);
  }
  dnnl::memory::desc b_layout(std::int64_t n) const {
    return shape.form == GemmForm::nt ? matrix(shape.k, n, shape.input, 1, shape.k)
                                      : matrix(shape.k, n, shape.input, shape.n, 1);
  }

  void make_primitives(bool short_columns);
  void pack(ThreadPool& pool, const void* b, void* packed_b) const;
  void multiply(ThreadPool& pool, const void* a, const void* b, void* c) const;
  void multiply_tile(const void* a, const void* b, void* c, std::int64_t row, std::int64_t column,
                     std::size_t worker) const;
  void* a_tile(const void* a, std::int64_t row, std::size_t worker) const;
  void round_tile(const float* tile, std::int64_t m, std::int64_t n, bf16_t* out) const;

  void* b_piece(const void* b, std::int64_t column) const {
    const std::int64_t n = columns.first(column);
    return advance(b, shape.form == GemmForm::nt ? n * shape.k : n, shape.input);
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
  packs_first = converts || rows.pieces() >= kRowTilesToPackFor;  // packing converts, too

  for (const bool short_columns : {false, true}) make_primitives(short_columns);

  if (packs_first) scratch->packed.grow(packed_bytes());
  if (converts && !transposes) scratch->a.grow(offset_bytes(shape.m * shape.k, DType::f32));
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
    const dnnl::memory::desc c = matrix(m, n, output, rounds() ? n : shape.n, 1);
    tiles[short_rows][short_columns] = BoundPrimitive::matmul(*scratch, a, b, c, shape.accumulate);
    if (packs_first) b = tiles[short_rows][short_columns].b_layout();
  }
  if (!packs_first) return;
  packing[short_columns] = BoundPrimitive::reorder(*scratch, b_layout(n), b);
  const std::size_t bytes = (b.get_size() + kAlignment - 1) / kAlignment * kAlignment;
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
               static_cast<bf16_t*>(advance(c, at, DType::bf16)));
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

void GemmPlan::Parts::round_tile(const float* tile, std::int64_t m, std::int64_t n,
                                 bf16_t* out) const {
  for (std::int64_t i = 0; i < m; ++i)
    float_to_bf16({tile + i * n, static_cast<std::size_t>(n)},
                  {out + i * shape.n, static_cast<std::size_t>(n)});
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
