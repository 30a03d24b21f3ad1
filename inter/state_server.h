// StateServer: sends whole outer states to sites that return and cannot replay (PROTOCOL.md,
// "Return"): the newest saved one, or an older one that is still kept. A peer that asks for one
// after another waits longer for each than it takes to read and hash it; and what asks again and
// again is answered at a pace, as the answer is longer than the question. Whoever is to be sent one
// waits for its turn, the others ask again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "inter/burst_pace.h"
#include "inter/outer_store.h"
#include "inter/peers.h"
#include "inter/state_chunks.h"

namespace isthmus::inter {

class StateServer {
 public:
  struct Context {
    Loop& loop;
    Workers& workers;
    OuterStore& store;
    Peers& peers;
    const security::Signer& signer;
    SiteId self;
  };
  StateServer(Context context, const ModelLayout& layout, bool has_momentum);
  ~StateServer();

  void on_request(Link& link, const StateRequest& request, const StepId& newest_saved);
  // Frees what nobody fetches any more, and looks whose turn it is. Now and then.
  void tidy();

 private:
  struct Snapshot;
  struct Postponed {
    Link* link = nullptr;
    std::uint64_t session = 0;
    StateRequest request;
    StepId id;
  };
  Task<void> serve(Link& link, std::uint64_t session, StateRequest request, StepId id);
  void claim(const std::shared_ptr<Snapshot>& snapshot, Link& link);
  Nanoseconds last_arrival_of(const Snapshot& snapshot) const;
  void drop_snapshots(Nanoseconds unused_for, Nanoseconds stuck_for);
  bool room_for_snapshot();

  Context context_;
  const ModelLayout& layout_;
  const StateChunks chunks_;
  std::vector<std::shared_ptr<Snapshot>> snapshots_;  // shared with the links that send them
  bool reading_ = false;                              // a snapshot, from disk
  std::map<SiteId, Nanoseconds> next_snapshot_at_;    // that this peer may cause
  std::map<SiteId, BurstPace> answers_;               // whatever sessions they ask in
  std::map<SiteId, Postponed> postponed_;             // what a peer asked to be sent, the last
};

}  // namespace isthmus::inter
