#include "inter/state_transfer.h"

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kManifestLeaves = (1 << 20) / kDigestBytes;  // a chunk's worth
constexpr Nanoseconds kAskEvery = 2 * kSecond;
constexpr Nanoseconds kPatience = 10 * kSecond;  // without a leaf, before another server is asked
constexpr std::uint64_t kPriority = 1;  // before contributions: who returns holds the others up

}  // namespace

// A saved state with the hashes of its leaves, in memory while somebody fetches it.
struct StateTransfer::Snapshot final : ChunkSource {
  const ModelLayout* layout = nullptr;
  OuterState state;
  std::vector<security::Digest> leaves;
  security::Digest root, strong;
  std::uint32_t manifest = 0;

  ChunkBytes chunk(std::uint32_t index) override {
    if (index < manifest) {
      ByteWriter out;
      const auto first = std::size_t{index} * kManifestLeaves;
      for (auto i = first; i < std::min(leaves.size(), first + kManifestLeaves); ++i)
        out.raw(leaves[i].bytes);
      return {std::make_shared<const Bytes>(out.take()), 0, 0};
    }
    const auto bytes = leaf_bytes(*layout, state, index - manifest);
    return {std::make_shared<const Bytes>(bytes.begin(), bytes.end()),
            static_cast<std::uint32_t>(bytes.size()), static_cast<std::uint32_t>(bytes.size())};
  }
};

struct StateTransfer::Incoming {
  std::uint64_t step = 0;
  security::Digest root, strong;
  TransferId transfer = 0;
  SiteId server = 0;
  OuterState state;
  std::vector<Bytes> manifest;
  std::vector<security::Digest> leaves;  // empty until the manifest is whole
  std::vector<bool> have;
  std::uint32_t missing = 0;
  Nanoseconds last_arrival = 0;
  bool manifest_refused = false;
  // Leaves that came before the list that proves them. No more than the link's credit.
  struct Early {
    Link* link;
    ChunkArrival arrival;
    Bytes bytes;
  };
  std::vector<Early> early;
};

StateTransfer::StateTransfer(Context context, const ModelLayout& layout, bool has_momentum)
    : context_(std::move(context)),
      layout_(layout),
      has_momentum_(has_momentum),
      news_(context_.loop) {}

StateTransfer::~StateTransfer() = default;

std::uint32_t StateTransfer::manifest_chunks() const {
  return static_cast<std::uint32_t>((leaf_count(layout_, has_momentum_) + kManifestLeaves - 1) /
                                    kManifestLeaves);
}

std::uint32_t StateTransfer::chunk_count() const {
  return manifest_chunks() + static_cast<std::uint32_t>(leaf_count(layout_, has_momentum_));
}

// --- Serving
// ---------------------------------------------------------------------------------------------------------------------

void StateTransfer::on_request(Link& link, const StateRequest& request, const StepId& newest_saved,
                               const security::Digest&) {
  StepId id = newest_saved;
  if (request.step != 0) id.step = request.step;
  if (id.step > newest_saved.step) return;
  context_.loop.spawn(serve(link, link.session(), request, id));
}

Task<void> StateTransfer::serve(Link& link, std::uint64_t session, StateRequest request,
                                StepId id) {
  if (!snapshot_ || snapshot_->state.step != id.step) {
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
    co_await run_on(context_.workers, context_.loop, std::move(read), 8 * layout_.elements());
    if (!read_it) co_return;
    fresh->manifest = manifest_chunks();
    snapshot_ = fresh;
  }
  const auto snapshot = snapshot_;
  if (!link.up() || link.session() != session) co_return;
  const Saved saved{.id = id, .state_root = snapshot->root, .strong_root = snapshot->strong};
  if (request.send) {
    const auto transfer = transfer_of_state(id.run, id.step, snapshot->strong);
    link.withdraw(transfer);
    link.offer(transfer, kPriority, chunk_count(), snapshot, true);
    ++counters_.served;
  }
  link.send(sign(context_.signer, context_.self, MessageType::saved, encode(saved)).encode());
}

// --- Fetching
// --------------------------------------------------------------------------------------------------------------------

void StateTransfer::on_saved(Link* from, SiteId signer, const Saved& saved) {
  if (!saved.strong_root) return;
  offers_[signer] = saved;
  if (incoming_ && from != nullptr && from->peer().site == incoming_->server &&
      saved.id.step == incoming_->step && *saved.strong_root == incoming_->strong)
    from->have(incoming_->transfer, incoming_->have);
  news_.notify();
}

Task<std::optional<OuterState>> StateTransfer::fetch(
    std::uint64_t at_least, View view, SiteId self,
    std::function<const Record*(std::uint64_t)> record_of, std::function<bool()> give_up) {
  fetching_ = true;
  std::map<SiteId, Nanoseconds> failed;
  std::optional<OuterState> result;
  std::uint64_t wanted_step = 0;
  while (!give_up()) {
    offers_.clear();
    context_.peers.send_to_all(encode(StateRequest{wanted_step, false}));
    const auto until = context_.loop.now() + kAskEvery;
    // A state is proved by the decided record after it, which has its root, or by a majority of the
    // other voters that signed it.
    const auto others = view.voters.size() - (view.is_voter(self) ? 1 : 0);
    const auto proven = [&](const Saved& saved) {
      if (saved.id.step < at_least || record_of(saved.id.step) == nullptr) return false;
      if (saved.id.step == 0) return record_of(0)->initial_root == saved.state_root;
      if (const auto* next = record_of(saved.id.step + 1))
        return next->parent_root == saved.state_root;
      const auto same = static_cast<std::size_t>(
          std::count_if(offers_.begin(), offers_.end(), [&](const auto& other) {
            return view.is_voter(other.first) && other.first != self &&
                   other.second.id.step == saved.id.step &&
                   other.second.strong_root == saved.strong_root &&
                   other.second.state_root == saved.state_root;
          }));
      return same >= others / 2 + 1;
    };
    std::optional<Saved> chosen;
    while (!chosen && context_.loop.now() < until) {
      co_await news_.wait_until(until);
      for (const auto& [site, saved] : offers_)
        if (proven(saved)) chosen = saved;
    }
    if (!chosen) {
      // Their newest ones are not proved yet: the next time all are asked for the one before, which
      // they still keep, and then anew.
      std::uint64_t lowest = 0;
      for (const auto& [site, saved] : offers_)
        if (saved.id.step > at_least && (lowest == 0 || saved.id.step < lowest))
          lowest = saved.id.step;
      wanted_step = wanted_step == 0 && lowest > 1 ? lowest - 1 : 0;
      continue;
    }
    const Record* record = record_of(chosen->id.step);
    // A server: one that signed this root.
    PeerSite* server = nullptr;
    for (const auto& [site, saved] : offers_) {
      auto* peer = context_.peers.find(site);
      if (peer == nullptr || !peer->link->up() || saved.strong_root != chosen->strong_root)
        continue;
      if (server == nullptr || failed[site] < failed[server->site]) server = peer;
    }
    if (server == nullptr) continue;
    incoming_ = std::make_unique<Incoming>();
    auto& in = *incoming_;
    in.step = chosen->id.step;
    in.root = chosen->state_root;
    in.strong = *chosen->strong_root;
    in.transfer = transfer_of_state(chosen->id.run, in.step, in.strong);
    in.server = server->site;
    in.state.step = in.step;
    in.state.record = record->hash();
    in.state.agreed.resize(layout_.elements());
    if (has_momentum_) in.state.momentum.resize(layout_.elements());
    in.manifest.resize(manifest_chunks());
    in.have.resize(chunk_count());
    in.missing = chunk_count();
    in.last_arrival = context_.loop.now();
    context_.log.info("state_fetch_began",
                      {.peer = server->name, .outer_step = static_cast<std::int64_t>(in.step)});
    context_.at_point("state_transfer", in.step);
    std::uint64_t session = 0;
    while (in.missing > 0 && !in.manifest_refused &&
           context_.loop.now() - in.last_arrival < kPatience && !give_up()) {
      if (server->link->up() && server->link->session() != session) {
        session = server->link->session();
        server->link->send(encode(StateRequest{in.step, true}));
      }
      co_await news_.wait_until(context_.loop.now() + kSecond);
    }
    if (in.missing == 0) {
      bool sound = false;
      auto check = [this, &in, &sound] { sound = state_root(layout_, in.state) == in.root; };
      co_await run_on(context_.workers, context_.loop, std::move(check), 8 * layout_.elements());
      ISTHMUS_ASSERT(sound || !in.leaves.empty());
      if (sound) {
        ++counters_.fetched;
        result = std::move(in.state);
        context_.log.info("state_fetched",
                          {.peer = server->name, .outer_step = static_cast<std::int64_t>(in.step)});
        incoming_.reset();
        break;
      }
    }
    context_.log.warning(
        "state_fetch_stopped",
        {.peer = server->name, .outer_step = static_cast<std::int64_t>(in.step)},
        {{"chunks_missing", in.missing}, {"manifest_refused", in.manifest_refused}});
    failed[in.server] = context_.loop.now();
    for (const auto& early : in.early) early.link->settle(early.arrival, false);
    incoming_.reset();
  }
  fetching_ = false;
  co_return result;
}

bool StateTransfer::on_chunk(Link& link, const ChunkArrival& arrival,
                             std::span<const std::byte> bytes) {
  if (!incoming_ || arrival.transfer != incoming_->transfer) return false;
  auto& in = *incoming_;
  if (link.peer().site != in.server || arrival.index >= in.have.size()) {
    link.settle(arrival, false);
    return true;
  }
  if (in.have[arrival.index]) {
    link.settle(arrival, true);
    return true;
  }
  in.last_arrival = context_.loop.now();
  const auto manifest = manifest_chunks();
  if (arrival.index >= manifest && in.leaves.empty()) {
    in.early.push_back({&link, arrival, Bytes(bytes.begin(), bytes.end())});
    return true;
  }
  bool good = false;
  if (arrival.index < manifest) {
    const auto total = leaf_count(layout_, has_momentum_);
    const auto here =
        std::min(kManifestLeaves, total - std::size_t{arrival.index} * kManifestLeaves);
    good = bytes.size() == here * kDigestBytes;
    if (good) in.manifest[arrival.index].assign(bytes.begin(), bytes.end());
    if (good && std::all_of(in.manifest.begin(), in.manifest.end(),
                            [](const auto& part) { return !part.empty(); })) {
      for (const auto& part : in.manifest)
        for (std::size_t at = 0; at < part.size(); at += kDigestBytes) {
          security::Digest digest;
          std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(at), kDigestBytes,
                      digest.bytes.begin());
          in.leaves.push_back(digest);
        }
      in.manifest_refused = strong_root(in.leaves) != in.strong;
      good = !in.manifest_refused;
    }
  } else {
    const auto leaf = arrival.index - manifest;
    const auto place = leaf_bytes(layout_, in.state, leaf);
    good = bytes.size() == place.size() && security::blake2b(bytes) == in.leaves[leaf];
    if (good) std::copy(bytes.begin(), bytes.end(), place.begin());
    if (!good) ++counters_.refused_leaves;
  }
  if (good) {
    in.have[arrival.index] = true;
    --in.missing;
  }
  link.settle(arrival, good);
  if (!in.leaves.empty())
    for (const auto& early : std::exchange(in.early, {}))
      on_chunk(*early.link, early.arrival, early.bytes);
  news_.notify();
  return true;
}

}  // namespace isthmus::inter
