#include "tests/inter/sample_messages.h"

#include <numeric>
#include <utility>

#include "inter/link_frames.h"
#include "inter/link_test_frames.h"
#include "inter/sim/simulated_keys.h"

namespace isthmus::inter {
namespace {

security::Digest digest_of(std::string_view text) { return security::blake2b(bytes_of(text)); }

StepId sample_step() {
  return {.run = digest_of("run"), .view = digest_of("view"), .step = 7, .fragment = 1};
}

std::vector<SiteId> sites_upto(std::size_t count) {
  std::vector<SiteId> sites(count);
  std::iota(sites.begin(), sites.end(), 1);
  return sites;
}

// Of a decoder that is given what follows the first byte.
template <class Decode, class Encode>
auto tagged(Decode decode, Encode encode) {
  return [decode, encode](std::span<const std::byte> bytes) -> std::optional<Bytes> {
    if (bytes.empty()) return std::nullopt;
    ByteReader in(bytes.subspan(1));
    const auto decoded = decode(in);
    if (!decoded) return std::nullopt;
    auto again = encode(*decoded);
    again[0] = bytes[0];  // the kind is its caller's to check
    return again;
  };
}
// Of one that is given all.
template <class Decode, class Encode>
auto whole(Decode decode, Encode encode) {
  return [decode, encode](std::span<const std::byte> bytes) -> std::optional<Bytes> {
    const auto decoded = decode(bytes);
    if (!decoded) return std::nullopt;
    return encode(*decoded);
  };
}

SampleMessage ballot(const std::string& name, const Ballot& ballot) {
  const auto type = type_of(ballot);
  return {name, encode(sample_step(), ballot),
          whole([type](auto bytes) { return decode_ballot(type, bytes); },
                [](const BallotMessage& m) { return encode(m.id, m.ballot); })};
}

}  // namespace

Certificate sample_certificate(std::uint64_t step) {
  Certificate certificate{.record = sample_record(step, 3), .ballot = 4, .accepts = {}};
  for (SiteId site = 1; site <= 2; ++site)
    certificate.accepts.push_back(
        {site, sim::SimulatedSigner(site).sign("accept", certificate.record.hash().bytes)});
  return certificate;
}

Record sample_record(std::uint64_t step, std::size_t sites) {
  Record record;
  record.run = digest_of("run");
  record.step = step;
  record.parent = digest_of("parent");
  record.parent_root = digest_of("root");
  record.view = {.members = sites_upto(sites), .voters = sites_upto(sites), .vote_files = {}};
  for (const auto site : record.view.members) record.view.set_vote_file(site, 77);
  for (const auto site : record.view.members)
    record.parts.push_back({site, digest_of("part"), 100 + site, record.parent});
  record.rule = {.kind = OuterRuleKind::nesterov, .rate = 0.7f, .momentum = 0.9f};
  record.next_view = record.view;
  record.final_step = true;
  return record;
}

std::vector<SampleMessage> sample_messages() {
  const auto encoded = [](const auto& value) { return encode(value); };
  const auto self_encoded = [](const auto& value) { return value.encode(); };
  std::vector<SampleMessage> all;

  Open open{.id = sample_step(),
            .codec = compress::CodecId::int8,
            .first_element = 512,
            .elements = 2048,
            .chunk_elements = 256,
            .chunks = 9,
            .bytes_max = 5000,
            .tokens = 77,
            .base = digest_of("base"),
            .attempt = 3};
  all.push_back({"open", encode(open), whole(decode_open, encoded)});
  Close close{.id = sample_step(),
              .transfer = 5,
              .root = digest_of("root"),
              .bytes = 4000,
              .tokens = 77,
              .base = digest_of("base"),
              .state_root = digest_of("state")};
  all.push_back({"close", encode(close), whole(decode_close, encoded)});
  Saved saved{.id = sample_step(),
              .state_root = digest_of("state"),
              .strong_root = digest_of("strong"),
              .spot_root = digest_of("spot")};
  all.push_back({"saved", encode(saved), whole(decode_saved, encoded)});
  saved.strong_root.reset();
  saved.spot_root.reset();
  all.push_back({"short saved", encode(saved), whole(decode_saved, encoded)});

  all.push_back(ballot("prepare", Prepare{3}));
  Promise promise{.ballot = 3, .accepted = {}, .held = sample_record(7, 3).parts};
  all.push_back(ballot("empty promise", promise));
  promise.accepted = Vote::Accepted{2, sample_record(7, 3)};
  all.push_back(ballot("promise", promise));
  all.push_back(ballot("propose", Propose{3, sample_record(7, 3)}));
  all.push_back(ballot("accept", Accept{3, sample_record(7, 3)}));
  all.push_back(ballot("first accept", Accept{0, sample_record(0, 3)}));

  all.push_back(
      {"signed", sign(sim::SimulatedSigner(2), 2, MessageType::open, encode(open)).encode(),
       tagged([](ByteReader& in) { return decode_signed(MessageType::open, in); }, self_encoded)});
  const auto certificate = [](std::span<const std::byte> bytes) -> std::optional<Certificate> {
    ByteReader in(bytes);
    auto decoded = Certificate::decode(in);
    if (!in.done()) return std::nullopt;
    return decoded;
  };
  const auto certificate_bytes = [](const Certificate& value) {
    ByteWriter out;
    value.encode(out);
    return out.take();
  };
  all.push_back({"certificate", certificate_bytes(sample_certificate(5)),
                 whole(certificate, certificate_bytes)});
  all.push_back({"first certificate", certificate_bytes(sample_certificate(0)),
                 whole(certificate, certificate_bytes)});

  Status status;
  status.step = 7;
  status.contributes = status.wants_in = true;
  status.first_record = 2;
  status.sees = {1, 2, 5};
  status.holds = {2, 5};
  status.sees_contribute = {1, 5};
  status.sees_complete = {5};
  status.wishes = {{.site = 2, .joins = true, .vote_file = 17, .hops = 1},
                   {.site = 5, .vote_file = 18, .hops = 3}};
  status.wishes.front().signature.bytes.fill(std::byte{3});
  status.wish_signature.bytes.fill(std::byte{4});
  all.push_back({"status", encode(status), tagged(decode_status, encoded)});
  all.push_back(
      {"record request", encode(RecordRequest{4}), tagged(decode_record_request, encoded)});
  all.push_back({"records", encode(Records{{sample_certificate(3), sample_certificate(4)}}),
                 tagged(decode_records, encoded)});
  all.push_back({"fetch", encode(Fetch{4, 2}), tagged(decode_fetch, encoded)});
  all.push_back({"lacking", encode(Lacking{4, 2}), tagged(decode_lacking, encoded)});
  all.push_back({"enough", encode(Enough{4, 2}), tagged(decode_enough, encoded)});
  all.push_back(
      {"state request", encode(StateRequest{4, true}), tagged(decode_state_request, encoded)});

  // What the fingerprint of the handshake is made of.
  const auto layout = ModelLayout::make(
      {{"a", Shape{7, 100}, 0}, {"b", Shape{33}, 1}, {"c", Shape{4, 3, 2, 2}, 0}});
  const auto layout_bytes = [](const ModelLayout& value) {
    ByteWriter out;
    value.encode(out);
    return out.take();
  };
  all.push_back({.name = "layout",
                 .bytes = layout_bytes(*layout),
                 .again = whole(
                     [](std::span<const std::byte> bytes) -> std::optional<ModelLayout> {
                       ByteReader in(bytes);
                       auto decoded = ModelLayout::decode(in);
                       if (!decoded || !in.done()) return std::nullopt;
                       return std::move(*decoded);
                     },
                     layout_bytes),
                 .normalises = true});  // sorts by name
  const auto print = Fingerprint::of(*layout, {});
  const auto print_bytes = [](const Fingerprint& value) {
    ByteWriter out;
    value.encode(out);
    return out.take();
  };
  all.push_back({"fingerprint", print_bytes(print),
                 whole(
                     [](std::span<const std::byte> bytes) -> std::optional<Fingerprint> {
                       ByteReader in(bytes);
                       auto decoded = Fingerprint::decode(in);
                       if (!in.done()) return std::nullopt;
                       return decoded;
                     },
                     print_bytes)});

  // The link's frames.
  Hello hello;
  hello.nonce = 8;
  hello.echo = 9;
  hello.up = true;
  hello.introduction = {.boot = 3, .run = digest_of("run"), .fingerprint = print};
  all.push_back({"hello", hello.encode(),
                 tagged(
                     [](ByteReader& in) {
                       auto decoded = decode_hello(in);
                       // Of another version no more is understood than that.
                       if (decoded && decoded->version != kProtocolVersion) decoded.reset();
                       return decoded;
                     },
                     self_encoded)});
  all.push_back({"refuse", Refuse{Refuse::Kind::duplicate, "why not"}.encode(),
                 tagged(decode_refuse, self_encoded)});
  const Bytes body(40, std::byte{3});
  all.push_back({.name = "data",
                 .bytes = Data{1, 2, 3, body}.encode(),
                 .again = tagged(decode_data, self_encoded),
                 .fixed_bytes = kDataHeaderBytes});
  Ack ack;
  ack.session = 1;
  ack.echo = 5;
  ack.held = 6;
  ack.credit = 20;
  ack.width = 9;
  ack.width_max = 40;
  ack.chunks = {{5, 1}, {5, 2}};
  all.push_back({"ack", ack.encode(), tagged(decode_ack, self_encoded)});
  all.push_back({.name = "chunk",
                 .bytes = Chunk{1, 2, 3, 4, body}.encode(),
                 .again = tagged(decode_chunk, self_encoded),
                 .fixed_bytes = 29});
  all.push_back({"bind", Bind{12, 3}.encode(), tagged(decode_bind, self_encoded)});
  all.push_back({"have",
                 Have{5, {true, false, true, true, false, true, true, false, true}}.encode(),
                 tagged(decode_have, self_encoded)});

  // Those of a link test.
  const auto bytes_of = [](const auto& one) {
    ByteWriter out;
    one.write(out);
    return out.take();
  };
  const auto add = [&]<class Body>(std::string name, const Body& sample) {
    all.push_back({std::move(name), bytes_of(sample),
                   whole(
                       [](std::span<const std::byte> bytes) {
                         ByteReader in(bytes);
                         return Body::read(in);
                       },
                       [bytes_of](const Body& value) { return bytes_of(value); })});
  };
  add("link test ask", LinkTestAsk{true});
  add("link test plan", LinkTestPlan{4 * kSecond, 1 << 20});
  LinkTestAnswer answer;
  answer.refusal = "not now";
  answer.side = {"4096 131072 6291456", "4096 16384 4194304", 20'000'000, true};
  add("link test answer", answer);
  LinkTestSent sent;
  sent.bytes = 1 << 20;
  sent.arrived = 600'000;
  sent.warm = 2 * kSecond;
  sent.segments = 800;
  sent.segments_resent = 3;
  sent.busy = 4 * kSecond;
  sent.limited_by_window = 5;
  sent.limited_by_buffer = 6;
  sent.congestion_control = "bbr";
  sent.congestion_control_why = "as asked for";
  sent.dialed = true;
  add("link test sent", sent);
  add("link test got", LinkTestGot{96.5e6, 2 * kSecond, 1 << 20});
  return all;
}

}  // namespace isthmus::inter
