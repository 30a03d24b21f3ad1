#include "runtime/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "base/counted.h"
#include "runtime/permutation.h"

namespace isthmus::runtime {
namespace {

// Samples in which every source has exactly its share: small, so that a short run is mixed as the
// weights say; large enough for weights a thousandfold apart.
constexpr std::uint64_t kMixtureSlots = 4096;

// What tells an edited text from the one it was: all of a small file, of a large one 64 blocks
// spread over it.
Result<security::Digest> content_of(const File& file, std::uint64_t bytes) {
  constexpr std::uint64_t kBlocks = 64, kBlockBytes = 1 << 16;
  const auto step = std::max(kBlockBytes, bytes / kBlocks);
  security::Hasher hasher;
  Bytes block;
  for (std::uint64_t at = 0; at < bytes; at += step) {
    block.resize(std::min(kBlockBytes, bytes - at));
    ISTHMUS_CHECK(file.read_at(at, block));
    hasher.update(block);
  }
  return hasher.finish();
}

}  // namespace

Result<TextDataset> TextDataset::open(Disk& disk, const std::vector<TextSource>& sources,
                                      std::int64_t sequence, std::uint64_t seed) {
  ISTHMUS_ASSERT(sequence > 0);
  if (sources.empty())
    return Error{ErrorCode::invalid_argument, "data.train names no file to train on"};
  TextDataset dataset(seed);
  dataset.sequence_ = sequence;
  const auto window = static_cast<std::uint64_t>(sequence);
  ByteWriter identity;
  identity.put(seed).put(sequence);
  for (const auto& source : sources) {
    Source opened;
    opened.path = source.path;
    auto file = disk.open(source.path, Disk::Open::read);
    if (!file)
      return Error{file.error().code, "a training text is not there or not readable",
                   std::move(file).error()};
    opened.file = std::move(*file);
    ISTHMUS_TRY(opened.bytes, opened.file->size());
    if (opened.bytes < window + 1)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} has {}, but a sample of sequence {} needs {}; use more "
                               "text or a shorter sequence",
                               source.path, counted(opened.bytes, "byte"), sequence, window + 1)};
    // As many windows as fit behind the largest offset, so that all epochs have equally many.
    opened.windows = std::max<std::uint64_t>(1, (opened.bytes - window) / window);
    opened.offsets = std::min(window, opened.bytes - opened.windows * window);
    ISTHMUS_TRY(const auto content, content_of(*opened.file, opened.bytes));
    identity.put(opened.bytes).put(source.weight).raw(content.bytes);
    dataset.sources_.push_back(std::move(opened));
  }
  ISTHMUS_CHECK(dataset.share_slots(sources));
  dataset.mix_slots();
  dataset.digest_ = security::blake2b(identity.view());
  return dataset;
}

// Each source's whole number of slots in a block: its share rounded down, the rest to the largest
// remainders, the first of equals.
Result<void> TextDataset::share_slots(const std::vector<TextSource>& sources) {
  double total = 0;
  for (const auto& source : sources) {
    if (!(source.weight > 0) || !std::isfinite(source.weight))
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the weight of {} is {}: it must be positive; leave a file out to "
                               "not train on it",
                               source.path, source.weight)};
    total += source.weight;
  }
  std::vector<double> remainders;
  std::uint64_t given = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double share = sources[i].weight / total * static_cast<double>(kMixtureSlots);
    sources_[i].slots = static_cast<std::uint64_t>(share);
    remainders.push_back(share - std::floor(share));
    given += sources_[i].slots;
  }
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; given < kMixtureSlots; ++i, ++given)
    ++sources_[order[i % order.size()]].slots;
  for (const auto& source : sources_)
    if (source.slots == 0)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the weight of {} is less than 1/{} of all weights, too little to "
                               "ever be drawn; raise it or leave the file out",
                               source.path, kMixtureSlots)};
  return {};
}

// Numbering a source's slots in the order they come up makes its samples come in order too: an
// epoch ends before the next begins.
void TextDataset::mix_slots() {
  std::vector<std::uint32_t> source_of;
  for (std::uint32_t i = 0; i < sources_.size(); ++i)
    source_of.insert(source_of.end(), sources_[i].slots, i);
  std::vector<std::uint32_t> seen(sources_.size(), 0);
  const Permutation shuffled(kMixtureSlots, random_.split("mixture"));
  for (std::uint64_t slot = 0; slot < kMixtureSlots; ++slot) {
    const auto source = source_of[shuffled.at(slot)];
    mixture_.push_back({source, seen[source]++});
  }
}

TextDataset::Place TextDataset::locate(std::uint64_t sample) const {
  const Slot& slot = mixture_[sample % kMixtureSlots];
  const Source& source = sources_[slot.source];
  const std::uint64_t nth = sample / kMixtureSlots * source.slots + slot.nth;
  const std::uint64_t epoch = nth / source.windows;
  const Random of_epoch = random_.split("epoch").split(slot.source).split(epoch);
  const std::uint64_t window = Permutation(source.windows, of_epoch).at(nth % source.windows);
  const std::uint64_t offset = of_epoch.split("offset").below(source.offsets);
  return {slot.source, epoch, offset + window * static_cast<std::uint64_t>(sequence_)};
}

Result<void> TextDataset::read(std::uint64_t sample, std::span<std::int32_t> out) const {
  ISTHMUS_ASSERT(out.size() == static_cast<std::size_t>(sequence_) + 1);
  const Place place = locate(sample);
  // The bytes go to the end of `out` and are widened from its front: no buffer of our own.
  const auto bytes = std::as_writable_bytes(out).last(out.size());
  if (auto status = sources_[place.source].file->read_at(place.offset, bytes); !status)
    return Error{status.error().code,
                 fmt::format("{} changed while it is trained on; put it back and start again",
                             sources_[place.source].path),
                 std::move(status).error()};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::to_integer<std::int32_t>(bytes[i]);
  return {};
}

std::uint64_t TextDataset::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& source : sources_) sum += source.bytes;
  return sum;
}

}  // namespace isthmus::runtime
