// What gateways say to each other on the control lane, once a link's session stands (inter/link.h
// carries it; PROTOCOL.md draws it). Every struct and every limit is here. Open, Close, Saved and
// the four messages of a ballot are signed by the site that makes them, so that a third site may
// pass them on; the rest counts only from the peer itself.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "inter/agreement.h"
#include "inter/record.h"

namespace isthmus::inter {

enum class MessageType : std::uint8_t {
  open = 1,
  close = 2,
  prepare = 3,
  promise = 4,
  propose = 5,
  accept = 6,
  saved = 7,
  status = 16,
  record_request = 17,
  records = 18,
  fetch = 19,
  lacking = 20,
  state_request = 21,
  enough = 22,
};
constexpr bool is_signed(MessageType type) {
  return type >= MessageType::open && type <= MessageType::saved;
}

// Names a transfer on the bulk lane: the first eight bytes of the hash of what announced it.
using TransferId = std::uint64_t;

// Which outer step, in which history: the front of every signed body.
struct StepId {
  security::Digest run;
  security::Digest view;  // View::digest
  std::uint64_t step = 0;
  std::uint32_t fragment = 0;
  bool operator==(const StepId&) const = default;
};

// Announces a contribution before its bytes: what a receiver checks before it sets memory aside.
struct Open {
  StepId id;
  compress::CodecId codec = compress::CodecId::none;
  // Of the fragment's elements, in layout order; all of them while a site has one gateway.
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  std::uint64_t chunk_elements = 0;  // how they are cut: ModelLayout::chunks
  std::uint32_t chunks = 0;
  std::uint64_t bytes_max = 0;  // all payloads together are no larger
  std::uint64_t tokens = 0;
  security::Digest base;  // record whose state it began from: the parent
  // Higher for each attempt: chunks of one that never closed, because its gateway crashed, are not
  // taken for those of the next, whatever else is equal; and the newest one counts.
  std::uint64_t attempt = 0;
};

// After its last byte is on disk.
struct Close {
  StepId id;
  TransferId transfer = 0;
  security::Digest root;    // blake2b over the chunks' hashes, in order
  std::uint64_t bytes = 0;  // of all chunks as they travel
  std::uint64_t tokens = 0;
  security::Digest base;
  security::Digest state_root;  // of the base: a site that diverged spreads nothing
};

struct Saved {
  StepId id;
  security::Digest state_root;  // over XXH3 leaves: every step
  std::optional<security::Digest>
      strong_root;  // over strong leaves: when somebody asked for the state
  std::optional<security::Digest> spot_root;  // over a sixteenth of the strong leaves: when saved
  std::uint32_t revision = 0;  // of what the signer says of this step: higher is newer
};

// A signed message as it travels, and as it may be passed on.
struct Signed {
  MessageType type = MessageType::open;
  SiteId signer = 0;
  security::Signature signature;
  Bytes body;

  Bytes encode() const;
  // Of the whole message: two are equal when this is.
  security::Digest digest() const;
};

// What a site would like of the next view. Passed on, since not everybody sees everybody: a voter
// that does not know of it decides before the others can change the view. Signed, since it takes
// the vote away from whoever has another vote file than it says.
struct Wish {
  SiteId site = 0;
  bool joins = false;                  // as a member
  VoteFileId vote_file = kNoVoteFile;  // that it would vote with
  std::uint8_t hops = 0;               // from the site that said it; not signed
  security::Signature signature = {};

  static constexpr std::uint8_t kHopsMax = 3;
  bool operator==(const Wish&) const = default;
};

// What the signature of a wish covers. It is one for this step, `of` the run or, before there is
// one, of the roster.
Bytes wish_body(const security::Digest& of, std::uint64_t step, const Wish& wish);

// A peer's own account of itself: sent when it changes and as a heartbeat.
struct Status {
  std::uint64_t step = 0;    // works on this one: everything before is decided and applied here
  bool contributes = false;  // its ranks live and compute, or its contribution is made
  bool leaving = false;
  bool wants_in = false;  // current and computing, but no member
  bool finished = false;
  VoteFileId vote_file = kNoVoteFile;
  std::uint64_t roster_epoch = 0;
  std::uint64_t first_record = 0;  // the oldest step whose named bytes it still has
  std::vector<SiteId> sees;        // sites it has a session with
  std::vector<SiteId> holds;       // contributions of `step` that are whole there
  // Of those it sees and that work on `step`, for whoever does not see them: which contribute, and
  // which hold the contributions of all members. Nobody signs this, nor `sees`, so it decides only
  // how long something is waited for: with the first a lie buys two waits of straggler_wait for
  // each site that is away (PeerSite::promises_broken), with the second it ends one early.
  std::vector<SiteId> sees_contribute, sees_complete;
  std::vector<Wish> wishes;            // of others that work on `step`; ascending site
  security::Signature wish_signature;  // of its own wish, to be passed on

  Wish own_wish(SiteId site) const {
    return {.site = site,
            .joins = wants_in && !leaving,
            .vote_file = vote_file,
            .signature = wish_signature};
  }
};

struct RecordRequest {
  std::uint64_t from = 0;
};
struct Records {
  std::vector<Certificate> certificates;  // consecutive
};
// Which contribution a message is about.
struct OfContribution {
  std::uint64_t step = 0;
  SiteId site = 0;
  bool operator==(const OfContribution&) const = default;
};
struct Fetch : OfContribution {};  // asks for it, the peer's own or one that it holds
// The answer of who has nothing of it; with kStateItself in place of a site, of the state of that
// step.
struct Lacking : OfContribution {};
inline constexpr SiteId kStateItself = ~SiteId{0};  // rosters count from below
// To who brings it slowly: it comes from elsewhere now. No more of it, until it is asked for again.
struct Enough : OfContribution {};
// Asks for a Saved with a strong root of the newest saved state, and, with `send`, for that state
// as a transfer.
struct StateRequest {
  std::uint64_t step = 0;  // of which state; 0 with send = false: the newest
  bool send = false;
};

Bytes encode(const Open& open);
Bytes encode(const Close& close);
Bytes encode(const Saved& saved);
Bytes encode(const StepId& id,
             const Ballot& ballot);  // the record's own encoding carries most of it
std::optional<Open> decode_open(std::span<const std::byte> body);
std::optional<Close> decode_close(std::span<const std::byte> body);
std::optional<Saved> decode_saved(std::span<const std::byte> body);

// What the body of an open, a close or a ballot begins with; nothing when it is too short.
std::optional<StepId> step_of(const Signed& message);

MessageType type_of(const Ballot& ballot);
std::string_view context_of(MessageType type);
struct BallotMessage {
  StepId id;
  Ballot ballot;
};
std::optional<BallotMessage> decode_ballot(MessageType type, std::span<const std::byte> body);

// An Accept's signature covers accept_body(), not its encoding, so that it can serve in a
// certificate.
Signed sign(const security::Signer& signer, SiteId self, const StepId& id, const Ballot& ballot);
Signed sign(const security::Signer& signer, SiteId self, MessageType type, Bytes body);
bool verify(const security::Verifier& verifier, const Signed& message);
std::optional<Signed> decode_signed(MessageType type, ByteReader& in);

Bytes encode(const Status& status);
// Without what it says of others. That is worth no message of its own: each piece of news would
// make everybody speak to everybody.
Bytes encode_own(Status status);
Bytes encode(const RecordRequest& request);
Bytes encode(const Records& records);
Bytes encode(const Fetch& fetch);
Bytes encode(const Lacking& lacking);
Bytes encode(const Enough& enough);
Bytes encode(const StateRequest& request);
std::optional<Status> decode_status(ByteReader& in);
std::optional<RecordRequest> decode_record_request(ByteReader& in);
std::optional<Records> decode_records(ByteReader& in);
std::optional<Fetch> decode_fetch(ByteReader& in);
std::optional<Lacking> decode_lacking(ByteReader& in);
std::optional<Enough> decode_enough(ByteReader& in);
std::optional<StateRequest> decode_state_request(ByteReader& in);

TransferId transfer_of(const Signed& open);
TransferId transfer_of_state(const security::Digest& run, std::uint64_t step,
                             const security::Digest& strong_root);

}  // namespace isthmus::inter
