#include "kernels/panel_products.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstdint>

#include "kernels/bf16.h"

namespace isthmus::kernels {
namespace {

constexpr std::size_t kUnitBytes = 4;
// A stretch of a panel of a takes 27 KB of the first-level cache.
constexpr std::int64_t kStretchUnits = 576;
// What a task lays out: of a second-level cache of 512 KB or more, half or less.
constexpr std::int64_t kPieceBytes = 384 << 10;
constexpr std::int64_t kPieceRows = 128;
constexpr std::int64_t kPieceColumns = 64;
// What is shared at once, where that leaves blocks of k that are no shorter than the least.
constexpr std::int64_t kSharedBytes = 16 << 20;
constexpr std::int64_t kBlockUnitsMin = 512;
constexpr std::int64_t kBlockUnitsMax = 8192;
constexpr std::int64_t kSharedWork = 1 << 19;  // multiply-adds that several threads are worth
// Of a task that lays out steps of all lines of a shared factor.
constexpr std::int64_t kSharedUnits = 32;

// `total` in `count` parts, as even as can be.
struct Even {
  std::int64_t total = 0, count = 1;
  std::int64_t first(std::int64_t part) const { return part * total / count; }
  std::int64_t size(std::int64_t part) const { return first(part + 1) - first(part); }
};

std::int64_t ceiling(std::int64_t dividend, std::int64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

// An even number of parts, so that two or four threads end together.
std::int64_t even_pieces(std::int64_t total, std::int64_t longest) {
  const auto count = ceiling(total, longest);
  return count > 1 ? count + count % 2 : count;
}

std::int64_t stretch_count(std::int64_t units) {
  return std::max<std::int64_t>(1, ceiling(units, kStretchUnits));
}

bool begins_cache_lines(const TileTarget& c) {
  constexpr std::uintptr_t kLineBytes = 64;
  const auto row_bytes = static_cast<std::uintptr_t>(c.stride) * size_of(c.dtype);
  return reinterpret_cast<std::uintptr_t>(c.data) % kLineBytes == 0 && row_bytes % kLineBytes == 0;
}

// Where the sums of a streak of tiles go: to c, or where that is bf16 and there are several
// stretches to be added up, to f32 beside, rounded in the end.
class Sums {
 public:
  Sums(const TileTarget& c, std::int64_t stretches, std::byte* beside, std::int64_t rows,
       std::int64_t columns)
      : c_(c), rows_(rows), columns_(columns), rounds_(c.dtype == DType::bf16 && stretches > 1) {
    if (rounds_)
      sums_ = {beside, DType::f32, columns, false};
    else
      sums_ = c;
    sums_.streams &= stretches == 1 && begins_cache_lines(c);
  }
  TileTarget tile(std::int64_t stretch, std::int64_t row, std::int64_t column) const {
    auto to = sums_.at(row, column);
    to.adds = to.adds || stretch > 0;
    return to;
  }
  void round() const {
    if (!rounds_) return;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto count = static_cast<std::size_t>(columns_);
      float_to_bf16({static_cast<const float*>(sums_.at(row, 0).data), count},
                    {static_cast<bf16_t*>(c_.at(row, 0).data), count});
    }
  }

 private:
  TileTarget c_, sums_;
  std::int64_t rows_, columns_;
  bool rounds_;
};

std::byte* at_unit(std::byte* p, std::int64_t units) {
  return p + units * static_cast<std::int64_t>(kUnitBytes);
}
const std::byte* at_unit(const std::byte* p, std::int64_t units) {
  return p + units * static_cast<std::int64_t>(kUnitBytes);
}

// Of k at once.
std::int64_t units_of_block(const PanelKernels& kernels, const ProductsAtOnce& products) {
  const auto line_bytes = filled(products.shared_lines) * static_cast<std::int64_t>(kUnitBytes);
  return std::min(kernels.units(products.k_max),
                  std::clamp(kSharedBytes / line_bytes, kBlockUnitsMin, kBlockUnitsMax));
}

GemmMemory memory_of(const PanelKernels& kernels, const ProductsAtOnce& products) {
  const auto bytes = [](std::int64_t values) {
    return static_cast<std::size_t>(values) * kUnitBytes;
  };
  const auto lines = filled(products.shared_lines);
  const auto units = units_of_block(kernels, products);
  const bool several = kernels.units(products.k_max) > units;
  const bool is_bf16 = products.output == DType::bf16;
  return {.shared = bytes(lines * units),
          .sums = is_bf16 && several ? bytes(products.results) : 0,
          .piece = std::max<std::size_t>(kPieceBytes, bytes(kPanelColumns * units)),
          .tiles = is_bf16 && stretch_count(units) > 1
                       ? bytes(std::max(kPieceRows * kPanelColumns, kPanelRows * kPieceColumns))
                       : 0};
}

PanelLayout layout_of_a(const PanelKernels& kernels, std::int64_t rows, std::int64_t k) {
  return {rows, kPanelRows, false, kernels.units(k), 0, k};
}
PanelLayout layout_of_b(const PanelKernels& kernels, std::int64_t columns, std::int64_t k) {
  return {columns, kPanelColumns, true, kernels.units(k), 0, k};
}

}  // namespace

GemmScratch::GemmScratch(std::size_t workers, bool counted) : memory_(std::make_unique<Memory>()) {
  memory_->workers.resize(workers);
  memory_->counted = counted;
}
GemmScratch::~GemmScratch() = default;

std::size_t GemmScratch::bytes() const { return memory_->needed.bytes(memory_->workers.size()); }

void GemmMemory::cover(const GemmMemory& other) {
  shared = std::max(shared, other.shared);
  sums = std::max(sums, other.sums);
  piece = std::max(piece, other.piece);
  tiles = std::max(tiles, other.tiles);
}

PanelProducts::PanelProducts(const PanelKernels& kernels, SharedFactor shared,
                             const ProductsAtOnce& products, GemmScratch::Memory& scratch)
    : kernels_(&kernels),
      shared_(shared),
      scratch_(&scratch),
      block_units_(units_of_block(kernels, products)) {
  scratch.products.reserve(products.count);
  scratch.block.reserve(products.count);
  scratch.tasks_end.reserve(products.count);
  scratch.shared_begin.reserve(products.count);
  const auto grow = [](LargeVector<std::byte>& memory, std::size_t size) {
    if (memory.size() < size) memory = LargeVector<std::byte>(size);
  };
  scratch.needed.cover(memory_of(kernels, products));
  if (scratch.counted) return;
  grow(scratch.shared, scratch.needed.shared);
  grow(scratch.sums, scratch.needed.sums);
  for (auto& worker : scratch.workers) {
    grow(worker.piece, scratch.needed.piece);
    grow(worker.tiles, scratch.needed.tiles);
  }
}

std::int64_t PanelProducts::blocks(std::int64_t k) const {
  return std::max<std::int64_t>(1, ceiling(kernels_->units(k), block_units_));
}

// A factor whose lines lie along k is shared panel by panel, another one some steps at a time, so
// that either is read as it lies.
std::int64_t PanelProducts::shared_tasks(const Product& product) const {
  const bool is_a = shared_ == SharedFactor::a;
  if (!(is_a ? product.a : product.b).lies_along_inner())
    return ceiling(kernels_->units(product.k), kSharedUnits);
  return is_a ? ceiling(product.m, kPanelRows) : ceiling(product.n, kPanelColumns);
}

// Lines of the other factor that a task lays out.
std::int64_t PanelProducts::pieces(const Product& product) const {
  const auto units = std::max<std::int64_t>(1, kernels_->units(product.k));
  const auto fitting = kPieceBytes / (units * static_cast<std::int64_t>(kUnitBytes));
  if (shared_ == SharedFactor::a) {
    const auto panels =
        std::clamp<std::int64_t>(fitting / kPanelColumns, 1, kPieceColumns / kPanelColumns);
    return even_pieces(ceiling(product.n, kPanelColumns), panels);
  }
  return even_pieces(product.m, std::clamp(fitting, kPanelRows, kPieceRows));
}

void PanelProducts::share(const Product& product, std::int64_t task, std::byte* panels) const {
  const bool is_a = shared_ == SharedFactor::a;
  auto factor = is_a ? product.a : product.b;
  auto layout = is_a ? layout_of_a(*kernels_, product.m, product.k)
                     : layout_of_b(*kernels_, product.n, product.k);
  if (factor.lies_along_inner()) {
    const auto line = task * layout.width;
    factor = factor.from_line(line);
    layout.lines = layout.lines_of(task);
    panels = at_unit(panels, line * layout.units);
  } else {
    const auto steps = kSharedUnits * kernels_->unit_elements;
    layout.first_step = task * steps;
    layout.end_step = std::min(product.k, layout.first_step + steps);
  }
  kernels_->pack(factor, layout, panels);
}

void PanelProducts::run_rows(const Product& product, std::int64_t piece, const std::byte* shared_b,
                             GemmScratch::Memory::Worker& worker) const {
  const auto units = kernels_->units(product.k);
  const Even all{product.m, pieces(product)};
  const auto first_row = all.first(piece), rows = all.size(piece);
  auto* own = worker.piece.data();
  kernels_->pack(product.a.from_line(first_row), layout_of_a(*kernels_, rows, product.k), own);
  const Even stretches{units, stretch_count(units)};
  for (std::int64_t column = 0; column < product.n; column += kPanelColumns) {
    const auto columns = std::min(kPanelColumns, product.n - column);
    const Sums sums(product.c.at(first_row, column), stretches.count, worker.tiles.data(), rows,
                    columns);
    const auto* b = at_unit(shared_b, column * units);
    for (std::int64_t s = 0; s < stretches.count; ++s)
      for (std::int64_t row = 0; row < rows; row += kPanelRows) {
        const auto height = std::min(kPanelRows, rows - row);
        kernels_->multiply(
            stretches.size(s), at_unit(own, row * units + stretches.first(s) * height), height,
            at_unit(b, stretches.first(s) * kPanelColumns), columns, sums.tile(s, row, 0));
      }
    sums.round();
  }
  if (product.c.streams) hwy::FlushStream();
}

void PanelProducts::run_columns(const Product& product, std::int64_t piece,
                                const std::byte* shared_a,
                                GemmScratch::Memory::Worker& worker) const {
  const auto units = kernels_->units(product.k);
  const Even all{ceiling(product.n, kPanelColumns), pieces(product)};
  const auto first = all.first(piece), panels = all.size(piece);
  const auto first_column = first * kPanelColumns;
  const auto columns = std::min(panels * kPanelColumns, product.n - first_column);
  auto* own = worker.piece.data();
  kernels_->pack(product.b.from_line(first_column), layout_of_b(*kernels_, columns, product.k),
                 own);
  const Even stretches{units, stretch_count(units)};
  for (std::int64_t row = 0; row < product.m; row += kPanelRows) {
    const auto height = std::min(kPanelRows, product.m - row);
    const Sums sums(product.c.at(row, first_column), stretches.count, worker.tiles.data(), height,
                    columns);
    const auto* a = at_unit(shared_a, row * units);
    for (std::int64_t s = 0; s < stretches.count; ++s)
      for (std::int64_t column = 0; column < columns; column += kPanelColumns)
        kernels_->multiply(stretches.size(s), at_unit(a, stretches.first(s) * height), height,
                           at_unit(own, column * units + stretches.first(s) * kPanelColumns),
                           std::min(kPanelColumns, columns - column), sums.tile(s, 0, column));
    sums.round();
  }
  if (product.c.streams) hwy::FlushStream();
}

void PanelProducts::run(ThreadPool& pool, std::span<const Product> products) const {
  std::int64_t most = 1;
  for (const auto& product : products) most = std::max(most, blocks(product.k));
  if (most > 1)
    run_blocks(pool, products, most);
  else
    run_block(pool, products);
}

void PanelProducts::run_blocks(ThreadPool& pool, std::span<const Product> products,
                               std::int64_t blocks) const {
  auto& block = scratch_->block;
  const auto steps = block_units_ * kernels_->unit_elements;
  const bool rounds = products.front().c.dtype == DType::bf16;
  auto* const sums = reinterpret_cast<float*>(scratch_->sums.data());
  for (std::int64_t i = 0; i < blocks; ++i) {
    block.clear();
    std::int64_t results = 0;
    for (const auto& product : products) {
      const auto first = i * steps;
      Product& part = block.emplace_back(product);
      if (rounds) part.c = {sums + results, DType::f32, product.n, false};
      part.c.streams = false;  // the next block adds to it
      results += product.m * product.n;
      if (i == 0) {
        part.k = std::min(part.k, steps);
        continue;
      }
      part.k = std::min(part.k - first, steps);
      part.c.adds = true;
      if (part.k <= 0) {
        part.m = part.k = 0;  // it has ended
        continue;
      }
      part.a = part.a.from_inner(first);
      part.b = part.b.from_inner(first);
    }
    run_block(pool, block);
  }
  if (!rounds) return;
  const float* from = sums;
  for (const auto& product : products) {
    const auto width = static_cast<std::size_t>(product.n);
    pool.parallel_for(static_cast<std::size_t>(product.m), [&](std::size_t row, std::size_t) {
      const auto to = product.c.at(static_cast<std::int64_t>(row), 0);
      float_to_bf16({from + row * width, width}, {static_cast<bf16_t*>(to.data), width});
    });
    from += product.m * product.n;
  }
}

void PanelProducts::run_block(ThreadPool& pool, std::span<const Product> products) const {
  std::int64_t work = 0;  // multiply-adds
  for (const auto& product : products) work += product.m * product.n * product.k;
  // Other threads would be woken for less than it takes to wake them.
  const auto for_tasks = [&](std::size_t count, const auto& body) {
    if (work >= kSharedWork) return pool.parallel_for(count, body);
    for (std::size_t task = 0; task < count; ++task) body(task, 0);
  };
  auto& ends = scratch_->tasks_end;
  auto& begins = scratch_->shared_begin;
  const auto list = [&](const auto& tasks_of) {
    ends.clear();
    std::size_t tasks = 0;
    for (const auto& product : products) {
      if (product.m > 0 && product.n > 0) tasks += static_cast<std::size_t>(tasks_of(product));
      ends.push_back(tasks);
    }
    return tasks;
  };
  // Calls body(product's number, task of that product).
  const auto find = [&](std::size_t task, const auto& body) {
    const auto product =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), task) - ends.begin());
    body(product, static_cast<std::int64_t>(task - (product == 0 ? 0 : ends[product - 1])));
  };

  const auto panels = list([&](const Product& product) { return shared_tasks(product); });
  begins.clear();
  std::size_t bytes = 0;
  for (const auto& product : products) {
    begins.push_back(bytes);
    const auto lines = shared_ == SharedFactor::a ? product.m : filled(product.n);
    bytes += static_cast<std::size_t>(lines * kernels_->units(product.k)) * kUnitBytes;
  }
  ISTHMUS_ASSERT(bytes <= scratch_->shared.size());
  for_tasks(panels, [&](std::size_t task, std::size_t) {
    find(task, [&](std::size_t i, std::int64_t panel) {
      share(products[i], panel, scratch_->shared.data() + begins[i]);
    });
  });

  const auto tasks = list([&](const Product& product) { return pieces(product); });
  for_tasks(tasks, [&](std::size_t task, std::size_t worker) {
    find(task, [&](std::size_t i, std::int64_t piece) {
      const auto* shared = scratch_->shared.data() + begins[i];
      if (shared_ == SharedFactor::a)
        run_columns(products[i], piece, shared, scratch_->workers[worker]);
      else
        run_rows(products[i], piece, shared, scratch_->workers[worker]);
    });
  });
}

}  // namespace isthmus::kernels
