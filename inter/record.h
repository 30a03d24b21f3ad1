// Record: what an outer step is made of, decided by votes; the state is a function of the chain of
// records (PROTOCOL.md, "Records"). View: who takes part and who votes. Certificate: a record with
// the signed Accepts that decided it, so that anyone can check it later.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/byte_stream.h"
#include "base/result.h"
#include "inter/sync_options.h"
#include "inter/wire.h"
#include "security/hash.h"
#include "security/roster.h"
#include "security/signature.h"

namespace isthmus::inter {

// So that every message that lists them fits the control lane. The longest is a Promise: a record
// that names all in both views and as parts, and the parts held.
inline constexpr std::size_t kSitesMax = security::kRosterSitesMax;
inline constexpr std::size_t kPartBytes = 4 + 32 + 8 + 32;
inline constexpr std::size_t kViewBytesOfSite = 4 + 4 + 8;  // a member, a voter, its vote file
inline constexpr std::size_t kPromiseBytesOfSite = 2 * kViewBytesOfSite + 2 * kPartBytes;

// Drawn at random when a vote file is made: once in the life of a site's disk.
using VoteFileId = std::uint64_t;
inline constexpr VoteFileId kNoVoteFile = 0;

struct View {
  std::vector<SiteId> members;  // ascending; each step waits for their contributions
  std::vector<SiteId> voters;   // ascending; a majority of all of them decides, reachable or not
  // Of each of them, as far as it is known: its vote file (OuterStore::Loaded). Whoever lost its
  // disk has another one, and neither votes nor contributes until a record names that: it cannot
  // know what it has said before (PROTOCOL.md, "Return").
  std::map<SiteId, VoteFileId> vote_files;

  bool is_member(SiteId site) const;
  bool is_voter(SiteId site) const;
  bool takes_part(SiteId site) const { return is_member(site) || is_voter(site); }
  VoteFileId vote_file_of(SiteId site) const;        // kNoVoteFile: takes no part, or not known
  void set_vote_file(SiteId site, VoteFileId file);  // of one that takes part
  void take_in(SiteId member, VoteFileId file);
  void forget_others();  // vote files of sites that take no part any more
  std::size_t majority() const { return voters.size() / 2 + 1; }
  security::Digest digest() const;
  bool operator==(const View&) const = default;
};

// With which the voters of a recovery go on.
VoteFileId vote_file_of(const security::Recovery& recovery);
View view_of(const security::Recovery& recovery);  // of the step after it

// Of one contribution: no sum over kSitesMax overflows.
inline constexpr std::uint64_t kTokensMax = std::uint64_t{1} << 50;

// One site's contribution, as a record names it.
struct Part {
  SiteId site = 0;
  security::Digest root;     // over the hashes of its coded chunks
  std::uint64_t tokens = 0;  // the weight is tokens / Σ tokens
  security::Digest base;     // the record whose state it began from
  bool operator==(const Part&) const = default;
  auto operator<=>(const Part&) const = default;
};

struct Record {
  security::Digest run;  // hash of record 0; zero in record 0
  std::uint64_t step = 0;
  security::Digest parent;
  security::Digest parent_root;  // of the state that this step begins from: whoever fetches that
                                 // state checks it against this record
  View view;
  std::uint32_t fragment = 0;
  std::vector<Part> parts;  // ascending site: the order of summation
  OuterRule rule;
  View next_view;
  bool final_step = false;
  // Of record 0, and of one whose next view has the voters of a newer roster; else zero.
  security::Digest roster;

  // Of record 0 only.
  security::Digest fingerprint;
  security::Digest initial_root;
  std::uint64_t nonce = 0;

  security::Digest hash() const;
  std::uint64_t tokens() const;
  const Part* part_of(SiteId site) const;
  void encode(ByteWriter& out) const;
  static std::optional<Record> decode(ByteReader& in);  // nothing: malformed
  bool operator==(const Record&) const = default;
};

// weight_c = tokens_c / Σ tokens, divided in f64 and rounded once to f32. All tokens zero: equal
// weights.
std::vector<float> weights_of(const Record& record);

struct Certificate {
  Record record;
  std::uint64_t ballot = 0;
  struct Accept {
    SiteId voter = 0;
    security::Signature signature;
    bool operator==(const Accept&) const = default;
  };
  std::vector<Accept> accepts;  // ascending voter

  // A majority of `view`'s voters signed this record in this ballot (record 0: all of them).
  bool proves(const View& view, const security::Verifier& verifier) const;
  void encode(ByteWriter& out) const;
  static std::optional<Certificate> decode(ByteReader& in);
};

// What an Accept's signature covers: run, view, step, ballot, hash of the record.
Bytes accept_body(const Record& record, std::uint64_t ballot);

}  // namespace isthmus::inter
