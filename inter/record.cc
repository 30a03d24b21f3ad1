#include "inter/record.h"

#include <algorithm>

#include "base/assert.h"
#include "inter/encoding.h"

namespace isthmus::inter {
namespace {

void encode_view(ByteWriter& out, const View& view) {
  put_sites(out, view.members);
  put_sites(out, view.voters);
  for (const auto file : view.vote_files) out.put(file);
}

View decode_view(ByteReader& in) {
  View view;
  view.members = get_sites(in);
  view.voters = get_sites(in);
  view.vote_files.resize(view.voters.size());
  for (auto& file : view.vote_files) file = in.get<VoteFileId>();
  return view;
}

}  // namespace

bool View::is_member(SiteId site) const {
  return std::binary_search(members.begin(), members.end(), site);
}
bool View::is_voter(SiteId site) const {
  return std::binary_search(voters.begin(), voters.end(), site);
}

VoteFileId View::vote_file_of(SiteId site) const {
  const auto found = std::lower_bound(voters.begin(), voters.end(), site);
  return found == voters.end() || *found != site
             ? kNoVoteFile
             : vote_files[static_cast<std::size_t>(found - voters.begin())];
}

void View::set_vote_file(SiteId voter, VoteFileId file) {
  const auto found = std::lower_bound(voters.begin(), voters.end(), voter);
  ISTHMUS_ASSERT(found != voters.end() && *found == voter);
  vote_files[static_cast<std::size_t>(found - voters.begin())] = file;
}

VoteFileId vote_file_of(const security::Recovery& recovery) {
  const auto digest = recovery.digest();
  return ByteReader(digest.bytes).get<VoteFileId>() | 1;
}

security::Digest View::digest() const {
  ByteWriter bytes;
  encode_view(bytes, *this);
  return security::blake2b(bytes.view());
}

security::Digest Record::hash() const {
  ByteWriter bytes;
  bytes.string("isthmus record v1");
  encode(bytes);
  return security::blake2b(bytes.view());
}

std::uint64_t Record::tokens() const {
  std::uint64_t sum = 0;
  for (const auto& part : parts) sum += part.tokens;
  return sum;
}

const Part* Record::part_of(SiteId site) const {
  const auto found = std::lower_bound(parts.begin(), parts.end(), site,
                                      [](const Part& part, SiteId id) { return part.site < id; });
  return found != parts.end() && found->site == site ? &*found : nullptr;
}

void Record::encode(ByteWriter& out) const {
  put(out, run);
  out.put(step);
  put(out, parent);
  put(out, parent_root);
  encode_view(out, view);
  out.put(fragment);
  put_parts(out, parts);
  out.put(rule.kind).put(rule.rate).put(rule.momentum);
  encode_view(out, next_view);
  out.put(final_step);
  put(out, roster);
  if (step == 0) {
    put(out, fingerprint);
    put(out, initial_root);
    out.put(nonce);
  }
}

std::optional<Record> Record::decode(ByteReader& in) {
  Record r;
  r.run = get_digest(in);
  r.step = in.get<std::uint64_t>();
  r.parent = get_digest(in);
  r.parent_root = get_digest(in);
  r.view = decode_view(in);
  r.fragment = in.get<std::uint32_t>();
  r.parts = get_parts(in);
  const auto kind = in.get<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(OuterRuleKind::nesterov)) in.fail();
  r.rule.kind = static_cast<OuterRuleKind>(kind);
  r.rule.rate = in.get<float>();
  r.rule.momentum = in.get<float>();
  r.next_view = decode_view(in);
  r.final_step = in.get<bool>();
  r.roster = get_digest(in);
  if (r.step == 0) {
    r.fingerprint = get_digest(in);
    r.initial_root = get_digest(in);
    r.nonce = in.get<std::uint64_t>();
  }
  if (!in.ok()) return std::nullopt;
  return r;
}

std::vector<float> weights_of(const Record& record) {
  const std::uint64_t sum = record.tokens();
  std::vector<float> weights;
  for (const auto& part : record.parts)
    weights.push_back(
        sum == 0 ? static_cast<float>(1.0 / static_cast<double>(record.parts.size()))
                 : static_cast<float>(static_cast<double>(part.tokens) / static_cast<double>(sum)));
  return weights;
}

bool Certificate::proves(const View& view, const security::Verifier& verifier) const {
  const auto body = accept_body(record, ballot);
  std::size_t good = 0;
  for (std::size_t i = 0; i < accepts.size(); ++i) {
    if (i > 0 && accepts[i - 1].voter >= accepts[i].voter) return false;
    if (view.is_voter(accepts[i].voter) &&
        verifier.verify(accepts[i].voter, security::context::accept, body, accepts[i].signature))
      ++good;
  }
  return good >= (record.step == 0 ? view.voters.size() : view.majority());
}

void Certificate::encode(ByteWriter& out) const {
  record.encode(out);
  out.put(ballot).put(static_cast<std::uint32_t>(accepts.size()));
  for (const auto& accept : accepts) out.put(accept.voter).raw(accept.signature.bytes);
}

std::optional<Certificate> Certificate::decode(ByteReader& in) {
  Certificate c;
  auto record = Record::decode(in);
  if (!record) return std::nullopt;
  c.record = std::move(*record);
  c.ballot = in.get<std::uint64_t>();
  c.accepts.resize(in.count(kSitesMax, 4 + 64));
  for (auto& accept : c.accepts) {
    accept.voter = in.get<SiteId>();
    const auto bytes = in.raw(accept.signature.bytes.size());
    std::copy(bytes.begin(), bytes.end(), accept.signature.bytes.begin());
  }
  if (!in.ok()) return std::nullopt;
  return c;
}

Bytes accept_body(const Record& record, std::uint64_t ballot) {
  ByteWriter out;
  put(out, record.run);
  put(out, record.view.digest());
  out.put(record.step).put(ballot);
  put(out, record.hash());
  return out.take();
}

}  // namespace isthmus::inter
