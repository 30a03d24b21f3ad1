// ModelLayout: the tensors of the federated model in canonical form (whole, named, row-major f32,
// in ascending order of name), without a trace of how a site cut them. Everything that sites must
// cut alike is derived from it: leaves of the state root, frames, chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "base/result.h"
#include "base/tensor_view.h"
#include "security/hash.h"

namespace isthmus::inter {

struct TensorInfo {
  std::string name;
  Shape shape;
  std::uint32_t fragment = 0;  // the part of the model that one outer step exchanges
  bool operator==(const TensorInfo&) const = default;
};

// A run of consecutive elements of one tensor.
struct ElementRange {
  std::uint32_t tensor = 0;  // index in the layout
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

// An N-dimensional box of one tensor: what a rank holds of it. A row-parallel slice is strided in
// memory of the whole tensor, but dense in the rank's.
struct Box {
  std::uint32_t tensor = 0;
  Shape first;  // of the tensor's rank
  Shape count;
};

class ModelLayout {
 public:
  static constexpr std::uint64_t kLeafElements = 1 << 18;
  // A frame starts at a multiple of this, so that any cut gives the same codec blocks.
  static constexpr std::uint64_t kFrameMultiple = 256;
  static constexpr std::uint64_t kFrameElementsMax = 1 << 16;
  static constexpr std::size_t kTensorsMax = 1 << 16;
  static constexpr std::size_t kNameBytesMax = 512;
  static constexpr std::size_t kSettingsBytesMax = 400;

  ModelLayout() = default;
  // Sorts by name. `settings`: of the model, what shapes do not say (heads, the base of rotary
  // positions), in one line. Errors: invalid_argument (no tensor, a name twice or too long, an
  // empty shape, too many elements, settings too long).
  static Result<ModelLayout> make(std::vector<TensorInfo> tensors, std::string settings = {});

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::string& settings() const { return settings_; }
  std::uint64_t elements() const { return elements_; }
  // Where the tensor starts when all are laid end to end, as gateways keep them.
  std::uint64_t offset(std::uint32_t tensor) const { return offsets_[tensor]; }
  std::uint64_t offset(const ElementRange& range) const {
    return offsets_[range.tensor] + range.first;
  }
  std::uint64_t tensor_elements(std::uint32_t tensor) const {
    return static_cast<std::uint64_t>(tensors_[tensor].shape.elements());
  }

  // The leaves of the state root: each tensor cut at multiples of kLeafElements, in layout order.
  const std::vector<ElementRange>& leaves() const { return leaves_; }

  // The chunks of a contribution of a fragment: whole frames, at most `elements_max` elements each
  // (at least kFrameMultiple), in layout order; every element of the fragment once.
  std::vector<std::vector<ElementRange>> chunks(std::uint32_t fragment,
                                                std::uint64_t elements_max) const;

  // Errors: invalid_argument, naming the tensor, when some element is covered by no box or by more
  // than one.
  Result<void> check_cover(const std::vector<Box>& boxes) const;

  // Names, shapes, fragments and settings: part of the fingerprint that sites compare.
  security::Digest digest() const;

  void encode(ByteWriter& out) const;
  static Result<ModelLayout> decode(ByteReader& in);

 private:
  std::vector<TensorInfo> tensors_;
  std::string settings_;
  std::vector<std::uint64_t> offsets_;
  std::vector<ElementRange> leaves_;
  std::uint64_t elements_ = 0;
};

}  // namespace isthmus::inter
