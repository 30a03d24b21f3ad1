#include "inter/peers.h"

#include <algorithm>

namespace isthmus::inter {

PeerSite* Peers::find(SiteId site) {
  const auto found = sites_.find(site);
  return found == sites_.end() ? nullptr : &found->second;
}

PeerSite* Peers::of(const Link& link) { return find(link.peer().site); }

bool Peers::sees(SiteId site) const {
  const auto found = sites_.find(site);
  return found != sites_.end() && found->second.link->up();
}

bool Peers::reachable(SiteId site) const {
  if (sites_.count(site) == 0) return false;
  if (sees(site)) return true;
  return std::any_of(sites_.begin(), sites_.end(), [&](const auto& entry) {
    const auto& [id, peer] = entry;
    return peer.link->up() && peer.status && std::ranges::binary_search(peer.status->sees, site);
  });
}

std::vector<SiteId> Peers::seen() const {
  std::vector<SiteId> sites;
  for (const auto& [site, peer] : sites_)
    if (peer.link->up()) sites.push_back(site);
  return sites;
}

std::vector<Wish> Peers::wishes(std::uint64_t step, SiteId self) const {
  std::map<SiteId, Wish> all;
  for (const auto& [id, peer] : sites_) {
    if (!peer.link->up() || !peer.status || peer.status->step != step) continue;
    for (const auto& wish : peer.status->wishes)
      if (wish.site != self && wish.hops <= Wish::kHopsMax && !sees(wish.site))
        if (const auto [at, first] = all.emplace(wish.site, wish);
            !first && wish.hops < at->second.hops)
          at->second = wish;
    all[id] = peer.status->own_wish(id);
  }
  std::vector<Wish> wishes;
  for (const auto& [site, wish] : all) wishes.push_back(wish);
  return wishes;
}

const PeerSite* Peers::about_to_join(std::uint64_t step, Nanoseconds since,
                                     const std::function<bool(SiteId)>& may) const {
  for (const auto& [site, peer] : sites_)
    if (peer.link->up() && peer.status && peer.status->step < step && peer.wished_at > 0 &&
        peer.wished_at >= since && !peer.status->leaving && may(site))
      return &peer;
  return nullptr;
}

void Peers::send_to_all(const Bytes& message) {
  for (auto& [site, peer] : sites_)
    if (peer.link->up()) peer.link->send(message);
}

std::vector<PeerSite*> Peers::working_on(std::uint64_t step) {
  std::vector<PeerSite*> working;
  for (auto& [site, peer] : sites_)
    if (peer.link->up() && peer.status && peer.status->step == step) working.push_back(&peer);
  return working;
}

Nanoseconds Peers::longest_round_trip(const View& view) const {
  Nanoseconds longest = 0;
  for (const auto& [site, peer] : sites_)
    if (view.takes_part(site)) longest = std::max(longest, peer.link->round_trip());
  return longest;
}

bool changes(const View& view, const Wish& wish) {
  return (wish.joins && !view.is_member(wish.site)) ||
         (view.takes_part(wish.site) && wish.vote_file != kNoVoteFile &&
          wish.vote_file != view.vote_file_of(wish.site));
}

View next_view(const View& view, std::uint64_t step, const std::vector<Part>& parts,
               const std::map<SiteId, std::uint64_t>& last_named, std::uint32_t absent_steps,
               const std::vector<Wish>& wishes, const Peers& peers) {
  View next = view;
  std::erase_if(next.members, [&](SiteId site) {
    if (std::any_of(parts.begin(), parts.end(),
                    [&](const Part& part) { return part.site == site; }))
      return false;
    const auto peer = peers.all().find(site);
    if (peer != peers.all().end() && peer->second.status && peer->second.status->leaving)
      return true;
    if (parts.empty()) return false;  // names nobody, and says nothing of who is absent
    const auto named = last_named.find(site);
    return step - (named == last_named.end() ? 0 : named->second) >= absent_steps;
  });
  for (const auto& wish : wishes) {
    if (wish.joins && !view.is_member(wish.site))
      next.take_in(wish.site, wish.vote_file);
    else if (next.takes_part(wish.site) && wish.vote_file != kNoVoteFile)
      next.set_vote_file(wish.site, wish.vote_file);
  }
  if (next.members.empty()) next.members = view.members;
  next.forget_others();
  return next;
}

}  // namespace isthmus::inter
