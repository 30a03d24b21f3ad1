#include "inter/state_server.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kLongAgo = INT64_MIN / 2;
constexpr std::size_t kSnapshots = 2;  // as many as the disk has
constexpr Nanoseconds kSnapshotBusy = 5 * kSecond;
constexpr int kSnapshotShare = 4;  // of the time, a fifth at most is spent on what one peer asks
// Answers to one peer. Who fetches asks every two seconds, and a few times more when a server was
// of no use or a session ended.
constexpr int kAnswersAtOnce = 16;
constexpr Nanoseconds kAnswersApart = kSecond;
constexpr Nanoseconds kSnapshotIdle = 120 * kSecond;  // then its memory is free again, if all came
constexpr std::uint64_t kPriority = 1;  // before contributions: who returns holds the others up

}  // namespace

// A saved state with the hashes of its leaves, in memory while somebody fetches it.
struct StateServer::Snapshot final : ChunkSource {
  const ModelLayout* layout = nullptr;
  OuterState state;
  std::vector<security::Digest> leaves;
  security::Digest run, root, strong;
  std::uint32_t manifest = 0;
  const Loop* loop = nullptr;
  Nanoseconds last_used = 0;
  std::vector<bool> sent;       // since it was asked for last
  std::set<SiteId> claimed_by;  // who is sent it

  // Who is sent the same again and again does not keep it in memory.
  void note_sent(std::uint32_t index) {
    sent.resize(std::max<std::size_t>(sent.size(), index + 1));
    if (!sent[index]) last_used = loop->now();
    sent[index] = true;
  }

  ChunkBytes chunk(std::uint32_t index) override {
    note_sent(index);
    if (index < manifest) {
      ByteWriter out;
      const auto first = std::size_t{index} * StateChunks::kHashesMax;
      for (auto i = first; i < std::min(leaves.size(), first + StateChunks::kHashesMax); ++i)
        out.raw(leaves[i].bytes);
      return {out.take(), 0, 0};
    }
    const auto bytes = leaf_bytes(*layout, state, index - manifest);
    return {Bytes(bytes.begin(), bytes.end()), static_cast<std::uint32_t>(bytes.size()),
            static_cast<std::uint32_t>(bytes.size())};
  }
};

StateServer::StateServer(Context context, const ModelLayout& layout, bool has_momentum)
    : context_(std::move(context)), layout_(layout), chunks_(layout, has_momentum) {}

StateServer::~StateServer() = default;

void StateServer::on_request(Link& link, const StateRequest& request, const StepId& newest_saved) {
  StepId id = newest_saved;
  if (request.step != 0) id.step = request.step;
  if (id.step > newest_saved.step) return;
  if (request.send) postponed_.erase(link.peer().site);
  context_.loop.spawn(serve(link, link.session(), request, id));
}

Task<void> StateServer::serve(Link& link, std::uint64_t session, StateRequest request, StepId id) {
  auto found = std::ranges::find(snapshots_, id.step,
                                 [](const auto& snapshot) { return snapshot->state.step; });
  const auto peer = link.peer().site;
  const auto not_yet = [&] {
    if (request.send) postponed_[peer] = {&link, session, request, id};
  };
  if (found == snapshots_.end()) {
    const auto began = context_.loop.now();
    if (reading_ || began < next_snapshot_at_[peer] || !room_for_snapshot()) {
      not_yet();
      co_return;
    }
    reading_ = true;
    auto fresh = std::make_shared<Snapshot>();
    bool read_it = false;
    auto read = [this, fresh, &read_it, id] {
      auto state = context_.store.read_state(layout_, id.step);
      if (!state) return;
      fresh->layout = &layout_;
      fresh->state = std::move(*state);
      fresh->root = state_root(layout_, fresh->state);
      fresh->leaves = strong_leaves(layout_, fresh->state);
      fresh->strong = strong_root(fresh->leaves);
      read_it = true;
    };
    co_await run_on(context_.workers, context_.loop, std::move(read), 8 * layout_.elements(),
                    Urgency::background);
    reading_ = false;
    const auto now = context_.loop.now();
    next_snapshot_at_[peer] = now + kSnapshotShare * (now - began);
    if (!read_it) {  // it was written over
      if (request.send && link.up() && link.session() == session)
        link.send(encode(Lacking{{id.step, kStateItself}}));
      co_return;
    }
    fresh->run = id.run;
    fresh->manifest = chunks_.of_list();
    fresh->loop = &context_.loop;
    found = snapshots_.insert(snapshots_.end(), fresh);
  }
  const auto snapshot = *found;
  if (snapshot->last_used == 0) snapshot->last_used = context_.loop.now();
  auto& pace = answers_.try_emplace(peer, kAnswersAtOnce, kAnswersApart).first->second;
  if (!pace.take(context_.loop.now())) {
    not_yet();
    co_return;
  }
  if (request.send) claim(snapshot, link);
  if (!link.up() || link.session() != session) co_return;
  const Saved saved{
      .id = id, .state_root = snapshot->root, .strong_root = snapshot->strong, .spot_root = {}};
  if (request.send) {
    const auto transfer = transfer_of_state(id.run, id.step, snapshot->strong);
    link.withdraw(transfer);
    link.offer(transfer, kPriority, chunks_.all(), snapshot, true);
  }
  link.send(sign(context_.signer, context_.self, MessageType::saved, encode(saved)).encode());
}

// One for each peer, and none by a question alone: or one peer would keep all the room.
void StateServer::claim(const std::shared_ptr<Snapshot>& snapshot, Link& link) {
  const auto peer = link.peer().site;
  for (auto& other : snapshots_) {
    if (other == snapshot || other->claimed_by.erase(peer) == 0) continue;
    link.withdraw(transfer_of_state(other->run, other->state.step, other->strong));
    if (other->claimed_by.empty()) other->last_used = kLongAgo;
  }
  snapshot->claimed_by.insert(peer);
  snapshot->last_used = context_.loop.now();
  snapshot->sent.clear();
}

// When something came last to somebody who is still sent it: leaves may all have been read long
// before they arrive.
Nanoseconds StateServer::last_arrival_of(const Snapshot& snapshot) const {
  const auto transfer = transfer_of_state(snapshot.run, snapshot.state.step, snapshot.strong);
  Nanoseconds last = kLongAgo;
  for (const auto site : snapshot.claimed_by) {
    const auto* peer = context_.peers.find(site);
    if (peer == nullptr || !peer->link->up() || !peer->link->sends(transfer)) continue;
    last = std::max({last, snapshot.last_used, peer->link->last_arrival()});
  }
  return last;
}

void StateServer::drop_snapshots(Nanoseconds unused_for, Nanoseconds stuck_for) {
  const auto now = context_.loop.now();
  std::erase_if(snapshots_, [&](const auto& old) {
    if (now - old->last_used < unused_for || now - last_arrival_of(*old) < stuck_for) return false;
    const auto transfer = transfer_of_state(old->run, old->state.step, old->strong);
    for (auto& [site, peer] : context_.peers.all()) peer.link->withdraw(transfer);
    return true;
  });
}

// Nobody loses one that is on its way because somebody else asks: it may have been written over
// since, so that all of it would have to come anew.
bool StateServer::room_for_snapshot() {
  if (snapshots_.size() == kSnapshots) drop_snapshots(kSnapshotBusy, kLeafPauseMax);
  return snapshots_.size() < kSnapshots;
}

void StateServer::tidy() {
  drop_snapshots(kSnapshotIdle, kLeafTakesMax);
  for (const auto& [peer, asked] : std::exchange(postponed_, {}))
    if (asked.link->up() && asked.link->session() == asked.session)
      context_.loop.spawn(serve(*asked.link, asked.session, asked.request, asked.id));
}

}  // namespace isthmus::inter
