#include "runtime/prepare_journal.h"

#include <algorithm>
#include <utility>

#include "base/byte_stream.h"
#include "base/copy_to.h"

namespace isthmus::runtime {
namespace {

constexpr std::size_t kTaskBytes = 32;
constexpr std::size_t kCheckBytes = 8;  // of an entry's own blake2b
constexpr std::uint64_t kHashedBytes = 1 << 20;

Bytes encode(const PrepareEntry& entry) {
  ByteWriter out;
  const auto& source = entry.source;
  out.put(source.offset).put(source.documents).put(source.lines);
  out.put(source.inside).put(source.ended);
  for (const auto& part : entry.parts)
    out.put(part.documents).put(part.tokens).put(part.targets).put(part.text_bytes);
  for (const auto bytes : entry.file_bytes) out.put(bytes);
  out.raw(entry.added.bytes);
  out.put(entry.whole);
  const auto check = security::blake2b(out.view());
  out.raw(std::span(check.bytes).first(kCheckBytes));
  return out.take();
}

std::uint64_t entry_bytes() {
  static const auto bytes = encode({}).size();
  return bytes;
}

std::optional<PrepareEntry> decode(std::span<const std::byte> bytes) {
  PrepareEntry entry;
  ByteReader in(bytes);
  auto& source = entry.source;
  source.offset = in.get<std::uint64_t>();
  source.documents = in.get<std::uint64_t>();
  source.lines = in.get<std::uint64_t>();
  source.inside = in.get<bool>();
  source.ended = in.get<bool>();
  for (auto& part : entry.parts)
    for (auto* count : {&part.documents, &part.tokens, &part.targets, &part.text_bytes})
      *count = in.get<std::uint64_t>();
  for (auto& size : entry.file_bytes) size = in.get<std::uint64_t>();
  copy_to(in.raw(entry.added.bytes.size()), entry.added.bytes.begin());
  entry.whole = in.get<bool>();
  const auto whole = security::blake2b(bytes.first(bytes.size() - kCheckBytes));
  if (!std::ranges::equal(in.rest(), std::span(whole.bytes).first(kCheckBytes)))
    return std::nullopt;
  return entry;
}

// Adds the bytes of a file from `first` to `last` to the digest; false where it has not so many.
Result<bool> add_range(const File& file, std::uint64_t first, std::uint64_t last,
                       security::Hasher& hasher) {
  ISTHMUS_TRY(const auto size, file.size());
  if (first > last || last > size) return false;
  Bytes block;
  for (auto at = first; at < last; at += block.size()) {
    block.resize(std::min(kHashedBytes, last - at));
    ISTHMUS_CHECK(file.read_at(at, block));
    hasher.update(block);
  }
  return true;
}

}  // namespace

Result<PrepareJournal> PrepareJournal::create(Disk& disk, const std::string& path,
                                              const security::Digest& task) {
  // The file that is there stays: it is what the process has locked.
  ISTHMUS_TRY(auto file, disk.open(path, Disk::Open::overwrite));
  ISTHMUS_CHECK(file->truncate(0));
  ISTHMUS_CHECK(file->write_at(0, task.bytes));
  ISTHMUS_CHECK(file->sync());
  return PrepareJournal(std::move(file));
}

Result<std::optional<PrepareJournal>> PrepareJournal::open(Disk& disk, const std::string& path,
                                                           const security::Digest& task) {
  ISTHMUS_TRY(const bool exists, disk.exists(path));
  if (!exists) return std::optional<PrepareJournal>();
  ISTHMUS_TRY(auto file, disk.open(path, Disk::Open::update));
  ISTHMUS_TRY(const auto size, file->size());
  security::Digest of;
  if (size < kTaskBytes) return std::optional<PrepareJournal>();
  ISTHMUS_CHECK(file->read_at(0, of.bytes));
  if (of != task) return std::optional<PrepareJournal>();
  return std::optional(PrepareJournal(std::move(file)));
}

Result<std::optional<PrepareEntry>> PrepareJournal::whole() const {
  ISTHMUS_TRY(const auto size, file_->size());
  Bytes bytes(entry_bytes());
  if (size < kTaskBytes + bytes.size()) return std::optional<PrepareEntry>();
  ISTHMUS_CHECK(file_->read_at(size - bytes.size(), bytes));
  auto last = decode(bytes);
  if (last && !last->whole) last.reset();
  return last;
}

Result<std::optional<PrepareEntry>> PrepareJournal::agree(
    std::span<File* const, kPreparedFiles> files) {
  ISTHMUS_TRY(const auto size, file_->size());
  std::optional<PrepareEntry> last;
  Bytes bytes(entry_bytes());
  entries_ = 0;
  for (auto at = kTaskBytes; at + bytes.size() <= size; at += bytes.size()) {
    ISTHMUS_CHECK(file_->read_at(at, bytes));
    const auto entry = decode(bytes);
    if (!entry) break;
    security::Hasher hasher;
    bool whole = true;
    for (std::size_t i = 0; i < files.size() && whole; ++i) {
      ISTHMUS_TRY(whole, add_range(*files[i], last ? last->file_bytes[i] : 0, entry->file_bytes[i],
                                   hasher));
    }
    if (!whole || hasher.finish() != entry->added) break;
    last = entry;
    ++entries_;
  }
  ISTHMUS_CHECK(file_->truncate(kTaskBytes + entries_ * bytes.size()));
  for (std::size_t i = 0; i < files.size(); ++i)
    ISTHMUS_CHECK(files[i]->truncate(last ? last->file_bytes[i] : 0));
  return last;
}

Result<void> PrepareJournal::add(const PrepareEntry& entry) {
  ISTHMUS_CHECK(file_->write_at(kTaskBytes + entries_ * entry_bytes(), encode(entry)));
  ++entries_;
  return file_->sync();
}

}  // namespace isthmus::runtime
