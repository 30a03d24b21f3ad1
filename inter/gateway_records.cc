// The certificates of the run, by which a peer learns what was decided: asked for, sent, and taken.
#include <fmt/format.h>

#include <algorithm>

#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

// Of certificates in one message. What else is said waits behind it, and on 64 kbit/s the most
// takes as long as the silence that ends a session: the first message is small, and each is twice
// the last one while they take less than a second, until none was asked for in two.
constexpr std::size_t kRecordsBytesMin = 6 << 10, kRecordsBytesMax = 48 << 10;
constexpr Nanoseconds kRecordsTake = kSecond;
constexpr Nanoseconds kRecordsApart = 5 * kMillisecond;
constexpr Nanoseconds kRefusedAgain = 60 * kSecond;  // whose run is not this site's is asked
constexpr int kRecordsShare = 4;  // of a rate limit records take no more than one in so many bytes

}  // namespace

void Gateway::ask_for_records(PeerSite& peer) {
  if (!peer.status) return;
  const auto step = peer.status->step;
  if (step <= chain_.size() + 1 && (step <= working_step() || chain_.size() >= working_step()))
    return;
  const auto now = world_.loop.now();
  auto& asked = records_asked_[peer.site];
  if (asked != 0 && now - asked < kSecond) return;
  asked = now;
  peer.link->send(encode(RecordRequest{chain_.size() + 1}));
}

// One after another, and no more than a part of a rate limit: bulk would pay for it. To each peer
// the next ones once it has the last ones, and seldom the same again, so that a short question
// asked often does not fill a line with control.
void Gateway::on_record_request(Link& link, const RecordRequest& request) {
  if (!genesis_) return;
  const auto site = link.peer().site;
  auto& sent = records_sent_[site];
  if (sent.session != link.session())
    sent = {.session = link.session(),
            .message = 0,
            .from = 0,
            .next = 0,
            .when = 0,
            .bytes_max = kRecordsBytesMin,
            .again = sent.again};
  if (const auto took = world_.loop.now() - sent.when; took >= 2 * kRecordsTake)
    sent.bytes_max = kRecordsBytesMin;
  else if (request.from == sent.next && has_records(site) && took < kRecordsTake)
    sent.bytes_max = std::min(2 * sent.bytes_max, kRecordsBytesMax);
  const bool on_its_way = !has_records(site) && request.from >= sent.from;
  if (request.from < sent.next && (on_its_way || !sent.again.take(world_.loop.now()))) return;
  const auto before = std::ranges::find(records_wanted_, site, &RecordsWanted::by);
  if (before != records_wanted_.end())
    before->from = request.from;
  else
    records_wanted_.push_back({site, request.from});
  send_wanted_records();
}

// The last ones that were sent to it, or that session is over.
bool Gateway::has_records(SiteId site) const {
  const auto sent = records_sent_.find(site);
  const auto& link = *peers_.all().at(site).link;
  return sent == records_sent_.end() || sent->second.session != link.session() ||
         link.acknowledged_up_to(sent->second.message);
}

void Gateway::send_wanted_records() {
  const auto wanted = [this] {
    return std::ranges::find_if(records_wanted_,
                                [this](const auto& w) { return has_records(w.by); });
  };
  if (sending_records_ || wanted() == records_wanted_.end()) return;
  sending_records_ = true;
  world_.loop.call_at(std::max(world_.loop.now(), records_due_), [this, wanted] {
    sending_records_ = false;
    if (const auto next = wanted(); next != records_wanted_.end()) {
      const auto [by, from] = *next;
      records_wanted_.erase(next);
      const auto bytes = send_records(*peers_.find(by), from);
      records_due_ = world_.loop.now() + kRecordsApart + kRecordsShare * limit_.cost(bytes);
    }
    send_wanted_records();
  });
}

// How many bytes.
std::size_t Gateway::send_records(PeerSite& peer, std::uint64_t from) {
  Records records;
  auto& sent = records_sent_[peer.site];
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
    add(*genesis_);  // alone: who does not take that asks for no more
  else
    for (; from <= chain_.size(); ++from)
      if (!add(chain_[from - 1])) break;
  if (records.certificates.empty()) return 0;
  peer.link->send(encode(records));
  sent.session = peer.link->session();
  sent.message = peer.link->sent();
  sent.from = records.certificates.front().record.step;
  sent.next = records.certificates.back().record.step + 1;
  sent.when = world_.loop.now();
  return bytes;
}

void Gateway::refuse_genesis(const Link& link, const Record& record, bool ours) {
  const auto run = record.hash().hex();
  const std::string why =
      ours ? "its record does not prove itself"
           : "it was not begun by the roster's voters; if it is the right one, the operator names "
             "it (isthmus roster add or remove --run)";
  genesis_refused_ = fmt::format("{} knows a run {} that this site does not take for its own: {}",
                                 link.peer_name(), run.substr(0, 16), why);
  records_asked_[link.peer().site] = world_.loop.now() + kRefusedAgain;
  if (const auto left_out = genesis_refusals_.due(world_.loop.now()))
    world_.log.alarm("genesis_refused", {.peer = link.peer_name()},
                     {{"run", run}, {"why", why}, {"left_out", *left_out}});
}

void Gateway::on_records(Link& link, const Records& records) {
  const auto before = chain_.size();
  for (const auto& certificate : records.certificates) {
    if (certificate.record.step == 0) {
      if (genesis_ || adopting_run_ || !layout_) continue;
      const auto& record = certificate.record;
      // The run that the roster names, the one that this site has voted for, or one of the roster's
      // voters: not of those that whoever sends this would like.
      const bool voted_for = genesis_vote_ && genesis_vote_->accepted->record == record;
      const bool ours = roster_.run ? record.hash() == *roster_.run
                                    : voted_for || record.view.voters == view_of_roster().voters;
      if (record.fingerprint != run_fingerprint_.digest() || !ours ||
          !certificate.proves(record.view, world_.verifier)) {
        note_shown_run(*peers_.of(link), certificate);
        refuse_genesis(link, record, ours);
        return;
      }
      adopting_run_ = true;
      auto adopt = [](Gateway& self, Certificate genesis) -> Task<void> {
        auto adopted = co_await self.adopt_run(std::move(genesis));
        self.adopting_run_ = false;
        if (!adopted) self.fail(adopted.error());
        self.changed_.notify();
      };
      world_.loop.spawn(adopt(*this, certificate));
      return;  // the rest comes again
    }
    if (genesis_) learn(certificate, peers_.of(link));
  }
  records_asked_.erase(link.peer().site);
  // There may be more than one message holds.
  if (genesis_ && chain_.size() > before) ask_for_records(*peers_.of(link));
  changed_.notify();
}

}  // namespace isthmus::inter
