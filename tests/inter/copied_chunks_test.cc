// Chunks that go on a second connection, since the first one has become slow.
#include <gtest/gtest.h>

#include "inter/link.h"
#include "tests/inter/bulk_session.h"

namespace isthmus::inter {
namespace {

// Connections 2 and 3, of which one is fast, and the other one as the test says.
class CopiedChunks : public testing::Test {
 protected:
  CopiedChunks() {
    for (const ConnectionId connection : {2, 3}) {
      auto path = path_with("bbr", connection);
      path.tcp.round_trip = 100 * kMillisecond;
      path.tcp.window_bytes = 1'000'000;
      peer.paths.push_back(path);
    }
    begin_on_two_connections(peer, 200);
  }
  void offer(std::uint32_t chunks) {
    peer.link.offer(5, 0, chunks, std::make_shared<NumberedChunks>(100'000), false);
  }
  // Indices of the chunks that left on it.
  std::vector<std::uint32_t> chunks_on(ConnectionId connection) const {
    std::vector<std::uint32_t> chunks;
    for (const auto& sent : peer.sent)
      if (sent.connection == connection &&
          sent.message[0] == static_cast<std::byte>(Frame::chunk)) {
        auto in = after_kind(sent.message);
        chunks.push_back(decode_chunk(in)->index);
      }
    return chunks;
  }
  void acknowledge(const std::vector<std::uint32_t>& chunks) {
    Ack ack;
    ack.session = peer.session;
    ack.credit = 200;
    for (const auto chunk : chunks) ack.chunks.emplace_back(5, chunk);
    peer.control(ack.encode());
  }
  // Connection 2 has lost packets: its window is a tenth, and its chunks wait.
  void slow_down() {
    peer.paths[0].tcp.window_bytes = 100'000;
    peer.paths[0].tcp.waiting_bytes = 1'000'000;
    peer.run_for(50 * kMillisecond);
  }
  // Twenty chunks: five of the ten that wait on connection 2 have left on 3 as well.
  void have_copies() {
    offer(20);
    acknowledge(chunks_on(3));
    slow_down();
    ASSERT_EQ(copied(), 5U);
  }
  std::uint64_t copied() const { return peer.link.bulk_counters().chunks_copied; }
  std::uint64_t resent() const { return peer.link.bulk_counters().chunks_resent; }

  ScriptedPeer peer;
};

TEST_F(CopiedChunks, ThoseThatAnotherConnectionBringsSooner) {
  offer(20);
  const auto slow = chunks_on(2), fast = chunks_on(3);
  ASSERT_EQ(slow.size(), 10U);
  acknowledge(fast);
  EXPECT_EQ(copied(), 0U) << "both are as fast";
  slow_down();
  EXPECT_EQ(copied(), 5U) << "a quarter, and no more";
  const auto copies = chunks_on(3);
  // The latest ones, which left last.
  EXPECT_EQ(std::set<std::uint32_t>(copies.begin() + 10, copies.end()),
            std::set<std::uint32_t>(slow.begin() + 5, slow.end()));
  // Whichever comes first: then neither is on its way any more.
  acknowledge(slow);
  EXPECT_FALSE(peer.link.sends(5));
  EXPECT_EQ(peer.link.status().waiting_for, "");
  peer.link.wire_down(Lane::bulk, 2);
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(resent(), 0U);
}

TEST_F(CopiedChunks, WhatTheWireHoldsWaitsToo) {
  offer(20);
  acknowledge(chunks_on(3));
  peer.paths[0].tcp.window_bytes = 100'000;
  peer.paths[0].unwritten_bytes = 1'000'000;
  peer.run_for(50 * kMillisecond);
  EXPECT_EQ(copied(), 5U);
}

TEST_F(CopiedChunks, NoneWhileSomethingWasNotSentOnce) {
  struct LastOneLate final : ChunkSource {
    ChunkBytes chunk(std::uint32_t index) override {
      return index < 19 || coded ? NumberedChunks(100'000).chunk(index) : ChunkBytes();
    }
    bool coded = false;
  };
  const auto source = std::make_shared<LastOneLate>();
  peer.link.offer(5, 0, 20, source, false);
  acknowledge(chunks_on(3));
  slow_down();
  EXPECT_EQ(copied(), 0U);
  source->coded = true;
  peer.link.poke();
  peer.run_for(50 * kMillisecond);
  EXPECT_EQ(copied(), 5U);
}

// The last chunk has half a second to leave in, and its copy waits as long again.
TEST_F(CopiedChunks, NoneThatTheRateLimitHasNoRoomForYet) {
  peer.limit.set_rate(peer.loop.now(), 200'000);
  offer(4);
  peer.run_for(1400 * kMillisecond);
  ASSERT_EQ(chunks_on(2).size() + chunks_on(3).size(), 3U);
  acknowledge(chunks_on(3));
  slow_down();
  peer.run_for(100 * kMillisecond);
  ASSERT_EQ(chunks_on(2).size() + chunks_on(3).size(), 4U);
  peer.run_for(900 * kMillisecond);
  EXPECT_EQ(copied(), 0U);
  peer.run_for(200 * kMillisecond);
  EXPECT_EQ(copied(), 1U);
  // Which takes its time of the limit, as any chunk does.
  EXPECT_FALSE(peer.limit.idle(peer.loop.now() + 250 * kMillisecond));
  EXPECT_TRUE(peer.limit.idle(peer.loop.now() + 550 * kMillisecond));
}

TEST_F(CopiedChunks, OneOfTheTwoSufficesWhenAConnectionEnds) {
  have_copies();
  peer.link.wire_down(Lane::bulk, 2);
  EXPECT_EQ(resent(), 5U) << "those that were not copied";
  peer.link.wire_up(Lane::bulk, 4);
  peer.bulk(Bind{peer.session, 2}.encode(), 4);
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(resent(), 5U + 10U) << "now nothing else is left of them";
  EXPECT_EQ(chunks_on(4).size(), 10U);
}

// A next transfer finds both connections as empty as they are.
TEST_F(CopiedChunks, OfWhatCameOnceNothingIsOnItsWay) {
  have_copies();
  const auto on_fast = chunks_on(3);
  acknowledge({on_fast.begin() + 10, on_fast.end()});
  peer.link.offer(6, 0, 6, std::make_shared<NumberedChunks>(100'000), false);
  peer.run_for(50 * kMillisecond);
  EXPECT_EQ(chunks_on(2).size(), 10U + 1U);
  EXPECT_EQ(chunks_on(3).size(), 15U + 5U + 1U) << "a copy of the one that waits on 2";
}

TEST_F(CopiedChunks, WhatCameOnceGoesNotAgain) {
  have_copies();
  acknowledge({chunks_on(3).back()});
  peer.link.wire_up(Lane::bulk, 4);
  peer.bulk(Bind{peer.session, 2}.encode(), 4);
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(resent(), 0U);
  peer.link.wire_down(Lane::bulk, 2);
  EXPECT_EQ(resent(), 9U);
  EXPECT_EQ(chunks_on(4).size(), 9U);
}

TEST_F(CopiedChunks, ACopyThatIsLostGoesNotAgainWhileTheFirstOneIsOnItsWay) {
  have_copies();
  peer.link.wire_down(Lane::bulk, 3);
  EXPECT_EQ(resent(), 0U);
  peer.link.withdraw(5);
  EXPECT_EQ(peer.link.status().waiting_for, "");
}

}  // namespace
}  // namespace isthmus::inter
