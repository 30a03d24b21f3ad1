#include "inter/record.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"
#include "inter/encoding.h"

namespace isthmus::inter {
namespace {

std::vector<SiteId> sites_of(const View& view) {
  std::vector<SiteId> sites;
  std::set_union(view.members.begin(), view.members.end(), view.voters.begin(), view.voters.end(),
                 std::back_inserter(sites));
  return sites;
}

void encode_view(ByteWriter& out, const View& view) {
  put_sites(out, view.members);
  put_sites(out, view.voters);
  for (const auto site : sites_of(view)) out.put(view.vote_file_of(site));
}

View decode_view(ByteReader& in) {
  View view;
  view.members = get_sites(in);
  view.voters = get_sites(in);
  if (!in.ok()) return view;  // not ascending
  for (const auto site : sites_of(view)) view.set_vote_file(site, in.get<VoteFileId>());
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
  const auto found = vote_files.find(site);
  return found == vote_files.end() ? kNoVoteFile : found->second;
}

void View::set_vote_file(SiteId site, VoteFileId file) {
  ISTHMUS_ASSERT(takes_part(site));
  if (file == kNoVoteFile)
    vote_files.erase(site);
  else
    vote_files[site] = file;
}

void View::take_in(SiteId member, VoteFileId file) {
  const auto at = std::lower_bound(members.begin(), members.end(), member);
  if (at == members.end() || *at != member) members.insert(at, member);
  set_vote_file(member, file);
}

void View::forget_others() {
  std::erase_if(vote_files, [this](const auto& entry) { return !takes_part(entry.first); });
}

View view_of(const security::Recovery& recovery) {
  View view{.members = recovery.voters, .voters = recovery.voters, .vote_files = {}};
  for (const auto voter : view.voters) view.set_vote_file(voter, vote_file_of(recovery));
  return view;
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
