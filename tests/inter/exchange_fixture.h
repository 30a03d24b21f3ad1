// A site that receives a contribution which is made by hand, chunk by chunk.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "inter/exchange.h"
#include "tests/inter/scripted_federation.h"
#include "tests/inter/sealed_chunks.h"

namespace isthmus::inter {

inline constexpr SiteId kReceiver = 1, kOrigin = 2;

// The receiver has the only vote, and its ranks take so long that no step is decided meanwhile. The
// origin's contributions are made by hand.
class ExchangeTest : public testing::Test {
 protected:
  explicit ExchangeTest(const ScriptedFederation::Options& options = ExchangeTest::options())
      : federation_(options),
        plan_(std::make_shared<ChunkPlan>(federation_.layout(), 0,
                                          options.gateway.sync.chunk_elements,
                                          compress::CodecId::int8)) {
    for (const auto site : options.puppets) {
      auto& puppet = federation_.puppet(site);
      puppet.heard = [this, &puppet, site](Link& from, MessageType type, ByteReader& in) {
        if (type == MessageType::status) {
          if (const auto theirs = decode_status(in)) answer(site, from, *theirs);
        } else if (type == MessageType::fetch) {
          asked(from);
        } else if (type == MessageType::accept) {
          if (const auto message = decode_signed(type, in)) follow(puppet, site, from, *message);
        }
      };
    }
    founded_ = federation_.run_until(
        [this] { return receiver().state() && receiver().view().is_member(kOrigin); },
        60 * kSecond);
  }
  void SetUp() override { ASSERT_TRUE(founded_); }

  // Of so many elements, and so many in a chunk; the window of a link that may be as narrow as it
  // gets.
  enum class Window : bool { wide, narrow };
  static ScriptedFederation::Options of_chunks(std::int64_t elements, std::uint64_t chunk_elements,
                                               Window window) {
    auto options = ExchangeTest::options();
    options.elements = elements;
    options.gateway.sync.chunk_elements = chunk_elements;
    if (window == Window::narrow)
      options.gateway.link.window_bytes = options.gateway.link.window_bytes_max = 1;
    return options;
  }
  static ScriptedFederation::Options options() {
    auto options = options_of({100'000 * kSecond, kSecond});
    options.puppets = {kOrigin};
    options.without_vote = {kOrigin};
    options.gateway.sync.min_sites = 2;
    return options;
  }

  void answer(SiteId self, Link& from, const Status& theirs) {
    Status mine;
    if (self != kOrigin && passes_on_) mine.holds = {kOrigin};
    mine.step = theirs.step;
    mine.contributes = true;
    mine.vote_file = 77;
    mine.sees = {kReceiver};
    from.send(encode(mine));
  }
  // For what it says to hold.
  void asked(Link& from) {
    if (!passes_on_) return;
    from.send(passes_on_->announcement().encode());
    from.offer(passes_on_->transfer(), 1, plan_->chunks(),
               slowly_ ? slowly_ : std::static_pointer_cast<ChunkSource>(passes_on_), true);
    from.send(close_of(*passes_on_).encode());
  }
  // Where it has a vote: in the founding.
  static void follow(const Puppet& puppet, SiteId self, Link& from, const Signed& message) {
    const auto heard = decode_ballot(message.type, message.body);
    if (!heard || heard->id.step != 0 || message.signer != kReceiver) return;
    const auto& accept = std::get<Accept>(heard->ballot);
    from.send(sign(puppet.signer, self, heard->id, accept).encode());
  }

  Gateway& receiver() { return federation_.gateway(kReceiver); }
  Puppet& origin() { return federation_.puppet(kOrigin); }
  Link& link() { return origin().link(kReceiver); }
  bool held() { return receiver().held().count(kOrigin) > 0; }
  bool run_until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 60 * kSecond);
  }

  // A whole contribution to the first step. All of one attempt have one announcement.
  std::shared_ptr<Contribution> made_from(std::uint64_t seed, std::uint64_t attempt = 7) {
    const auto run = receiver().genesis()->record.hash();
    const auto open = plan_->announce({.run = run, .view = receiver().view().digest(), .step = 1},
                                      100, run, attempt);
    auto made = std::make_shared<Contribution>(
        plan_, sign(origin().signer, kOrigin, MessageType::open, encode(open)), open);
    Random random(seed);
    const auto& agreed = receiver().state()->agreed;
    std::vector<float> parameters(agreed.begin(), agreed.end()), residual(parameters.size());
    for (auto& value : parameters) value += static_cast<float>(random.uniform());
    const ValuesInVector values(std::move(parameters));
    add_all_chunks(*made, origin().signer, [&](std::uint32_t i) {
      return *code_chunk(*plan_, i, receiver().state()->agreed, {}, values, residual);
    });
    return made;
  }
  // The announcement and the chunks.
  void begin_sending(const std::shared_ptr<Contribution>& made) {
    link().send(made->announcement().encode());
    link().offer(made->transfer(), 1, plan_->chunks(), made, false);
  }
  // True when all of them are acknowledged.
  bool send(const std::shared_ptr<Contribution>& made) {
    link().withdraw(made->transfer());
    begin_sending(made);
    return run_until([&] { return !link().sends(made->transfer()); });
  }
  void close(const Contribution& made) { link().send(close_of(made).encode()); }
  Signed close_of(const Contribution& made) {
    const Close close{.id = made.open().id,
                      .transfer = made.transfer(),
                      .root = made.root(),
                      .bytes = made.bytes(),
                      .tokens = made.open().tokens,
                      .base = made.open().base,
                      .state_root = receiver().root()};
    return sign(origin().signer, kOrigin, MessageType::close, encode(close));
  }
  // What is held must be held by the disk.
  void expect_held_after_a_crash() {
    federation_.kill(kReceiver);
    federation_.start(kReceiver);
    EXPECT_TRUE(run_until([this] { return held(); }));
    EXPECT_EQ(federation_.events(kReceiver, "contribution_restored"), 1U);
  }

  ScriptedFederation federation_;
  const std::shared_ptr<const ChunkPlan> plan_;
  std::shared_ptr<Contribution> passes_on_;  // who is not its origin
  std::shared_ptr<ChunkSource> slowly_;      // if not at once
  bool founded_ = false;
};

}  // namespace isthmus::inter
