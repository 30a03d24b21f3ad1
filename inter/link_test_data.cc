// The data of a link test: sent as outer steps are, and counted where they arrive.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "inter/link_test_run.h"
#include "inter/sending_watch.h"

namespace isthmus::inter {

namespace {

constexpr Nanoseconds kSampleEvery = 20 * kMillisecond;
constexpr std::uint64_t kFirstData = 4 << 10;
constexpr std::uint64_t kDataShare = 16;  // a message is so small a part of what has left
constexpr double kDataSeconds = 0.05;     // and of this time at a rate limit
// For the rate limit, at most: the peer, who waits no longer than kLinkTestFirstDataPatience, is
// told why.
constexpr Nanoseconds kTurnMax = 9 * kSecond;

}  // namespace

void LinkTester::end_pacing() {
  if (pacing_) pacing_->pace.sending_ends();
  pacing_.reset();
}

Task<Result<LinkTestSent>> LinkTester::send_data(TestPointer test, LinkTestPlan plan) {
  auto paths = context_.wire.bulk_paths(test->peer);
  std::vector<ConnectionId> connections;
  for (const auto& path : paths) connections.push_back(path.connection);
  end_pacing();  // of a test that has ended and does not know it yet
  pacing_ = std::make_unique<Pacing>(context_.loop, context_.wire, test, connections);
  auto sent = co_await send_on(test, plan, std::move(paths));
  if (pacing_ && pacing_->test == test) end_pacing();
  co_return sent;
}

Task<Result<void>> LinkTester::wait_for_turn(TestPointer test, std::uint64_t bytes) {
  auto& loop = context_.loop;
  auto rate = context_.limit.bytes_per_second();
  auto turn = context_.limit.reserve(loop.now(), bytes);
  while (loop.now() < turn && !test->ended) {
    if (const auto left = turn - loop.now(); left > kTurnMax) {
      context_.limit.give_back(bytes);
      co_return Error{ErrorCode::busy,
                      fmt::format("what {} is sending takes all of its rate limit for "
                                  "another {:.0f} s at least: ask again between exchanges",
                                  context_.self, seconds_of(left))};
    }
    co_await loop.sleep_until(std::min(turn, loop.now() + kSampleEvery));
    if (const auto now = context_.limit.bytes_per_second(); now != rate) {
      rate = now;
      turn = context_.limit.reserve(loop.now(), bytes);
    }
  }
  if (test->ended) {
    context_.limit.give_back(bytes);
    co_return *test->ended;
  }
  co_return Result<void>();
}

Task<Result<LinkTestSent>> LinkTester::send_on(TestPointer test, LinkTestPlan plan,
                                               std::vector<BulkPath> paths) {
  auto& loop = context_.loop;
  SendingWatch watch(paths);
  // On all connections; on the newest one where the wire does not tell.
  std::vector<ConnectionId> connections(1, 0);
  if (!paths.empty()) connections.clear();
  for (const auto& path : paths) connections.push_back(path.connection);
  std::size_t next = 0;
  const auto send_on_one = [&](const Bytes& message) {
    std::optional<Error> busy, gone;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      const auto connection = connections[next++ % connections.size()];
      const auto sent = context_.wire.send(test->peer, Lane::bulk, message, connection);
      if (sent) {
        count(test->peer, test->id, {.sent = context_.wire.bytes_of(Lane::bulk, message.size())});
        return sent;
      }
      (sent.error().code == ErrorCode::busy ? busy : gone) = sent.error();
    }
    return Result<void>(busy ? *busy : *gone);
  };
  // Counts from the first message that the wire takes: beside an exchange that may be full.
  auto until = loop.now() + 2 * kTurnMax;
  Nanoseconds next_look = loop.now();
  std::uint64_t bytes = 0;
  const auto look = [&] {
    if (bytes > 0) note_exchange(*test);
    if (loop.now() < next_look) return;
    next_look = loop.now() + kSampleEvery;
    watch.look(loop.now(), context_.wire.bulk_paths(test->peer));
  };
  while (loop.now() < until && bytes < plan.bytes_max) {
    auto size = std::clamp<std::uint64_t>(bytes / kDataShare, kFirstData, kLinkTestDataMax);
    if (const auto rate = context_.limit.bytes_per_second(); rate > 0)
      size = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(kDataSeconds * rate), 512, size);
    size = std::min(size, plan.bytes_max - bytes);
    look();
    if (test->ended) co_return *test->ended;
    auto frame = link_test_frame(LinkTestFrame::data, test->id);
    frame.raw(std::vector<std::byte>(size));
    const Bytes message = frame.take();
    auto turn = co_await wait_for_turn(test, context_.wire.bytes_of(Lane::bulk, message.size()));
    if (!turn) co_return turn.error();
    for (;;) {
      if (test->ended) co_return *test->ended;
      if (auto why = refusal(*test); !why.empty()) co_return Error{ErrorCode::busy, std::move(why)};
      const auto sent = send_on_one(message);
      if (sent) {
        if (bytes == 0) until = loop.now() + plan.time;
        bytes += message.size() - 1;  // as the other end counts it
        break;
      }
      if (sent.error().code != ErrorCode::busy)
        co_return Error{
            ErrorCode::unavailable,
            fmt::format(
                "no bulk connection with {} stands: try again when `isthmus status` shows one",
                test->peer_name)};
      if (loop.now() >= until && bytes == 0)
        co_return Error{ErrorCode::busy,
                        fmt::format("all connections of {} are full of what it is sending: ask "
                                    "again between exchanges",
                                    context_.self)};
      if (loop.now() >= until) break;
      co_await writable_.wait_until(std::min(until, loop.now() + kSampleEvery));
      look();
    }
  }
  // Few bytes have been handed over at once, since the last look: what is of interest is on its
  // way.
  next_look = loop.now();
  for (look(); loop.now() < until && !watch.all_arrived(); look()) {
    if (test->ended) co_return *test->ended;
    if (auto why = refusal(*test); !why.empty()) co_return Error{ErrorCode::busy, std::move(why)};
    co_await loop.sleep(kSampleEvery);
  }
  auto sent = watch.warm();
  sent.bytes = bytes;
  co_return sent;
}

Task<Result<LinkTestGot>> LinkTester::receive_data(TestPointer test, LinkTestPlan plan) {
  auto& loop = context_.loop;
  test->receiving = true;
  test->data_bytes = 0;
  auto began = co_await wait(
      test, loop.now() + kLinkTestFirstDataPatience, [](const Test& t) { return t.data_bytes > 0; },
      "sends no data");
  std::vector<LinkTestSample> samples;
  const auto until = loop.now() + plan.time;
  while (began && loop.now() < until) {
    samples.push_back({loop.now(), context_.wire.bytes_received(test->peer)});
    note_exchange(*test);
    if (test->sent && test->data_bytes >= test->sent->bytes) break;
    if (test->data_bytes > plan.bytes_max + kLinkTestDataMax)
      began = Error{ErrorCode::too_large, "it sends more than was asked for"};
    else if (test->ended)
      began = *test->ended;
    else if (loop.now() - test->heard > kLinkTestPatience)
      began = Error{ErrorCode::timeout, fmt::format("nothing more comes from {}", test->peer_name)};
    else if (auto why = refusal(*test); !why.empty())
      began = Error{ErrorCode::busy, std::move(why)};
    else
      co_await loop.sleep(kSampleEvery);
  }
  test->receiving = false;
  if (!began) co_return began.error();
  auto got = warm_rate(samples);
  // The test's own; most may have come before the first look.
  got.bytes = test->data_bytes;
  co_return got;
}

}  // namespace isthmus::inter
