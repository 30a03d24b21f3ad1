// Whom what a record names is fetched from: its site may give one site less than all others, or
// another thing; and where the line is what is slow, nothing comes twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tests/inter/hand_made.h"
#include "tests/inter/hostile_peer.h"

namespace isthmus::inter {
namespace {

// Of a contribution, as far as it is let.
class Drip final : public ChunkSource {
 public:
  explicit Drip(std::shared_ptr<Contribution> all) : all_(std::move(all)) {}
  ChunkBytes chunk(std::uint32_t index) override {
    return index < let_ ? all_->chunk(index) : ChunkBytes();
  }
  void let_one() { ++let_; }

 private:
  std::shared_ptr<Contribution> all_;
  std::uint32_t let_ = 1;
};

// What a member gives to one site, while it gives all others what it contributes.
enum class Given {
  chunks_now_and_then,       // within each patience one
  those_of_another_attempt,  // the same
  attempts,                  // which it announces one after the other
  another_close,             // again and again
  another_chunk,             // for one place, again and again
};

// What it gives, and over one connection or over eight.
using Withholding = std::tuple<Given, sim::SimulatedTcp>;

class WithholdingMemberTest : public HostilePeerTest,
                              public testing::WithParamInterface<Withholding> {
 protected:
  static constexpr SiteId kMember = 1, kVictim = 4;
  static constexpr std::uint64_t kAttempt = 7;
  static Given given() { return std::get<0>(GetParam()); }

  WithholdingMemberTest() : federation_(options()) {
    const auto with = options();
    plan_ = std::make_shared<ChunkPlan>(federation_.layout(), 0, with.gateway.sync.chunk_elements,
                                        with.gateway.sync.codec);
    member().heard = [this](Link& from, MessageType type, ByteReader& in) {
      contribute(from, Puppet::follow_as_member(from, type, in, {kMember}));
    };
  }
  static ScriptedFederation::Options options() {
    auto options = endless_with_puppet();
    options.without_vote = {kMember, kVictim};
    // So long that what an idle link says takes hours to bring as much as one.
    options.gateway.sync.chunk_elements = 1 << 16;
    options.elements = 6 << 16;
    options.network.tcp = std::get<1>(GetParam());
    return options;
  }
  Puppet& member() { return federation_.puppet(kMember); }
  Link& to_victim() { return member().link(kVictim); }
  HandMade make(std::uint64_t attempt, bool differently) {
    return hand_made(
        plan_, member().signer, kMember, federation_.gateway(2),
        [&](std::uint32_t chunk, auto&& frames) {
          if (differently && chunk == 0) frames.back() ^= std::byte{1};
        },
        attempt);
  }
  void contribute(Link& from, std::uint64_t step) {
    auto& gateway = federation_.gateway(2);
    if (!gateway.state() || gateway.state()->step + 1 != step ||
        !gateway.view().is_member(kMember) || !told_.insert({from.peer().site, step}).second)
      return;
    if (!made_.contains(step)) made_[step] = make(kAttempt, false);
    if (from.peer().site != kVictim) return made_.at(step).offer_to(from);
    const bool another = given() == Given::those_of_another_attempt || given() == Given::attempts;
    given_ = make(another ? kAttempt + 1 : kAttempt, given() == Given::another_chunk);
    from.send(given_->all->announcement().encode());
    if (given() == Given::another_close) {
      auto close = *decode_close(given_->close.body);
      close.root.bytes[0] ^= std::byte{1};
      given_->close = sign(member().signer, kMember, MessageType::close, encode(close));
    }
    from.send(given_->close.encode());
    if (given() == Given::attempts || given() == Given::another_close) return;
    dripping_ = std::make_shared<Drip>(given_->all);
    from.offer(given_->all->transfer(), step, plan_->chunks(), dripping_, false);
  }
  void go_on() {
    if (!given_) return;
    auto open = given_->all->open();
    switch (given()) {
      case Given::chunks_now_and_then:
      case Given::those_of_another_attempt:
        if (federation_.now() - dropped_ < 4900 * kMillisecond) return;
        dropped_ = federation_.now();
        dripping_->let_one();
        return to_victim().poke();
      case Given::attempts:
        open.attempt += ++attempts_;
        return to_victim().send(
            sign(member().signer, kMember, MessageType::open, encode(open)).encode());
      case Given::another_close:
        return to_victim().send(given_->close.encode());
      case Given::another_chunk:
        to_victim().withdraw(given_->all->transfer());
        to_victim().offer(given_->all->transfer(), open.id.step, plan_->chunks(), dripping_, false);
    }
  }
  void run_for(Nanoseconds time) {
    for (const auto end = federation_.now() + time; federation_.now() < end; go_on())
      federation_.run_for(350 * kMillisecond);
  }

  ScriptedFederation federation_;
  std::shared_ptr<const ChunkPlan> plan_;
  std::map<std::uint64_t, HandMade> made_;
  std::set<std::pair<SiteId, std::uint64_t>> told_;
  std::optional<HandMade> given_;  // to that one, in the last step
  std::shared_ptr<Drip> dripping_;
  Nanoseconds dropped_ = 0;
  std::uint64_t attempts_ = 0;
};

TEST_P(WithholdingMemberTest, KeepsNobodyBehind) {
  run_for(300 * kSecond);
  const auto named = std::ranges::count_if(
      federation_.gateway(2).chain(),
      [](const auto& certificate) { return certificate.record.part_of(kMember) != nullptr; });
  EXPECT_GE(named, 10);
  EXPECT_GE(federation_.step(2), 20U);
  EXPECT_GE(federation_.step(kVictim) + 1, federation_.step(2));
  EXPECT_TRUE(federation_.gateway(2).view().is_member(kVictim));
  EXPECT_EQ(federation_.gateway(kVictim).counters().state_fetches, 0U);
}

std::string name_of(const testing::TestParamInfo<Withholding>& tested) {
  constexpr std::array kNames = {"Chunks", "ChunksOfAnotherAttempt", "Attempts", "AnotherClose",
                                 "AnotherChunk"};
  const auto& [given, tcp] = tested.param;
  return kNames[static_cast<std::size_t>(given)] +
         std::string(tcp == sim::SimulatedTcp::reno ? "OverTcp" : "");
}
INSTANTIATE_TEST_SUITE_P(
    Given, WithholdingMemberTest,
    testing::Combine(testing::Values(Given::chunks_now_and_then, Given::those_of_another_attempt,
                                     Given::attempts, Given::another_close, Given::another_chunk),
                     testing::Values(sim::SimulatedTcp::unseen, sim::SimulatedTcp::reno)),
    name_of);

// Where it is the site's own line that is thin, one that has not sent anything yet is tried, and
// nothing comes twice.
TEST(ThinLineTest, CarriesNoCopiesFromSourcesThatAreNoFaster) {
  constexpr SiteId kThin = 4, kTried = 5;
  auto options = options_of({kSecond, kSecond, kSecond, kSecond, kSecond});
  options.without_vote = {kThin, kTried};
  options.elements = 1'000'000;
  options.gateway.sync.chunk_elements = 1 << 13;
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto step = [&](SiteId site) { return federation.step(site); };
  const auto reaches = [&](std::uint64_t wanted) {
    return federation.run_until([&] { return step(1) >= wanted; }, 600 * kSecond);
  };
  ASSERT_TRUE(reaches(2));
  federation.end_ranks(kTried);  // it holds what others contribute
  ASSERT_TRUE(federation.run_until([&] { return !federation.gateway(1).view().is_member(kTried); },
                                   600 * kSecond));
  ASSERT_TRUE(reaches(step(1) + 2));
  federation.cut_off(kThin, true);
  ASSERT_TRUE(reaches(step(kThin) + 1));
  for (SiteId site = 1; site <= 4; ++site) federation.end_ranks(site);
  federation.run_for(30 * kSecond);
  ASSERT_EQ(step(1) - step(kThin), 1U);
  const auto tried = [&] { return federation.gateway(kTried).counters().relayed; };
  const auto received = [&] {
    std::uint64_t bytes = 0;
    for (const auto& link : federation.gateway(kThin).status().links)
      bytes += link.wire_received_bytes;
    return bytes;
  };
  const auto received_before = received(), tried_before = tried();
  federation.set_access(kThin, 20'000);
  federation.cut_off(kThin, false);
  ASSERT_TRUE(federation.run_until([&] { return step(kThin) == step(1); }, 1200 * kSecond));
  EXPECT_GT(tried(), tried_before);
  const auto bytes = received() - received_before;
  EXPECT_GE(bytes, 3 * 640'000U) << "what three sites contributed, packed";
  EXPECT_LE(bytes, 3 * 720'000U);
}

}  // namespace
}  // namespace isthmus::inter
