// roster.toml: the file in which an operator lists the sites, as security::Roster. Signed and
// verified as bytes by security/roster_signature.h; parsed here, and only then.
//
//   epoch = 3                          # counts up with every change
//   expires = 2027-06-30T00:00:00Z     # no new session begins after it
//   run = "64 hexadecimal digits"      # left out until there is one, or for always
//   next_id = 3                        # above every id ever given; left out: not known
//   [[site]]
//   id = 1                             # never given to another site
//   name = "alpha"
//   voter = true                       # left out: the first seven vote
//   identity = "64 hexadecimal digits"
//   [[site.gateway]]
//   address = "alpha.example:7700"     # left out: it only dials
//   curve_key = "64 hexadecimal digits"
//   curve_signature = "128 hexadecimal digits"
//   [[former]]                         # a site no longer: what it signed still counts
//   id = 2
//   name = "gamma"
//   identity = "64 hexadecimal digits"
//   [[recovery]]                       # only after a majority of voters was lost for good
//   run = "64 hexadecimal digits"
//   step = 41
//   root = "64 hexadecimal digits"     # of the state after that step
//   voters = [2, 3]                    # from then on
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/disk.h"
#include "base/result.h"
#include "launcher/fault.h"
#include "security/identity.h"
#include "security/keys.h"
#include "security/roster.h"

namespace isthmus::launcher {

struct RosterText {
  std::string path;
  std::string source = {};
  security::Roster roster = {};  // of use when there are no faults
  Faults faults = {};
};

// Strict: every key known and in range, then all that security::check_roster asks. Never fails;
// what is wrong is in `faults`. The digest is that of the text's bytes; no signature is looked at.
RosterText parse_roster_text(std::string path, std::string source);

// What parse_roster_text reads.
std::string roster_text(const security::Roster& roster);

// Reads PATH and PATH.sig, verifies, parses. Errors: those of security::read_signed_roster;
// invalid_argument with the text of all faults.
Result<security::Roster> read_roster(const Disk& disk, const std::string& path,
                                     const security::PublicKey& operator_key);

// 64 hexadecimal digits, or the path of the file that `isthmus keys generate --operator` made.
Result<security::PublicKey> read_operator_key(const Disk& disk, const std::string& key_or_path);

// PATH.pub, as `isthmus keys generate` writes it. Errors: those of reading, invalid_argument,
// unauthenticated.
Result<security::PublicIdentity> read_public_identity(const Disk& disk, const std::string& path);

// "2027-06-30T00:00:00Z" and back; dates without a time begin at midnight UTC.
std::string calendar_text(Nanoseconds unix_time);
Result<Nanoseconds> parse_calendar(std::string_view text);

}  // namespace isthmus::launcher
