// Sites with real keys and one gateway each, which find each other on loopback.
#pragma once

#include <cstddef>
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

}  // namespace isthmus::inter
