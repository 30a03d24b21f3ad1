// ContributedValues: the parameters that a site's ranks contribute, where they stand until they are
// coded: nobody copies a model to hand it over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/copy_to.h"

namespace isthmus::inter {

// Whoever made it learns that all has been read when the last reference goes.
class ContributedValues {
 public:
  virtual ~ContributedValues() = default;
  virtual std::uint64_t size() const = 0;
  // Elements `first`, first + 1, … of the layout. Any thread. Two calls may give different values
  // where a rank breaks the rules: read once.
  virtual void read(std::uint64_t first, std::span<float> out) const = 0;
};

class ValuesInVector final : public ContributedValues {
 public:
  explicit ValuesInVector(std::vector<float> values) : values_(std::move(values)) {}
  std::uint64_t size() const override { return values_.size(); }
  void read(std::uint64_t first, std::span<float> out) const override {
    copy_to(std::span(values_).subspan(first, out.size()), out.begin());
  }

 private:
  const std::vector<float> values_;
};

}  // namespace isthmus::inter
