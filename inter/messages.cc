#include "inter/messages.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/copy_to.h"
#include "inter/encoding.h"

namespace isthmus::inter {
namespace {

security::Signature get_signature(ByteReader& in) {
  security::Signature signature;
  copy_to(in.raw(signature.bytes.size()), signature.bytes.begin());
  return signature;
}

template <class Message>
std::optional<Message> decode_of_contribution(ByteReader& in) {
  Message message;
  message.step = in.get<std::uint64_t>();
  message.site = in.get<SiteId>();
  if (!in.done()) return std::nullopt;
  return message;
}

void put_step(ByteWriter& out, const StepId& id) {
  put(out, id.run);
  put(out, id.view);
  out.put(id.step).put(id.fragment);
}

StepId get_step(ByteReader& in) {
  StepId id;
  id.run = get_digest(in);
  id.view = get_digest(in);
  id.step = in.get<std::uint64_t>();
  id.fragment = in.get<std::uint32_t>();
  return id;
}

TransferId front_of(const security::Digest& digest) {
  TransferId id;
  std::memcpy(&id, digest.bytes.data(), sizeof(id));
  return id;
}

}  // namespace

Bytes Signed::encode() const {
  ByteWriter out;
  out.put(type).put(signer).raw(signature.bytes).block(body);
  return out.take();
}

security::Digest Signed::digest() const { return security::blake2b(encode()); }

std::optional<Signed> decode_signed(MessageType type, ByteReader& in) {
  if (!is_signed(type)) return std::nullopt;
  Signed message;
  message.type = type;
  message.signer = in.get<SiteId>();
  message.signature = get_signature(in);
  const auto body = in.block(kControlMessageBytesMax);
  message.body.assign(body.begin(), body.end());
  if (!in.done()) return std::nullopt;
  return message;
}

std::optional<StepId> step_of(const Signed& message) {
  ByteReader in(message.body);
  const auto id = get_step(in);
  return in.ok() ? std::optional(id) : std::nullopt;
}

Bytes encode(const Open& open) {
  ByteWriter out;
  put_step(out, open.id);
  out.put(open.codec)
      .put(open.first_element)
      .put(open.elements)
      .put(open.chunk_elements)
      .put(open.chunks)
      .put(open.bytes_max)
      .put(open.tokens);
  put(out, open.base);
  out.put(open.attempt);
  return out.take();
}

// A promise of all there can be, the longest message, is far from it.
static_assert(512 + kSitesMax * kPromiseBytesOfSite + 25 < kControlMessageBytesMax);

std::optional<Open> decode_open(std::span<const std::byte> body) {
  ByteReader in(body);
  Open open;
  open.id = get_step(in);
  if (const auto codec = compress::codec_of_wire(in.get<std::uint8_t>()))
    open.codec = *codec;
  else
    in.fail();
  open.first_element = in.get<std::uint64_t>();
  open.elements = in.get<std::uint64_t>();
  open.chunk_elements = in.get<std::uint64_t>();
  open.chunks = in.get<std::uint32_t>();
  open.bytes_max = in.get<std::uint64_t>();
  open.tokens = in.get<std::uint64_t>();
  open.base = get_digest(in);
  open.attempt = in.get<std::uint64_t>();
  if (!in.done()) return std::nullopt;
  return open;
}

Bytes encode(const Close& close) {
  ByteWriter out;
  put_step(out, close.id);
  out.put(close.transfer);
  put(out, close.root);
  out.put(close.bytes).put(close.tokens);
  put(out, close.base);
  put(out, close.state_root);
  return out.take();
}

std::optional<Close> decode_close(std::span<const std::byte> body) {
  ByteReader in(body);
  Close close;
  close.id = get_step(in);
  close.transfer = in.get<TransferId>();
  close.root = get_digest(in);
  close.bytes = in.get<std::uint64_t>();
  close.tokens = in.get<std::uint64_t>();
  close.base = get_digest(in);
  close.state_root = get_digest(in);
  if (!in.done()) return std::nullopt;
  return close;
}

Bytes encode(const Saved& saved) {
  ByteWriter out;
  put_step(out, saved.id);
  put(out, saved.state_root);
  out.put(saved.strong_root.has_value());
  if (saved.strong_root) put(out, *saved.strong_root);
  out.put(saved.spot_root.has_value());
  if (saved.spot_root) put(out, *saved.spot_root);
  return out.put(saved.revision).take();
}

std::optional<Saved> decode_saved(std::span<const std::byte> body) {
  ByteReader in(body);
  Saved saved;
  saved.id = get_step(in);
  saved.state_root = get_digest(in);
  if (in.get<bool>()) saved.strong_root = get_digest(in);
  if (in.get<bool>()) saved.spot_root = get_digest(in);
  saved.revision = in.get<std::uint32_t>();
  if (!in.done()) return std::nullopt;
  return saved;
}

MessageType type_of(const Ballot& ballot) {
  static constexpr MessageType kTypes[] = {MessageType::prepare, MessageType::promise,
                                           MessageType::propose, MessageType::accept};
  return kTypes[ballot.index()];
}

std::string_view context_of(MessageType type) {
  switch (type) {
    case MessageType::open:
      return security::context::open;
    case MessageType::close:
      return security::context::close;
    case MessageType::prepare:
      return security::context::prepare;
    case MessageType::promise:
      return security::context::promise;
    case MessageType::propose:
      return security::context::propose;
    case MessageType::accept:
      return security::context::accept;
    case MessageType::saved:
      return security::context::saved;
    default:
      break;
  }
  ISTHMUS_ASSERT(!"only signed messages have a context");
  return {};
}

Bytes encode(const StepId& id, const Ballot& ballot) {
  ByteWriter out;
  put_step(out, id);
  if (const auto* prepare = std::get_if<Prepare>(&ballot)) {
    out.put(prepare->ballot);
  } else if (const auto* promise = std::get_if<Promise>(&ballot)) {
    out.put(promise->ballot);
    out.put(promise->accepted.has_value());
    if (promise->accepted) {
      out.put(promise->accepted->ballot);
      promise->accepted->record.encode(out);
    }
    put_parts(out, promise->held);
  } else if (const auto* propose = std::get_if<Propose>(&ballot)) {
    out.put(propose->ballot);
    propose->record.encode(out);
  } else if (const auto* accept = std::get_if<Accept>(&ballot)) {
    out.put(accept->ballot);
    accept->record.encode(out);
  }
  return out.take();
}

std::optional<BallotMessage> decode_ballot(MessageType type, std::span<const std::byte> body) {
  ByteReader in(body);
  BallotMessage message;
  message.id = get_step(in);
  const auto number = [&] {
    const auto ballot = in.get<std::uint64_t>();
    if (ballot > kBallotMax) in.fail();
    return ballot;
  };
  const auto ballot = number();
  const auto record = [&]() -> Record {
    auto decoded = Record::decode(in);
    if (!decoded) in.fail();
    return decoded.value_or(Record{});
  };
  if (type == MessageType::prepare) {
    message.ballot = Prepare{ballot};
  } else if (type == MessageType::promise) {
    Promise promise;
    promise.ballot = ballot;
    if (in.get<bool>()) {
      Vote::Accepted accepted;
      accepted.ballot = number();
      accepted.record = record();
      promise.accepted = std::move(accepted);
    }
    promise.held = get_parts(in);
    message.ballot = std::move(promise);
  } else if (type == MessageType::propose) {
    message.ballot = Propose{ballot, record()};
  } else if (type == MessageType::accept) {
    message.ballot = Accept{ballot, record()};
  } else {
    return std::nullopt;
  }
  if (!in.done()) return std::nullopt;
  return message;
}

Signed sign(const security::Signer& signer, SiteId self, MessageType type, Bytes body) {
  Signed message{.type = type, .signer = self, .signature = {}, .body = std::move(body)};
  message.signature = signer.sign(context_of(type), message.body);
  return message;
}

Signed sign(const security::Signer& signer, SiteId self, const StepId& id, const Ballot& ballot) {
  Signed message{
      .type = type_of(ballot), .signer = self, .signature = {}, .body = encode(id, ballot)};
  if (const auto* accept = std::get_if<Accept>(&ballot))
    message.signature =
        signer.sign(security::context::accept, accept_body(accept->record, accept->ballot));
  else
    message.signature = signer.sign(context_of(message.type), message.body);
  return message;
}

bool verify(const security::Verifier& verifier, const Signed& message) {
  if (message.type != MessageType::accept)
    return verifier.verify(message.signer, context_of(message.type), message.body,
                           message.signature);
  const auto decoded = decode_ballot(message.type, message.body);
  if (!decoded) return false;
  const auto& accept = std::get<Accept>(decoded->ballot);
  return verifier.verify(message.signer, security::context::accept,
                         accept_body(accept.record, accept.ballot), message.signature);
}

Bytes encode(const Status& s) {
  ByteWriter out;
  out.put(MessageType::status).put(s.step);
  for (const bool flag : {s.contributes, s.leaving, s.wants_in, s.finished}) out.put(flag);
  out.put(s.vote_file);
  out.put(s.roster_epoch).put(s.first_record);
  put_sites(out, s.sees);
  put_sites(out, s.holds);
  put_sites(out, s.sees_contribute);
  put_sites(out, s.sees_complete);
  out.put(static_cast<std::uint32_t>(s.wishes.size()));
  for (const auto& wish : s.wishes)
    out.put(wish.site).put(wish.joins).put(wish.vote_file).put(wish.hops).raw(wish.signature.bytes);
  out.raw(s.wish_signature.bytes);
  return out.take();
}

Bytes wish_body(const security::Digest& of, std::uint64_t step, const Wish& wish) {
  ByteWriter out;
  return out.raw(of.bytes).put(step).put(wish.site).put(wish.joins).put(wish.vote_file).take();
}

Bytes encode_own(Status status) {
  status.sees_contribute.clear();
  status.sees_complete.clear();
  status.wish_signature = {};
  return encode(status);
}

std::optional<Status> decode_status(ByteReader& in) {
  Status s;
  s.step = in.get<std::uint64_t>();
  for (bool* flag : {&s.contributes, &s.leaving, &s.wants_in, &s.finished}) *flag = in.get<bool>();
  s.vote_file = in.get<VoteFileId>();
  s.roster_epoch = in.get<std::uint64_t>();
  s.first_record = in.get<std::uint64_t>();
  s.sees = get_sites(in);
  s.holds = get_sites(in);
  s.sees_contribute = get_sites(in);
  s.sees_complete = get_sites(in);
  s.wishes.resize(in.count(kSitesMax, 14 + security::kSignatureBytes));
  for (std::size_t i = 0; i < s.wishes.size(); ++i) {
    auto& wish = s.wishes[i];
    wish.site = in.get<SiteId>();
    wish.joins = in.get<bool>();
    wish.vote_file = in.get<VoteFileId>();
    wish.hops = in.get<std::uint8_t>();
    wish.signature = get_signature(in);
    if (i > 0 && s.wishes[i - 1].site >= wish.site) in.fail();
  }
  s.wish_signature = get_signature(in);
  if (!in.done()) return std::nullopt;
  return s;
}

Bytes encode(const RecordRequest& request) {
  return ByteWriter().put(MessageType::record_request).put(request.from).take();
}

Bytes encode(const Records& records) {
  ByteWriter out;
  out.put(MessageType::records).put(static_cast<std::uint32_t>(records.certificates.size()));
  for (const auto& certificate : records.certificates) certificate.encode(out);
  return out.take();
}

std::optional<Records> decode_records(ByteReader& in) {
  Records records;
  const auto count = in.count(1024, 64);
  for (std::size_t i = 0; i < count; ++i) {
    auto certificate = Certificate::decode(in);
    if (!certificate) return std::nullopt;
    records.certificates.push_back(std::move(*certificate));
  }
  if (!in.done()) return std::nullopt;
  return records;
}

std::optional<RecordRequest> decode_record_request(ByteReader& in) {
  const RecordRequest request{in.get<std::uint64_t>()};
  if (!in.done()) return std::nullopt;
  return request;
}

std::optional<Fetch> decode_fetch(ByteReader& in) { return decode_of_contribution<Fetch>(in); }
std::optional<Lacking> decode_lacking(ByteReader& in) {
  return decode_of_contribution<Lacking>(in);
}
std::optional<Enough> decode_enough(ByteReader& in) { return decode_of_contribution<Enough>(in); }

std::optional<StateRequest> decode_state_request(ByteReader& in) {
  StateRequest request;
  request.step = in.get<std::uint64_t>();
  request.send = in.get<bool>();
  if (!in.done()) return std::nullopt;
  return request;
}

Bytes encode(const Fetch& fetch) {
  return ByteWriter().put(MessageType::fetch).put(fetch.step).put(fetch.site).take();
}
Bytes encode(const Lacking& lacking) {
  return ByteWriter().put(MessageType::lacking).put(lacking.step).put(lacking.site).take();
}
Bytes encode(const Enough& enough) {
  return ByteWriter().put(MessageType::enough).put(enough.step).put(enough.site).take();
}
Bytes encode(const StateRequest& request) {
  ByteWriter out;
  out.put(MessageType::state_request).put(request.step);
  out.put(request.send);
  return out.take();
}

TransferId transfer_of(const Signed& open) {
  ByteWriter bytes;
  bytes.put(open.signer).raw(open.body);
  return front_of(security::blake2b(bytes.view()));
}

TransferId transfer_of_state(const security::Digest& run, std::uint64_t step,
                             const security::Digest& strong_root) {
  ByteWriter bytes;
  bytes.string("isthmus state").raw(run.bytes).put(step).raw(strong_root.bytes);
  return front_of(security::blake2b(bytes.view()));
}

}  // namespace isthmus::inter
