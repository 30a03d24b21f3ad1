// Puppet: a site with keys and links, and no gateway: it says to the others what the test wants.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "inter/link.h"
#include "inter/messages.h"
#include "inter/model_layout.h"
#include "inter/sim/simulated_keys.h"
#include "inter/sim/simulated_network.h"
#include "security/roster.h"

namespace isthmus::inter {

class Puppet final : public WireReceiver, public LinkOwner {
 public:
  Puppet(sim::Simulation& simulation, sim::SimulatedNetwork& network,
         const security::Roster& roster, SiteId self, const Fingerprint& fingerprint, int actor)
      : signer(self),
        loop(simulation),
        self_(self),
        log_(simulation, "puppet"),
        fingerprint_(fingerprint) {
    std::vector<GatewayId> peers;
    for (const auto& site : roster.sites)
      if (site.id != self) peers.push_back({site.id, 0});
    wire_ = std::make_unique<sim::SimulatedWire>(network, GatewayId{self, 0}, peers, actor);
    for (const auto peer : peers) {
      links_[peer.site] =
          std::make_unique<Link>(loop, *wire_, limit_, log_, Random(peer.site), *this,
                                 GatewayId{self, 0}, peer, "peer", "", LinkOptions{});
    }
    wire_->receive_with(*this);
    for (auto& [site, link] : links_) link->start();
  }
  ~Puppet() override {
    loop.abandon();
    links_.clear();
  }

  Link& link(SiteId site) { return *links_.at(site); }

  // Answers a status: it is on the same step, so that it is told everything, and sees these four.
  // `more` says other things too, or instead.
  using More = std::function<void(const Status& theirs, Status& mine)>;
  static void follow(Link& from, MessageType type, ByteReader& in, const More& more = {}) {
    if (type != MessageType::status) return;
    const auto theirs = decode_status(in);
    if (!theirs) return;
    Status mine;
    mine.step = theirs->step;
    mine.first_record = 1;
    mine.sees = {1, 2, 3, 4};
    if (more) more(*theirs, mine);
    from.send(encode(mine));
  }

  // The same, as who has a vote file and ranks that compute, and holds this. The step that they are
  // on; 0: they said something else.
  static std::uint64_t follow_as_member(Link& from, MessageType type, ByteReader& in,
                                        const std::vector<SiteId>& holds = {}) {
    std::uint64_t step = 0;
    follow(from, type, in, [&](const Status& theirs, Status& mine) {
      mine.vote_file = 77;
      mine.holds = holds;
      mine.contributes = mine.wants_in = true;
      step = theirs.step;
    });
    return step;
  }

  // Its own vote, as the others', for the run that they begin: without all voters' there is none.
  void vote_for_run(Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::accept) return;
    const auto message = decode_signed(type, in);
    const auto ballot = message ? decode_ballot(type, message->body) : std::nullopt;
    if (!ballot || ballot->id.step != 0) return;
    from.send(sign(signer, self_, ballot->id, ballot->ballot).encode());
  }

  const sim::SimulatedSigner signer;
  Loop loop;
  security::Digest run;  // that it says to have, in sessions that begin from now on
  // What comes on the control lane, without the byte that says what it is.
  std::function<void(Link& from, MessageType, ByteReader&)> heard = [](Link&, MessageType,
                                                                       ByteReader&) {};
  std::string objects;  // to every session; "": it does not
  // A frame as it is, on the control lane.
  void say(SiteId site, Bytes frame) {
    (void)wire_->send({site, 0}, Lane::control, std::move(frame), 0);
  }
  // A chunk, which must be settled once.
  std::function<void(Link& from, const ChunkArrival&)> came =
      [](Link& from, const ChunkArrival& arrival) { from.settle(arrival, true); };

 private:
  void on_message(GatewayId from, Lane lane, ConnectionId connection,
                  const SharedBytes& message) override {
    link(from.site).wire_message(lane, connection, message);
  }
  void on_up(GatewayId from, Lane lane, ConnectionId connection) override {
    link(from.site).wire_up(lane, connection);
  }
  void on_down(GatewayId from, Lane lane, ConnectionId connection) override {
    link(from.site).wire_down(lane, connection);
  }
  void on_writable(GatewayId from, Lane lane, ConnectionId connection) override {
    link(from.site).wire_writable(lane, connection);
  }
  Introduction introduce() override { return {.boot = 1, .run = run, .fingerprint = fingerprint_}; }
  void on_introduction(GatewayId, const Introduction&) override {}
  std::string objection(GatewayId, const Introduction&) const override { return objects; }
  void on_session(Link&, bool) override {}
  void on_control(Link& from, std::span<const std::byte> message) override {
    ByteReader in(message);
    const auto type = in.get<MessageType>();
    if (in.ok()) heard(from, type, in);
  }
  void on_chunk(Link& from, const ChunkArrival& arrival, const SharedBytes&) override {
    came(from, arrival);
  }

  const SiteId self_;
  EventLog log_;
  Fingerprint fingerprint_;
  RateLimit limit_{0};
  std::unique_ptr<sim::SimulatedWire> wire_;
  std::map<SiteId, std::unique_ptr<Link>> links_;
};

}  // namespace isthmus::inter
