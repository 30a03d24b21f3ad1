// SimulatedDisk: files that remember what was synced. When its machine crashes, each unsynced block
// and each unsynced name survives or not, by chance; it may also be full, or lie about syncing. A
// sync that fails loses some of what it should have kept, at once, as Linux may: pages whose
// writing failed are clean afterwards, so a later sync that succeeds says nothing about them
// (fsyncgate, 2018). The disk outlives the processes that use it.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/random.h"

namespace isthmus::inter::sim {

struct DiskFaults {
  bool lying = false;  // sync does nothing
  double failing = 0;  // probability that a write says disk full
  // All but full: bytes of the largest write that still fits.
  std::size_t fits = std::numeric_limits<std::size_t>::max();
  std::string full_for = {};  // nothing fits into files whose path has this in it; "": none
};

class SimulatedDisk final : public Disk {
 public:
  explicit SimulatedDisk(Random random) : random_(random) {}

  void set_faults(const DiskFaults& faults) { faults_ = faults; }
  // What a power failure leaves. Open files and locks are gone.
  void crash();
  // Nothing that is written from now on counts: the process is about to crash.
  void freeze() { frozen_ = true; }
  // A file lost for good, as by a user's hand.
  void lose(const std::string& path);
  // Everything, as by another disk in its place. No process may have it open.
  void wipe() {
    names_.clear();
    durable_names_.clear();
  }

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  Result<bool> exists(const std::string& path) const override;
  Result<std::vector<std::string>> list(const std::string& folder) const override;
  Result<void> make_folders(const std::string&) override { return {}; }
  Result<void> sync_folder(const std::string& path) override;
  Result<std::unique_ptr<DiskLock>> lock(const std::string& path) override;

  struct Counters {
    std::uint64_t torn = 0, lost_names = 0, refused_writes = 0, failed_syncs = 0,
                  opened_to_read = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Inode {
    Bytes current, durable;
    bool dirty = false;
  };
  class SimulatedFile;
  class SimulatedLock;
  Result<void> may_write(std::string_view path, std::size_t bytes = 0);
  void lose_some(Inode& inode);

  Random random_;
  DiskFaults faults_;
  bool frozen_ = false;
  std::map<std::string, std::shared_ptr<Inode>> names_, durable_names_;  // shared with open files
  std::map<std::string, std::weak_ptr<int>> locks_;
  Counters counters_;
};

}  // namespace isthmus::inter::sim
