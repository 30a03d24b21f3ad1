#include "inter/model_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

// Leaves are listed, 24 bytes for each 2^18 elements: 100 MB at most.
constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 40;

// The product of the sizes, or 0 when one is not positive or the product is too large.
std::uint64_t checked_elements(const Shape& shape) {
  std::uint64_t n = 1;
  for (const auto size : shape.sizes()) {
    if (size <= 0 || static_cast<std::uint64_t>(size) > kElementsMax / n) return 0;
    n *= static_cast<std::uint64_t>(size);
  }
  return n;
}

// A box is the sum of its corners, each of which stands for all elements from there on, with the
// sign − once for each dimension in which it is the box's far end. Boxes together are the tensor,
// each element once, if and only if the corners that do not cancel are the tensor's own.
struct Corner {
  std::array<std::int64_t, Shape::kRankMax> at{};
  std::int64_t times = 0;
};

void add_corners(const Shape& first, const Shape& count, std::int64_t times,
                 std::vector<Corner>& corners) {
  for (unsigned far = 0; far < 1U << count.rank(); ++far) {
    Corner corner{.at = {}, .times = std::popcount(far) % 2 == 0 ? times : -times};
    for (std::size_t d = 0; d < count.rank(); ++d)
      corner.at[d] = first[d] + ((far >> d & 1) != 0 ? count[d] : 0);
    corners.push_back(corner);
  }
}

bool all_cancel(std::vector<Corner>& corners) {
  std::ranges::sort(corners, {}, &Corner::at);
  for (std::size_t i = 0; i < corners.size();) {
    const auto& at = corners[i].at;
    std::int64_t times = 0;
    for (; i < corners.size() && corners[i].at == at; ++i) times += corners[i].times;
    if (times != 0) return false;
  }
  return true;
}

}  // namespace

Result<ModelLayout> ModelLayout::make(std::vector<TensorInfo> tensors, std::string settings) {
  if (tensors.empty())
    return Error{ErrorCode::invalid_argument, "a model needs at least one tensor"};
  if (tensors.size() > kTensorsMax)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} tensors, at most {} are allowed", tensors.size(), kTensorsMax)};
  if (settings.size() > kSettingsBytesMax)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model's settings take {} bytes; at most {} are allowed",
                             settings.size(), kSettingsBytesMax)};
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  ModelLayout layout;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (tensor.name.empty() || tensor.name.size() > kNameBytesMax)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("a tensor's name has {} bytes; 1 to {} are allowed",
                               tensor.name.size(), kNameBytesMax)};
    if (i > 0 && tensors[i - 1].name == tensor.name)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("two tensors are called {}", tensor.name)};
    const auto elements = checked_elements(tensor.shape);
    if (elements == 0 || tensor.shape.rank() == 0 || layout.elements_ + elements > kElementsMax)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("tensor {} has an impossible shape", tensor.name)};
    layout.offsets_.push_back(layout.elements_);
    layout.elements_ += elements;
    for (std::uint64_t first = 0; first < elements; first += kLeafElements)
      layout.leaves_.push_back({i, first, std::min(kLeafElements, elements - first)});
  }
  layout.tensors_ = std::move(tensors);
  layout.settings_ = std::move(settings);
  return layout;
}

std::vector<std::vector<ElementRange>> ModelLayout::chunks(std::uint32_t fragment,
                                                           std::uint64_t elements_max) const {
  const auto frame =
      std::clamp(elements_max / kFrameMultiple * kFrameMultiple, kFrameMultiple, kFrameElementsMax);
  std::vector<std::vector<ElementRange>> chunks;
  std::uint64_t filled = elements_max;  // the first frame opens the first chunk
  for (std::uint32_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].fragment != fragment) continue;
    const auto elements = tensor_elements(t);
    for (std::uint64_t first = 0; first < elements; first += frame) {
      const auto count = std::min(frame, elements - first);
      if (filled + count > elements_max) {
        chunks.emplace_back();
        filled = 0;
      }
      chunks.back().push_back({t, first, count});
      filled += count;
    }
  }
  return chunks;
}

Result<void> ModelLayout::check_cover(const std::vector<Box>& boxes) const {
  std::vector<std::vector<const Box*>> by_tensor(tensors_.size());
  for (const auto& box : boxes) {
    if (box.tensor >= tensors_.size())
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("a box names tensor {}, the model has {}", box.tensor, tensors_.size())};
    const auto& tensor = tensors_[box.tensor];
    bool fits = box.first.rank() == tensor.shape.rank() && box.count.rank() == tensor.shape.rank();
    for (std::size_t d = 0; fits && d < tensor.shape.rank(); ++d)
      fits = box.first[d] >= 0 && box.count[d] > 0 && box.first[d] < tensor.shape[d] &&
             box.count[d] <= tensor.shape[d] - box.first[d];
    if (!fits)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("a box of {} lies outside the tensor", tensor.name)};
    by_tensor[box.tensor].push_back(&box);
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto& shape = tensors_[t].shape;
    std::int64_t volume = 0;
    std::vector<Corner> corners;
    for (const auto* box : by_tensor[t]) {
      volume += box->count.elements();
      add_corners(box->first, box->count, 1, corners);
    }
    if (volume < shape.elements())
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the boxes cover {} of {} elements of {} at most", volume,
                               shape.elements(), tensors_[t].name)};
    const std::array<std::int64_t, Shape::kRankMax> zeros{};
    add_corners(Shape(std::span(zeros).first(shape.rank())), shape, -1, corners);
    if (!all_cancel(corners))
      return Error{ErrorCode::invalid_argument,
                   fmt::format("two boxes cover the same elements of {}", tensors_[t].name)};
  }
  return {};
}

security::Digest ModelLayout::digest() const {
  ByteWriter bytes;
  encode(bytes);
  return security::blake2b(bytes.view());
}

void ModelLayout::encode(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(tensors_.size()));
  for (const auto& tensor : tensors_) {
    out.string(tensor.name)
        .put(tensor.fragment)
        .put(static_cast<std::uint32_t>(tensor.shape.rank()));
    for (const auto size : tensor.shape.sizes()) out.put(size);
  }
  out.string(settings_);
}

Result<ModelLayout> ModelLayout::decode(ByteReader& in) {
  std::vector<TensorInfo> tensors(in.count(kTensorsMax, 4 + 4 + 4 + 8));
  for (auto& tensor : tensors) {
    tensor.name = in.string(kNameBytesMax);
    tensor.fragment = in.get<std::uint32_t>();
    std::int64_t sizes[Shape::kRankMax];
    const auto rank = in.count(Shape::kRankMax, 8);
    for (std::size_t d = 0; d < rank; ++d) sizes[d] = in.get<std::int64_t>();
    tensor.shape = Shape(std::span<const std::int64_t>(sizes, rank));
  }
  auto settings = in.string(kSettingsBytesMax);
  if (!in.ok()) return Error{ErrorCode::corrupt, "a model layout ends too early"};
  return make(std::move(tensors), std::move(settings));
}

}  // namespace isthmus::inter
