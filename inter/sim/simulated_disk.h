// SimulatedDisk: files that remember what was synced. When its process is killed all that was
// written stays readable, and no more durable than it was; when its machine loses power each
// unsynced block and each unsynced name survives or not, by chance. It may also lie about syncing,
// or be full: of a write that it refuses it may have taken a part. Its operations take time, one
// after the other: who calls goes on when they are done, and what is being synced is not yet kept.
// Of what a failed sync should have kept some is lost, as Linux may: pages whose writing failed are
// clean afterwards, so that no later sync writes them unless they are written anew. What is read
// there is the old content at once, as from Btrfs, or the new one for as long as the machine runs,
// as from ext4 and XFS (Rebello et al., Can Applications Recover from fsync Failures?, 2020). Names
// are not lost so: a journal whose writing fails stops its file system. The disk outlives the
// processes that use it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/random.h"

namespace isthmus::inter::sim {

struct DiskFaults {
  bool lying = false;  // sync does nothing
  double failing = 0;  // probability that a write says disk full, after some of its bytes
  // All but full: bytes of the largest write that still fits, and of a larger one what is written.
  std::optional<std::size_t> fits = {};
  // Bytes of all files together: a write that makes them more is done as far as they go.
  std::optional<std::size_t> room = {};
  std::string full_for = {};    // files whose path has this in it take no more than `fits` or
                                // `room`, without these nothing; "": all are alike
  std::string unreadable = {};  // files and folders whose path has this in it; "": none
  bool no_descriptors = false;  // nothing can be opened, no folder listed or synced
};

struct DiskSpeed {
  Nanoseconds operation = 50 * kMicrosecond;  // each one but reading, which memory answers
  Nanoseconds sync = 3 * kMillisecond;        // of a file or folder, besides
  double bytes_per_second = 500e6;            // of what is written
};

class SimulatedDisk final : public Disk {
 public:
  // `clock` outlives it. None: everything is done at once.
  explicit SimulatedDisk(Random random, const Clock* clock = nullptr)
      : random_(random), clock_(clock) {}

  void set_speed(const DiskSpeed& speed) { speed_ = speed; }
  // A job of a worker takes its time: what it asks for begins when the disk is done with what was
  // asked for before. Between jobs everything is done at once, and with it all that jobs have asked
  // for so far.
  void begin_job() {
    in_job_ = clock_ != nullptr;
    asked_ = false;
  }
  // How long from now until the job's last operation is done; 0: it asked for nothing.
  Nanoseconds end_job();

  void set_faults(const DiskFaults& faults) { faults_ = faults; }
  std::size_t used_bytes() const;  // of files that have a name
  // The process is killed: what has begun is done, and what is being synced is not kept yet. Open
  // files and locks are gone.
  void kill_process();
  // The machine loses power, and with it what was not kept.
  void crash();
  // Nothing that is written from now on counts: the process is about to end.
  // What was asked for is done.
  void freeze();
  // A file lost for good, as by a user's hand.
  void lose(const std::string& path);
  // Everything, as by another disk in its place. No process may have it open.
  void wipe() {
    names_.clear();
    durable_names_.clear();
    folder_syncs_.clear();
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
  // What a sync under way will have kept, and from when on.
  struct FileSync {
    Nanoseconds done = 0;
    Bytes bytes;
  };
  struct Inode {
    Bytes current, durable;
    std::set<std::size_t> lost;   // blocks of `current` that a sync failed to write, and are clean
    std::vector<FileSync> syncs;  // in the order of time
    // What is durable once they are done.
    const Bytes& kept() const { return syncs.empty() ? durable : syncs.back().bytes; }
    void settle(Nanoseconds now);
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;
  struct FolderSync {
    Nanoseconds done = 0;
    std::string path;
    Names names;
  };
  class SimulatedFile;
  class SimulatedLock;
  Result<void> may_open(const std::string& path) const;
  Result<void> may_read(const std::string& path) const;
  Result<void> may_write(std::string_view path, std::size_t bytes = 0, std::size_t growth = 0);
  std::size_t part_that_fits(std::string_view path, std::size_t bytes,
                             std::size_t growth);  // of what it refuses
  std::size_t missing_room(std::string_view path, std::size_t growth) const;
  Nanoseconds now() const { return clock_ != nullptr ? clock_->now() : 0; }
  // An operation that changes something begins; `undo`: it has not, if its process ends before.
  // When it is done.
  Nanoseconds begin(Nanoseconds cost, std::function<void()> undo = {});
  Nanoseconds begin_write(std::size_t bytes, std::function<void()> undo);
  void begin_name(const std::string& name);  // of what a name is
  void settle_all();
  void settle_folders(Nanoseconds until);
  void lose_some(Inode& inode);

  Random random_;
  const Clock* clock_;
  DiskSpeed speed_;
  struct Begun {
    Nanoseconds when = 0;
    std::function<void()> undo;
  };
  bool in_job_ = false, asked_ = false;
  Nanoseconds busy_until_ = 0;
  std::deque<Begun> begun_;  // those that may not have begun yet
  DiskFaults faults_;
  bool frozen_ = false;
  Names names_, durable_names_;  // shared with open files
  std::vector<FolderSync> folder_syncs_;
  std::map<std::string, std::weak_ptr<int>> locks_;
  Counters counters_;
};

}  // namespace isthmus::inter::sim
