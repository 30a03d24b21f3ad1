// PanelProducts: matrix products of known shapes, run panel by panel on all threads of a pool.
// Private to kernels/: what gemm.cc and grouped_gemm.cc have in common.
//
// Each element of a factor is laid out in a panel once. The factor with fewer lines is laid out
// whole before, shared by all threads; of the other one a task takes a piece, lays it out in memory
// of its worker, where it stays in the second-level cache, and lets all shared panels pass by:
//
//                 b: shared             for each shared panel          ┐
//              ┌──┬──┬──┬──┐             for each stretch of k         │ a panel of each in the
//              └──┴──┴──┴──┘               for each panel of the piece ┘ first-level cache
//     a    ┌─┐ ┌───────────┐                 multiply
//    its   ├─┤ │           │ piece of one task
//    pieces├─┤ │           │
//          └─┘ └───────────┘
//
// A long k is worked through in blocks, so that the shared panels take 16 MiB, or 512 units of
// every line where that is more. What is computed does not depend on how a product is cut, but for
// the stretches and blocks of k, whose sums are added to each other in order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/assert.h"
#include "base/large_vector.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/panels.h"

namespace isthmus::kernels {

enum class SharedFactor { a, b };

// c [m, n] = or += a · b. Of no columns or rows there is nothing to do; the sum over no k is 0.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  Factor a, b;
  TileTarget c;
};

// What is multiplied at once, at most.
struct ProductsAtOnce {
  std::size_t count = 0;
  std::int64_t shared_lines = 0;  // of their shared factors together
  std::int64_t k_max = 0;
  std::int64_t results = 0;  // elements, together
  DType output = DType::f32;
};

// Bytes that products work in: of all threads together, and of each.
struct GemmMemory {
  std::size_t shared = 0;  // panels of one factor
  std::size_t sums = 0;
  std::size_t piece = 0;  // panels of the other one: a thread's
  std::size_t tiles = 0;

  // What suffices for these products and for those, one after another.
  void cover(const GemmMemory& other);
  std::size_t bytes(std::size_t workers) const { return shared + sums + workers * (piece + tiles); }
};

struct GemmScratch::Memory {
  struct Worker {
    LargeVector<std::byte> piece;  // panels of a task
    LargeVector<std::byte> tiles;  // sums in f32, of a bf16 result with several stretches of k
  };
  bool counted = false;           // not allocated
  GemmMemory needed;              // by any plan
  LargeVector<std::byte> shared;  // panels of all tasks
  LargeVector<std::byte> sums;    // in f32, of bf16 results with several blocks of k
  std::vector<Worker> workers;
  // Of the run that is under way, per product; never more than their capacity.
  std::vector<Product> products;          // of a grouped one
  std::vector<Product> block;             // what is computed of them at once
  std::vector<std::size_t> tasks_end;     // of its tasks and those of the products before
  std::vector<std::size_t> shared_begin;  // the byte at which its shared panels begin
};

class PanelProducts {
 public:
  // Enlarges `scratch`, which must outlive this.
  PanelProducts(const PanelKernels& kernels, SharedFactor shared, const ProductsAtOnce& products,
                GemmScratch::Memory& scratch);

  // Allocates nothing.
  void run(ThreadPool& pool, std::span<const Product> products) const;

 private:
  std::int64_t blocks(std::int64_t k) const;
  void run_blocks(ThreadPool& pool, std::span<const Product> products, std::int64_t blocks) const;
  void run_block(ThreadPool& pool, std::span<const Product> products) const;
  std::int64_t shared_tasks(const Product& product) const;
  std::int64_t pieces(const Product& product) const;
  void share(const Product& product, std::int64_t task, std::byte* panels) const;
  void run_rows(const Product& product, std::int64_t piece, const std::byte* shared_b,
                GemmScratch::Memory::Worker& worker) const;
  void run_columns(const Product& product, std::int64_t piece, const std::byte* shared_a,
                   GemmScratch::Memory::Worker& worker) const;

  const PanelKernels* kernels_;
  SharedFactor shared_;
  GemmScratch::Memory* scratch_;
  std::int64_t block_units_;  // of k at once
};

}  // namespace isthmus::kernels
