// How contributions come from, and go to, sites that are not their origin: what a decided record or
// a ballot names and is lacking here is asked of whoever has it.
#include <algorithm>
#include <utility>

#include "inter/exchange.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kUnannouncedPatienceMin = 2 * kSecond;
constexpr std::size_t kServedAtOnceMax = 4;  // to one peer
constexpr Nanoseconds kRated = 3 * kSecond;  // how fast a contribution comes
constexpr double kSlowSeconds = 10, kWorthLeaving = 2;
// Without a whole chunk what others have too is asked of them, whatever comes: who sends it may be
// what is slow, and not the line to here.
constexpr Nanoseconds kWholeChunkTakes = 120 * kSecond;

}  // namespace

void Exchange::want(const std::vector<Part>& parts, Named by) {
  for (const auto& part : parts) {
    if (const auto other = held(id_.step, part.site);
        other && other->part() != part && part.site != context_.self && by == Named::by_record) {
      tell_of_two_contributions(part.site, context_.self);
      forget(id_.step, part.site);
    }
    if (held(id_.step, part.site)) continue;
    if (decided(part.site) != nullptr) continue;
    auto& wanted = wanted_[part.site];
    wanted = {part, by};
    const auto found = entries_.find({id_.step, part.site});
    if (found == entries_.end()) continue;
    const auto& entry = found->second;
    if (entry->contribution->complete() && entry->contribution->part() == part)
      context_.loop.spawn(finish(entry));  // it was not what an earlier one named
    else if (by == Named::by_record && part.site != context_.self && !entry->finishing &&
             entry->contribution->close() && entry->contribution->part() != part)
      begin_anew(EntryPtr(entry));
  }
}

const Part* Exchange::decided(SiteId site) const {
  const auto wanted = wanted_.find(site);
  if (wanted == wanted_.end() || wanted->second.by != Named::by_record) return nullptr;
  return &wanted->second.part;
}

bool Exchange::lacks_own() const {
  return wanted_.count(context_.self) > 0 && !contributing_ && !contributed();
}

// They come from the site itself, or from who was asked for them.
Nanoseconds Exchange::fetch_patience(SiteId site) const {
  auto patience = kFetchPatienceMin;
  const auto sought = sought_.find(site);
  for (const auto from : {site, sought == sought_.end() ? site : sought->second.asked.peer})
    if (const auto* peer = context_.peers.find(from); peer != nullptr && peer->link->up())
      patience = std::max(patience, peer->link->chunk_patience());
  return patience;
}

// Some of it came lately, or comes on a line on which a whole chunk takes long.
bool Exchange::comes(const Entry& entry, Nanoseconds chunk_takes) const {
  const auto since = context_.loop.now() - entry.last_arrival;
  if (since < fetch_patience(entry.contribution->site())) return true;
  return since < chunk_takes && std::ranges::any_of(entry.announced, [&](const auto& announced) {
           const auto& [site, session] = announced;
           const auto* peer = context_.peers.find(site);
           return peer != nullptr && peer->link->session() == session &&
                  peer->link->brings_chunks();
         });
}

void Exchange::consider_fetching() {
  const auto now = context_.loop.now();
  // A chunk whose announcement never came gives its credit back.
  // While no file can be made they wait: they would come again at once.
  const auto too_long = [&](const auto& chunk) {
    return now - chunk.since > std::max(kUnannouncedPatienceMin, chunk.link->chunk_patience());
  };
  if (disk_refuses_.empty()) {
    // Each by its own link's patience: one of a slow link holds up no other's.
    auto waiting = std::exchange(unannounced_, {});
    for (auto& [site, chunks] : waiting)
      for (auto& chunk : chunks) {
        if (too_long(chunk))
          chunk.link->settle(chunk.arrival, false);
        else
          unannounced_[site].push_back(std::move(chunk));
      }
  }
  const auto ask = [&](SiteId site) {
    if (site == context_.self && contributing_) return;
    // Who is out of sight sends nothing until somebody is asked for it: its announcement was passed
    // on.
    auto& sought = sought_[site];
    auto& asked = sought.asked;
    // Where nothing comes from the site itself, to ask it counts only while nobody else has it.
    const bool in_vain = asked.peer == site && sought.without_way && others_may_have(site);
    const bool flows =
        !in_vain && ((context_.peers.sees(site) && !sought.without_way) || asked.peer != 0);
    const auto* entry = current(site);
    const bool here = entry != nullptr && flows && comes(*entry, kWholeChunkTakes);
    const bool slowly = here && decided(site) != nullptr && comes_slowly(*entry);
    if ((entry != nullptr && entry->held) || (here && !slowly)) return;
    const bool brings = slowly && entry->brought_by == asked.peer;
    if (asked.peer != 0 && !in_vain && !brings && !sought.lacking.contains(asked.peer)) {
      // What it is asked for it sends one after the other.
      const auto served = served_at_[asked.peer];
      if (!asked.session_ended && now - std::max(asked.when, served) < fetch_patience(site)) return;
      if (!asked.session_ended || served < asked.when) {
        (asked.session_ended ? sought.broke_off : sought.silent).insert(asked.peer);
        if (!asked.session_ended) silent_.insert(asked.peer);
      }
    }
    if (slowly) return ask_faster_source(site);
    // The next source after the last one asked, so that a silent one does not stop us; one that was
    // slow, or silent, before, also in other steps, only when there is no other, and last one
    // whose bytes were bad. At first the site itself, if its bulk may come, or who comes after it:
    // so that many contributions do not all come over one line.
    std::vector<PeerSite*> sources, slow, silent, refused;
    for (auto& [id, peer] : context_.peers.all()) {
      if (!may_have(peer, site) || (in_vain && id == site)) continue;
      auto& kind = sought.refused.contains(id) ? refused
                   : silent_.contains(id)      ? silent
                   : is_slow(id)               ? slow
                                               : sources;
      kind.push_back(&peer);
    }
    for (auto* others : {&slow, &silent, &refused})
      if (sources.empty()) sources = std::move(*others);
    if (sources.empty()) return;
    const auto from = asked.peer != 0 ? asked.peer + 1 : sought.without_way ? site + 1 : site;
    auto next = std::find_if(sources.begin(), sources.end(),
                             [&](const PeerSite* p) { return p->site >= from; });
    if (next == sources.end()) next = sources.begin();
    ask_of(**next, site);
  };
  for (const auto& [site, wanted] : wanted_) ask(site);
  for (const auto site : view_.members) {
    if (site == context_.self) continue;
    if (!context_.peers.sees(site)) {
      ask(site);
    } else if (waits_in_sight(site)) {
      sought_[site].without_way = true;
      ask(site);
    }
  }
}

void Exchange::ask_of(PeerSite& peer, SiteId site) {
  auto& sought = sought_[site];
  sought.asked = {peer.site, context_.loop.now()};
  if (const auto found = entries_.find({id_.step, site});
      found != entries_.end() && sought.from_one_alone && !found->second->finishing)
    begin_anew(EntryPtr(found->second));
  if (auto* entry = current(site)) {
    entry->rated_from = context_.loop.now();
    entry->arrived.clear();
    entry->chunks_per_second.reset();
  }
  ++asked_;
  if (peer.site != site) ++asked_elsewhere_;
  peer.link->await_chunks();
  peer.link->send(encode(Fetch{id_.step, site}));
}

// Whoever sent all of it, and it was wrong, is asked last.
void Exchange::fetch_from_one_alone(SiteId site) {
  auto& sought = sought_[site];
  if (std::exchange(sought.from_one_alone, true)) sought.refused.insert(sought.asked.peer);
  sought.asked.session_ended = true;  // the next one is asked, at once
  if (auto* entry = current(site)) entry->last_arrival = 0;
  consider_fetching();
}

bool Exchange::was_asked(const Link* peer, SiteId site) const {
  const auto sought = sought_.find(site);
  return peer != nullptr && sought != sought_.end() &&
         sought->second.asked.peer == peer->peer().site;
}

void Exchange::rate(Entry& entry) {
  const auto now = context_.loop.now();
  if (entry.rated_from == 0) entry.rated_from = now;
  ++entry.arrived[entry.brought_by];
  const auto since = now - entry.rated_from;
  if (since < kRated && !(entry.contribution->missing() == 0 && since > 0)) return;
  entry.chunks_per_second = 0;
  for (const auto& [peer, chunks] : std::exchange(entry.arrived, {})) {
    const auto rate = chunks / seconds_of(since);
    chunks_per_second_[peer] = rate;
    *entry.chunks_per_second += rate;
  }
  entry.rated_from = now;
}

bool Exchange::comes_slowly(const Entry& entry) const {
  const auto missing = static_cast<double>(entry.contribution->missing());
  return entry.chunks_per_second && missing > kSlowSeconds * *entry.chunks_per_second;
}

bool Exchange::is_slow(SiteId peer) const {
  const auto known = chunks_per_second_.find(peer);
  return known != chunks_per_second_.end() && plan_->chunks() > kSlowSeconds * known->second;
}

// A record names it, so that others have it, and what is missing takes long, as seconds of it tell:
// whoever brings it may drip, or have a thin line. It is left for one that was much faster lately,
// or of which nothing is known yet: where it is this site's line that is thin each one is tried but
// once. Who was left sends no more, so that nothing comes twice.
void Exchange::ask_faster_source(SiteId site) {
  const auto& entry = *current(site);
  const auto& sought = sought_[site];
  PeerSite* fastest = nullptr;
  double most = 0;
  for (auto& [id, peer] : context_.peers.all()) {
    if (id == entry.brought_by || !may_have(peer, site) || sought.refused.contains(id) ||
        sought.silent.contains(id) || silent_.contains(id))
      continue;
    const auto known = chunks_per_second_.find(id);
    const auto enough = kWorthLeaving * *entry.chunks_per_second;
    const auto rate = known != chunks_per_second_.end() ? known->second : enough;
    if (rate < enough || rate <= most) continue;
    fastest = &peer;
    most = rate;
  }
  if (fastest == nullptr) return;
  if (auto* slow = context_.peers.find(entry.brought_by); slow != nullptr && slow->link->up())
    slow->link->send(encode(Enough{id_.step, site}));
  ask_of(*fastest, site);
}

// Its site was heard of it, and others have it whole: its bulk may find no way to here. Not what
// came, and waits for this site's own disk.
bool Exchange::waits_in_sight(SiteId site) const {
  const auto* entry = current(site);
  if (entry == nullptr || entry->held) return false;
  const auto sought = sought_.find(site);
  if ((sought == sought_.end() || !sought->second.without_way) && comes(*entry, kWholeChunkTakes))
    return false;
  return entry->arriving.empty() && disk_refuses_.empty() && others_may_have(site);
}

bool Exchange::others_may_have(SiteId site) const {
  return std::ranges::any_of(context_.peers.all(), [&](const auto& other) {
    return other.first != site && may_have(other.second, site);
  });
}

// Of the step at hand, as it says.
bool Exchange::may_have(const PeerSite& peer, SiteId site) const {
  if (!peer.link->up() || !peer.status) return false;
  const auto& s = *peer.status;
  if (s.step == id_.step) return std::count(s.holds.begin(), s.holds.end(), site) > 0;
  const auto sought = sought_.find(site);
  const bool lacks = sought != sought_.end() && sought->second.lacking.contains(peer.site);
  return s.step > id_.step && s.first_record <= id_.step && !lacks;
}

bool Exchange::nobody_has(const std::vector<Part>& parts) const {
  for (const auto& part : parts) {
    if (held(id_.step, part.site) || arriving(part.site)) continue;
    const auto sought = sought_.find(part.site);
    const bool somebody = std::ranges::any_of(context_.peers.all(), [&](const auto& entry) {
      const auto& [id, peer] = entry;
      return may_have(peer, part.site) &&
             (sought == sought_.end() ||
              !(sought->second.silent.contains(id) || sought->second.broke_off.contains(id)));
    });
    if (!somebody) return true;
  }
  return false;
}

void Exchange::on_fetch(Link& link, const Fetch& fetch, std::uint64_t newest) {
  // What the disk has of a later step is looked through when that begins. Nobody asks for it who
  // goes by what our status says.
  if (fetch.step > std::max(newest, id_.step)) return;
  auto& next = serving_[link.peer().site].next;
  if (next.size() >= kSitesMax || std::ranges::count(next, fetch) > 0) return;  // it asks again
  next.push_back(fetch);
  serve_next(link);
}

void Exchange::serve_next(Link& link) {
  auto& serving = serving_[link.peer().site];
  while (serving.now.size() < kServedAtOnceMax && !serving.next.empty()) {
    const auto fetch = serving.next.front();
    serving.next.pop_front();
    if (serving.now.insert_or_assign({fetch.step, fetch.site}, link.session()).second)
      context_.loop.spawn(serve(link, fetch));
  }
}

Result<std::shared_ptr<Contribution>> Exchange::read_back(std::uint64_t step, SiteId site,
                                                          std::uint64_t* bytes) const {
  const auto stored = context_.store.contributions().read(step, site);
  if (!stored && !is_lost(stored.error())) return stored.error();
  const auto open = stored ? decode_open(stored->announcement.body) : std::nullopt;
  if (!open || open->id.step != step || stored->announcement.signer != site || !plan_->fits(*open))
    return nullptr;
  if (bytes != nullptr) *bytes = stored->bytes;
  auto whole = std::make_shared<Contribution>(plan_, stored->announcement, *open);
  for (const auto& [index, sealed] : stored->chunks) {
    if (index >= plan_->chunks() || sealed.size() < kSealBytes) continue;
    whole->add(index,
               {sealed, chunk_hash(whole->transfer(), index, sealed.bytes().subspan(kSealBytes))});
  }
  const auto close = stored->close ? decode_close(stored->close->body) : std::nullopt;
  const bool closed = close && verify(context_.verifier, *stored->close);
  if (closed && whole->set_close(*stored->close, *close) && whole->proven()) return whole;
  auto partial = std::make_shared<Contribution>(plan_, stored->announcement, *open);
  for (const auto& [index, sealed] : stored->chunks) {
    if (index >= plan_->chunks()) continue;
    auto checked = check_chunk(*plan_, context_.verifier, partial->seals(), site,
                               partial->transfer(), index, sealed);
    if (checked) partial->add(index, std::move(checked->sealed));
  }
  // A chunk may be there twice, torn by a crash and then as it came again.
  if (closed) partial->set_close(*stored->close, *close);
  return partial;
}

Result<Exchange::Stored> Exchange::take_up(const StepId& id, SiteId site,
                                           const security::Digest& parent) const {
  std::uint64_t bytes = 0;
  ISTHMUS_TRY(auto contribution, read_back(id.step, site, &bytes));
  if (!contribution || contribution->open().id != id || contribution->open().base != parent ||
      !verify(context_.verifier, contribution->announcement()))
    return Stored();
  auto& files = context_.store.contributions();
  ISTHMUS_TRY(auto file, contribution->proven() ? files.rewrite(*contribution)
                                                : files.go_on_with(id.step, site, bytes));
  return Stored{std::move(contribution), std::move(file)};
}

Task<Result<void>> Exchange::restore(StepId id, View view, security::Digest parent,
                                     security::Digest state_root) {
  const auto step = id.step;
  Result<std::vector<SiteId>> listed;
  auto list = [this, &listed, step] { listed = context_.store.contributions().sites(step); };
  co_await run_on(context_.workers, context_.loop, std::move(list), 4096, Urgency::disk);
  if (!listed) co_return listed.error();
  for (const auto site : *listed) {
    if (entries_.count({step, site}) > 0 || !view.is_member(site)) continue;
    Result<Stored> stored = Error{ErrorCode::cancelled, ""};
    auto read = [&] { stored = take_up(id, site, parent); };
    co_await run_on(context_.workers, context_.loop, std::move(read), plan_->bytes_max(),
                    Urgency::disk);
    if (!stored) co_return stored.error();
    const auto& contribution = stored->contribution;
    // Of our own that was never closed nothing was promised: it is made anew.
    const bool whole = contribution && contribution->proven();
    if (!contribution || (site == context_.self && !whole)) continue;
    if (site == context_.self && context_.bug == PlantedBug::two_contributions) continue;
    auto entry = std::make_shared<Entry>();
    entry->contribution = contribution;
    entry->file = std::move(stored->file);
    entry->restored = true;
    entry->held =
        whole && (site == context_.self || contribution->close()->state_root == state_root);
    place(entry);
    context_.log.info(site == context_.self ? "own_contribution_restored" : "contribution_restored",
                      {.outer_step = static_cast<std::int64_t>(step)},
                      {{"signer", site}, {"bytes", contribution->bytes()}, {"whole", whole}});
  }
  co_return Result<void>();
}

Task<Result<std::shared_ptr<Contribution>>> Exchange::recall(std::uint64_t step, SiteId site,
                                                             Urgency urgency) {
  const std::pair key(step, site);
  while (reading_.contains(key)) co_await read_.wait();
  if (const auto found = entries_.find(key); found != entries_.end()) {
    found->second->asked_at = context_.loop.now();
    co_return found->second->held ? found->second->contribution : nullptr;
  }
  reading_.insert(key);
  Result<std::shared_ptr<Contribution>> here;
  auto read = [this, &here, step, site] { here = read_back(step, site, nullptr); };
  co_await run_on(context_.workers, context_.loop, std::move(read), plan_->bytes_max(), urgency);
  reading_.erase(key);
  read_.notify();
  if (!here) co_return here.error();
  auto contribution = *here && (*here)->proven() ? std::move(*here) : nullptr;
  // Of the step at hand only what restore() would have taken up, since others may be of a view that
  // the operator has given up, or of another state; and not what a record has taken the place of.
  if (contribution && step == id_.step &&
      (contribution->open().id != id_ || contribution->open().base != parent_ ||
       contribution->close()->state_root != state_root_ ||
       (decided(site) != nullptr && *decided(site) != contribution->part())))
    contribution.reset();
  if (contribution) {
    forget_old(step);
    auto entry = std::make_shared<Entry>();
    entry->contribution = contribution;
    entry->held = true;
    entry->asked_at = context_.loop.now();
    if (!entries_.contains(key)) place(entry);
  }
  co_return contribution;
}

Task<void> Exchange::serve(Link& link, Fetch fetch) {
  // Whoever asks for old ones again and again keeps nobody from the step at hand.
  const auto recalled = co_await recall(fetch.step, fetch.site, Urgency::background);
  auto contribution = recalled ? *recalled : nullptr;
  const auto served = serving_[link.peer().site].now.extract({fetch.step, fetch.site});
  serve_next(link);
  if (!link.up() || link.session() != served.mapped()) co_return;
  // On its way to the disk it is all there, and our status says so.
  if (const auto found = entries_.find({fetch.step, fetch.site});
      !contribution && found != entries_.end() && found->second->finishing)
    contribution = found->second->contribution;
  if (!contribution) {
    link.send(encode(Lacking{fetch.step, fetch.site}));
    co_return;
  }
  if (fetch.site != context_.self) ++relayed_;
  send_signed(link, contribution->announcement());
  // What is on its way goes on, whose turn at the rate limit may come after it was asked for again.
  link.offer(contribution->transfer(), fetch.step, plan_->chunks(), contribution, true);
  send_signed(link, *contribution->close_message());
}

void Exchange::on_enough(Link& link, const Enough& enough) {
  const auto found = entries_.find({enough.step, enough.site});
  if (found != entries_.end()) link.withdraw(found->second->contribution->transfer());
}

void Exchange::on_lacking(Link& link, const Lacking& lacking) {
  if (lacking.step != id_.step || !view_.is_member(lacking.site)) return;
  auto& sought = sought_[lacking.site];
  sought.lacking.insert(link.peer().site);
  sought.silent.insert(link.peer().site);  // also while it says that it holds it
  consider_fetching();
}

}  // namespace isthmus::inter
