// The slots of an OuterStore, which are written in turn: outer states, and feedback.
#include <fmt/format.h>

#include <algorithm>

#include "base/aligned_buffer.h"
#include "base/assert.h"
#include "inter/checksum.h"
#include "inter/encoding.h"
#include "inter/outer_store.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kStateMagic = 0x0065746174736d69;     // "imstate\0"
constexpr std::uint64_t kFeedbackMagic = 0x0064656566736d69;  // "imsfeed\0"
constexpr std::uint32_t kStateVersion = 2;
constexpr std::uint32_t kFeedbackVersion = 2;
constexpr std::string_view kDivergedPrefix = "state.diverged-";
constexpr std::uint64_t kHeaderBytes = 4096;  // so that the data can be mapped
std::span<const std::byte> floats(const LargeVector<float>& values) {
  return std::as_bytes(std::span(values));
}
std::span<std::byte> floats(LargeVector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

constexpr std::size_t kStateHeaderBytes = 8 + 4 + 4 + 8 + 32 + 32 + 8 + 32;
constexpr std::size_t kFeedbackHeaderBytes = 8 + 4 + 8 + 32 + 8 + 8 + 16 + 32;

constexpr std::uint64_t momentum_offset(std::uint64_t agreed_bytes) {
  return kHeaderBytes + disk_aligned(agreed_bytes);
}

// Whole blocks from where they stand, which may be where the disk can take them directly.
Result<void> write_blocks(File& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto blocks = bytes.size() / kDiskAlignment * kDiskAlignment;
  ISTHMUS_CHECK(file.write_at(offset, bytes.first(blocks)));
  return file.write_at(offset + blocks, bytes.subspan(blocks));
}

// A slot of `bytes` at most, whose blocks are those that it had: what is whole proves itself, so
// what a crash leaves of two contents is none.
Result<std::unique_ptr<File>> open_to_overwrite(Disk& disk, const std::string& path,
                                                std::uint64_t bytes) {
  ISTHMUS_TRY(auto file, disk.open(path, Disk::Open::overwrite));
  ISTHMUS_TRY(const auto before, file->size());
  if (before > bytes) ISTHMUS_CHECK(file->truncate(bytes));
  return file;
}

}  // namespace

// --- State

Result<std::unique_ptr<StateFile>> OuterStore::begin_state(const OuterState& state,
                                                           const security::Digest& root) {
  ByteWriter header;
  header.put(kStateMagic)
      .put(kStateVersion)
      .put(static_cast<std::uint32_t>(!state.momentum.empty()))
      .put(state.step);
  header.raw(state.record.bytes)
      .raw(root.bytes)
      .put(static_cast<std::uint64_t>(state.agreed.size()));
  ISTHMUS_TRY(auto file, open_to_overwrite(
                             disk_, slot_path(1 - on_disk_.newest_state_slot),
                             momentum_offset(4 * state.agreed.size()) + 4 * state.momentum.size()));
  return std::make_unique<StateFile>(std::move(file), with_checksum(header), state, slice_bytes_,
                                     [this] { return finish_state(); });
}

Result<void> OuterStore::finish_state() {
  ISTHMUS_CHECK(disk_.sync_folder(folder_));
  on_disk_.newest_state_slot = 1 - on_disk_.newest_state_slot;
  return {};
}

// Its slices were synced before it was written.
Result<void> OuterStore::write_state_header_again(int slot) {
  ISTHMUS_TRY(const auto file, disk_.open(slot_path(slot), Disk::Open::update));
  Bytes header(kStateHeaderBytes);
  ISTHMUS_CHECK(file->read_at(0, header));
  ISTHMUS_CHECK(file->write_at(0, header));
  return file->sync();
}

std::uint64_t StateFile::next_slice_bytes() const {
  const auto agreed = 4 * state_.agreed.size();
  const auto end = written_ < agreed ? agreed : agreed + 4 * state_.momentum.size();
  return std::min<std::uint64_t>(end - written_, slice_bytes_);
}

Result<bool> StateFile::write_slice() {
  const auto agreed = floats(state_.agreed), momentum = floats(state_.momentum);
  const auto bytes = next_slice_bytes();
  const auto slice = written_ < agreed.size() ? agreed.subspan(written_, bytes)
                                              : momentum.subspan(written_ - agreed.size(), bytes);
  const auto at = written_ < agreed.size()
                      ? kHeaderBytes + written_
                      : momentum_offset(agreed.size()) + (written_ - agreed.size());
  ISTHMUS_CHECK(write_blocks(*file_, at, slice));
  ISTHMUS_CHECK(file_->sync());
  written_ += bytes;
  if (written_ < agreed.size() + momentum.size()) return true;
  // Last: it says that all of the rest is there.
  ISTHMUS_CHECK(file_->write_at(0, header_));
  ISTHMUS_CHECK(file_->sync());
  ISTHMUS_CHECK(finish_());
  return false;
}

std::string OuterStore::slot_path(int slot) const { return path(fmt::format("state.{}", slot)); }
std::string OuterStore::diverged_path(std::uint64_t step) const {
  return path(fmt::format("{}{}", kDivergedPrefix, step));
}

Result<void> OuterStore::set_newest_state_aside(std::uint64_t step) {
  const auto slot = slot_path(on_disk_.newest_state_slot);
  ISTHMUS_TRY(const bool kept, disk_.exists(diverged_path(step)));
  ISTHMUS_CHECK(kept ? disk_.remove(slot) : disk_.rename(slot, diverged_path(step)));
  // Of earlier steps no rank goes on from it any more, and each is as large as a state.
  ISTHMUS_TRY(const auto names, disk_.list(folder_));
  for (const auto& name : names)
    if (name.starts_with(kDivergedPrefix) && path(name) != diverged_path(step))
      ISTHMUS_CHECK(disk_.remove(path(name)));
  ISTHMUS_CHECK(disk_.sync_folder(folder_));
  on_disk_.newest_state_slot = 1 - on_disk_.newest_state_slot;
  return {};
}

std::optional<LargeVector<float>> OuterStore::read_diverged(const ModelLayout& layout,
                                                            std::uint64_t step) const {
  auto read = read_state_file(layout, diverged_path(step));
  if (!read || read->first.step != step) return std::nullopt;
  return std::move(read->first.agreed);
}

Result<std::optional<OuterStore::StateName>> OuterStore::newest_state(Disk& disk,
                                                                      const std::string& folder) {
  std::optional<StateName> newest;
  for (int slot = 0; slot < 2; ++slot) {
    const auto path = fmt::format("{}/state.{}", folder, slot);
    ISTHMUS_TRY(const bool there, disk.exists(path));
    if (!there) continue;
    ISTHMUS_TRY(const auto file, disk.open(path, Disk::Open::read));
    Bytes header(kStateHeaderBytes);
    ISTHMUS_TRY(const auto size, file->size());
    if (size < header.size()) continue;
    ISTHMUS_CHECK(file->read_at(0, header));
    if (!checks(header)) continue;
    ByteReader in(header);
    in.raw(8 + 4 + 4);
    const auto step = in.get<std::uint64_t>();
    get_digest(in);
    if (!newest || newest->step < step) newest = StateName{step, get_digest(in)};
  }
  return newest;
}

Result<std::pair<OuterState, security::Digest>> OuterStore::read_state_file(
    const ModelLayout& layout, const std::string& name) const {
  ISTHMUS_TRY(const auto file, disk_.open(name, Disk::Open::read));
  Bytes header(kStateHeaderBytes);
  ISTHMUS_CHECK(file->read_at(0, header));
  ByteReader in(header);
  const auto magic = in.get<std::uint64_t>();
  const auto version = in.get<std::uint32_t>();
  const auto momentum = in.get<std::uint32_t>();
  OuterState state;
  state.step = in.get<std::uint64_t>();
  state.record = get_digest(in);
  const auto root = get_digest(in);
  if (!checks(header) || magic != kStateMagic || version != kStateVersion ||
      in.get<std::uint64_t>() != layout.elements())
    return Error{ErrorCode::corrupt, fmt::format("{} is damaged, or of another model", name)};
  state.agreed.resize(layout.elements());
  ISTHMUS_CHECK(file->read_at(kHeaderBytes, floats(state.agreed)));
  if (momentum != 0) {
    state.momentum.resize(layout.elements());
    ISTHMUS_CHECK(file->read_at(momentum_offset(4 * layout.elements()), floats(state.momentum)));
  }
  if (state_root(layout, state) != root)
    return Error{ErrorCode::corrupt, fmt::format("{} does not have its root", name)};
  return std::pair(std::move(state), root);
}

Result<OuterState> OuterStore::read_state(const ModelLayout& layout, std::uint64_t step) const {
  for (int slot = 0; slot < 2; ++slot) {
    auto read = read_state_file(layout, slot_path(slot));
    if (read && read->first.step == step) return std::move(read->first);
  }
  return Error{ErrorCode::not_found, fmt::format("state {} is not kept any more", step)};
}

// --- Feedback

namespace {

std::span<const float> slab_of(std::span<const float> residual, std::uint32_t slab) {
  const auto first = slab * FeedbackFile::kSlabElements;
  return residual.subspan(
      first, std::min<std::uint64_t>(FeedbackFile::kSlabElements, residual.size() - first));
}

kernels::Hash128 hash_of(std::span<const kernels::Hash128> slabs) {
  ByteWriter out;
  for (const auto& hash : slabs) out.put(hash.low).put(hash.high);
  return kernels::leaf_hash(out.view());
}

std::size_t slabs_of(std::uint64_t elements) {
  return (elements + FeedbackFile::kSlabElements - 1) / FeedbackFile::kSlabElements;
}

}  // namespace

FeedbackFile::FeedbackFile(
    std::unique_ptr<File> file, std::uint64_t elements,
    std::function<Result<void>(std::uint64_t step, const security::Digest& root)> finish)
    : file_(std::move(file)),
      elements_(elements),
      finish_(std::move(finish)),
      hashes_(slabs_of(elements)) {}

Result<void> FeedbackFile::write_slab(std::uint32_t slab, std::span<const float> residual) {
  ISTHMUS_ASSERT(residual.size() == elements_);
  const auto bytes = std::as_bytes(slab_of(residual, slab));
  hashes_[slab] = kernels::leaf_hash(bytes);
  return write_blocks(*file_, kHeaderBytes + slab * kSlabElements * sizeof(float), bytes);
}

Result<void> FeedbackFile::finish(std::uint64_t step, const security::Digest& root,
                                  std::uint64_t tokens) {
  const auto hash = hash_of(hashes_);
  ByteWriter header;
  header.put(kFeedbackMagic).put(kFeedbackVersion).put(step).raw(root.bytes).put(tokens);
  header.put(elements_).put(hash.low).put(hash.high);
  ISTHMUS_CHECK(file_->write_at(0, with_checksum(header)));
  ISTHMUS_CHECK(file_->sync());
  return finish_(step, root);
}

Result<std::unique_ptr<FeedbackFile>> OuterStore::begin_feedback(std::uint64_t elements) {
  const int slot = 1 - on_disk_.settled_feedback_slot;
  on_disk_.feedback_names[slot].reset();
  ISTHMUS_TRY(auto file, open_to_overwrite(disk_, path(fmt::format("feedback.{}", slot)),
                                           kHeaderBytes + sizeof(float) * elements));
  return std::make_unique<FeedbackFile>(
      std::move(file), elements,
      [this, slot](std::uint64_t step, const security::Digest& root) -> Result<void> {
        ISTHMUS_CHECK(disk_.sync_folder(folder_));
        on_disk_.feedback_names[slot] = FeedbackName(step, root);
        return {};
      });
}

void OuterStore::settle_feedback(std::uint64_t step, const security::Digest& root) {
  for (int slot = 0; slot < 2; ++slot)
    if (on_disk_.feedback_names[slot] == FeedbackName(step, root))
      on_disk_.settled_feedback_slot = slot;
}

Result<Feedback> OuterStore::read_feedback(int slot) const {
  const auto name = path(fmt::format("feedback.{}", slot));
  ISTHMUS_TRY(const auto file, disk_.open(name, Disk::Open::read));
  Bytes header(kFeedbackHeaderBytes);
  ISTHMUS_CHECK(file->read_at(0, header));
  ByteReader in(header);
  const auto magic = in.get<std::uint64_t>();
  const auto version = in.get<std::uint32_t>();
  Feedback feedback;
  feedback.step = in.get<std::uint64_t>();
  feedback.root = get_digest(in);
  feedback.tokens = in.get<std::uint64_t>();
  const auto elements = in.get<std::uint64_t>();
  kernels::Hash128 hash;
  hash.low = in.get<std::uint64_t>();
  hash.high = in.get<std::uint64_t>();
  ISTHMUS_TRY(const auto size, file->size());
  if (!checks(header) || magic != kFeedbackMagic || version != kFeedbackVersion ||
      elements > size / sizeof(float) || size != kHeaderBytes + 4 * elements)
    return Error{ErrorCode::corrupt, name + " is damaged"};
  feedback.residual.resize(elements);
  ISTHMUS_CHECK(file->read_at(kHeaderBytes, floats(feedback.residual)));
  std::vector<kernels::Hash128> slabs(slabs_of(elements));
  for (std::uint32_t slab = 0; slab < slabs.size(); ++slab)
    slabs[slab] = kernels::leaf_hash(std::as_bytes(slab_of(feedback.residual, slab)));
  if (hash_of(slabs) != hash) return Error{ErrorCode::corrupt, name + " is damaged"};
  return feedback;
}

}  // namespace isthmus::inter
