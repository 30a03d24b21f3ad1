// RankValues: what the ranks of a site contribute, in the memory that they share with the gateway,
// as one model in layout order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "inter/contributed_values.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {

// Where each element of the model stands in the ranks' contribution areas.
class RankPieces {
 public:
  // Of one rank: `count` elements from `canonical` on. In any order; each element of the model
  // once.
  void add(std::uint64_t canonical, std::span<const float> values);
  void keep(std::shared_ptr<SharedMemory> memory) { memory_.push_back(std::move(memory)); }
  // After the last one.
  void sort();

  std::uint64_t elements() const { return elements_; }
  void read(std::uint64_t first, std::span<float> out) const;

 private:
  struct Piece {
    std::uint64_t canonical = 0;
    std::span<const float> values;
  };
  std::vector<Piece> pieces_;
  std::uint64_t elements_ = 0;
  std::vector<std::shared_ptr<SharedMemory>> memory_;  // shared with the ranks that are attached
};

class RankValues final : public ContributedValues {
 public:
  // `read_all` is called once, from any thread, when nobody reads them any more.
  RankValues(std::shared_ptr<const RankPieces> pieces, std::function<void()> read_all)
      : pieces_(std::move(pieces)), read_all_(std::move(read_all)) {}
  ~RankValues() override { read_all_(); }
  RankValues(const RankValues&) = delete;
  RankValues& operator=(const RankValues&) = delete;
  std::uint64_t size() const override { return pieces_->elements(); }
  void read(std::uint64_t first, std::span<float> out) const override { pieces_->read(first, out); }

 private:
  const std::shared_ptr<const RankPieces> pieces_;  // shared with the next contribution
  const std::function<void()> read_all_;
};

}  // namespace isthmus::inter
