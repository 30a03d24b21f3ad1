// What a listed peer can cost the others that says again and again what is, or is not so, or
// contributes what no training gives.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "tests/inter/hand_made.h"
#include "tests/inter/hostile_peer.h"

namespace isthmus::inter {
namespace {

// ---- Values

constexpr float kLargestScale = 0x1.fffffep56F;  // that a frame may have

// A member whose contributions are spoilt: have these scales and codes of both signs, say.
class ExtremeValuesTest : public HostilePeerTest {
 protected:
  using SpoilFrame =
      std::function<void(std::uint32_t chunk, std::span<std::byte> frame, std::size_t values)>;
  void run(const std::vector<float>& scales) {
    const auto spoil = [scales](std::uint32_t chunk, std::span<std::byte> frame,
                                std::size_t values) {
      const auto blocks = (frame.size() - values) / sizeof(float);
      for (std::size_t block = 0; block < blocks; ++block) {
        const auto scale = scales[(chunk + block) % scales.size()];
        std::memcpy(frame.data() + block * sizeof scale, &scale, sizeof scale);
      }
      for (std::size_t i = 0; i < values; ++i)
        frame[blocks * sizeof(float) + i] = static_cast<std::byte>(i % 2 == 0 ? 127 : -128);
    };
    run(compress::CodecId::int8, 3, spoil);
  }
  void run(compress::CodecId codec, std::size_t made_max, SpoilFrame spoil) {
    spoil_ = std::move(spoil);
    made_max_ = made_max;
    made_.clear();
    told_.clear();
    auto options = endless_with_puppet();
    options.gateway.sync.codec = codec;
    const auto plan_of = [&](const ModelLayout& layout) {
      return std::make_shared<ChunkPlan>(layout, 0, options.gateway.sync.chunk_elements,
                                         options.gateway.sync.codec);
    };
    federation_.emplace(options);
    plan_ = plan_of(federation_->layout());
    federation_->puppet(1).heard = [this](Link& from, MessageType type, ByteReader& in) {
      contribute(from, Puppet::follow_as_member(from, type, in));
    };
  }
  void contribute(Link& from, std::uint64_t step) {
    auto& gateway = federation_->gateway(2);
    if (!gateway.state() || gateway.state()->step + 1 != step || !gateway.view().is_member(1) ||
        made_.size() >= made_max_ || !told_.insert({from.peer().site, step}).second)
      return;
    const auto spoil = [&](std::uint32_t chunk, std::span<std::byte> frames) {
      for (const auto& range : plan_->ranges(chunk)) {
        const auto frame = frames.first(plan_->frames().encoded_bytes_max(range.count));
        frames = frames.subspan(frame.size());
        spoil_(chunk, frame, range.count);
      }
    };
    if (!made_.contains(step))
      made_[step] = hand_made(plan_, federation_->puppet(1).signer, 1, gateway, spoil);
    made_[step].offer_to(from);
  }
  bool reaches(std::uint64_t step) {
    return federation_->run_until(
        [&] {
          return federation_->step(2) >= step && federation_->step(3) >= step &&
                 federation_->step(4) >= step;
        },
        1200 * kSecond);
  }
  std::size_t named() {
    std::size_t steps = 0;
    for (const auto& certificate : federation_->gateway(2).chain())
      steps += certificate.record.part_of(1) != nullptr;
    return steps;
  }
  void expect_finite_and_equal() {
    federation_->end_ranks(2);  // all come to the same step
    federation_->run_for(300 * kSecond);
    for (const SiteId site : {2, 3, 4}) {
      const auto& gateway = federation_->gateway(site);
      EXPECT_FALSE(federation_->process(site).failure());
      if (gateway.state()->step == federation_->step(2)) {
        EXPECT_EQ(gateway.root(), federation_->gateway(2).root()) << site;
      }
      EXPECT_TRUE(std::ranges::all_of(gateway.state()->agreed, [](float value) {
        return std::isfinite(value);
      })) << site;
    }
  }

  std::optional<ScriptedFederation> federation_;
  std::shared_ptr<const ChunkPlan> plan_;
  SpoilFrame spoil_;
  std::size_t made_max_ = 0;
  std::map<std::uint64_t, HandMade> made_;
  std::set<std::pair<SiteId, std::uint64_t>> told_;
};

TEST_F(ExtremeValuesTest, TheLargestAndTheSmallestGiveTheSameStateEverywhere) {
  run({kLargestScale, std::numeric_limits<float>::denorm_min(), 0x1p-127F, 0.0F, kLargestScale});
  ASSERT_TRUE(reaches(10));
  EXPECT_GE(named(), 1U);
  for (const SiteId site : {2, 3, 4}) EXPECT_EQ(federation_->events(site, "chunk_refused"), 0U);
  expect_finite_and_equal();
}

TEST_F(ExtremeValuesTest, WhatIsNotAllowedIsRefusedEverywhere) {
  for (const auto scale :
       {std::numeric_limits<float>::max(), 0x1p120F, std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -1.0F, -0.0F}) {
    run({scale});
    ASSERT_TRUE(reaches(6)) << scale;
    EXPECT_EQ(named(), 0U) << scale;
    EXPECT_GE(federation_->events(2, "chunk_refused"), 1U) << scale;
  }
  expect_finite_and_equal();
}

// Each of them is finite; of some such contributions the sum is not, nor a state that they led to.
TEST_F(ExtremeValuesTest, WhatWouldAddUpToAnInfiniteStateIsRefusedEverywhere) {
  static constexpr auto kLargest = std::numeric_limits<float>::max();
  const auto all_largest = [](std::uint32_t, std::span<std::byte> frame, std::size_t values) {
    for (std::size_t i = 0; i < values; ++i)
      std::memcpy(frame.data() + 4 * i, &kLargest, sizeof kLargest);
  };
  const auto all_7f7f = [](std::uint32_t, std::span<std::byte> frame, std::size_t) {
    std::ranges::fill(frame, std::byte{0x7f});
  };
  const auto scales_of_old = [](std::uint32_t, std::span<std::byte> frame, std::size_t values) {
    constexpr float kScale = 0x1.fffffep119F;
    const auto scales = frame.size() - values;
    for (std::size_t at = 0; at < scales; at += sizeof kScale)
      std::memcpy(frame.data() + at, &kScale, sizeof kScale);
    std::ranges::fill(frame.subspan(scales), std::byte{127});
  };
  const std::pair<compress::CodecId, SpoilFrame> spoilt[] = {
      {compress::CodecId::none, all_largest},
      {compress::CodecId::bf16, all_7f7f},
      {compress::CodecId::int8, scales_of_old}};
  for (const auto& [codec, spoil] : spoilt) {
    run(codec, 100, spoil);
    ASSERT_TRUE(reaches(12)) << to_string(codec);
    EXPECT_EQ(named(), 0U) << to_string(codec);
    for (const SiteId site : {2, 3, 4})
      EXPECT_GE(federation_->events(site, "chunk_refused"), 1U) << to_string(codec);
    expect_finite_and_equal();
  }
}

TEST_F(ExtremeValuesTest, TheLargestThatAreAllowedNeverGiveAnInfiniteState) {
  const auto spoil = [](std::uint32_t, std::span<std::byte> frame, std::size_t values) {
    for (std::size_t i = 0; i < values; ++i)
      std::memcpy(frame.data() + 4 * i, &compress::kLargestValue, sizeof(float));
  };
  run(compress::CodecId::none, 100, spoil);
  ASSERT_TRUE(reaches(30));
  EXPECT_GE(named(), 20U);
  expect_finite_and_equal();
}

// ---- Two contributions

// A member gives one site another contribution than the others, and asks it for that again and
// again, while a record has named the other one. What takes its place is not kept out by what is
// asked for.
class TwoContributionsTest : public HostilePeerTest {
 protected:
  // Seconds until the one that was given the other one has made the step.
  static double made_after(bool asks, std::uint64_t seed) {
    auto options = endless_with_puppet();
    options.network_seed = seed;
    ScriptedFederation federation(options);
    const auto plan = std::make_shared<ChunkPlan>(
        federation.layout(), 0, options.gateway.sync.chunk_elements, options.gateway.sync.codec);
    auto& puppet = federation.puppet(1);
    auto& deceived = federation.gateway(2);
    std::uint64_t step = 0;  // with two
    HandMade to_one, to_others;
    std::set<SiteId> told;
    puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
      const auto at = Puppet::follow_as_member(from, type, in);
      if (at < 3 || !deceived.state() || !deceived.view().is_member(1)) return;
      if (step == 0 && deceived.state()->step + 1 == at) {
        step = at;
        to_one = hand_made(plan, puppet.signer, 1, deceived, [](auto, auto) {});
        to_others = hand_made(plan, puppet.signer, 1, deceived,
                              [](auto, auto frames) { frames.back() = std::byte{5}; });
      }
      if (at != step || !told.insert(from.peer().site).second) return;
      (from.peer().site == 2 ? to_one : to_others).offer_to(from);
    };
    EXPECT_TRUE(federation.run_until([&] { return told.size() == 3; }, 600 * kSecond));
    const auto began = federation.now();
    while (federation.step(2) < step && federation.now() - began < 60 * kSecond) {
      if (asks) puppet.link(2).send(encode(Fetch{step, 1}));
      federation.run_for(kMillisecond);
    }
    EXPECT_EQ(federation.events(2, "two_contributions"), 1U);
    return seconds_of(federation.now() - began);
  }
};

TEST_F(TwoContributionsTest, WhatIsDecidedIsNotKeptOutByWhatIsAskedFor) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    const auto quiet = made_after(false, seed), asking = made_after(true, seed);
    EXPECT_LT(asking, 2 * quiet + 0.5) << seed;
  }
}

// ---- Words

// Of each kind there can be, and of those there are not, with the step at hand and nothing behind.
TEST_F(HostilePeerTest, WordsOfNoKindEndNobody) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 2; }, 120 * kSecond));
  for (int type = 0; type <= UINT8_MAX; ++type)
    for (const SiteId signer : {1, 2, 9}) {
      auto front = encode(federation.step_at_hand(2), Prepare{7});
      const Signed message{.type = static_cast<MessageType>(type),
                           .signer = signer,
                           .signature = {},
                           .body = std::move(front)};
      puppet.link(2).send(message.encode());
      federation.run_for(kMillisecond);
    }
  const auto step = federation.step(2);
  EXPECT_TRUE(federation.run_until([&] { return federation.step(2) >= step + 2; }, 120 * kSecond));
  EXPECT_FALSE(federation.process(2).ended());
}

// Of a flood of signatures that do not check few are looked at, whoever they are said to be of; and
// what others say counts meanwhile.
TEST_F(HostilePeerTest, BadSignaturesAreLookedAtNowAndThen) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  auto& second = federation.gateway(2);
  const auto steps_of = [&](int forged_each_100_ms) {
    const auto before = federation.step(2);
    for (int i = 0; i < 300; ++i) {
      const auto id = federation.step_at_hand(2);
      Saved saved;
      saved.id = id;
      for (int k = 0; k < forged_each_100_ms; ++k)
        for (const SiteId signer : {1, 3})
          for (auto forged :
               {sign(puppet.signer, signer, id, Prepare{static_cast<std::uint64_t>(k)}),
                sign(puppet.signer, signer, MessageType::saved, encode(saved))}) {
            forged.signature.bytes[0] ^= std::byte{1};
            puppet.link(2).send(forged.encode());
          }
      federation.run_for(100 * kMillisecond);
    }
    return federation.step(2) - before;
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 120 * kSecond));
  const auto quiet = steps_of(0);
  const auto before = second.counters().bad_signatures;
  EXPECT_GE(steps_of(10), quiet * 3 / 4);
  const auto looked_at = second.counters().bad_signatures - before;
  EXPECT_GE(looked_at, 100U);
  EXPECT_LE(looked_at, 2 * (64 + 8 * 31U)) << "of 12 000";
  EXPECT_GE(federation.events(2, "bad_signature"), 1U);
  EXPECT_LE(federation.events(2, "bad_signature"), 40U);
}

// Also of wishes, of which one status has hundreds.
TEST_F(HostilePeerTest, ForgedWishesAreLookedAtNowAndThen) {
  ScriptedFederation federation(endless_with_puppet());
  federation.puppet(1).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 120 * kSecond));
  federation.cut(2, 4, true);
  federation.run_for(20 * kSecond);
  const auto before = second.counters().bad_signatures;
  for (VoteFileId file = 1000; file < 2000; ++file) {
    Status mine;
    mine.step = federation.step(2) + 1;
    mine.wishes.push_back({.site = 4, .joins = true, .vote_file = file, .hops = 1});
    federation.puppet(1).link(2).send(encode(mine));
    federation.run_for(10 * kMillisecond);
  }
  const auto looked_at = second.counters().bad_signatures - before;
  EXPECT_GE(looked_at, 64U);
  EXPECT_LE(looked_at, 64U + 8 * 11) << "of a thousand";
}

// What others have saved is told to who loses sight of them: once, however often it does.
TEST_F(HostilePeerTest, WhoLosesSightOfOthersAgainAndAgainIsToldOnce) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  std::size_t told = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type != MessageType::saved) return;
    const auto message = decode_signed(type, in);
    told += message && message->signer != from.peer().site;
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 120 * kSecond));
  for (SiteId site = 2; site <= 4; ++site) federation.end_ranks(site);
  federation.run_for(60 * kSecond);
  told = 0;
  for (int i = 0; i < 500; ++i) {
    Status mine;
    mine.step = federation.step(2) + 1;
    if (i % 2 == 0) mine.sees = {1, 2, 3, 4};
    puppet.link(2).send(encode(mine));
    federation.run_for(10 * kMillisecond);
  }
  EXPECT_GE(told, 2U);
  EXPECT_LE(told, 4U);
}

TEST_F(HostilePeerTest, ThatItIsFarAheadShowsNobodyAsBehind) {
  ScriptedFederation federation(endless_with_puppet());
  federation.puppet(1).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status&, Status& mine) { mine.step = 90'000; });
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 600 * kSecond));
  for (int i = 0; i < 100; ++i) {
    federation.run_for(100 * kMillisecond);
    EXPECT_NE(federation.gateway(2).status().phase, "catching up");
  }
}

// By turns it has all of each contribution, and nothing. What it makes others send takes its own
// line's share of a rate limit, and no more.
TEST_F(HostilePeerTest, WhatItHasAndHasNotByTurnsHoldsNobodyUp) {
  auto options = limited_with_puppet();
  options.elements = 50'000;
  options.gateway.sync.chunk_elements = 1 << 13;
  ScriptedFederation federation(std::move(options));
  std::map<SiteId, std::pair<TransferId, std::uint32_t>> newest;
  auto& puppet = federation.puppet(1);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type != MessageType::open) return;
    const auto message = decode_signed(type, in);
    const auto open = message ? decode_open(message->body) : std::nullopt;
    if (open && message->signer == from.peer().site)
      newest[message->signer] = {transfer_of(*message), open->chunks};
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 600 * kSecond));
  const auto steps_of = [&](bool turns) {
    const auto before = federation.step(2);
    for (int i = 0; i < 2000; ++i) {
      if (turns)
        for (const auto& [site, transfer] : newest)
          puppet.link(site).have(transfer.first, std::vector<bool>(transfer.second, i % 2 == 0));
      federation.run_for(50 * kMillisecond);
    }
    return federation.step(2) - before;
  };
  const auto quiet = steps_of(false);
  EXPECT_GE(3 * steps_of(true), 2 * quiet);
}

}  // namespace
}  // namespace isthmus::inter
