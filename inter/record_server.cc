#include "inter/record_server.h"

#include <algorithm>

#include "inter/messages.h"

namespace isthmus::inter {
namespace {

// Of certificates in one message. What else is said waits behind it, and on 64 kbit/s the most
// takes as long as the silence that ends a session: the first message is small, and each is twice
// the last one while they take less than a second, until none was asked for in two.
constexpr std::size_t kRecordsBytesMin = 6 << 10, kRecordsBytesMax = 48 << 10;
constexpr Nanoseconds kRecordsTake = kSecond;
constexpr Nanoseconds kRecordsApart = 5 * kMillisecond;
constexpr int kRecordsShare = 4;  // of a rate limit they take no more than one in so many bytes

}  // namespace

void RecordServer::on_request(Link& link, const RecordRequest& request) {
  if (!context_.genesis) return;
  const auto site = link.peer().site;
  auto& sent = sent_[site];
  if (sent.session != link.session())
    sent = {.session = link.session(),
            .message = 0,
            .from = 0,
            .next = 0,
            .when = 0,
            .bytes_max = kRecordsBytesMin,
            .again = sent.again};
  if (const auto took = context_.loop.now() - sent.when; took >= 2 * kRecordsTake)
    sent.bytes_max = kRecordsBytesMin;
  else if (request.from == sent.next && has_last(site) && took < kRecordsTake)
    sent.bytes_max = std::min(2 * sent.bytes_max, kRecordsBytesMax);
  const bool on_its_way = !has_last(site) && request.from >= sent.from;
  if (request.from < sent.next && (on_its_way || !sent.again.take(context_.loop.now()))) return;
  const auto before = std::ranges::find(wanted_, site, &Wanted::by);
  if (before != wanted_.end())
    before->from = request.from;
  else
    wanted_.push_back({site, request.from});
  send_wanted();
}

// The last ones that were sent to it, or that session is over.
bool RecordServer::has_last(SiteId site) const {
  const auto sent = sent_.find(site);
  const auto& link = *context_.peers.all().at(site).link;
  return sent == sent_.end() || sent->second.session != link.session() ||
         link.acknowledged_up_to(sent->second.message);
}

void RecordServer::send_wanted() {
  const auto wanted = [this] {
    return std::ranges::find_if(wanted_, [this](const auto& w) { return has_last(w.by); });
  };
  if (sending_ || wanted() == wanted_.end()) return;
  sending_ = true;
  const auto delay = std::max<Nanoseconds>(due_ - context_.loop.now(), 0);
  tasks_.start_timer(delay, [this, wanted] {
    sending_ = false;
    if (const auto next = wanted(); next != wanted_.end()) {
      const auto [by, from] = *next;
      wanted_.erase(next);
      const auto bytes = send(*context_.peers.find(by), from);
      due_ = context_.loop.now() + kRecordsApart + kRecordsShare * context_.limit.cost(bytes);
    }
    send_wanted();
  });
}

// How many bytes.
std::size_t RecordServer::send(PeerSite& peer, std::uint64_t from) {
  Records records;
  auto& sent = sent_[peer.site];
  std::size_t bytes = 0;
  const auto add = [&](const Certificate& certificate) {
    ByteWriter encoded;
    certificate.encode(encoded);
    if (bytes > 0 && bytes + encoded.size() > sent.bytes_max) return false;
    bytes += encoded.size();
    records.certificates.push_back(certificate);
    return true;
  };
  if (from == 0)
    add(*context_.genesis);  // alone: who does not take that asks for no more
  else
    for (; from <= context_.chain.size(); ++from)
      if (!add(context_.chain[from - 1])) break;
  if (records.certificates.empty()) return 0;
  peer.link->send(encode(records));
  sent.session = peer.link->session();
  sent.message = peer.link->sent();
  sent.from = records.certificates.front().record.step;
  sent.next = records.certificates.back().record.step + 1;
  sent.when = context_.loop.now();
  return bytes;
}

}  // namespace isthmus::inter
