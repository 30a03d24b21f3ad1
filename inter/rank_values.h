// The values of a site's ranks, in the memory that they share with the gateway, as one model in
// layout order: RankValues is what they contribute, RankDraft what they will be told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "inter/contributed_values.h"
#include "inter/ranks.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {

// Where each element of the model stands in the ranks' areas of one kind.
class RankPieces {
 public:
  // Of one rank: `count` elements from `canonical` on. In any order; each element of the model
  // once.
  void add(std::uint64_t canonical, std::span<float> values);
  void keep(std::shared_ptr<SharedMemory> memory) { memory_.push_back(std::move(memory)); }
  // After the last one.
  void sort();

  std::uint64_t elements() const { return elements_; }
  // As ContributedValues.
  std::span<const float> read(std::uint64_t first, std::span<float> out) const;
  // Past the caches.
  void write(std::uint64_t first, std::span<const float> values) const;

 private:
  struct Piece {
    std::uint64_t canonical = 0;
    std::span<float> values;
  };
  // Calls with each part of the pieces from `first` on, and where it begins in `count`.
  template <class Body>
  void each_part(std::uint64_t first, std::uint64_t count, const Body& body) const;

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
  std::span<const float> read(std::uint64_t first, std::span<float> out) const override {
    return pieces_->read(first, out);
  }

 private:
  const std::shared_ptr<const RankPieces> pieces_;  // shared with the next contribution
  const std::function<void()> read_all_;
};

class RankDraft final : public StateDraft {
 public:
  explicit RankDraft(std::shared_ptr<const RankPieces> areas) : areas_(std::move(areas)) {}
  void write(std::uint64_t first, std::span<const float> values) override;
  // Waits for who writes; from then on nothing is written.
  void close();

 private:
  std::shared_mutex mutex_;  // writers share it
  bool closed_ = false;
  const std::shared_ptr<const RankPieces> areas_;  // shared with the next draft
};

}  // namespace isthmus::inter
