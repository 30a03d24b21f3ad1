#include "tests/inter/loopback_federation.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "tests/inter/free_ports.h"

namespace isthmus::inter {

ZmqWireOptions LoopbackFederation::wire_options(std::size_t self) const {
  const auto& own = roster.sites[self];
  ZmqWireOptions options;
  options.self = {own.id, 0};
  options.identity = &identities[self];
  options.listen = options.own_address = own.gateways[0].address;
  for (const auto& site : roster.sites)
    if (site.id != own.id)
      options.peers.push_back({.id = {site.id, 0},
                               .name = site.name,
                               .key = site.gateways[0].curve_key,
                               .identity = site.identity,
                               .address = site.gateways[0].address});
  return options;
}

LoopbackFederation make_federation_at(const std::vector<std::string>& addresses) {
  LoopbackFederation federation;
  federation.roster.epoch = 1;
  federation.roster.expires = make_system_clock()->unix_time() + 3600 * kSecond;
  for (const auto& address : addresses) {
    const auto id = static_cast<SiteId>(federation.roster.sites.size() + 1);
    const auto part =
        federation.identities.emplace_back(security::Identity::generate()).public_part();
    federation.roster.sites.push_back({.id = id,
                                       .name = fmt::format("site{}", id),
                                       .voter = true,
                                       .identity = part.identity,
                                       .gateways = {{.address = address,
                                                     .curve_key = part.curve_key,
                                                     .curve_signature = part.curve_signature}}});
  }
  return federation;
}

LoopbackFederation make_loopback_federation(std::size_t sites) {
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < sites; ++i)
    addresses.push_back(fmt::format("127.0.0.1:{}", free_port_pair()));
  return make_federation_at(addresses);
}

}  // namespace isthmus::inter
