// OuterStore: what a gateway must not forget, on disk (PROTOCOL.md, "Files", has the formats): its
// boot counter, the run, the decided records, its vote, two slots of outer state, the feedback, and
// contributions (contribution_store.h). Every file is complete or recognisably not.
//
// What a start reads may be in the system's cache alone: the process before was killed before it
// had synced it, or the sync failed, and then no later one writes it. So load() writes again what
// is small, syncs the folder, and only then is anything said, or written over, on account of it.
// What is large was durable before something small was written that vouches for it: a state before
// its header, a feedback before the close of its contribution. Contributions are written anew where
// they are taken up (Exchange::restore).
//
// Calls block; those with much data are made on workers. One at a time for each kind of file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/large_vector.h"
#include "inter/agreement.h"
#include "inter/contribution_store.h"
#include "inter/outer_state.h"

namespace isthmus::inter {

// Until a disk that refused a write is asked again.
inline constexpr Nanoseconds kRetryDisk = 5 * kSecond;

// What stays at a site of its contribution to `step`: the part that coding cut off. It becomes the
// next contribution's feedback: alone when the record names the contribution, else with the decoded
// contribution added (compress/error_feedback.h).
struct Feedback {
  std::uint64_t step = 0;
  security::Digest root;        // of the contribution
  std::uint64_t tokens = 0;     // of the contribution
  LargeVector<float> residual;  // layout order
};

// A feedback on its way into its slot, slab by slab while it is made.
class FeedbackFile {
 public:
  static constexpr std::uint64_t kSlabElements = 1 << 20;

  // `finish`: when all of it is durable.
  FeedbackFile(
      std::unique_ptr<File> file, std::uint64_t elements,
      std::function<Result<void>(std::uint64_t step, const security::Digest& root)> finish);
  std::uint32_t slabs() const { return static_cast<std::uint32_t>(hashes_.size()); }
  // Slab `slab` of the residual, which is whole there. Any thread, each slab once.
  Result<void> write_slab(std::uint32_t slab, std::span<const float> residual);
  // After all slabs: the file is durable, and says what it is the residual of.
  Result<void> finish(std::uint64_t step, const security::Digest& root, std::uint64_t tokens);

 private:
  std::unique_ptr<File> file_;
  const std::uint64_t elements_;
  const std::function<Result<void>(std::uint64_t, const security::Digest&)> finish_;
  std::vector<kernels::Hash128> hashes_;  // of the slabs
};

// A state on its way into the slot of the older one. Its slices are durable one after another, so
// that no single call keeps a disk busy for long.
class StateFile {
 public:
  // `finish`: when the last slice is durable.
  StateFile(std::unique_ptr<File> file, Bytes header, const OuterState& state,
            std::uint64_t slice_bytes, std::function<Result<void>()> finish)
      : file_(std::move(file)),
        header_(std::move(header)),
        state_(state),
        slice_bytes_(slice_bytes),
        finish_(std::move(finish)) {}
  std::uint64_t next_slice_bytes() const;
  // False: that was the last one, and the state is durable. After a failure: begin anew.
  Result<bool> write_slice();

 private:
  std::unique_ptr<File> file_;
  const Bytes header_;
  const OuterState& state_;
  const std::uint64_t slice_bytes_;
  const std::function<Result<void>()> finish_;
  std::uint64_t written_ = 0;  // bytes, of agreed and then of momentum
};

class OuterStore {
 public:
  static constexpr std::uint64_t kSliceBytes = 64 << 20;
  // `slice_bytes`: of states.
  OuterStore(Disk& disk, std::string folder, std::uint64_t slice_bytes = kSliceBytes);

  struct Damaged {
    std::string what, then;  // "FILE is damaged", and what becomes of that
  };
  struct Loaded {
    std::uint64_t boot = 0;  // of this start, already written
    std::optional<Certificate> genesis;
    std::optional<ModelLayout> layout;
    std::vector<Certificate> records;  // 1, 2, …
    std::optional<OuterState> state;   // the newest slot that checks
    security::Digest state_root;
    VoteFileId vote_file = kNoVoteFile;
    std::uint64_t vote_step = 0;
    Vote vote;
    Fingerprint fingerprint;          // of the run, with its genesis
    std::vector<Feedback> feedbacks;  // those that check, the newest first
    bool feedback_damaged = false;    // one is here that does not
    bool feedback_missing = false;    // one is not here at all
    std::vector<Damaged> damaged;     // what does not: torn by a crash, or the disk forgets
  };
  // `new_vote_file`: random, not zero; the vote file's number, if it has to be made. First of all;
  // where it fails it may be called again, and reads everything anew. Errors: io, disk_full,
  // corrupt (with what to do).
  Result<Loaded> load(VoteFileId new_vote_file);
  // Where a start finds no room: removes what is here for sites that return, and for nobody else.
  // Of the contributions those to the last steps stay, whose states a majority may not have saved,
  // and those of `self` that feedback is of. Returns the first step whose contributions all stay; 0
  // where nothing was removed.
  Result<std::uint64_t> remove_kept_for_others(SiteId self);

  Result<void> begin_run(const Certificate& genesis, const ModelLayout& layout,
                         const Fingerprint& fingerprint);
  Result<void> append_record(const Certificate& certificate);
  // Those of a site's folder, as far as they are whole; nothing is changed. None where there are
  // none.
  static Result<std::vector<Certificate>> read_records(Disk& disk, const std::string& folder);
  // Step and root that the newest state of a site's folder claims; nothing is changed, or checked
  // but the header. None where there is none.
  struct StateName {
    std::uint64_t step = 0;
    security::Digest root;
  };
  static Result<std::optional<StateName>> newest_state(Disk& disk, const std::string& folder);
  // Forgets the records after `step`, of which the file has at least that many.
  Result<void> truncate_records(std::uint64_t step);
  Result<void> write_vote(std::uint64_t step, const Vote& vote);
  // Goes on with an empty vote file of this number.
  Result<void> renew_vote_file(VoteFileId id);
  // The operator's recovery that was noted last, so that it is taken up once.
  Result<bool> knows_recovery(const security::Digest& recovery) const;
  Result<void> note_recovery(const security::Digest& recovery);
  // Adds the roster of this start to those that this site had (the newest last), and returns the
  // newest kRostersKept.
  static constexpr std::size_t kRostersKept = 8;
  // `damaged`: gets what of those does not check; null: nobody asks.
  Result<std::vector<KnownRoster>> note_roster(const KnownRoster& roster,
                                               std::vector<Damaged>* damaged = nullptr);
  // The rest is StateFile::write_slice's; the state, of this root, stays as it is meanwhile.
  Result<std::unique_ptr<StateFile>> begin_state(const OuterState& state,
                                                 const security::Digest& root);
  Result<OuterState> read_state(const ModelLayout& layout, std::uint64_t step) const;
  // The newest slot has a state of this step that turned out wrong: it counts no more, and the next
  // state goes there. May be tried again. The first one of the step is kept under another name, for
  // the operator and for the ranks that were told it, in place of earlier steps'.
  Result<void> set_newest_state_aside(std::uint64_t step);
  // The parameters of what was set aside for this step, if anything was.
  std::optional<LargeVector<float>> read_diverged(const ModelLayout& layout,
                                                  std::uint64_t step) const;
  // Into the slot of what does not count: neither a crash nor a second attempt loses what counts.
  Result<std::unique_ptr<FeedbackFile>> begin_feedback(std::uint64_t elements);
  // This feedback counts from now on: its contribution's close is durable, or a record names it.
  void settle_feedback(std::uint64_t step, const security::Digest& root);

  ContributionStore& contributions() { return contributions_; }
  const ContributionStore& contributions() const { return contributions_; }

 private:
  Result<void> finish_state();
  Result<void> write_state_header_again(int slot);
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  using FeedbackName = std::pair<std::uint64_t, security::Digest>;  // step and root
  std::string slot_path(int slot) const;
  std::string diverged_path(std::uint64_t step) const;
  Result<std::pair<OuterState, security::Digest>> read_state_file(const ModelLayout& layout,
                                                                  const std::string& name) const;
  Result<Feedback> read_feedback(int slot) const;
  Result<std::uint64_t> count_boot(std::vector<Damaged>& damaged);
  Result<void> load_vote(Loaded& loaded);
  Result<void> load_genesis(Loaded& loaded);
  Result<void> load_run(Loaded& loaded);
  // Whether more was there, behind damage: then all of it is kept aside.
  Result<bool> load_records(std::vector<Certificate>& records);

  Disk& disk_;
  std::string folder_;
  ContributionStore contributions_;
  const std::uint64_t slice_bytes_;
  // What load() found, and was written since.
  struct OnDisk {
    int newest_state_slot = 1;                      // the other one is written next
    std::optional<FeedbackName> feedback_names[2];  // of the slots; nothing: empty or damaged
    int settled_feedback_slot = 1;                  // the other one is written next
    std::unique_ptr<File> vote_file;
    VoteFileId vote_file_id = kNoVoteFile;
    std::uint64_t vote_sequence = 0;
    std::unique_ptr<File> record_file;
    std::uint64_t record_bytes = 0;
    std::vector<std::uint64_t> record_ends;  // in the file
  };
  OnDisk on_disk_;
};

}  // namespace isthmus::inter
