// ContributionStore: contributions on disk, a site's own and those that it received, each in a file
// that grows as it arrives (PROTOCOL.md, "Files", has the format). A file is whole, or torn at its
// end and recognisably so.
//
// Calls block; those with much data are made on workers.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/disk.h"
#include "inter/contribution.h"
#include "inter/messages.h"

namespace isthmus::inter {

using StoredChunk = std::pair<std::uint32_t, SharedBytes>;  // index, sealed

struct StoredContribution {
  Signed announcement;
  std::vector<StoredChunk> chunks;
  std::optional<Signed> close;
  std::uint64_t bytes = 0;  // of the file, as far as it is whole
};

// Its close is here, and every chunk that it means.
bool is_whole(const StoredContribution& stored);

// One contribution, written as it arrives. Any thread; chunks in any order.
class ContributionFile {
 public:
  // `replaced`: the file that this one takes the place of. Whoever closes it last waits for the
  // file system to free its blocks: the first write does, which is a worker's.
  ContributionFile(Disk& disk, std::string folder, std::unique_ptr<File> file, std::uint64_t size,
                   std::unique_ptr<File> replaced = nullptr)
      : disk_(disk),
        folder_(std::move(folder)),
        file_(std::move(file)),
        replaced_(std::move(replaced)),
        size_(size) {}
  // With one write, which costs far less than one for each. Of what does not fit on the disk
  // nothing stays, unless something else is being written behind it.
  Result<void> add(std::span<const StoredChunk> chunks);
  Result<void> add_all(const Contribution& contribution);
  // Of several the last one counts.
  Result<void> add_close(const Signed& close);
  // After a failure the file cannot be trusted any more: make a new one.
  Result<void> sync();

 private:
  void take_back(std::uint64_t at, std::uint64_t bytes);

  Disk& disk_;
  const std::string folder_;
  std::unique_ptr<File> file_;
  std::mutex mutex_;  // guards what follows
  std::unique_ptr<File> replaced_;
  std::uint64_t size_;
};

class ContributionStore {
 public:
  ContributionStore(Disk& disk, std::string folder) : disk_(disk), folder_(std::move(folder)) {}
  const std::string& folder() const { return folder_; }

  // A new file, also where one was. Its name is durable with its first sync(). The gateway calls it
  // from its loop, so that an announcement is taken or refused at once: it takes a quarter of a
  // millisecond (ext4; 1.1 ms at most in 400, while another process synced 64 MiB again and again).
  Result<std::unique_ptr<ContributionFile>> create(std::uint64_t step, const Signed& announcement);
  // Adds a close to a file from before a restart.
  Result<void> append_close(std::uint64_t step, const Signed& close);
  // not_found when it is not there; what is torn at its end is left out.
  Result<StoredContribution> read(std::uint64_t step, SiteId site) const;
  // The newest step to which a contribution is here, 0 for none; and the sites whose are, whole or
  // not.
  Result<std::uint64_t> newest() const;
  Result<std::vector<SiteId>> sites(std::uint64_t step) const;
  // Goes on with a file from before a restart after its first `bytes`, which are whole.
  Result<std::unique_ptr<ContributionFile>> go_on_with(std::uint64_t step, SiteId site,
                                                       std::uint64_t bytes);
  // Writes a whole one once more, in place of the file that it was read from: what was read may be
  // in the system's cache alone, if its sync failed.
  Result<std::unique_ptr<ContributionFile>> rewrite(const Contribution& contribution);
  Result<bool> has(std::uint64_t step, SiteId site) const;
  // Removes those of steps below, but for those of a site to some steps (its own, that feedback
  // refers to). Returns how many.
  Result<std::size_t> remove_below(std::uint64_t step, std::span<const std::uint64_t> keep_steps,
                                   SiteId keep_site);

 private:
  std::string path(std::uint64_t step, SiteId site) const;
  Result<std::vector<std::pair<std::uint64_t, SiteId>>> files() const;

  Disk& disk_;
  const std::string folder_;
};

}  // namespace isthmus::inter
