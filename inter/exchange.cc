#include "inter/exchange.h"

#include <algorithm>

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kAskedLately = 10 * kSecond;

}  // namespace

Exchange::Exchange(Context context, std::shared_ptr<const ChunkPlan> plan,
                   std::function<void(const Part&)> on_held,
                   std::function<void(std::uint32_t)> on_chunk_added,
                   std::function<void()> on_differing_state)
    : context_(std::move(context)),
      plan_(std::move(plan)),
      on_held_(std::move(on_held)),
      on_chunk_added_(std::move(on_chunk_added)),
      on_differing_state_(std::move(on_differing_state)),
      lacking_(plan_->chunks()),
      read_(context_.loop) {}

void Exchange::begin_step(const StepId& id, const View& view, const security::Digest& parent,
                          const security::Digest& state_root, std::uint64_t keep_from) {
  const bool base_changed = id_ == id && state_root_ != state_root;
  id_ = id;
  view_ = view;
  parent_ = parent;
  state_root_ = state_root;
  wanted_.clear();
  for (auto& [site, sought] : sought_) {
    const bool without_way = sought.without_way;
    sought = {};
    sought.without_way = without_way;
  }
  served_at_.clear();
  held_elsewhere_.clear();
  drop_unannounced();
  keep_from_ = keep_from;
  forget_old(id.step);
  // What did not fit our state may fit it now.
  if (!base_changed) return;
  for (const auto& [key, entry] : entries_) {
    if (key.first != id_.step) continue;
    entry->contribution->prefer_close(state_root_);
    if (entry->contribution->complete() && !entry->held) context_.loop.spawn(finish(entry));
  }
}

// What is older than must be kept, but for what was asked for lately, of few steps.
void Exchange::forget_old(std::uint64_t but_of) {
  const auto old = [&](const auto& item) {
    return item.first.first < keep_from_ && item.first.first != but_of;
  };
  std::map<std::uint64_t, Nanoseconds> asked;  // of a step, the last time
  for (const auto& item : entries_)
    if (const auto& at = item.second->asked_at;
        old(item) && at && context_.loop.now() - *at < kAskedLately)
      asked[item.first.first] = std::max(asked[item.first.first], *at);
  while (asked.size() + (but_of < keep_from_ ? 1 : 0) > kOldSteps)
    asked.erase(std::ranges::min_element(
        asked, [](const auto& a, const auto& b) { return a.second < b.second; }));
  std::vector<std::shared_ptr<ContributionFile>> left;
  std::erase_if(entries_, [&](const auto& item) {
    const auto& [key, entry] = item;
    if (!old(item) || (entry->asked_at && asked.contains(key.first))) return false;
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(entry->contribution->transfer());
    if (entry->file) left.push_back(entry->file);
    by_transfer_.erase(entry->contribution->transfer());
    return true;
  });
  // The last one to close a file that was removed waits for the file system to free its blocks.
  if (left.empty()) return;
  auto close = [left = std::move(left)]() mutable { left.clear(); };
  context_.workers.submit(
      std::move(close), [] {}, 0, Urgency::disk);
}

Exchange::EntryPtr Exchange::find(TransferId transfer) const {
  const auto found = by_transfer_.find(transfer);
  return found == by_transfer_.end() ? nullptr : found->second;
}

void Exchange::place(const EntryPtr& entry) {
  const auto& contribution = *entry->contribution;
  auto& there = entries_[{contribution.step(), contribution.site()}];
  if (there) by_transfer_.erase(there->contribution->transfer());
  there = by_transfer_[contribution.transfer()] = entry;
}

void Exchange::remove(Entries::iterator entry) {
  by_transfer_.erase(entry->second->contribution->transfer());
  entries_.erase(entry);
}

Exchange::Entry* Exchange::current(SiteId site) const {
  const auto found = entries_.find({id_.step, site});
  return found == entries_.end() ? nullptr : found->second.get();
}

std::shared_ptr<const Contribution> Exchange::held(std::uint64_t step, SiteId site) const {
  const auto found = entries_.find({step, site});
  return found != entries_.end() && found->second->held ? found->second->contribution : nullptr;
}

std::shared_ptr<const Contribution> Exchange::incoming(SiteId site) const {
  const auto* entry = current(site);
  return entry == nullptr ? nullptr : entry->contribution;
}

// Called with each chunk of each member: whoever lacked it the last time mostly still does, and
// those before it are not looked at again until all seem to have it.
std::vector<std::shared_ptr<const Contribution>> Exchange::all_with(std::uint32_t chunk) {
  const auto& members = view_.members;
  auto& lacking = lacking_[chunk];
  for (std::size_t looked_at = 0; looked_at < members.size(); ++looked_at) {
    if (lacking >= members.size()) lacking = 0;
    const auto* entry = current(members[lacking]);
    if (entry == nullptr || !entry->contribution->has(chunk)) return {};
    ++lacking;
  }
  std::vector<std::shared_ptr<const Contribution>> all;
  for (const auto member : members) all.push_back(current(member)->contribution);
  return all;
}

std::vector<SiteId> Exchange::holds() const {
  std::vector<SiteId> sites;
  for (const auto& [key, entry] : entries_)
    if (key.first == id_.step && entry->held) sites.push_back(key.second);
  return sites;
}

std::vector<SiteId> Exchange::holds_soon() const {
  std::vector<SiteId> sites;
  for (const auto& [key, entry] : entries_)
    if (key.first == id_.step && (entry->held || entry->finishing)) sites.push_back(key.second);
  return sites;
}

std::optional<Exchange::ChunkName> Exchange::first_missing(
    std::span<const ChunkName> chunks) const {
  std::optional<TransferId> looked_up;
  EntryPtr entry;
  for (const auto& [transfer, index] : chunks) {
    if (looked_up != transfer) entry = find(transfer);
    looked_up = transfer;
    if (entry && index < plan_->chunks() && !entry->contribution->has(index))
      return ChunkName(transfer, index);
  }
  return std::nullopt;
}

std::map<SiteId, security::Digest> Exchange::claimed_roots(std::uint64_t step) const {
  std::map<SiteId, security::Digest> roots;
  if (step != id_.step) return roots;
  for (const auto& [key, entry] : entries_)
    if (key.first == id_.step && key.second != context_.self && entry->contribution->close())
      roots[key.second] = entry->contribution->state_root_said_last();
  return roots;
}

bool Exchange::sending(const View& view) const {
  const auto* own = current(context_.self);
  return own != nullptr &&
         std::any_of(context_.peers.all().begin(), context_.peers.all().end(), [&](const auto& p) {
           const auto& [site, peer] = p;
           return (view.is_member(site) || view.is_voter(site)) && peer.link->up() &&
                  peer.link->sends(own->contribution->transfer());
         });
}

bool Exchange::arriving(SiteId site) const {
  const auto* entry = current(site);
  return entry != nullptr && !entry->held && comes(*entry);
}

std::uint64_t Exchange::bytes_held() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += entry->contribution->bytes();
  return bytes;
}

bool Exchange::contributed() const {
  const auto* entry = current(context_.self);
  return entry != nullptr && entry->held;
}

void Exchange::send_signed(Link& link, const Signed& message) { link.send(message.encode()); }

void Exchange::offer(Link& link, const Entry& entry) {
  const auto& contribution = entry.contribution;
  send_signed(link, contribution->announcement());
  // Of what was made in a first session nothing can have arrived; else the peer says what it has.
  const bool resume = entry.restored || link.counters().sessions > 1;
  link.offer(contribution->transfer(), contribution->step(), plan_->chunks(), contribution, resume);
}

void Exchange::announce(Link& link) {
  const auto found = entries_.find({id_.step, context_.self});
  if (found == entries_.end()) return;
  offer(link, *found->second);
  if (found->second->held) send_signed(link, *found->second->contribution->close_message());
}

void Exchange::say_back(Link& link) {
  const auto* entry = current(link.peer().site);
  if (entry == nullptr || !entry->held) return;
  send_signed(link, entry->contribution->announcement());
  send_signed(link, *entry->contribution->close_message());
}

}  // namespace isthmus::inter
