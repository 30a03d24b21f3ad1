#include "runtime/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "base/counted.h"
#include "runtime/permutation.h"
#include "runtime/sampled_digest.h"

namespace isthmus::runtime {
namespace {

// Samples in which every source has exactly its share: small, so that a short run is mixed as the
// weights say; large enough for weights a thousandfold apart.
constexpr std::uint64_t kMixtureSlots = 4096;

const char* unit_of(TokenWidth width) { return width == TokenWidth::byte ? "byte" : "token"; }

// Of what the samples of this file depend on.
Result<void> identify(const TokenFile& file, double weight, const TokenFormat& format,
                      Documents documents, ByteWriter& identity) {
  const auto bytes = file.tokens() * static_cast<std::uint64_t>(file.width());
  ISTHMUS_TRY(const auto content, sampled_digest(file.file(), bytes));
  identity.put(bytes).put(weight).raw(content.bytes);
  if (file.width() != TokenWidth::byte) identity.put(file.width()).string(format.tokenizer);
  if (file.has_mask()) {
    ISTHMUS_TRY(const auto mask, sampled_digest(*file.mask(), file.tokens()));
    identity.raw(mask.bytes);
  }
  if (documents == Documents::joined) return {};
  identity.string(to_string(documents)).put(file.documents() != nullptr);
  if (file.documents() == nullptr) {
    identity.put(*format.end);
    return {};
  }
  ISTHMUS_TRY(const auto size, file.documents()->size());
  ISTHMUS_TRY(const auto starts, sampled_digest(*file.documents(), size));
  identity.put(size).raw(starts.bytes);
  return {};
}

}  // namespace

Result<TextDataset> TextDataset::open(Disk& disk, const std::vector<TextSource>& sources,
                                      std::int64_t sequence, std::uint64_t seed,
                                      const TokenFormat& format, Documents documents) {
  ISTHMUS_ASSERT(sequence > 0);
  if (sources.empty())
    return Error{ErrorCode::invalid_argument, "data.train names no file to train on"};
  TextDataset dataset(seed);
  dataset.sequence_ = sequence;
  dataset.vocabulary_ = format.vocabulary;
  dataset.documents_ = documents;
  const auto window = static_cast<std::uint64_t>(sequence);
  ByteWriter identity;
  identity.put(seed).put(sequence);
  for (const auto& source : sources) {
    auto file = TokenFile::open(disk, source.path, format);
    if (!file) {
      const auto code = file.error().code;
      return Error{code, "a training text is not there or not readable", std::move(file).error()};
    }
    if (documents == Documents::apart) ISTHMUS_CHECK(file->must_know_documents());
    Source opened{.file = std::move(*file)};
    const auto tokens = opened.file.tokens();
    if (tokens < window + 1)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} has {}, but a sample of sequence {} needs {}; use more "
                               "text or a shorter sequence",
                               source.path, counted(tokens, unit_of(opened.file.width())), sequence,
                               window + 1)};
    // As many windows as fit behind the largest offset, so that all epochs have equally many.
    opened.windows = std::max<std::uint64_t>(1, (tokens - window) / window);
    opened.offsets = std::min(window, tokens - opened.windows * window);
    ISTHMUS_CHECK(identify(opened.file, source.weight, format, documents, identity));
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
                               source.file.path(), kMixtureSlots)};
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

Result<void> TextDataset::read(std::uint64_t sample, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets,
                               std::span<std::int32_t> document_starts) const {
  const bool apart = documents_ == Documents::apart;
  ISTHMUS_ASSERT(tokens.size() == static_cast<std::size_t>(sequence_) &&
                 targets.size() == tokens.size() &&
                 document_starts.size() == (apart ? tokens.size() : 0));
  const Place place = locate(sample);
  const auto& file = sources_[place.source].file;
  ISTHMUS_CHECK(file.read(place.offset, tokens));
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  ISTHMUS_CHECK(file.read(place.offset + tokens.size(), targets.last(1)));
  ISTHMUS_CHECK(file.hide(place.offset + 1, targets));
  return apart ? file.part(place.offset, tokens, document_starts, targets) : Result<void>();
}

std::uint64_t TextDataset::tokens() const {
  std::uint64_t sum = 0;
  for (const auto& source : sources_) sum += source.file.tokens();
  return sum;
}

}  // namespace isthmus::runtime
