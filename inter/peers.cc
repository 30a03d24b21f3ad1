#include "inter/peers.h"

#include <algorithm>
#include <cstdlib>

namespace isthmus::inter {

void Learnt::add(Nanoseconds sample) {
  if (samples_ == 0) {
    mean_ = sample;
    deviation_ = sample / 2;
  } else {
    deviation_ += (std::abs(sample - mean_) - deviation_) / 4;
    mean_ += (sample - mean_) / 8;
  }
  ++samples_;
}

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
  if (sees(site)) return true;
  return std::any_of(sites_.begin(), sites_.end(), [&](const auto& entry) {
    const auto& [id, peer] = entry;
    return peer.link->up() && peer.status &&
           std::count(peer.status->sees.begin(), peer.status->sees.end(), site) > 0;
  });
}

std::vector<SiteId> Peers::seen() const {
  std::vector<SiteId> sites;
  for (const auto& [site, peer] : sites_)
    if (peer.link->up()) sites.push_back(site);
  return sites;
}

void Peers::send_to_all(const Bytes& message) {
  for (auto& [site, peer] : sites_)
    if (peer.link->up()) peer.link->send(message);
}

View next_view(const View& view, std::uint64_t step, const std::vector<Part>& parts,
               const std::map<SiteId, std::uint64_t>& last_named, std::uint32_t absent_steps,
               const Peers& peers) {
  View next = view;
  std::erase_if(next.members, [&](SiteId site) {
    if (std::any_of(parts.begin(), parts.end(),
                    [&](const Part& part) { return part.site == site; }))
      return false;
    const auto peer = peers.all().find(site);
    if (peer != peers.all().end() && peer->second.status && peer->second.status->leaving)
      return true;
    const auto named = last_named.find(site);
    return step - (named == last_named.end() ? 0 : named->second) >= absent_steps;
  });
  for (const auto& [site, peer] : peers.all()) {
    if (!peer.link->up() || !peer.status || !peer.status->wants_in || peer.status->leaving ||
        view.is_member(site))
      continue;
    if (peer.status->step != step) continue;  // not current: its state is another
    next.members.insert(std::lower_bound(next.members.begin(), next.members.end(), site), site);
  }
  if (next.members.empty()) next.members = view.members;
  return next;
}

std::vector<SiteId> to_readmit(const View& view, std::uint64_t step, const Peers& peers) {
  std::vector<SiteId> sites;
  for (const auto& [site, peer] : peers.all())
    if (view.is_voter(site) && peer.link->up() && peer.status && peer.status->lost_vote &&
        peer.status->step == step)
      sites.push_back(site);
  return sites;
}

}  // namespace isthmus::inter
