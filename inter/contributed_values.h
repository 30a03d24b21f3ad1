// ContributedValues: the parameters that a site's ranks contribute, where they stand until they are
// coded: nobody copies a model to hand it over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace isthmus::inter {

// Whoever made it learns that all has been read when the last reference goes.
class ContributedValues {
 public:
  virtual ~ContributedValues() = default;
  virtual std::uint64_t size() const = 0;
  // Elements `first`, first + 1, … of the layout, as many as `out` has: in `out`, or where they
  // stand in a row anyway, for as long as this and `out` are there. Any thread. Two looks may find
  // different values where a rank breaks the rules: look once.
  virtual std::span<const float> read(std::uint64_t first, std::span<float> out) const = 0;
};

class ValuesInVector final : public ContributedValues {
 public:
  explicit ValuesInVector(std::vector<float> values) : values_(std::move(values)) {}
  std::uint64_t size() const override { return values_.size(); }
  std::span<const float> read(std::uint64_t first, std::span<float> out) const override {
    return std::span(values_).subspan(first, out.size());
  }

 private:
  const std::vector<float> values_;
};

}  // namespace isthmus::inter
