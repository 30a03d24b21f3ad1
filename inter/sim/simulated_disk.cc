#include "inter/sim/simulated_disk.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::inter::sim {
namespace {

constexpr std::size_t kBlockBytes = 512;

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
    ISTHMUS_CHECK(disk_.may_write(path_, bytes.size()));
    if (inode_->current.size() < offset + bytes.size())
      inode_->current.resize(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(),
              inode_->current.begin() + static_cast<std::ptrdiff_t>(offset));
    inode_->dirty = true;
    return {};
  }
  Result<void> truncate(std::uint64_t bytes) override {
    ISTHMUS_CHECK(disk_.may_write(path_));
    inode_->current.resize(bytes);
    inode_->dirty = true;
    return {};
  }
  Result<std::uint64_t> size() const override { return inode_->current.size(); }
  Result<void> sync() override {
    if (auto allowed = disk_.may_write(path_); !allowed) {
      if (!disk_.frozen_) disk_.lose_some(*inode_);
      return allowed;
    }
    if (disk_.faults_.lying) return {};
    inode_->durable = inode_->current;
    inode_->dirty = false;
    return {};
  }

 private:
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

Result<void> SimulatedDisk::may_write(std::string_view path, std::size_t bytes) {
  if (frozen_) return Error{ErrorCode::io, "the process is crashing"};
  const bool fails = faults_.failing > 0 && random_.chance(faults_.failing);
  const bool full = !faults_.full_for.empty() && path.find(faults_.full_for) != path.npos;
  if (!fails && !full && bytes <= faults_.fits) return {};
  ++counters_.refused_writes;
  return Error{ErrorCode::disk_full, "the simulated disk is full"};
}

// The dirty pages that could not be written are dropped; who reads them again gets the old ones.
void SimulatedDisk::lose_some(Inode& inode) {
  ++counters_.failed_syncs;
  for (std::size_t at = 0; at < inode.current.size(); at += kBlockBytes) {
    if (!random_.chance(0.5)) continue;
    for (std::size_t i = at; i < std::min(at + kBlockBytes, inode.current.size()); ++i)
      inode.current[i] = i < inode.durable.size() ? inode.durable[i] : std::byte{0};
  }
}

void SimulatedDisk::crash() {
  frozen_ = false;
  // Names first: those of folders that were not synced go either way.
  std::map<std::string, std::shared_ptr<Inode>> names = durable_names_;
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
    if (!inode->dirty) continue;
    // Each block reached the platter or did not.
    Bytes after = random_.chance(0.5) ? inode->current : inode->durable;
    for (std::size_t at = 0; at < after.size(); at += kBlockBytes) {
      const auto& source = random_.chance(0.5) ? inode->current : inode->durable;
      for (std::size_t i = at; i < std::min(at + kBlockBytes, after.size()); ++i)
        after[i] = i < source.size() ? source[i] : std::byte{0};
    }
    ++counters_.torn;
    inode->current = after;
    inode->durable = std::move(after);
    inode->dirty = false;
  }
  durable_names_ = names_;
  locks_.clear();
}

void SimulatedDisk::lose(const std::string& path) {
  names_.erase(path);
  durable_names_.erase(path);
}

Result<std::unique_ptr<File>> SimulatedDisk::open(const std::string& path, Open how) {
  if (how == Open::create) {
    ISTHMUS_CHECK(may_write(path));
    names_[path] = std::make_shared<Inode>();
    names_[path]->dirty = true;
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
  names_[to] = found->second;
  names_.erase(from);
  return {};
}

Result<void> SimulatedDisk::remove(const std::string& path) {
  if (frozen_) return Error{ErrorCode::io, "the process is crashing"};
  names_.erase(path);
  return {};
}

Result<bool> SimulatedDisk::exists(const std::string& path) const { return names_.count(path) > 0; }

Result<std::vector<std::string>> SimulatedDisk::list(const std::string& folder) const {
  std::vector<std::string> names;
  const std::string prefix = folder + "/";
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->first.starts_with(prefix);
       ++it)
    if (it->first.find('/', prefix.size()) == std::string::npos)
      names.push_back(it->first.substr(prefix.size()));
  return names;
}

Result<void> SimulatedDisk::sync_folder(const std::string& path) {
  ISTHMUS_CHECK(may_write(path));
  if (faults_.lying) return {};
  const auto in_folder = [&](const std::string& name) { return folder_of(name) == path; };
  std::erase_if(durable_names_, [&](const auto& entry) {
    return in_folder(entry.first) && names_.count(entry.first) == 0;
  });
  for (const auto& [name, inode] : names_)
    if (in_folder(name)) durable_names_[name] = inode;
  return {};
}

Result<std::unique_ptr<DiskLock>> SimulatedDisk::lock(const std::string& path) {
  auto& held = locks_[path];
  if (!held.expired()) return Error{ErrorCode::busy, path + " is locked by another process"};
  auto token = std::make_shared<int>(0);
  held = token;
  return std::unique_ptr<DiskLock>(std::make_unique<SimulatedLock>(std::move(token)));
}

}  // namespace isthmus::inter::sim
