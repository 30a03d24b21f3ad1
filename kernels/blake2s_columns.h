// BLAKE2s-256 (RFC 7693) of sixteen streams at once, into which some bytes are dealt four at a
// time: as secure as BLAKE2s itself, and as many times as fast as a vector has lanes.
//
//   bytes      │ 0…3 │ 4…7 │ … │ 60…63 │
//              │ 64… │ 68… │ … │       │     rows of 64 bytes, the last one filled up with zeros
//   column        0     1    …    15         its digest: BLAKE2s-256 of its rows, 4 bytes each
//
// Different bytes of one length have a column that differs. Lengths and columns are for the caller
// to hash together. Equal on every instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace isthmus::kernels {

inline constexpr std::size_t kBlake2sColumns = 16;
inline constexpr std::size_t kBlake2sBytes = 32;

// The digests, one after another.
std::array<std::byte, kBlake2sColumns * kBlake2sBytes> blake2s_columns(
    std::span<const std::byte> bytes);

}  // namespace isthmus::kernels
