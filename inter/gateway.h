// Gateway: the process that speaks for a site. Owns the outer state, takes contributions of the
// site's ranks, agrees with the other gateways which contributions each outer step is made of,
// applies the decided records in order, and gives the new parameters back. PROTOCOL.md is the
// specification; the parts are exchange.h, agreement.h, state_fetcher.h, peers.h, outer_store.h.
//
// One thread, the Loop's, owns everything; workers only encode, check, hash, write and reduce.
// Wire, clock, disk, workers and randomness are handed in, so that a federation of gateways also
// runs in one thread, in virtual time, from one seed (inter/sim/federation.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "inter/agreement.h"
#include "inter/exchange.h"
#include "inter/link.h"
#include "inter/link_tester.h"
#include "inter/log_pace.h"
#include "inter/outer_store.h"
#include "inter/peers.h"
#include "inter/rank_pulse.h"
#include "inter/ranks.h"
#include "inter/readmission.h"
#include "inter/record_server.h"
#include "inter/returning_sites.h"
#include "inter/said_in_step.h"
#include "inter/saved_states.h"
#include "inter/state_fetcher.h"
#include "inter/state_server.h"
#include "inter/status.h"
#include "inter/step_computation.h"
#include "inter/straggler_wait.h"
#include "security/roster.h"

namespace isthmus::inter {

struct GatewayOptions {
  SyncOptions sync;
  std::string folder;                      // of the durable files
  double rate_limit_bytes_per_second = 0;  // 0: none
  // The lowest that set_rate_limit() will ever say; 0: it says nothing lower.
  double rate_limit_bytes_per_second_min = 0;
  bool polite = false;                        // of the wire; here to be told to others
  std::optional<Nanoseconds> straggler_wait;  // as inter/straggler_wait.h takes it
  // For a member's contribution while none of it is known.
  Nanoseconds first_wait = 60 * kSecond;
  // At the end, for members that have not saved the last step and cannot be reached.
  Nanoseconds linger = 10 * kSecond;
  LinkOptions link;
  // Named points of a step, for tests that end the process there: before_close, feedback_written,
  // between_vote_and_accept, saving, merging, state_transfer, final.
  std::function<void(const char* point, std::uint64_t step)> at_point = [](const char*,
                                                                           std::uint64_t) {};
  // Broken memory, in the simulator: spoils parameters after an outer step was computed.
  std::function<void(std::uint64_t step, std::span<float> agreed)> disturb;
};

class Gateway final : public WireReceiver, public LinkOwner, public OuterSteps {
 public:
  // What the world is to this gateway. All outlive it.
  struct World {
    Loop& loop;
    Wire& wire;
    Disk& disk;
    Workers& workers;
    EventLog& log;
    Random random;  // a secret seed in real life: nonces come from it
    const security::Signer& signer;
    const security::Verifier& verifier;
  };
  Gateway(World world, security::Roster roster, SiteId self, GatewayOptions options);
  ~Gateway() override;

  // The ranks, before run(). They outlive the gateway.
  void serve(Ranks& ranks);
  // Until the run is finished and served, stop() was called, or the disk fails.
  Task<Result<void>> run();
  // The user's wish: others are told that this site leaves; run() returns.
  void stop();

  // Another one than the options', from now on; 0: none.
  void set_rate_limit(double bytes_per_second);

  GatewayStatus status() const;  // gateway_status.cc
  // Until something has happened that status() may tell of, at most until then.
  Task<void> news(Nanoseconds until);
  // As LinkTester::ask, of the site's own operator; the wish needs no peer. Errors also:
  // invalid_argument (no such site).
  Result<std::string> test_link(std::uint64_t number, std::string_view peer, LinkTester::Wish wish);
  void stop_link_test(std::uint64_t number) { link_tester_->stop(number); }

  // OuterSteps.
  Result<void> attached(const ModelLayout& layout) override;
  void offer_initial(LargeVector<float> parameters) override;
  Result<void> contribute(std::uint64_t step, std::shared_ptr<const ContributedValues> parameters,
                          std::uint64_t tokens) override;
  void detached() override;
  void progressing() override;
  void leaving() override;

  // For the simulator's invariants and for tests.
  bool finished() const { return finished_; }
  bool told_the_end() const { return end_told_; }  // to the ranks: nothing is taken back any more
  bool computes() const { return my_status().contributes; }
  const std::vector<Certificate>& chain() const { return chain_; }
  std::shared_ptr<const OuterState> state() const { return state_; }
  const security::Digest& root() const { return state_root_; }
  const std::optional<Certificate>& genesis() const { return genesis_; }
  std::uint64_t saved_step() const { return saved_step_; }
  std::uint64_t memory_bytes() const;  // of contributions held
  // Chunks that this peer acknowledged in the session that both have, and which of some we miss.
  std::vector<std::pair<TransferId, std::uint32_t>> acknowledged_chunks(SiteId peer) const;
  std::optional<Exchange::ChunkName> first_missing(
      std::span<const Exchange::ChunkName> chunks) const {
    return exchange_ ? exchange_->first_missing(chunks) : std::nullopt;
  }
  std::uint64_t session_with(SiteId peer) const;
  const Link* link_with(SiteId peer) const;  // nullptr: it is no peer
  bool has_vote() const { return !lacks_vote(); }
  const LargeVector<float>& feedback() const { return feedback_; }
  View view() const { return current_view(); }  // of the step at hand
  // Contributions to it that a record may name.
  std::map<SiteId, Part> held() const {
    return agreement_ ? agreement_->held() : std::map<SiteId, Part>();
  }
  // Of which step our contribution waits for its record: then the feedback is in it.
  std::optional<std::uint64_t> pending_step() const {
    return pending_ ? std::optional(pending_->step) : std::nullopt;
  }
  struct Counters {
    std::uint64_t ballots_above_zero = 0, reproposals = 0, unnamed = 0, stepped_ahead = 0,
                  relayed = 0, asked = 0, asked_elsewhere = 0, state_fetches = 0, votes_lost = 0,
                  readmitted = 0, view_changes = 0, relayed_messages = 0, divergences = 0,
                  voters_changed = 0, votes_under_way = 0, bad_signatures = 0,
                  signatures_checked = 0, signed_dropped = 0, ballots_considered = 0;
  };
  Counters counters() const;

 private:
  // --- WireReceiver, LinkOwner
  void on_message(GatewayId peer, Lane lane, ConnectionId connection,
                  const SharedBytes& message) override;
  void on_up(GatewayId peer, Lane lane, ConnectionId connection) override;
  void on_down(GatewayId peer, Lane lane, ConnectionId connection) override;
  void on_writable(GatewayId peer, Lane lane, ConnectionId connection) override;
  Introduction introduce() override;
  void on_introduction(GatewayId peer, const Introduction& theirs) override;
  std::string objection(GatewayId peer, const Introduction& theirs) const override;
  void on_session(Link& link, bool up) override;
  void on_control(Link& link, std::span<const std::byte> message) override;
  void on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& payload) override;

  // --- Start (gateway_start.cc)
  void take_layout(ModelLayout layout);
  Result<void> load();
  Result<void> take_up_run(OuterStore::Loaded& loaded);
  // What a gateway cannot go on without is written, if need be where what is kept for others was.
  // Any thread; `removed_below` is for note_removed() then, on the loop's.
  template <class Write>
  auto with_room(std::uint64_t& removed_below, const Write& write) -> decltype(write()) {
    auto written = write();
    if (written || written.error().code != ErrorCode::disk_full) return written;
    const auto removed = store_.remove_kept_for_others(self_);
    if (!removed || *removed == 0) return written;
    removed_below = *removed;
    return write();
  }
  void note_removed(std::uint64_t below);
  Result<void> take_up_feedback(std::vector<Feedback> newest_first);
  Result<void> take_up_without_feedback(bool this_disk_had_some);
  Result<void> take_up_records(const std::vector<Certificate>& records);
  enum class Closed { no, damaged, yes };
  Result<Closed> was_closed(const Feedback& feedback) const;
  void keep_aside(Feedback feedback);
  void say_feedback_lost(std::uint64_t step);
  std::optional<SiteId> other_owner() const;        // whose vote file is here
  std::optional<SiteId> unknown_to_roster() const;  // took part in the run, and has no key there
  void start_links();
  View view_of_roster() const;
  View with_vote_files(View view) const;  // as far as they are known

  // --- Founding (gateway_founding.cc)
  Task<Result<void>> begin_or_join_run();
  std::optional<Record> proposed_genesis();
  Task<void> vote_for_genesis();
  bool within_settings(const Record& record) const;
  bool genesis_acceptable(const Record& record) const;
  bool bound_by_older_roster() const;
  void on_genesis_accept(SiteId from, const Accept& accept, const security::Signature& signature);
  void say_founding_is_stuck(std::string_view why);
  std::string founding_waits_for() const;
  const PeerSite* peer_with_run(const security::Digest& but = {}) const;
  std::vector<std::string> not_heard() const;
  bool may_found() const;
  void say_run_elsewhere(const PeerSite& peer);
  void note_unshown_runs(Nanoseconds time);
  void note_shown_run(PeerSite& peer, const Certificate& genesis);
  void say_run_not_shown(const PeerSite& peer);
  View view_to_begin_with() const;
  Task<Result<void>> adopt_run(Certificate genesis);
  Task<void> take_initial(LargeVector<float> parameters);
  bool adopt_initial();

  // --- Steps
  std::string name_of(SiteId id) const;
  std::uint64_t working_step() const { return state_ ? state_->step + 1 : 0; }
  View current_view() const;
  View view_of_step(std::uint64_t step) const;
  // Of this run, by the operator: those of the roster, and the one that `step` begins with, if any.
  std::vector<const security::Recovery*> recoveries() const;
  const security::Recovery* recovery_before(std::uint64_t step) const;
  const security::Recovery* recovery_ahead() const;
  Result<void> take_up_recovery();
  bool lacks_vote() const;  // a voter whose vote file no record names
  std::set<SiteId> lost_disks(const View& view) const;
  std::vector<SiteId> voters_without_votes(const View& view) const;
  void note_vote();
  security::Digest parent_hash() const;
  StepId step_id() const;
  const Record* record_of(std::uint64_t step) const;  // decided and known here
  Task<Result<void>> restore_contributions(std::uint64_t step, View view, security::Digest parent,
                                           security::Digest state_root);
  void begin_step();
  Agreement::Setup agreement_setup(const View& view) const;
  bool may_join(SiteId site) const;
  std::vector<Wish> wishes() const;
  const security::Digest& wishes_are_of() const;
  security::Signature signature_of(std::uint64_t step, const Wish& wish);
  bool may_be_wished(PeerSite& by, std::uint64_t step, const Wish& wish);
  void complete(Record& record) const;
  // Appends to the chain what is next and proven.
  bool learn(const Certificate& certificate, PeerSite* from = nullptr);
  bool append(const Certificate& certificate);
  Task<void> make_room();
  Task<Result<void>> start_steps();
  Task<Result<void>> steps();
  Task<Result<void>> fetch_first_state();
  std::uint64_t missing() const;
  std::optional<std::uint64_t> nearer_state() const;
  Task<Result<bool>> fetch_nearer_state(std::uint64_t at_least);
  Task<Result<void>> advance();
  Task<Result<void>> serve_the_end();
  Task<void> say_farewell();
  void fail(const Error& error);
  std::vector<std::string> attention() const;
  // Neither contributions nor the state wait for room on it, or for it to work again.
  bool disk_takes() const {
    return not_saved_why_.empty() && (!exchange_ || exchange_->disk_refuses().empty());
  }
  std::string too_few_members() const;
  bool has_the_end(SiteId site) const;  // the last state is saved there, and is ours
  std::uint64_t behind() const;         // steps that the others are known to have done without it
  std::string missed_sites() const;
  void say_missed_sites();
  std::string silent_ranks() const;
  void say_hanging_ranks();
  struct LostVotes {
    std::vector<SiteId> sites;
    bool stop_the_run = false;  // there is no majority without them
    bool operator==(const LostVotes&) const = default;
  };
  LostVotes lost_votes() const;
  std::string sentence_of(const LostVotes& lost) const;
  void say_lost_votes();
  std::vector<std::string> names_of(const std::vector<SiteId>& sites) const;

  // --- Ranks (gateway_ranks.cc)
  Task<bool> may_contribute();
  Task<void> contribute_task(std::shared_ptr<const ContributedValues> parameters,
                             std::uint64_t tokens);
  void publish(std::shared_ptr<StateDraft> draft = {});
  void publish_if_awaited();
  std::shared_ptr<StateDraft> draft() { return ranks_ ? ranks_->draft() : nullptr; }
  std::uint64_t newest_contribution() const;
  // Or it waits for leave to, perhaps until the step is over.
  bool has_contribution_to_make() const {
    return taking_contribution_ || exchange_->contributing();
  }
  bool ranks_reading() const { return ranks_ && ranks_->reading(); }
  bool ranks_have_the_end(Nanoseconds told) const;

  // --- Apply (gateway_apply.cc)
  using Named = StepComputation::Parts;  // of a record, in its order
  std::optional<Named> named(const Record& record) const;
  struct Stepped {
    OuterState state;
    security::Digest root;
    std::shared_ptr<StateDraft> draft = {};  // of it, if any
  };
  Task<Result<Stepped>> take_step(std::shared_ptr<const OuterState> before, Record record,
                                  Named parts, std::shared_ptr<StepComputation> ahead);
  void step_ahead(std::uint32_t chunk);
  OuterState spare_state();
  Task<Result<bool>> apply(const Certificate& certificate);
  void enter_state(bool save_it, bool tell, std::shared_ptr<StateDraft> draft = {});
  Task<Result<void>> adopt_state(OuterState fetched);
  Task<Result<void>> log_records(std::uint64_t step);
  void take_feedback();
  Task<Result<void>> settle_feedback(std::uint64_t applied);
  Task<Result<void>> settle_pending(std::uint64_t applied);
  void settle_damaged(std::uint64_t applied);
  Task<Result<void>> keep_contribution(std::shared_ptr<const Contribution> contribution);
  Task<Result<void>> write_state(const OuterState& state, const security::Digest& root);
  Task<Result<void>> set_newest_state_aside(std::uint64_t step);
  Task<void> save(std::shared_ptr<const OuterState> state, security::Digest root);
  void prune();
  Task<void> remove_pruned();

  // --- Divergence (gateway_divergence.cc)
  std::map<SiteId, security::Digest> roots_elsewhere() const;
  std::optional<security::Digest> right_root(const security::Digest& mine) const;
  // The voters by what root they have, as far as they have said: silent are the others.
  struct VotersRoots {
    std::map<security::Digest, std::size_t> count;
    std::size_t silent = 0, silent_here = 0;  // and of these, can be reached
  };
  VotersRoots voters_roots(const security::Digest& mine) const;
  bool disputed() const;
  bool differs_unresolved() const;
  bool differs_long() const;
  bool bears_difference();
  bool differs_elsewhere() const;
  bool disputed_too_long();
  Task<Result<void>> settle_dispute();
  Task<Result<void>> check_state();
  Task<std::optional<OuterState>> find_right_state();
  Error dispute_without_end() const;
  Task<std::optional<LargeVector<float>>> recall_misled_base(std::uint64_t step);
  Task<std::optional<std::pair<OuterState, security::Digest>>> compute_again();

  // --- Ballots (gateway_ballots.cc)
  Task<void> vote_writer();
  bool view_change_due() const;
  const PeerSite* awaited_wish() const;
  const PeerSite* awaited_return() const;
  bool newer_roster_known() const;
  bool newer_roster_due() const;
  void note_since();
  bool too_few_come() const;
  std::ptrdiff_t turn() const;
  Nanoseconds votes_late() const;
  bool all_held() const;                              // here, all members' contributions
  bool all_held_by_majority(const View& view) const;  // as far as it is known: all contributions
  bool progresses(const PeerSite& peer) const;
  // A member's contribution usually comes so long after the first one; our own as well.
  const Learnt& lateness_of(SiteId member) const;
  Nanoseconds usual_wait(SiteId member) const;
  void note_promises();
  bool contributions_may_suffice() const;
  // Until when the step at hand waits, for whom longest, and why.
  struct Deadline {
    enum class Why {
      learnt,
      none_known,
      progress,
      own_ranks,
      away,
      unnamed_disk,
      votes,
      on_their_way,
      returns
    };
    Nanoseconds at = 0;
    Why why = Why::votes;
    SiteId site = 0;  // 0: for nobody alone
  };
  std::optional<Nanoseconds> waiting_since() const;
  Deadline deadline(Nanoseconds since) const;
  std::string said(const Deadline& deadline, Nanoseconds since) const;
  void consider_ballot();
  void consider_ballot_soon();
  void give_way_to_twin();
  double WaitStatus::*waits_for() const;
  void count_waits();
  void tick();

  // --- Messages (gateway_messages.cc)
  void receive_signed(Link* from, const Signed& message);
  void check_own_word(Link* from, const Signed& message);
  std::string forgotten_in(const Signed& message) const;
  bool is_signed_well(Link* from, const Signed& message);
  bool within_pace(Link* from, const Signed& message);
  void receive_saved(Link* from, const Signed& message);
  void receive_founding(Link* from, const Signed& message);
  void receive_in_step(Link* from, const Signed& message);
  bool leads_too_far(const Ballot& ballot) const;
  bool counts_in_step(const Signed& message, const Ballot* ballot) const;
  bool names_members_only(const Ballot& ballot) const;
  void receive_ballot(const Signed& message, const Ballot& ballot);
  void on_status(Link& link, const Status& status);
  void note_return(const PeerSite& peer);
  void on_records(Link& link, const Records& records);
  void refuse_genesis(const Link& link, const Record& record, bool ours);
  void ask_for_records(PeerSite& peer);
  void relay(const Signed& message, Link* from);
  void relay_to_all(const Signed& message, Link* from);
  void relay_to(PeerSite& peer, const Signed& message, Link* from);
  void announce_saved(Saved saved);
  bool note_saved(const Signed& message, const Saved& saved, bool from_signer);
  void pass_on_saved(PeerSite& peer, const std::optional<Status>& before);
  std::size_t vouch_for(std::uint64_t step, const security::Digest& root) const;
  void announce_step(PeerSite& peer);
  void broadcast_signed(const Signed& message);
  bool wants_in() const;
  Status my_status() const;
  Status my_signed_status();
  void send_status();

  // --- Link tests (gateway_link_test.cc)
  std::unique_ptr<LinkTester> make_link_tester();
  bool has_address(SiteId site) const;
  LinkTestSide link_test_side() const;
  std::string exchange_now() const;

  World world_;
  security::Roster roster_;
  const SiteId self_;
  GatewayOptions options_;
  Ranks* ranks_ = nullptr;
  RateLimit limit_;
  OuterStore store_;
  Peers peers_;
  std::uint64_t boot_ = 0;

  // The run.
  std::optional<ModelLayout> layout_;
  Fingerprint fingerprint_, run_fingerprint_;
  std::shared_ptr<const ChunkPlan> plan_;  // shared with contributions
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<StateServer> state_server_;
  std::unique_ptr<StateFetcher> state_fetcher_;
  std::optional<Certificate> genesis_;
  security::Digest run_;
  std::uint64_t logged_records_ = 0;  // on disk
  std::vector<Certificate> chain_;    // records 1, 2, …: chain_[k - 1] is record k
  RecordServer record_server_{{world_.loop, peers_, limit_, genesis_, chain_}};
  security::Digest named_roster_;     // by the newest record that names one
  std::vector<KnownRoster> rosters_;  // that this site has had, the newest last: roster_
  struct Initial {
    OuterState state;
    security::Digest root;
  };
  std::optional<Initial> initial_;  // that the ranks offer, until there is a state
  VoteFileId vote_file_ = kNoVoteFile;
  bool lacked_vote_ = false;  // and said so
  LostVotes lost_votes_said_;
  bool adopting_run_ = false;
  std::optional<Nanoseconds> roster_known_since_;  // newer_roster_known()
  std::optional<Nanoseconds> too_few_since_;  // the contributions of the members cannot suffice
  struct SignedWish {
    Bytes body;
    security::Signature signature;
  };
  SignedWish signed_wish_;                       // our own, as it was said last
  std::map<SiteId, SignedWish> checked_wishes_;  // of others, passed on to us
  LogPace genesis_refusals_{60 * kSecond};
  std::string genesis_refused_;           // which run, and why; while there is none
  std::optional<Record> genesis_chosen_;  // to be voted for, once that is on disk
  std::optional<Vote> genesis_vote_;      // which is
  Nanoseconds founding_since_ = 0;        // since when it waits for others to say that there is one
  std::map<SiteId, std::pair<Record, security::Signature>> genesis_accepts_;

  // The state.
  // Shared, as one that does not change, with what still reads an older one.
  std::shared_ptr<OuterState> state_;
  std::shared_ptr<OuterState> state_before_;  // whose memory the next one may take
  security::Digest state_root_;
  std::uint64_t saved_step_ = 0;
  std::string not_saved_why_;  // "": it is, or is being saved
  bool saved_any_ = false, saving_ = false, applying_ = false, pruning_ = false;
  SavedStates saved_;
  std::uint64_t state_wanted_behind_ = 0;    // so far behind a state was fetched to be nearer
  std::uint64_t kept_from_ = 1;              // named bytes of this step and later are here
  std::uint64_t at_hand_from_ = 1;           // and of this one and later in memory
  std::optional<ReturningSites> returning_;  // once the model is known
  std::uint64_t restored_to_ = 0;  // contributions from before a restart are taken up until here
  std::map<SiteId, std::uint64_t> last_named_;
  Readmission readmission_;

  // Feedback: what rides in the next contribution, and what it came from.
  LargeVector<float> feedback_;  // settled; empty: none
  std::uint64_t carried_tokens_ = 0;
  // The newest contribution that is on disk, and the one before: as many as there are feedbacks.
  // The older one counts if the newer one is given up.
  std::uint64_t contributed_step_ = 0, contributed_before_ = 0;
  // Of this step a contribution of ours is on disk and damaged: torn by a crash, or others have it.
  std::uint64_t damaged_step_ = 0;
  // What coding cut off of that one, if it is here: it counts if a record names the contribution.
  std::optional<Feedback> damaged_feedback_;
  std::optional<Feedback> pending_;  // of our last contribution, until its record is applied

  // Memory for the residuals of the next contributions, the last one first. Without feedback, as at
  // first, two come before one is given back.
  std::array<LargeVector<float>, 2> spare_residuals_;
  // The step of the likely record, all members', computed before it is decided; it counts only if
  // that one is. Shared with jobs on workers.
  std::shared_ptr<StepComputation> ahead_;

  // A state that turned out wrong, of the step that the ranks go on from: what they contribute next
  // is the way from there, and ranks that are started anew begin there too.
  std::optional<LargeVector<float>> misled_base_;
  std::optional<security::Digest> rechecked_root_;  // computed twice, with the same result
  std::optional<security::Digest> disputed_root_;   // the last one that others had otherwise
  std::optional<Nanoseconds> differs_since_;   // from that of another voter, and nobody can say
  std::optional<Nanoseconds> disputed_since_;  // and all who could have said what they have
  bool checking_ = false;                      // the state: no ballot is opened on it

  // The step at hand.
  bool begun_ = false;  // one, in this process
  std::unique_ptr<Agreement> agreement_;
  std::uint64_t agreements_ = 0;  // counts them
  std::uint64_t agreement_step_ = 0;
  std::uint64_t persisted_version_ = 0;
  std::optional<std::pair<std::uint64_t, Vote>> stored_vote_;
  bool vote_on_disk_ = true;  // stored_vote_ is
  bool taking_contribution_ = false;
  bool state_awaited_ = false;  // by ranks, though it may be none that is new to them
  std::optional<Nanoseconds> first_held_at_;
  std::optional<Nanoseconds> view_change_since_;  // it is due
  std::optional<Nanoseconds> missed_since_, missed_said_;
  Nanoseconds step_began_ = 0, next_ballot_at_ = 0;
  std::uint64_t promised_before_ = 0;  // when the step began, here
  std::uint32_t ballots_tried_ = 0;
  SaidInStep said_;  // by others
  std::map<SiteId, Nanoseconds> records_asked_, genesis_relayed_;
  LogPace bad_signatures_, refused_records_, differing_spots_;

  Learnt own_lateness_;
  StragglerWait straggler_wait_;
  RankPulse rank_pulse_;
  bool ranks_hang_ = false;  // said so
  bool ranks_leaving_ = false, stopping_ = false, finished_ = false,
       end_told_ = false,       // the last state is right, for all that can be known
      ranks_know_end_ = false;  // and was said to ranks
  std::optional<Error> failure_;
  Nanoseconds started_ = 0;
  Signal changed_;
  Signal votes_;
  std::unique_ptr<LinkTester> link_tester_;
  std::optional<Loop::TimerId> tick_timer_, ballot_timer_;
  Nanoseconds ballot_considered_ = 0;
  Nanoseconds last_status_ = 0;
  Bytes last_status_bytes_;  // encode_own
  Counters counters_;
  std::uint64_t tokens_named_ = 0;  // in the chain
  WaitStatus waits_;
  double WaitStatus::*waits_for_ = nullptr;  // null: nothing that is counted
  Nanoseconds waits_counted_ = 0;            // up to here
  Nanoseconds contributed_at_ = 0;
  bool took_part_ = false;  // this process, in the step that was applied last
};

}  // namespace isthmus::inter
