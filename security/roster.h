// The roster: who the sites of a federation are, and the keys that prove it. The operator signs its
// exact bytes (security/roster_signature.h); the launcher parses them, after that, into this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "security/hash.h"
#include "security/keys.h"
#include "security/signature.h"

namespace isthmus::security {

// One process that speaks for a site, or for its part of the model.
struct RosterGateway {
  std::string address;  // "host:port" of its control socket, "[…]:port" for IPv6; bulk is port + 1.
                        // "": it only dials
  CurveKey curve_key;
  Signature curve_signature;  // by the site's identity: signs_curve_key
};

// What a site may be called: 1 to 64 letters, digits, '.', '_' or '-'.
bool is_site_name(std::string_view text);

struct RosterSite {
  std::uint32_t id = 0;  // never given to another site, not even in a later roster
  std::string name;
  bool voter = false;
  PublicKey identity;
  std::vector<RosterGateway> gateways;  // at least one
};

// A site of an earlier roster. It is let in nowhere; what it signed while it was a site still
// counts (records name it, its contributions are passed on), and its id stays taken.
struct FormerSite {
  std::uint32_t id = 0;
  std::string name;
  PublicKey identity;
};

// The operator's word for when a majority of voters is lost for good: the run goes on from the
// state after `step`, that has this root, with these voters. What was decided later is given up.
struct Recovery {
  Digest run;
  std::uint64_t step = 0;
  Digest root;
  std::vector<std::uint32_t> voters;  // ascending

  Digest digest() const;
};

struct Roster {
  std::uint64_t epoch = 0;        // counts up with every change
  Nanoseconds expires = 0;        // on the calendar: Clock::unix_time
  std::vector<RosterSite> sites;  // ascending id
  // The run of these sites, once there is one: a site that joins takes no other for it. Without it
  // the run's first voters must be those of this roster.
  std::optional<Digest> run = {};
  std::vector<Recovery> recoveries = {};  // ascending steps; they stay in later rosters
  std::vector<FormerSite> former = {};    // ascending id; they stay in later rosters
  // Above every id that was ever given, also to sites that nobody lists any more; 0: not written.
  std::uint64_t next_id = 0;
  Digest digest;  // of its exact bytes

  const RosterSite* find(std::uint32_t id) const;  // nullptr: not listed
  const RosterSite* find(std::string_view name) const;
  // Whose signatures can be checked: a site, now or formerly; nullptr: neither.
  const PublicKey* identity_of(std::uint32_t id) const;
  std::size_t voters() const;
};

inline constexpr std::size_t kRosterBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kRosterSitesMax = 256;  // messages that list them must fit the wire
inline constexpr std::size_t kFormerSitesMax = 1024;

// What a site is whose entry does not say `voter`: the first seven of the roster vote.
constexpr bool voter_by_default(std::size_t position) { return position < 7; }

// True when the site's identity vouches for the key: no other key may speak for it.
bool signs_curve_key(const PublicKey& identity, const CurveKey& key, const Signature& signature);

// Everything that is wrong with a parsed roster, one sentence each; empty when it may be used.
// Sites: at least one, at most kRosterSitesMax, ids ascending, names unique (1 to 64 of a-z A-Z 0-9
// . _ -), identities unique and on the curve. At least one voter. Gateways: at least one a site;
// addresses such as others can dial, whose ports are no other's; CURVE keys unique and signed by
// their site. Voters of a recovery listed, ascending, at least one. Former sites: at most
// kFormerSitesMax, ids ascending, no id or identity of a site. All ids below next_id, where it is
// written. An expiry. Signature and epoch are checked before parsing, not here.
std::vector<Error> check_roster(const Roster& roster);

enum class RosterValidity {
  valid,
  expired,  // no new session begins; running ones go on, with an alarm
};
RosterValidity validity(const Roster& roster, Nanoseconds unix_time);

// Of sites and former sites. Copies what it needs of the roster. Sites of the next roster need the
// next verifier.
std::unique_ptr<Verifier> make_verifier(const Roster& roster);

}  // namespace isthmus::security
