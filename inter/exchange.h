// Exchange: the contributions of the outer step at hand. Makes our own (encode, seal, write, offer
// to peers while it is being made), receives those of others (check, write, hold), serves and
// fetches what somebody lacks. PROTOCOL.md, "Contributions", draws it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/large_vector.h"
#include "inter/contribution.h"
#include "inter/log_pace.h"
#include "inter/outer_store.h"
#include "inter/peers.h"

namespace isthmus::inter {

// Older steps of which contributions stay in memory, at most: those that were asked for lately, and
// may be on their way.
inline constexpr std::size_t kOldSteps = 2;

class Exchange {
 public:
  struct Context {
    Loop& loop;
    Workers& workers;
    EventLog& log;
    OuterStore& store;
    Peers& peers;
    const security::Signer& signer;
    const security::Verifier& verifier;
    SiteId self;
    std::uint64_t boot = 0;  // starts of this gateway, with this one
    // Crashes here in tests and in the simulator; else does nothing.
    std::function<void(const char* point, std::uint64_t step)> at_point;
    PlantedBug bug = PlantedBug::none;
  };
  // `on_held`: a contribution to the current step became held.
  // `on_chunk_added`: a chunk of some contribution to the current step is here.
  // `on_differing_state`: another site's contribution began from another state than ours.
  Exchange(Context context, std::shared_ptr<const ChunkPlan> plan,
           std::function<void(const Part&)> on_held,
           std::function<void(std::uint32_t chunk)> on_chunk_added,
           std::function<void()> on_differing_state);

  // Before begin_step() of the same: takes up the contributions to the step that are on disk from
  // before a restart, our own and those of others, as far as they go. Votes may rest on them, and
  // what is here is not sent again.
  // Errors: io, disk_full.
  Task<Result<void>> restore(StepId id, View view, security::Digest parent,
                             security::Digest state_root);
  // The step whose contributions are expected now. What is held of steps before `keep_from` is
  // forgotten; it may still be on disk.
  void begin_step(const StepId& id, const View& view, const security::Digest& parent,
                  const security::Digest& state_root, std::uint64_t keep_from);

  // --- Our own
  // Codes pseudo-gradient + feedback, offers the chunks as they come, and holds the contribution
  // once it is on disk. The result is what coding cut off, in `memory` if that has the size.
  // `agreed` and `feedback` must stay as they are until it returns; `parameters` are let go when
  // they have been read. Errors: non_finite, and the disk's.
  Task<Result<Feedback>> contribute(std::span<const float> agreed,
                                    std::shared_ptr<const ContributedValues> parameters,
                                    std::span<const float> feedback, std::uint64_t tokens,
                                    LargeVector<float> memory);
  bool contributing() const { return contributing_; }
  bool contributed() const;  // to the current step, and on disk
  // What a record or ballot names as ours is not here: our disk was lost, and others have it.
  bool lacks_own() const;
  // Our close of the current step names a state that turned out wrong (PROTOCOL.md, "Divergence"):
  // closes the same bytes again, with the root that begin_step() was given.
  Task<Result<void>> close_again();

  // --- Others'
  // An announcement of the step at hand that fits it, from a member.
  bool admits(const Signed& open) const { return check_open(open).has_value(); }
  void on_open(Link* from, const Signed& message);
  void on_close(Link* from, const Signed& message);
  void on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& sealed);
  // `newest`: the step of this site's newest state.
  void on_fetch(Link& link, const Fetch& fetch, std::uint64_t newest);
  void on_lacking(Link& link, const Lacking& lacking);
  void on_enough(Link& link, const Enough& enough);
  enum class Named { by_ballot, by_record };
  // Contributions that a ballot names, or the decided record: they must come even from who is not
  // their origin. What is held of their sites and is not what the record names is forgotten; what
  // a ballot names may never come to be, so whatever its site makes instead counts.
  void want(const std::vector<Part>& parts, Named by);
  // What a voter has promised to hold in the step at hand. Of a site that gave it another
  // contribution than it gave us an alarm tells.
  void note_held_elsewhere(SiteId holder, const std::vector<Part>& parts);
  // Asks some peer for what is wanted and does not flow. Called now and then, and after news.
  void consider_fetching();
  // Everything of the current step that stands, for a peer that works on it too.
  void announce(Link& link);
  // What is held of the peer's own: it may have forgotten it.
  void say_back(Link& link);
  // The number of the start of a gateway that made this attempt (Open::attempt).
  static std::uint64_t start_of_attempt(std::uint64_t attempt) { return attempt >> 32; }
  void session_ended(Link& link);

  // One that was held, from memory or from disk; null: it is neither there. `urgency`: of reading
  // it. Errors: what the disk cannot read now may be there.
  Task<Result<std::shared_ptr<Contribution>>> recall(std::uint64_t step, SiteId site,
                                                     Urgency urgency = Urgency::disk);
  std::shared_ptr<const Contribution> held(std::uint64_t step, SiteId site) const;
  // To the current step, as far as it is here; null: not announced.
  std::shared_ptr<const Contribution> incoming(SiteId site) const;
  // Those of all members, in the order of sites, once each of them has this chunk; none before.
  std::vector<std::shared_ptr<const Contribution>> all_with(std::uint32_t chunk);
  std::vector<SiteId> holds() const;       // of the current step
  std::vector<SiteId> holds_soon() const;  // with those that are being checked and written
  // State roots of the base of `step`, as the closes of others say; of the current step only.
  std::map<SiteId, security::Digest> claimed_roots(std::uint64_t step) const;
  // The first of these (those of a transfer in a row) that is of a contribution here, and missing.
  using ChunkName = std::pair<TransferId, std::uint32_t>;
  std::optional<ChunkName> first_missing(std::span<const ChunkName> chunks) const;
  // Why the disk did not take what was written last, and is tried again; "": it took it.
  const std::string& disk_refuses() const { return disk_refuses_; }
  // Our own contribution is not all at the members and voters that can be reached.
  bool sending(const View& view) const;
  // Some chunk of it arrived lately.
  bool arriving(SiteId site) const;
  std::uint64_t bytes_held() const;
  // Nobody who says to have it, and sends when asked.
  bool nobody_has(const std::vector<Part>& parts) const;

  std::uint64_t relayed() const { return relayed_; }  // others' contributions, to who lacked them
  // Requests for contributions; of them those that went to other sites than the contribution's.
  std::uint64_t asked() const { return asked_; }
  std::uint64_t asked_elsewhere() const { return asked_elsewhere_; }

 private:
  // Without bytes of a site's contribution, before they are asked of somebody else: at least;
  // longer where the line that they come on is slow.
  static constexpr Nanoseconds kFetchPatienceMin = 5 * kSecond;
  // What a record names of the site, while that is not held; null where none does.
  const Part* decided(SiteId site) const;
  Nanoseconds fetch_patience(SiteId site) const;

  struct ArrivedChunk;
  struct Entry {
    std::shared_ptr<Contribution> contribution;
    std::shared_ptr<ContributionFile> file;                         // shared with jobs that write
    std::map<std::uint32_t, std::weak_ptr<ArrivedChunk>> arriving;  // being checked or written
    bool held = false;
    bool finishing = false;
    bool restored = false;  // from disk: peers may have it from before
    Nanoseconds last_arrival = 0;
    SiteId brought_by = 0;                      // what came last
    std::map<SiteId, std::uint64_t> announced;  // by whom, in which session, the last
    // So many chunks came since then, from whom, and came each second in the seconds before, where
    // it is known.
    Nanoseconds rated_from = 0;
    std::map<SiteId, std::uint32_t> arrived;
    std::optional<double> chunks_per_second;
    std::optional<Nanoseconds> asked_at;  // by who lacks it, the last time
  };
  using EntryPtr = std::shared_ptr<Entry>;  // shared with jobs on workers that outlive the step
  using Entries = std::map<std::pair<std::uint64_t, SiteId>, EntryPtr>;
  struct ChunkCopy {
    Link* link;
    ChunkArrival arrival;
    SharedBytes sealed;
  };
  // On its way through workers: as it came first, and as it came again meanwhile, over other links
  // or in a newer session, which all end as the chunk does.
  struct ArrivedChunk {
    EntryPtr entry;
    std::uint32_t index = 0;
    Nanoseconds since = 0;
    std::vector<ChunkCopy> copies;  // of each link one; the first is looked at
    Result<CheckedChunk> checked = Error{ErrorCode::cancelled, ""};
    bool disk_refused = false;  // once
  };
  struct UnannouncedChunk {
    Link* link;
    ChunkArrival arrival;
    SharedBytes sealed;
    Nanoseconds since = 0;
  };

  // From disk, any thread; null: not there, or nothing of use. A whole one is proved by its close,
  // of another one each chunk is checked. `bytes`: of the file, as far as it is whole.
  // Errors: io, of what may be there.
  Result<std::shared_ptr<Contribution>> read_back(std::uint64_t step, SiteId site,
                                                  std::uint64_t* bytes) const;
  // One of before a restart, and its file to go on with; null: nothing of use to that step.
  struct Stored {
    std::shared_ptr<Contribution> contribution;
    std::unique_ptr<ContributionFile> file;
  };
  Result<Stored> take_up(const StepId& id, SiteId site, const security::Digest& parent) const;
  Result<Open> check_open(const Signed& message) const;
  EntryPtr find(TransferId transfer) const;
  Entry* current(SiteId site) const;
  // Instead of the one that is there of its step and site, if any.
  void place(const EntryPtr& entry);
  void remove(Entries::iterator entry);
  Result<EntryPtr> begin_own(const Open& open);
  void offer_own(const EntryPtr& entry);
  bool packing_pays() const;
  Task<void> finish(EntryPtr entry);
  void hold(const EntryPtr& entry);
  EntryPtr begin_anew(const EntryPtr& entry);
  void forget_old(std::uint64_t but_of);
  Task<Result<void>> write_close(EntryPtr entry);
  Task<Result<void>> write_anew(EntryPtr entry);
  void open_again(Link* from, const Signed& message, std::uint64_t attempt);
  void note_disk(const Result<void>& written);
  void note_disk_error(const Error& error);
  void forget(std::uint64_t step, SiteId site);
  bool may_have(const PeerSite& peer, SiteId site) const;
  bool waits_in_sight(SiteId site) const;
  bool others_may_have(SiteId site) const;  // than the site itself
  void ask_of(PeerSite& peer, SiteId site);
  void fetch_from_one_alone(SiteId site);
  bool was_asked(const Link* peer, SiteId site) const;  // for the site's contribution, the last
  void ask_faster_source(SiteId site);
  void rate(Entry& entry);  // a chunk of it came
  bool comes_slowly(const Entry& entry) const;
  bool is_slow(SiteId peer) const;
  // Of which a chunk takes no longer than that.
  bool comes(const Entry& entry,
             Nanoseconds chunk_takes = std::numeric_limits<Nanoseconds>::max()) const;
  void serve_next(Link& link);
  Task<void> serve(Link& link, Fetch fetch);
  void receive(Link& link, const EntryPtr& entry, const ChunkArrival& arrival,
               const SharedBytes& sealed);
  void note_copy(ArrivedChunk& chunk, const ChunkCopy& copy);
  void check(const std::shared_ptr<ArrivedChunk>& chunk);
  void on_checked(const std::shared_ptr<ArrivedChunk>& chunk);
  void write(const std::shared_ptr<ArrivedChunk>& chunk);
  void write_waiting(const EntryPtr& entry);
  void on_written(const std::shared_ptr<ArrivedChunk>& chunk, bool written);
  void drop_unannounced();
  void offer(Link& link, const Entry& entry);
  void send_signed(Link& link, const Signed& message);
  void compare_with_elsewhere(SiteId site);
  void tell_of_two_contributions(SiteId signer, SiteId other_at);

  Context context_;
  std::shared_ptr<const ChunkPlan> plan_;
  std::function<void(const Part&)> on_held_;
  std::function<void(std::uint32_t)> on_chunk_added_;
  std::function<void()> on_differing_state_;
  StepId id_;
  std::uint64_t keep_from_ = 0;  // in memory, also what nobody asks for
  View view_;
  security::Digest parent_, state_root_;
  Entries entries_;
  std::map<TransferId, EntryPtr> by_transfer_;  // the same
  // Of each chunk the place among the members of one that lacked it, when all_with() looked last.
  std::vector<std::size_t> lacking_;
  std::map<SiteId, std::vector<UnannouncedChunk>> unannounced_;  // by the peer that sent them
  // Checked, and waiting for those that are being written; only while some of them are.
  std::map<EntryPtr, std::vector<std::shared_ptr<ArrivedChunk>>> to_write_;
  struct Wanted {
    Part part;
    Named by = Named::by_ballot;
  };
  std::map<SiteId, Wanted> wanted_;
  LogPace differing_;
  std::string disk_refuses_;  // why; "": it does not
  // From a write that failed until one that did not, where none had failed for a while: a disk that
  // is nearly full takes some and refuses others.
  struct DiskRefusal {
    Nanoseconds since = 0, last = 0;
    std::optional<Nanoseconds> told = {};  // when last
  };
  static constexpr Nanoseconds kDiskRefusalsApart = 2 * kSecond;
  static constexpr Nanoseconds kDiskFailuresApart = 60 * kSecond;
  std::optional<DiskRefusal> disk_refusal_;
  LogPace disk_failures_{kDiskFailuresApart, 4};
  // Announcements whose files wait for room on the disk, and who brought them.
  struct Announced {
    Link* from = nullptr;
    Signed open;
    std::uint64_t attempt = 0;
    std::optional<Signed> close;  // came meanwhile
  };
  std::map<SiteId, Announced> opening_again_;
  // What was heard, where a site's contribution to the step at hand was asked for.
  struct Sought {
    struct Asked {
      SiteId peer = 0;  // 0: nobody
      Nanoseconds when = 0;
      bool session_ended = false;  // since then
      bool opened = false;         // it has announced one since then
    };
    Asked asked;               // the last
    std::set<SiteId> lacking;  // peers that say that they have nothing of it
    std::set<SiteId> refused;  // that sent bad chunks of it
    std::set<SiteId> silent;   // that were asked, and sent nothing
    // The same, where their session ended: they may have been unable to.
    std::set<SiteId> broke_off;
    // What a record names was whole, and not what it names, though each chunk was good: its site
    // has sealed several for one place, and others may hold the right ones.
    bool from_one_alone = false;
    // Its site is in sight, and nothing comes of it from there. So it will be in the next steps.
    bool without_way = false;
  };
  std::map<SiteId, Sought> sought_;  // by the contribution's site
  // Peers that were asked, in whatever step, and have sent nothing since: others are asked before.
  std::set<SiteId> silent_;
  // Of a contribution, as each brought one lately: of other steps too.
  std::map<SiteId, double> chunks_per_second_;
  std::map<SiteId, Nanoseconds> served_at_;             // by this peer, of what it was asked for
  std::set<std::pair<std::uint64_t, SiteId>> reading_;  // contributions that come from disk now
  Signal read_;                                         // some of them have
  struct Serving {                                      // of one peer
    // The session in which it asked last.
    std::map<std::pair<std::uint64_t, SiteId>, std::uint64_t> now;
    std::deque<Fetch> next;
  };
  std::map<SiteId, Serving> serving_;
  struct HeldElsewhere {
    Part part;
    SiteId holder = 0;
  };
  std::map<SiteId, HeldElsewhere> held_elsewhere_;  // of each site, as it was promised last
  LogPace refused_chunks_, refused_opens_, refused_closes_, two_contributions_;
  bool contributing_ = false;
  bool offers_at_once_ = true;        // its own contributions, while they are made
  std::uint64_t attempts_ = 0;        // at contributions, since this start
  std::optional<double> zstd_saves_;  // of the bytes of a chunk, the last time; nothing: not tried
  std::uint64_t relayed_ = 0, asked_ = 0, asked_elsewhere_ = 0;
};

}  // namespace isthmus::inter
