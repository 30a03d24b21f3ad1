// Sum of squares in f64 over a fixed tree: equal bits on every instruction set and thread count.
//
// Elements are cut into blocks of 65,536. Within a block, 16 sums run side by side (sum j takes
// elements j, j+16, j+32, …) and are then folded: 8 onto 8, 4 onto 4, 2 onto 2, 1 onto 1. Blocks
// are added in order, from 0.0.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"

namespace isthmus::kernels {

constexpr std::size_t kSumOfSquaresBlock = 65536;

// Doubles of scratch the pool version needs.
constexpr std::size_t sum_of_squares_blocks(std::size_t elements) {
  return (elements + kSumOfSquaresBlock - 1) / kSumOfSquaresBlock;
}

double sum_of_squares(std::span<const float> x);
double sum_of_squares(ThreadPool& pool, std::span<const float> x, std::span<double> scratch);

}  // namespace isthmus::kernels
