#include "inter/sim/simulated_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/copy_to.h"

namespace isthmus::inter::sim {
namespace {

constexpr std::size_t kBlockBytes = 512;
constexpr auto kWholeFile = std::numeric_limits<std::uint64_t>::max();

// Its size stays; what `from` does not have is zeros.
void copy_block(const Bytes& from, std::size_t block, Bytes& to) {
  const auto begin = block * kBlockBytes;
  for (auto i = begin; i < std::min(begin + kBlockBytes, to.size()); ++i)
    to[i] = i < from.size() ? from[i] : std::byte{0};
}

}  // namespace

class SimulatedDisk::SimulatedFile final : public File {
 public:
  SimulatedFile(SimulatedDisk& disk, std::string path, std::shared_ptr<Inode> inode)
      : disk_(disk), path_(std::move(path)), inode_(std::move(inode)) {}

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > inode_->current.size() || out.size() > inode_->current.size() - offset)
      return Error{ErrorCode::corrupt, "a file ends too early"};
    std::copy_n(inode_->current.begin() + static_cast<std::ptrdiff_t>(offset), out.size(),
                out.begin());
    return {};
  }
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const auto size = inode_->current.size();
    const auto growth = offset + bytes.size() - std::min(size, offset + bytes.size());
    auto allowed = disk_.may_write(path_, bytes.size(), growth);
    if (!allowed) bytes = bytes.first(disk_.part_that_fits(path_, bytes.size(), growth));
    if (bytes.empty()) return allowed;
    disk_.begin_write(bytes.size(), undo(offset, bytes.size()));
    if (inode_->current.size() < offset + bytes.size())
      inode_->current.resize(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(),
              inode_->current.begin() + static_cast<std::ptrdiff_t>(offset));
    inode_->lost.erase(inode_->lost.lower_bound(offset / kBlockBytes),
                       inode_->lost.upper_bound((offset + bytes.size() - 1) / kBlockBytes));
    return allowed;
  }
  Result<void> truncate(std::uint64_t bytes) override {
    ISTHMUS_CHECK(disk_.may_write(path_));
    disk_.begin(disk_.speed_.operation,
                undo(std::min<std::uint64_t>(bytes, inode_->current.size()), kWholeFile));
    inode_->current.resize(bytes);
    inode_->lost.erase(inode_->lost.lower_bound(bytes / kBlockBytes), inode_->lost.end());
    return {};
  }
  Result<std::uint64_t> size() const override { return inode_->current.size(); }
  Result<void> sync() override {
    const auto done = disk_.begin(disk_.speed_.operation + disk_.speed_.sync);
    if (auto allowed = disk_.may_write(path_); !allowed) {
      if (!disk_.frozen_) disk_.lose_some(*inode_);
      return allowed;
    }
    if (disk_.faults_.lying) return {};
    inode_->settle(disk_.now());
    Bytes bytes = inode_->current;
    for (const auto block : inode_->lost) copy_block(inode_->kept(), block, bytes);
    inode_->syncs.push_back({done, std::move(bytes)});
    inode_->settle(disk_.now());
    return {};
  }

 private:
  // Puts back what is there now.
  std::function<void()> undo(std::uint64_t offset, std::uint64_t bytes) const {
    if (!disk_.in_job_) return {};
    const auto& now = inode_->current;
    const auto begin = std::min<std::uint64_t>(offset, now.size());
    const auto end = begin + std::min<std::uint64_t>(bytes, now.size() - begin);
    return [inode = inode_, begin, size = now.size(), lost = inode_->lost,
            old = Bytes(now.begin() + static_cast<std::ptrdiff_t>(begin),
                        now.begin() + static_cast<std::ptrdiff_t>(end))] {
      inode->current.resize(size);
      inode->lost = lost;
      copy_to(old, inode->current.begin() + static_cast<std::ptrdiff_t>(begin));
    };
  }

  SimulatedDisk& disk_;
  const std::string path_;  // when it was opened
  std::shared_ptr<Inode> inode_;
};

class SimulatedDisk::SimulatedLock final : public DiskLock {
 public:
  explicit SimulatedLock(std::shared_ptr<int> held) : held_(std::move(held)) {}

 private:
  std::shared_ptr<int> held_;  // shared: alive while the lock is
};

void SimulatedDisk::Inode::settle(Nanoseconds now) {
  while (!syncs.empty() && syncs.front().done <= now) {
    durable = std::move(syncs.front().bytes);
    syncs.erase(syncs.begin());
  }
}

Nanoseconds SimulatedDisk::begin(Nanoseconds cost, std::function<void()> undo) {
  if (!in_job_) {
    // Behind what jobs have asked for: nothing overtakes it.
    if (busy_until_ > now()) settle_all();
    return now();
  }
  asked_ = true;
  while (!begun_.empty() && begun_.front().when <= now()) begun_.pop_front();
  const auto when = std::max(busy_until_, now());
  if (undo && when > now()) begun_.push_back({when, std::move(undo)});
  return busy_until_ = when + cost;
}

Nanoseconds SimulatedDisk::begin_write(std::size_t bytes, std::function<void()> undo) {
  return begin(speed_.operation + static_cast<Nanoseconds>(static_cast<double>(bytes) * 1e9 /
                                                           speed_.bytes_per_second),
               std::move(undo));
}

void SimulatedDisk::begin_name(const std::string& name) {
  if (!in_job_) {
    begin(0);
    return;
  }
  const auto found = names_.find(name);
  begin(speed_.operation, [this, name, inode = found == names_.end() ? nullptr : found->second] {
    if (inode)
      names_[name] = inode;
    else
      names_.erase(name);
  });
}

Nanoseconds SimulatedDisk::end_job() {
  in_job_ = false;
  return asked_ ? std::max<Nanoseconds>(0, busy_until_ - now()) : 0;
}

void SimulatedDisk::settle_all() {
  begun_.clear();
  constexpr auto kEver = std::numeric_limits<Nanoseconds>::max();
  settle_folders(kEver);
  for (const auto* names : {&names_, &durable_names_})
    for (const auto& [name, inode] : *names) inode->settle(kEver);
}

void SimulatedDisk::freeze() {
  settle_all();
  frozen_ = true;
}

void SimulatedDisk::settle_folders(Nanoseconds until) {
  while (!folder_syncs_.empty() && folder_syncs_.front().done <= until) {
    auto& sync = folder_syncs_.front();
    std::erase_if(durable_names_,
                  [&](const auto& entry) { return folder_of(entry.first) == sync.path; });
    durable_names_.merge(sync.names);
    folder_syncs_.erase(folder_syncs_.begin());
  }
}

std::size_t SimulatedDisk::used_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, inode] : names_) bytes += inode->current.size();
  return bytes;
}

std::size_t SimulatedDisk::missing_room(std::string_view path, std::size_t growth) const {
  if (!faults_.room || growth == 0 || path.find(faults_.full_for) == path.npos) return 0;
  const auto needed = used_bytes() + growth;
  return needed - std::min(needed, *faults_.room);
}

Result<void> SimulatedDisk::may_write(std::string_view path, std::size_t bytes,
                                      std::size_t growth) {
  if (frozen_) return Error{ErrorCode::io, "the process is crashing"};
  const bool fails = faults_.failing > 0 && random_.chance(faults_.failing);
  const bool limited = faults_.fits || (!faults_.full_for.empty() && !faults_.room);
  const bool full = limited && path.find(faults_.full_for) != path.npos &&
                    (!faults_.fits || bytes > *faults_.fits);
  if (!fails && !full && missing_room(path, growth) == 0) return {};
  ++counters_.refused_writes;
  return Error{ErrorCode::disk_full, "the simulated disk is full"};
}

std::size_t SimulatedDisk::part_that_fits(std::string_view path, std::size_t bytes,
                                          std::size_t growth) {
  if (frozen_) return 0;
  if (faults_.room) return bytes - std::min(bytes, missing_room(path, growth));
  if (faults_.fits) return std::min(*faults_.fits, bytes);
  if (!faults_.full_for.empty()) return 0;
  return random_.below(bytes / kBlockBytes + 1) * kBlockBytes;
}

Result<void> SimulatedDisk::may_open(const std::string& path) const {
  if (!faults_.no_descriptors) return {};
  return Error{ErrorCode::io, path + ": too many open files"};
}

Result<void> SimulatedDisk::may_read(const std::string& path) const {
  if (faults_.unreadable.empty() || path.find(faults_.unreadable) == path.npos) return {};
  return Error{ErrorCode::io, path + ": the simulated device does not answer"};
}

void SimulatedDisk::lose_some(Inode& inode) {
  ++counters_.failed_syncs;
  const bool stays_readable = random_.chance(0.5);
  for (std::size_t block = 0; block * kBlockBytes < inode.current.size(); ++block) {
    if (!random_.chance(0.5)) continue;
    if (stays_readable)
      inode.lost.insert(block);
    else
      copy_block(inode.kept(), block, inode.current);
  }
}

void SimulatedDisk::kill_process() {
  frozen_ = false;
  in_job_ = false;
  settle_folders(now());
  folder_syncs_.clear();
  for (; !begun_.empty(); begun_.pop_back())
    if (begun_.back().when > now()) begun_.back().undo();
  busy_until_ = 0;
  for (const auto* names : {&names_, &durable_names_})
    for (const auto& [path, inode] : *names) {
      inode->settle(now());
      inode->syncs.clear();
    }
  locks_.clear();
}

void SimulatedDisk::crash() {
  kill_process();
  // Names first: those of folders that were not synced go either way.
  Names names = durable_names_;
  for (const auto& [path, inode] : names_) {
    const auto old = durable_names_.find(path);
    if (old != durable_names_.end() && old->second == inode) continue;
    if (random_.chance(0.5))
      names[path] = inode;
    else
      ++counters_.lost_names;
  }
  for (const auto& [path, inode] : durable_names_)
    if (names_.count(path) == 0 && random_.chance(0.5)) names.erase(path);
  names_ = std::move(names);
  for (const auto& [path, inode] : names_) {
    const auto lost = std::exchange(inode->lost, {});
    if (inode->current == inode->durable) continue;
    // Each block reached the platter or did not.
    Bytes after = random_.chance(0.5) ? inode->current : inode->durable;
    for (std::size_t block = 0; block * kBlockBytes < after.size(); ++block) {
      const bool reached = random_.chance(0.5) && !lost.contains(block);
      copy_block(reached ? inode->current : inode->durable, block, after);
    }
    ++counters_.torn;
    inode->current = after;
    inode->durable = std::move(after);
  }
  durable_names_ = names_;
}

void SimulatedDisk::lose(const std::string& path) {
  names_.erase(path);
  durable_names_.erase(path);
  for (auto& sync : folder_syncs_) sync.names.erase(path);
}

Result<std::unique_ptr<File>> SimulatedDisk::open(const std::string& path, Open how) {
  ISTHMUS_CHECK(may_open(path));
  if (how == Open::read) ISTHMUS_CHECK(may_read(path));
  if (how == Open::create || (how == Open::overwrite && names_.count(path) == 0)) {
    ISTHMUS_CHECK(may_write(path));
    begin_name(path);
    names_[path] = std::make_shared<Inode>();
  }
  const auto found = names_.find(path);
  counters_.opened_to_read += how == Open::read;
  if (found == names_.end()) return Error{ErrorCode::not_found, fmt::format("no file {}", path)};
  return std::unique_ptr<File>(std::make_unique<SimulatedFile>(*this, path, found->second));
}

Result<void> SimulatedDisk::rename(const std::string& from, const std::string& to) {
  if (frozen_) return Error{ErrorCode::io, "the process is crashing"};
  const auto found = names_.find(from);
  if (found == names_.end()) return Error{ErrorCode::not_found, fmt::format("no file {}", from)};
  const auto inode = found->second;
  begin_name(to);
  begin_name(from);
  names_[to] = inode;
  names_.erase(from);
  return {};
}

Result<void> SimulatedDisk::remove(const std::string& path) {
  if (frozen_) return Error{ErrorCode::io, "the process is crashing"};
  begin_name(path);
  names_.erase(path);
  return {};
}

Result<bool> SimulatedDisk::exists(const std::string& path) const { return names_.count(path) > 0; }

Result<std::vector<std::string>> SimulatedDisk::list(const std::string& folder) const {
  ISTHMUS_CHECK(may_open(folder));
  ISTHMUS_CHECK(may_read(folder));
  std::vector<std::string> names;
  const std::string prefix = folder + "/";
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->first.starts_with(prefix);
       ++it)
    if (it->first.find('/', prefix.size()) == std::string::npos)
      names.push_back(it->first.substr(prefix.size()));
  return names;
}

Result<void> SimulatedDisk::sync_folder(const std::string& path) {
  ISTHMUS_CHECK(may_open(path));
  ISTHMUS_CHECK(may_write(path));
  if (faults_.lying) return {};
  settle_folders(now());
  FolderSync sync{begin(speed_.operation + speed_.sync), path, {}};
  for (const auto& [name, inode] : names_)
    if (folder_of(name) == path) sync.names.emplace(name, inode);
  folder_syncs_.push_back(std::move(sync));
  settle_folders(now());
  return {};
}

Result<std::unique_ptr<DiskLock>> SimulatedDisk::lock(const std::string& path) {
  ISTHMUS_CHECK(may_open(path));
  auto& held = locks_[path];
  if (!held.expired()) return Error{ErrorCode::busy, path + " is locked by another process"};
  auto token = std::make_shared<int>(0);
  held = token;
  return std::unique_ptr<DiskLock>(std::make_unique<SimulatedLock>(std::move(token)));
}

}  // namespace isthmus::inter::sim
