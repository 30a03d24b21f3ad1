#include "inter/state_fetcher.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kDigestBytes = 32;
constexpr std::uint64_t kLeafBytesMax = ModelLayout::kLeafElements * sizeof(float);
constexpr Nanoseconds kAskEvery = 2 * kSecond;
// Without a leaf, before another server is asked: of one that reads and hashes its state before it
// sends the first; of one that sends, at least, where its link has not taught otherwise
// (Link::chunk_patience); and of one that is gone.
constexpr Nanoseconds kPatienceAtFirst = 60 * kSecond;
constexpr Nanoseconds kPatienceMin = 5 * kSecond;
constexpr Nanoseconds kPatienceWithoutLink = 10 * kSecond;
// A slow line takes minutes for a leaf. While bytes come as fast as this at least, but for a pause
// as long as a leaf has taken until now, none need be whole before there is one more than are on
// their way at once: one on each connection, of so many at most.
constexpr double kSlowestBytesPerSecond = 1024;
constexpr std::uint32_t kAtOnceMax = 8;
// A server that needs longer than this for what is missing, as some seconds tell, is left for one
// of so many that were not tried yet, or for one that was so much faster.
constexpr Nanoseconds kTrial = 3 * kSecond;
constexpr double kLongSeconds = 10;
constexpr std::size_t kTriedMax = 4;
constexpr double kMuchFaster = 2;
// What it has under way comes first. Where that takes longer than this, as the line here may be
// what is slow, a server that is not known to be slower than another one is left only for the sake
// of so many times as much, or after half an hour.
constexpr double kLongUnderWay = 150;
constexpr std::uint32_t kWorthWhile = 10;
constexpr Nanoseconds kPatienceWithSlowServer = 1800 * kSecond;
// An offer of another state than the one that comes counts for so long: its server keeps what it
// has read for twice as long at most, and may have written it over by then.
constexpr Nanoseconds kOfferCounts = 60 * kSecond;
constexpr std::size_t kUnlistedMax = 32;  // leaves
constexpr std::size_t kLeftMax = 16;      // transfers

bool same_state(const Saved& a, const Saved& b) {
  return a.id.step == b.id.step && a.state_root == b.state_root && a.strong_root == b.strong_root;
}

// Of chunks, since there were so many; a count may fall behind when a connection ends.
double bytes_since(const Link& link, std::uint64_t before) {
  return std::max(0.0,
                  static_cast<double>(link.bulk_bytes_received()) - static_cast<double>(before));
}

}  // namespace

struct StateFetcher::Incoming {
  Saved offer;             // of which this is the state
  std::size_t voters = 0;  // that signed it, at most
  TransferId transfer = 0;
  SiteId server = 0;  // whose chunks are taken; 0: nobody's, meanwhile
  OuterState state;
  std::vector<Bytes> manifest;
  std::vector<security::Digest> leaves;  // empty until the manifest is whole
  std::vector<bool> have;
  std::uint32_t missing = 0;
  std::uint32_t missing_when_halved = 0;  // half of what was missing had come, once more
  Nanoseconds halved = 0;
  Nanoseconds last_arrival = 0;
  std::uint64_t bytes_until_then = 0;  // of chunks, from this server
  Nanoseconds asked = 0;               // this server, for the first time
  std::uint64_t bytes_until_asked = 0;
  std::uint32_t leaves_came = 0;  // from it
  Nanoseconds rated_from = 0;     // its first arrival, or later
  std::uint32_t arrived = 0;      // after that
  double leaves_per_second = 0;   // of it, on average
  bool manifest_refused = false;
  bool refused = false;  // something of what this server sent
  bool lacked = false;   // by this server, by now
  // Leaves that came before the list that proves them.
  struct Unlisted {
    Link* link;
    ChunkArrival arrival;
    SharedBytes bytes;
  };
  std::vector<Unlisted> unlisted;
};

StateFetcher::StateFetcher(Context context, const ModelLayout& layout, bool has_momentum)
    : context_(std::move(context)),
      layout_(layout),
      has_momentum_(has_momentum),
      chunks_(layout, has_momentum),
      news_(context_.loop) {}

StateFetcher::~StateFetcher() = default;

bool StateFetcher::receives() const { return incoming_ != nullptr && incoming_->server != 0; }

// Only what a site says itself to this one: what others pass on of it was said to somebody else,
// who knows when.
void StateFetcher::on_saved(Link* from, SiteId signer, const Saved& saved) {
  if (!saved.strong_root || from == nullptr || from->peer().site != signer) return;
  offers_[signer] = {saved, context_.loop.now()};
  if (incoming_ && signer == incoming_->server && same_state(saved, incoming_->offer))
    from->have(incoming_->transfer, incoming_->have);
  news_.notify();
}

// Of the voters other than this site.
std::size_t StateFetcher::majority(const View& view) const {
  return (view.voters.size() - (view.is_voter(context_.self) ? 1 : 0)) / 2 + 1;
}

std::size_t StateFetcher::voters_for(const Saved& offer, const View& view) const {
  return static_cast<std::size_t>(std::ranges::count_if(offers_, [&](const auto& entry) {
    const auto& [site, other] = entry;
    return site != context_.self && view.is_voter(site) && same_state(other.saved, offer);
  }));
}

// That there is such a state, of which the strong root says what it consists of: by the decided
// record after it, or by a majority of the other voters that saved it.
bool StateFetcher::proven(const Saved& offer, const Wanted& wanted) const {
  const auto step = offer.id.step;
  if (step < wanted.at_least || wanted.record_of(step) == nullptr) return false;
  if (step == 0) return wanted.record_of(0)->initial_root == offer.state_root;
  if (const auto* next = wanted.record_of(step + 1)) return next->parent_root == offer.state_root;
  const auto needed = majority(wanted.view);
  return voters_for(offer, wanted.view) >= needed ||
         context_.vouch_for(step, offer.state_root) >= needed;
}

// Which of the offers to fetch: one of a state whose root is proved, and that somebody in sight
// has. A list of leaves that a majority of the voters signed is true; any other one, only if it
// `may` be fetched, of the server that failed us least lately, and of such what most voters signed:
// so a few of one mind are not asked over and over.
std::optional<Saved> StateFetcher::choose(
    const Wanted& wanted,
    const std::function<bool(const Saved& offer, const PeerSite& server)>& may) const {
  std::optional<Saved> best;
  std::tuple<bool, Nanoseconds, std::size_t, std::uint64_t> best_rank;
  for (const auto& [site, offer] : offers_) {
    const auto* server = server_of(offer.saved);
    if (server == nullptr || !proven(offer.saved, wanted)) continue;
    const auto voters = voters_for(offer.saved, wanted.view);
    const bool is_true = voters >= majority(wanted.view);
    if (!is_true && !may(offer.saved, *server)) continue;
    const std::tuple rank(is_true, -failed_at(*server), voters, offer.saved.id.step);
    if (best && rank <= best_rank) continue;
    best = offer.saved;
    best_rank = rank;
  }
  return best;
}

// One that signed this state and can be reached; the one that failed us least lately, and of such
// one that was not tried yet, or the fastest.
PeerSite* StateFetcher::server_of(const Saved& offer) const {
  PeerSite* server = nullptr;
  std::pair<Nanoseconds, double> best;
  for (const auto& [site, other] : offers_) {
    auto* peer = context_.peers.find(site);
    if (peer == nullptr || !peer->link->up() || !same_state(other.saved, offer)) continue;
    const auto tried = chunks_per_second_.find(site);
    const bool is_new = tried == chunks_per_second_.end();
    const std::pair rank(-failed_at(*peer), !is_new ? tried->second
                                            : chunks_per_second_.size() < kTriedMax
                                                ? std::numeric_limits<double>::infinity()
                                                : 0.0);
    if (server != nullptr && rank <= best) continue;
    server = peer;
    best = rank;
  }
  return server;
}

Nanoseconds StateFetcher::failed_at(const PeerSite& server) const {
  const auto failed = failed_.find(server.site);
  return failed == failed_.end() ? 0 : failed->second;
}

void StateFetcher::note_failure(const PeerSite& server) {
  failed_[server.site] = context_.loop.now();
  ++in_vain_;
}

// Told once every few seconds: what is missing would take it long.
bool StateFetcher::is_slow(const Link& link) {
  auto& in = *incoming_;
  const auto now = context_.loop.now();
  if (in.rated_from == 0 || now - in.rated_from < kTrial || in.missing == 0) return false;
  const auto lately = in.arrived / seconds_of(now - in.rated_from);
  in.rated_from = now;
  in.arrived = 0;
  // A few seconds may be less than a leaf takes. Of bytes that did not check yet count as many as
  // can be under way.
  const auto under_way = std::min(link.chunks_at_once(), kAtOnceMax);
  const auto leaves =
      std::min(bytes_since(link, in.bytes_until_asked) / static_cast<double>(kLeafBytesMax),
               1.0 * in.leaves_came + under_way);
  in.leaves_per_second = leaves / seconds_of(now - in.asked);
  chunks_per_second_[in.server] = std::max(lately, in.leaves_per_second);
  return in.missing > kLongSeconds * lately;
}

// Another one than the server, which is slow. Each reads and hashes all of its state first, so few
// are tried, and one that was is gone back to where it was much faster than this one is. What has
// come is given up for one that is not known only if it is less than half, and as long as few were
// tried.
bool StateFetcher::may_be_faster(const Link& link, const PeerSite& other,
                                 std::uint32_t missing_there) const {
  const auto& in = *incoming_;
  if (const auto known = chunks_per_second_.find(other.site); known != chunks_per_second_.end())
    return known->second * in.missing >
           kMuchFaster * chunks_per_second_.at(in.server) * missing_there;
  const auto under_way = std::min(link.chunks_at_once(), kAtOnceMax);
  const bool line_may_be_slow = in.leaves_per_second * kLeafBytesMax >= kSlowestBytesPerSecond &&
                                in.leaves_per_second * kLongUnderWay < under_way;
  if (missing_there > (chunks_per_second_.size() < kTriedMax ? 2 : 1) * in.missing) return false;
  if (context_.loop.now() - in.asked >= kPatienceWithSlowServer) return true;
  return !line_may_be_slow || in.missing >= kWorthWhile * under_way;
}

// What is better fetched from another server. The same state, where this one is slow, from one that
// may be faster: nothing is lost by it. Or, until a majority has signed this state, another one,
// for which all that has come is given up: the list of its leaves may be true and this one
// invented, by whoever answered first. It is one that a majority has signed; or, where this server
// is slow, one whose server may be faster and has not failed later than this one; or any, where
// half of what was missing takes longer to come than patience lasts: then this server has failed,
// and patience is twice as long from now on. So a change leads to a list that is true, to a server
// that was not tried yet, or to one much faster that has not failed since; and what goes to and fro
// all the same takes twice as long each time, until that is enough for an honest server.
std::optional<Saved> StateFetcher::better_elsewhere(const PeerSite& server, const Wanted& wanted) {
  auto& in = *incoming_;
  in.voters = std::max(in.voters, voters_for(in.offer, wanted.view));
  const bool slow = is_slow(*server.link);
  if (const auto* same = server_of(in.offer);
      slow && same != nullptr && same != &server && may_be_faster(*server.link, *same, in.missing))
    return in.offer;
  if (in.voters >= majority(wanted.view)) return std::nullopt;
  const bool takes_too_long =
      slow && context_.loop.now() - std::max(in.halved, in.asked) >= patience_;
  const auto best = choose(wanted, [&](const Saved& offer, const PeerSite& other) {
    if (!slow || same_state(offer, in.offer) || &other == &server) return false;
    return takes_too_long || (failed_at(other) <= failed_at(server) &&
                              may_be_faster(*server.link, other, chunks_.all()));
  });
  if (best && takes_too_long) {
    note_failure(server);
    patience_ *= 2;
  }
  return best;
}

// But of the state that comes, which has other servers to go on with.
void StateFetcher::forget_old_offers() {
  std::erase_if(offers_, [&](const auto& entry) {
    const auto& offer = entry.second;
    return context_.loop.now() - offer.said >= kOfferCounts &&
           !(receives() && same_state(offer.saved, incoming_->offer));
  });
}

// Whom nobody could ask when all were, who was busy, or whose offer is old: until a majority has
// signed what comes.
void StateFetcher::ask_silent_peers(const Wanted& wanted) {
  if (incoming_->voters >= majority(wanted.view)) return;
  for (const auto& [site, peer] : context_.peers.all())
    if (peer.link->up() && !offers_.contains(site)) peer.link->send(encode(StateRequest{0, false}));
}

// What has come of this very state from another server stays.
Task<void> StateFetcher::begin_incoming(Saved chosen, security::Digest record) {
  if (incoming_ && same_state(incoming_->offer, chosen)) co_return;
  incoming_.reset();
  auto begun = std::make_unique<Incoming>();
  auto& in = *begun;
  in.offer = chosen;
  in.transfer = transfer_of_state(chosen.id.run, chosen.id.step, *chosen.strong_root);
  in.state.step = chosen.id.step;
  in.state.record = record;
  auto make_room = [this, &in] {
    in.state.agreed.resize(layout_.elements());
    if (has_momentum_) in.state.momentum.resize(layout_.elements());
  };
  co_await run_on(context_.workers, context_.loop, std::move(make_room), 8 * layout_.elements());
  in.manifest.resize(chunks_.of_list());
  in.have.resize(chunks_.all());
  in.missing = in.missing_when_halved = chunks_.all();
  in.halved = context_.loop.now();
  incoming_ = std::move(begun);
}

// A list of leaves comes from one server: of parts from two nobody could tell whose is false.
void StateFetcher::forget_part_of_list() {
  auto& in = *incoming_;
  if (!in.leaves.empty()) return;
  for (std::uint32_t part = 0; part < chunks_.of_list(); ++part) {
    if (!in.have[part]) continue;
    in.manifest[part].clear();
    in.have[part] = false;
    ++in.missing;
  }
}

// Until all of it is here, or the server has nothing more to say, or something false, or until more
// is to be had elsewhere: then what to go on with.
Task<std::optional<Saved>> StateFetcher::receive_from(PeerSite& server, const Wanted& wanted) {
  auto& in = *incoming_;
  in.server = server.site;
  forget_part_of_list();
  in.refused = in.lacked = false;
  in.rated_from = 0;
  in.leaves_came = in.arrived = 0;
  in.last_arrival = in.asked = context_.loop.now();
  in.bytes_until_then = in.bytes_until_asked = server.link->bulk_bytes_received();
  auto asked = in.asked;
  std::uint64_t session = 0;
  const auto patience = [&] {
    if (!server.link->up()) return kPatienceWithoutLink;
    if (in.last_arrival <= asked) return kPatienceAtFirst;
    return std::max(kPatienceMin, server.link->chunk_patience(kLeafBytesMax));
  };
  const auto pause_max = [&] {
    if (in.leaves_came == 0) return kPatienceAtFirst;
    return std::min((in.last_arrival - in.asked) / in.leaves_came, kLeafPauseMax);
  };
  // Of a slow line chunk_patience() knows no more than the last seconds.
  const auto slow_line_brings_it = [&] {
    const auto since = context_.loop.now() - in.last_arrival;
    const auto bytes = bytes_since(*server.link, in.bytes_until_then);
    const auto at_once = std::min(server.link->chunks_at_once(), kAtOnceMax);
    return server.link->up() && since < kLeafTakesMax && bytes < (1.0 + at_once) * kLeafBytesMax &&
           bytes >= kSlowestBytesPerSecond * seconds_of(since - pause_max());
  };
  std::optional<Saved> better;
  auto next_ask = in.asked + kAskEvery;
  while (in.missing > 0 && !in.refused && !in.lacked && !wanted.give_up() && !better &&
         (context_.loop.now() - in.last_arrival < patience() || slow_line_brings_it())) {
    if (server.link->up() && server.link->session() != session) {
      session = server.link->session();
      asked = context_.loop.now();
      server.link->send(encode(StateRequest{in.offer.id.step, true}));
    }
    co_await news_.wait_until(context_.loop.now() + kSecond);
    if (in.missing == 0 || in.refused || in.lacked) break;
    better = better_elsewhere(server, wanted);
    if (context_.loop.now() < next_ask) continue;
    next_ask = context_.loop.now() + kAskEvery;
    forget_old_offers();
    ask_silent_peers(wanted);
  }
  in.server = 0;
  for (const auto& leaf : std::exchange(in.unlisted, {})) leaf.link->settle(leaf.arrival, false);
  // It need not go on. Where it is asked once more, it hears what is here then.
  server.link->have(in.transfer, std::vector<bool>(chunks_.all(), true));
  if (std::ranges::find(left_, in.transfer) == left_.end()) left_.push_back(in.transfer);
  if (left_.size() > kLeftMax) left_.pop_front();
  co_return better;
}

void StateFetcher::on_lacking(const Link& link, std::uint64_t step) {
  if (!incoming_ || link.peer().site != incoming_->server || step != incoming_->offer.id.step)
    return;
  incoming_->lacked = true;
  news_.notify();
}

Task<std::optional<OuterState>> StateFetcher::fetch(std::uint64_t at_least, View view,
                                                    RecordOf record_of,
                                                    std::function<bool()> give_up) {
  fetching_ = true;
  failed_.clear();
  in_vain_ = 0;
  chunks_per_second_.clear();
  patience_ = kPatienceWithSlowServer;
  offers_.clear();
  const Wanted wanted{at_least, std::move(view), std::move(record_of), std::move(give_up)};
  std::optional<OuterState> result;
  std::uint64_t wanted_step = 0;
  while (!wanted.give_up() && !result) {
    forget_old_offers();
    context_.peers.send_to_all(encode(StateRequest{wanted_step, false}));
    const auto until = context_.loop.now() + kAskEvery;
    std::optional<Saved> chosen;
    while (!chosen && context_.loop.now() < until) {
      // What no majority has signed, only when no more offers are waited for.
      const bool more = co_await news_.wait_until(until);
      chosen = choose(wanted, [more](const auto&, const auto&) { return !more; });
    }
    PeerSite* server = chosen ? server_of(*chosen) : nullptr;
    if (server == nullptr) {
      // Their newest ones are not proved yet: the next time all are asked for the one before, which
      // they still keep, and then anew.
      std::uint64_t lowest = 0;
      for (const auto& [site, offer] : std::exchange(offers_, {}))
        if (const auto step = offer.saved.id.step;
            step > at_least && (lowest == 0 || step < lowest))
          lowest = step;
      wanted_step = wanted_step == 0 && lowest > 1 ? lowest - 1 : 0;
      continue;
    }
    auto step = static_cast<std::int64_t>(chosen->id.step);
    co_await begin_incoming(*chosen, wanted.record_of(chosen->id.step)->hash());
    context_.log.info("state_fetch_began", {.peer = server->name, .outer_step = step});
    context_.at_point("state_transfer", chosen->id.step);
    while (const auto better = co_await receive_from(*server, wanted)) {
      auto* other = server_of(*better);
      if (other == nullptr) break;
      const bool same = same_state(*better, incoming_->offer);
      co_await begin_incoming(*better, wanted.record_of(better->id.step)->hash());
      server = other;
      step = static_cast<std::int64_t>(better->id.step);
      context_.log.info("state_fetch_goes_on", {.peer = server->name, .outer_step = step},
                        {{"why", same ? "it may come faster from there"
                                      : "no majority has signed the one that came"},
                         {"chunks_missing", incoming_->missing}});
    }
    auto& in = *incoming_;
    bool sound = false;
    if (in.missing == 0) {
      auto check = [this, &in, &sound] {
        sound = state_root(layout_, in.state) == in.offer.state_root;
      };
      co_await run_on(context_.workers, context_.loop, std::move(check), 8 * layout_.elements());
    }
    if (sound) {
      result = std::move(in.state);
      context_.log.info("state_fetched", {.peer = server->name, .outer_step = step});
    } else if (!wanted.give_up()) {
      context_.log.warning("state_fetch_stopped", {.peer = server->name, .outer_step = step},
                           {{"chunks_missing", in.missing}, {"refused", in.refused}});
      note_failure(*server);
      offers_.erase(server->site);
    }
    if (in.missing == 0 || in.manifest_refused) incoming_.reset();
  }
  incoming_.reset();
  fetching_ = false;
  co_return result;
}

// The next session brings new credit, and they come again.
void StateFetcher::session_ended(Link& link) {
  if (incoming_)
    std::erase_if(incoming_->unlisted, [&](const auto& leaf) { return leaf.link == &link; });
}

bool StateFetcher::on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& message) {
  const auto bytes = message.bytes();
  if (!incoming_ || arrival.transfer != incoming_->transfer ||
      link.peer().site != incoming_->server) {
    // What was on its way when its server was left: refused it would come again.
    const bool was_left = std::ranges::find(left_, arrival.transfer) != left_.end();
    if (was_left) link.settle(arrival, true);
    return was_left;
  }
  auto& in = *incoming_;
  if (arrival.index >= in.have.size()) {
    link.settle(arrival, false);
    return true;
  }
  if (in.have[arrival.index]) {
    link.settle(arrival, true);
    return true;
  }
  const auto manifest = chunks_.of_list();
  if (arrival.index >= manifest && in.leaves.empty()) {
    // With all of the credit they would keep out the list itself, where that was lost.
    if (in.unlisted.size() < kUnlistedMax)
      in.unlisted.push_back({&link, arrival, message});
    else
      link.settle(arrival, false);
    return true;
  }
  bool good = false;
  if (arrival.index < manifest) {
    good = bytes.size() == chunks_.hashes_in(arrival.index) * kDigestBytes;
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
      good = strong_root(in.leaves) == in.offer.strong_root;
      in.manifest_refused = !good;
    }
  } else {
    const auto leaf = arrival.index - manifest;
    const auto place = leaf_bytes(layout_, in.state, leaf);
    good = bytes.size() == place.size() && strong_leaf(bytes) == in.leaves[leaf];
    if (good) std::copy(bytes.begin(), bytes.end(), place.begin());
  }
  if (good) {
    in.last_arrival = context_.loop.now();
    in.bytes_until_then = link.bulk_bytes_received();
    if (in.rated_from == 0)
      in.rated_from = in.last_arrival;
    else
      ++in.arrived;
    if (arrival.index >= manifest) ++in.leaves_came;
    in.have[arrival.index] = true;
    if (--in.missing <= in.missing_when_halved / 2) {
      in.missing_when_halved = in.missing;
      in.halved = in.last_arrival;
    }
  } else {
    in.refused = true;
  }
  link.settle(arrival, good);
  if (!in.leaves.empty())
    for (const auto& leaf : std::exchange(in.unlisted, {}))
      on_chunk(*leaf.link, leaf.arrival, leaf.bytes);
  news_.notify();
  return true;
}

}  // namespace isthmus::inter
