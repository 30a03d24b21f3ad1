#include "inter/contribution_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/copy_to.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kFileMagic = 0x33746e6f63736d69;  // "imscont3"
constexpr std::uint32_t kCloseIndex = 0xFFFFFFFF;

Bytes file_head(const Signed& announcement) {
  auto head = ByteWriter().put(kFileMagic).block(announcement.encode()).take();
  head.resize(disk_aligned(head.size()));
  return head;
}

}  // namespace

bool is_whole(const StoredContribution& stored) {
  const auto open = decode_open(stored.announcement.body);
  const auto close = stored.close ? decode_close(stored.close->body) : std::nullopt;
  if (!open || !close || stored.chunks.size() < open->chunks) return false;
  const auto transfer = transfer_of(stored.announcement);
  std::vector<std::optional<security::Digest>> hashes(open->chunks);
  for (const auto& [index, sealed] : stored.chunks)
    if (index < hashes.size() && sealed.size() >= kSealBytes)
      hashes[index] = chunk_hash(transfer, index, sealed.bytes().subspan(kSealBytes));
  std::vector<security::Digest> all;
  for (const auto& hash : hashes) {
    if (!hash) return false;
    all.push_back(*hash);
  }
  return close->transfer == transfer && contribution_root(all) == close->root;
}

// Records of whole blocks, so that the disk can take them from our memory.
Result<void> ContributionFile::add(std::span<const StoredChunk> chunks) {
  constexpr std::size_t kHeadBytes = 8;
  std::size_t bytes = 0;
  for (const auto& [index, block] : chunks) bytes += disk_aligned(kHeadBytes + block.size());
  const auto records = disk_scratch(bytes);
  auto end = records.begin();
  for (const auto& [index, block] : chunks) {
    ByteWriter head;
    head.put(index).put(static_cast<std::uint32_t>(block.size()));
    end = copy_to(block.bytes(), copy_to(head.view(), end));
    const auto padding = disk_aligned(kHeadBytes + block.size()) - (kHeadBytes + block.size());
    end = std::fill_n(end, padding, std::byte{0});
  }
  std::uint64_t at = 0;
  {
    const std::lock_guard lock(mutex_);
    replaced_.reset();  // before others write, too: they may need its room
    at = std::exchange(size_, size_ + bytes);
  }
  auto written = file_->write_at(at, records);
  if (!written) take_back(at, bytes);
  return written;
}

// The part that was written would take the room that less at a time still finds.
void ContributionFile::take_back(std::uint64_t at, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (size_ != at + bytes) return;
  size_ = at;
  (void)file_->truncate(at);  // where that fails, what is written next takes its place
}

Result<void> ContributionFile::add_all(const Contribution& contribution) {
  for (std::uint32_t i = 0; i < contribution.plan().chunks(); ++i) {
    const StoredChunk chunk(i, contribution.sealed(i));
    ISTHMUS_CHECK(add(std::span(&chunk, 1)));
  }
  return {};
}

Result<void> ContributionFile::add_close(const Signed& close) {
  const StoredChunk record(kCloseIndex, close.encode());
  return add(std::span(&record, 1));
}

Result<void> ContributionFile::sync() {
  ISTHMUS_CHECK(file_->sync());
  return disk_.sync_folder(folder_);
}

std::string ContributionStore::path(std::uint64_t step, SiteId site) const {
  return fmt::format("{}/{:08}-{}", folder_, step, site);
}

Result<std::unique_ptr<ContributionFile>> ContributionStore::create(std::uint64_t step,
                                                                    const Signed& announcement) {
  const auto name = path(step, announcement.signer);
  auto before = disk_.open(name, Disk::Open::read);
  auto replaced = before ? std::move(*before) : nullptr;
  ISTHMUS_TRY(auto file, disk_.open(name, Disk::Open::create));
  const auto head = file_head(announcement);
  auto written = file->write_at(0, head);
  if (!written && std::exchange(replaced, nullptr)) written = file->write_at(0, head);
  if (!written) return written.error();
  return std::make_unique<ContributionFile>(disk_, folder_, std::move(file), head.size(),
                                            std::move(replaced));
}

Result<void> ContributionStore::append_close(std::uint64_t step, const Signed& close) {
  ISTHMUS_TRY(auto file, disk_.open(path(step, close.signer), Disk::Open::update));
  ISTHMUS_TRY(const auto size, file->size());
  ContributionFile contribution(disk_, folder_, std::move(file), size);
  ISTHMUS_CHECK(contribution.add_close(close));
  return contribution.sync();
}

Result<std::unique_ptr<ContributionFile>> ContributionStore::rewrite(
    const Contribution& contribution) {
  const auto name = path(contribution.step(), contribution.site());
  const auto temporary = name + ".new";
  ISTHMUS_TRY(auto file, disk_.open(temporary, Disk::Open::create));
  const auto head = file_head(contribution.announcement());
  ISTHMUS_CHECK(file->write_at(0, head));
  auto written = std::make_unique<ContributionFile>(disk_, folder_, std::move(file), head.size());
  ISTHMUS_CHECK(written->add_all(contribution));
  ISTHMUS_CHECK(written->add_close(*contribution.close_message()));
  ISTHMUS_CHECK(written->sync());
  ISTHMUS_CHECK(disk_.rename(temporary, name));
  ISTHMUS_CHECK(disk_.sync_folder(folder_));
  return written;
}

Result<StoredContribution> ContributionStore::read(std::uint64_t step, SiteId site) const {
  const auto name = path(step, site);
  ISTHMUS_TRY(const auto file, disk_.open(name, Disk::Open::read));
  ISTHMUS_TRY(const auto size, file->size());
  Bytes bytes(size);
  ISTHMUS_CHECK(file->read_at(0, bytes));
  const SharedBytes whole(std::move(bytes));
  ByteReader in(whole);
  const auto decode = [](std::span<const std::byte> encoded) {
    ByteReader message(encoded);
    const auto type = message.get<MessageType>();
    return decode_signed(type, message);
  };
  const auto to_next_block = [&] {
    const auto at = size - in.rest().size();
    in.raw(std::min(disk_aligned(at) - at, in.rest().size()));
  };
  if (in.get<std::uint64_t>() != kFileMagic) return Error{ErrorCode::corrupt, name + " is damaged"};
  auto announcement = decode(in.block(kControlMessageBytesMax));
  if (!announcement || announcement->type != MessageType::open)
    return Error{ErrorCode::corrupt, name + " is damaged"};
  StoredContribution stored;
  stored.announcement = std::move(*announcement);
  to_next_block();
  while (!in.rest().empty()) {
    stored.bytes = size - in.rest().size();
    const auto index = in.get<std::uint32_t>();
    const auto block = in.block(kBulkMessageBytesMax);
    if (!in.ok()) return stored;  // torn
    to_next_block();
    if (block.empty()) continue;  // never written, though what follows was: skipped block by block
    if (index != kCloseIndex) {
      stored.chunks.emplace_back(index, whole.part(block));
      continue;
    }
    auto close = decode(block);
    if (!close || close->type != MessageType::close)
      return Error{ErrorCode::corrupt, name + " is damaged"};
    stored.close = std::move(*close);
  }
  stored.bytes = size;
  return stored;
}

Result<std::vector<std::pair<std::uint64_t, SiteId>>> ContributionStore::files() const {
  ISTHMUS_TRY(const auto names, disk_.list(folder_));
  std::vector<std::pair<std::uint64_t, SiteId>> files;
  for (const auto& name : names) {
    std::uint64_t step = 0;
    SiteId site = 0;
    const auto* end = name.data() + name.size();
    const auto dash = std::from_chars(name.data(), end, step);
    if (dash.ec != std::errc() || dash.ptr == end || *dash.ptr != '-') continue;
    if (std::from_chars(dash.ptr + 1, end, site).ptr == end) files.emplace_back(step, site);
  }
  return files;
}

Result<std::uint64_t> ContributionStore::newest() const {
  ISTHMUS_TRY(const auto files, files());
  std::uint64_t newest = 0;
  for (const auto& [step, site] : files) newest = std::max(newest, step);
  return newest;
}

Result<std::vector<SiteId>> ContributionStore::sites(std::uint64_t step) const {
  ISTHMUS_TRY(const auto files, files());
  std::vector<SiteId> sites;
  for (const auto& [of, site] : files)
    if (of == step) sites.push_back(site);
  return sites;
}

Result<std::unique_ptr<ContributionFile>> ContributionStore::go_on_with(std::uint64_t step,
                                                                        SiteId site,
                                                                        std::uint64_t bytes) {
  ISTHMUS_TRY(auto file, disk_.open(path(step, site), Disk::Open::update));
  ISTHMUS_CHECK(file->truncate(bytes));
  return std::make_unique<ContributionFile>(disk_, folder_, std::move(file), bytes);
}

Result<bool> ContributionStore::has(std::uint64_t step, SiteId site) const {
  return disk_.exists(path(step, site));
}

Result<std::size_t> ContributionStore::remove_below(std::uint64_t step,
                                                    std::span<const std::uint64_t> keep_steps,
                                                    SiteId keep_site) {
  ISTHMUS_TRY(const auto names, disk_.list(folder_));
  std::size_t removed = 0;
  for (const auto& name : names) {
    std::uint64_t of = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), of);
    const auto file = folder_ + "/" + name;
    const bool kept =
        std::ranges::find(keep_steps, of) != keep_steps.end() && file == path(of, keep_site);
    if (error != std::errc() || of >= step || kept) continue;
    ISTHMUS_CHECK(disk_.remove(file));
    ++removed;
  }
  return removed;
}

}  // namespace isthmus::inter
