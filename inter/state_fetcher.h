// StateFetcher: how a site that cannot replay gets a whole outer state. It is proved: by the
// decided record after it, which has its root, or by a majority of the other voters that signed it.
// Every leaf is checked against a strong root as it arrives (PROTOCOL.md, "Return").
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/event_log.h"
#include "inter/peers.h"
#include "inter/state_chunks.h"

namespace isthmus::inter {

class StateFetcher {
 public:
  struct Context {
    Loop& loop;
    Workers& workers;
    EventLog& log;
    Peers& peers;
    SiteId self;
    std::function<void(const char* point, std::uint64_t step)> at_point;
    // How many other voters have said that they saved a state with this root.
    std::function<std::size_t(std::uint64_t step, const security::Digest& root)> vouch_for;
  };
  StateFetcher(Context context, const ModelLayout& layout, bool has_momentum);
  ~StateFetcher();

  // A state of at least `at_least`, of which `view` has the voters. Tries until it has one or
  // `give_up` says true.
  using RecordOf = std::function<const Record*(std::uint64_t step)>;  // decided and known here
  Task<std::optional<OuterState>> fetch(std::uint64_t at_least, View view, RecordOf record_of,
                                        std::function<bool()> give_up);
  void on_saved(Link* from, SiteId signer, const Saved& saved);
  // This peer has the state of `step` no more.
  void on_lacking(const Link& link, std::uint64_t step);
  bool on_chunk(Link& link, const ChunkArrival& arrival,
                const SharedBytes& bytes);  // false: not of a state
  void session_ended(Link& link);
  bool fetching() const { return fetching_; }
  // Since fetch() began: whether a state is on its way, and how often none came of it.
  bool receives() const;
  std::uint32_t in_vain() const { return in_vain_; }

 private:
  struct Incoming;
  // What fetch() was asked for.
  struct Wanted {
    std::uint64_t at_least = 0;
    View view;
    RecordOf record_of;
    std::function<bool()> give_up;
  };
  // The last word of a site about what it has.
  struct Offer {
    Saved saved;
    Nanoseconds said = 0;
  };
  std::size_t majority(const View& view) const;
  std::size_t voters_for(const Saved& offer, const View& view) const;
  bool proven(const Saved& offer, const Wanted& wanted) const;
  std::optional<Saved> choose(
      const Wanted& wanted,
      const std::function<bool(const Saved& offer, const PeerSite& server)>& may) const;
  PeerSite* server_of(const Saved& offer) const;
  Nanoseconds failed_at(const PeerSite& server) const;
  void note_failure(const PeerSite& server);
  bool is_slow(const Link& link);
  bool may_be_faster(const Link& link, const PeerSite& other, std::uint32_t missing_there) const;
  std::optional<Saved> better_elsewhere(const PeerSite& server, const Wanted& wanted);
  void forget_old_offers();
  void ask_silent_peers(const Wanted& wanted);
  Task<void> begin_incoming(Saved chosen, security::Digest record);
  void forget_part_of_list();
  Task<std::optional<Saved>> receive_from(PeerSite& server, const Wanted& wanted);

  Context context_;
  const ModelLayout& layout_;
  bool has_momentum_;
  const StateChunks chunks_;
  bool fetching_ = false;
  std::uint32_t in_vain_ = 0;
  std::unique_ptr<Incoming> incoming_;
  std::deque<TransferId> left_;                 // of which nothing more is taken
  std::map<SiteId, Offer> offers_;              // with a strong root
  std::map<SiteId, Nanoseconds> failed_;        // servers, since fetch() began
  std::map<SiteId, double> chunks_per_second_;  // of slow servers
  Nanoseconds patience_ = 0;                    // with a state of which little comes
  Signal news_;
};

}  // namespace isthmus::inter
