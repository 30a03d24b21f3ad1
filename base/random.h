// Random: numbers that are a function of (key, counter), so that any draw can be made again, alone
// and in any order (Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11). Not for secrets: see security/.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace isthmus {

// One block of Philox 4x32-10: the function below everything here.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

class Random {
 public:
  explicit Random(std::uint64_t seed) : key_(seed) {}

  // An independent generator; equal names give equal generators.
  Random split(std::uint64_t name) const;
  Random split(std::string_view name) const;

  // The draw at a position, whatever has been drawn before.
  std::array<std::uint32_t, 4> block(std::uint64_t counter) const;
  std::uint64_t at(std::uint64_t counter) const {
    const auto b = block(counter);
    return (std::uint64_t{b[1]} << 32) | b[0];
  }
  // In [0, 1), 53 bits.
  double uniform_at(std::uint64_t counter) const {
    return static_cast<double>(at(counter) >> 11) * 0x1p-53;
  }
  // Mean 0, variance 1 (Box and Muller).
  double normal_at(std::uint64_t counter) const;

  // The sequence of draws; its position is part of the state that checkpoints keep.
  std::uint64_t next() { return at(position_++); }
  double uniform() { return uniform_at(position_++); }
  double normal() { return normal_at(position_++); }
  std::uint64_t below(std::uint64_t bound);  // uniform, without bias; bound > 0
  bool chance(double probability) { return uniform() < probability; }

  std::uint64_t key() const { return key_; }
  std::uint64_t position() const { return position_; }
  void seek(std::uint64_t position) { position_ = position; }

 private:
  std::uint64_t key_;
  std::uint64_t position_ = 0;
};

}  // namespace isthmus
