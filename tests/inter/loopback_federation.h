// Sites with real keys and one gateway each, which find each other on loopback or where they are
// told to.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "inter/zmq_wire.h"
#include "security/identity.h"
#include "security/roster.h"

namespace isthmus::inter {

struct LoopbackFederation {
  std::vector<security::Identity> identities;
  security::Roster roster;  // site ids from 1, valid for an hour; all are voters

  // What the gateway of the site at this place of the roster opens its wire with.
  ZmqWireOptions wire_options(std::size_t self) const;
};

LoopbackFederation make_loopback_federation(std::size_t sites);
// As many sites as addresses ("host:port" of the control lane), where they find each other.
LoopbackFederation make_federation_at(const std::vector<std::string>& addresses);

}  // namespace isthmus::inter
