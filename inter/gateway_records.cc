// The certificates of the run, by which a peer learns what was decided: asked for and taken. They
// are sent by record_server.h.
#include <fmt/format.h>

#include <algorithm>

#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kRefusedAgain = 60 * kSecond;  // whose run is not this site's is asked

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
