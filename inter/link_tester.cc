#include "inter/link_tester.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "inter/bulk_width.h"
#include "inter/link_test_run.h"

namespace isthmus::inter {

namespace {

constexpr Nanoseconds kWhileItIsHeard = -1;  // as the end of a wait: so long after the last one
constexpr Nanoseconds kAskPeerEvery = kSecond;
constexpr int kAsks = 5;
constexpr int kPings = 20;
constexpr Nanoseconds kSideKept = 5 * kSecond;
constexpr Nanoseconds kLook = 100 * kMillisecond;  // for what ends a test
// Between tests that a site forces upon another one, whose exchange they delay.
constexpr Nanoseconds kForcedApart = 10 * 60 * kSecond;

// Long enough that congestion control has found its rate in the first two fifths.
constexpr Nanoseconds kTimeMin = 4 * kSecond;
constexpr int kTimeRoundTrips = 40;
constexpr std::uint64_t kBytesUnlessAsked = 256 << 20;

constexpr std::size_t kEndTextMax = 500;

}  // namespace

LinkTester::LinkTester(Context context)
    : context_(std::move(context)), news_(context_.loop), writable_(context_.loop) {}
LinkTester::~LinkTester() = default;

std::string LinkTester::refusal(const Test& test) const {
  if (auto why = context_.objection(); !why.empty()) return why;
  if (test.force) return {};
  auto why = context_.exchange();
  if (why.empty()) return why;
  if (!test.forced_before)
    return why + ": ask again later, or force the test (--force), which delays both";
  constexpr auto kMinute = 60 * kSecond;
  const auto since = context_.loop.now() - *test.forced_before;
  const auto minutes = static_cast<std::uint64_t>(since / kMinute);
  const auto left = std::max<Nanoseconds>(1, (kForcedApart - since + kMinute - 1) / kMinute);
  return why + fmt::format(
                   ": {} forced a test {} ago, and may force another one in {}; without an "
                   "exchange one may begin at any time",
                   test.peer_name,
                   minutes == 0 ? std::string("less than a minute") : counted(minutes, "minute"),
                   counted(static_cast<std::uint64_t>(left), "minute"));
}

std::string LinkTester::still_ends() const {
  return fmt::format("the last test {}: ask again in a moment",
                     context_.limit.bytes_per_second() > 0
                         ? "waits for its turn at the rate limit to end"
                         : "has not quite ended yet");
}

Result<std::string> LinkTester::ask(std::uint64_t number, const Wish& wish) {
  if (number == number_) {
    if (current_ && current_->asked_here)
      return fmt::format("{{\"state\":\"running\",\"doing\":{}}}", json_string(current_->doing));
    return last_;
  }
  if (current_)
    return Error{ErrorCode::busy, fmt::format("{}: ask again in a minute", who_tests(*current_))};
  if (!ending_.expired()) return Error{ErrorCode::busy, still_ends()};
  const auto test = std::make_shared<Test>();
  test->peer = wish.peer;
  test->peer_name = context_.name_of(wish.peer);
  test->id = context_.random.next();
  test->number = number;
  test->asked_here = true;
  test->began = context_.loop.now();
  test->force = wish.force;
  test->wish = wish;
  if (const auto why = refusal(*test); !why.empty()) return Error{ErrorCode::busy, why};
  number_ = number;
  current_ = test;
  context_.loop.spawn(run(current_));
  return fmt::format("{{\"state\":\"running\",\"doing\":{}}}", json_string(current_->doing));
}

void LinkTester::stop(std::uint64_t number) {
  if (number != number_ || !current_ || !current_->asked_here) return;
  abandon(Error{ErrorCode::cancelled, "who asked for it has gone"});
}

void LinkTester::on_lost(GatewayId peer) {
  if (!current_ || current_->peer != peer) return;
  abandon(Error{ErrorCode::unavailable,
                fmt::format("the connection with {} is gone, and the test with it: begin another "
                            "one when `isthmus status` shows it again",
                            current_->peer_name)});
}

// Before its coroutines have noticed.
void LinkTester::abandon(const Error& why) {
  if (current_->asked_here) {
    last_ = why;
    context_.log.info("link_test_stopped", {.peer = current_->peer_name}, {{"why", why.text()}});
  }
  end(current_, why);
  news_.notify();
  writable_.notify();
}

const LinkTestSide& LinkTester::side() {
  const auto now = context_.loop.now();
  if (!side_asked_ || now - *side_asked_ >= kSideKept) {
    side_ = context_.side();
    side_asked_ = now;
  }
  return side_;
}

std::string LinkTester::who_tests(const Test& test) const {
  const auto &asker = test.asked_here ? context_.self : test.peer_name,
             &other = test.asked_here ? test.peer_name : context_.self;
  return fmt::format("{} tests its link to {} just now", asker, other);
}

TestedBytes::Count LinkTester::carried(GatewayId peer) const {
  return {.sent = context_.wire.bytes_sent(peer), .received = context_.wire.bytes_received(peer)};
}

bool LinkTester::is_current(GatewayId peer, LinkTestId id) const {
  return current_ && current_->peer == peer && current_->id == id;
}

// What is said of no test that goes on puts nothing off: a peer could say it for ever.
void LinkTester::count(GatewayId peer, LinkTestId id, const TestedBytes::Count& message) {
  auto& tested = tested_[peer];
  const auto now = context_.loop.now();
  tested.add(now, message);
  if (is_current(peer, id)) tested.goes_on(now, carried(peer));
}

LinkTester::Shares LinkTester::shares(GatewayId peer) {
  auto& tested = tested_[peer];
  return {.tests = tested.tests(), .others = tested.others(context_.loop.now(), carried(peer))};
}

// ---- Words

void LinkTester::send(GatewayId to, LinkTestId id, ByteWriter frame) {
  auto message = frame.take();
  const auto bytes = message.size();
  context_.limit.pay(context_.loop.now(), bytes);
  // Lost: whoever waits for it gives up, and says what is missing.
  if (context_.wire.send(to, Lane::control, std::move(message)))
    count(to, id, {.sent = context_.wire.bytes_of(Lane::control, bytes)});
}

template <class Body>
void LinkTester::send(GatewayId to, LinkTestFrame kind, LinkTestId id, const Body& body) {
  auto frame = link_test_frame(kind, id);
  body.write(frame);
  send(to, id, std::move(frame));
}

// As many connections as a session begins with: there may be none yet. They are up after the pings.
void LinkTester::widen(GatewayId peer) {
  if (const auto paths = context_.wire.bulk_paths(peer); !paths.empty())
    context_.wire.widen(peer, std::max(static_cast<std::uint32_t>(paths.size()),
                                       BulkWidth::at_first(BulkWidth::best_for(paths))));
}

void LinkTester::on_writable() { writable_.notify(); }

void LinkTester::on_message(GatewayId from, Lane lane, std::span<const std::byte> message) {
  ByteReader in(message);
  const auto kind = in.get<LinkTestFrame>();
  const auto id = in.get<LinkTestId>();
  if (!in.ok() || (kind == LinkTestFrame::data) != (lane == Lane::bulk)) return;
  if (kind == LinkTestFrame::ask || is_current(from, id) ||
      tested_[from].unsettled(context_.loop.now()))
    count(from, id, {.received = context_.wire.bytes_of(lane, message.size() + 1)});
  if (kind == LinkTestFrame::ask) return on_ask(from, id, in);
  if (!is_current(from, id)) return;
  const auto test = current_;
  test->heard = context_.loop.now();
  if (kind != LinkTestFrame::data) return on_frame(test, kind, in);
  if (!test->receiving) return;
  if (test->data_bytes == 0) news_.notify();
  test->data_bytes += message.size();
}

// A force that comes too soon counts for none: where nothing is exchanged it is not needed.
LinkTester::TestPointer LinkTester::asked_by(GatewayId peer, LinkTestId id, bool force) const {
  const auto test = std::make_shared<Test>();
  test->peer = peer;
  test->peer_name = context_.name_of(peer);
  test->id = id;
  test->began = context_.loop.now();
  test->force = force;
  const auto before = forced_.find(peer.site);
  if (force && before != forced_.end() && test->began < before->second + kForcedApart) {
    test->force = false;
    test->forced_before = before->second;
  }
  return test;
}

void LinkTester::on_ask(GatewayId from, LinkTestId id, ByteReader& in) {
  const auto ask = LinkTestAsk::read(in);
  if (!ask) return;
  LinkTestAnswer answer;
  const bool again = is_current(from, id);
  // Who tests one link at a time and asks for another test has given up the last one: its gateway
  // was killed, say. It asks again until that has ended here too.
  if (current_ && !again && current_->peer == from && !current_->asked_here)
    return abandon(Error{ErrorCode::cancelled, "another one was asked for"});
  // Both ends began one at the same moment: one of them is done. The other end asks again as well.
  if (current_ && current_->peer == from && current_->asked_here && !current_->answer &&
      id < current_->id)
    return abandon(Error{ErrorCode::busy,
                         fmt::format("{} began a test of this link at the same moment: ask again "
                                     "in a minute",
                                     current_->peer_name)});
  const auto test = again ? current_ : asked_by(from, id, ask->force);
  if (current_ && !again)
    answer.refusal = who_tests(*current_);
  else if (!again && !ending_.expired())
    answer.refusal = fmt::format("at {} {}", context_.self, still_ends());
  else
    answer.refusal = refusal(*test);
  if (answer.refusal.empty()) {
    answer.side = side();
    if (!again) {
      current_ = test;
      if (const auto left_out = served_.due(context_.loop.now()))
        context_.log.info("link_test_served", {.peer = test->peer_name},
                          {{"forced", test->force}, {"left_out", *left_out}});
      context_.loop.spawn(watch(test));
      widen(from);
    }
    current_->heard = context_.loop.now();
  }
  send(from, LinkTestFrame::answer, id, answer);
}

void LinkTester::on_frame(const TestPointer& test, LinkTestFrame kind, ByteReader& in) {
  if (kind == LinkTestFrame::end) {
    const auto why = in.string(kEndTextMax);
    if (in.done())
      test->ended = Error{ErrorCode::unavailable,
                          why.empty() ? std::string("it is over")
                                      : fmt::format("{} ended the test: {}", test->peer_name, why)};
    if (in.done() && !test->asked_here) leave(test);
  } else if (test->asked_here) {
    if (kind == LinkTestFrame::answer) test->answer = LinkTestAnswer::read(in);
    if (kind == LinkTestFrame::pong)
      if (const auto stamp = in.get<Nanoseconds>(); in.done()) test->pong = stamp;
    if (kind == LinkTestFrame::sent) test->sent = LinkTestSent::read(in);
    if (kind == LinkTestFrame::got) test->got = LinkTestGot::read(in);
  } else if (kind == LinkTestFrame::ping) {
    if (const auto stamp = in.get<Nanoseconds>(); in.done() && test->pongs++ < 2 * kPings)
      send(test->peer, test->id,
           std::move(link_test_frame(LinkTestFrame::pong, test->id).put(stamp)));
  } else if (kind == LinkTestFrame::sent) {
    test->sent = LinkTestSent::read(in);
  } else if (kind == LinkTestFrame::expect || kind == LinkTestFrame::send) {
    const auto plan = LinkTestPlan::read(in);
    auto& had = kind == LinkTestFrame::send ? test->has_sent : test->has_received;
    if (plan && !test->moving && !std::exchange(had, true)) {
      test->moving = true;
      context_.loop.spawn(kind == LinkTestFrame::send ? serve_data(test, *plan)
                                                      : serve_receiving(test, *plan));
    }
  }
  news_.notify();
}

// Tells the other end, unless that has ended it.
void LinkTester::end(const TestPointer& test, const Error& why) {
  if (!test->ended) {
    test->ended = why;
    auto frame = link_test_frame(LinkTestFrame::end, test->id);
    frame.string(std::string_view(why.text()).substr(0, kEndTextMax));
    send(test->peer, test->id, std::move(frame));
  }
  leave(test);
}

// Another one may follow once what still works on this one has noticed, or each would leave
// something that waits for its turn at the rate limit.
void LinkTester::leave(const TestPointer& test) {
  if (pacing_ && pacing_->test == test) end_pacing();
  if (current_ != test) return;
  ending_ = current_;
  current_.reset();
}

Task<Result<void>> LinkTester::wait(TestPointer test, Nanoseconds until, bool (*done)(const Test&),
                                    std::string_view what) {
  for (;;) {
    if (test->ended) co_return *test->ended;
    if (done(*test)) co_return Result<void>();
    if (auto why = refusal(*test); !why.empty()) co_return Error{ErrorCode::busy, std::move(why)};
    const auto now = context_.loop.now();
    const auto end = until == kWhileItIsHeard
                         ? std::min(test->heard + kLinkTestPatience, test->began + kLinkTestLongest)
                         : until;
    if (now >= end)
      co_return Error{ErrorCode::timeout, fmt::format("{} {}", test->peer_name, what)};
    co_await news_.wait_until(std::min(end, now + kLook));
  }
}

// ---- The end that asks

Task<void> LinkTester::run(TestPointer test) {
  auto report = co_await measure(test);
  context_.log.info("link_tested", {.peer = test->peer_name},
                    {{"outcome", report ? std::string("measured") : report.error().text()}});
  if (test->number == number_)
    last_ = report ? Result<std::string>(report->to_json()) : Result<std::string>(report.error());
  if (report)
    end(test, Error{ErrorCode::cancelled, ""});
  else
    end(test, report.error());
}

Task<Result<void>> LinkTester::begin(TestPointer test) {
  const auto nobody =
      "does not answer: is its gateway up, and as new as this one? Where it does not know this "
      "site's key, or this one its, the log of the gateway that refuses says so";
  for (int i = 0; i < kAsks && !test->answer; ++i) {
    send(test->peer, LinkTestFrame::ask, test->id, LinkTestAsk{test->force});
    auto answered = co_await wait(
        test, context_.loop.now() + kAskPeerEvery,
        [](const Test& t) { return t.answer.has_value(); }, nobody);
    if (!answered && (answered.error().code != ErrorCode::timeout || i + 1 == kAsks))
      co_return answered;
  }
  if (!test->answer->refusal.empty())
    co_return Error{ErrorCode::busy,
                    fmt::format("{} refuses: {}", test->peer_name, test->answer->refusal)};
  widen(test->peer);
  co_return Result<void>();
}

Task<Result<void>> LinkTester::ping(TestPointer test, LinkTestReport& report) {
  test->doing = "round trip";
  for (int i = 0; i < kPings; ++i) {
    const auto stamp = context_.loop.now();
    test->pinged = stamp;
    send(test->peer, test->id,
         std::move(link_test_frame(LinkTestFrame::ping, test->id).put(stamp)));
    auto came = co_await wait(
        test, stamp + kLinkTestPatience, [](const Test& t) { return t.pong == t.pinged; },
        "does not answer a ping");
    if (!came) co_return came;
    report.round_trips.push_back(context_.loop.now() - stamp);
  }
  co_return Result<void>();
}

Task<Result<LinkTestReport>> LinkTester::measure(TestPointer test) {
  auto began = co_await begin(test);
  if (!began) co_return began.error();
  LinkTestReport report;
  report.here = context_.self;
  report.there = test->peer_name;
  report.side_here = side();
  report.side_there = test->answer->side;
  auto pinged = co_await ping(test, report);
  if (!pinged) co_return pinged.error();

  LinkTestPlan plan;
  plan.time = std::min(kLinkTestTimeMax,
                       test->wish.time > 0
                           ? test->wish.time
                           : std::max(kTimeMin, kTimeRoundTrips * report.round_trip_median()));
  plan.bytes_max = std::min(kLinkTestBytesMax,
                            test->wish.bytes_max > 0 ? test->wish.bytes_max : kBytesUnlessAsked);
  test->doing = fmt::format("{} to {}", report.here, report.there);
  send(test->peer, LinkTestFrame::expect, test->id, plan);
  auto sent = co_await send_data(test, plan);
  if (!sent) co_return sent.error();
  send(test->peer, LinkTestFrame::sent, test->id, *sent);
  auto told = co_await wait(
      test, context_.loop.now() + plan.time + kLinkTestFirstDataPatience,
      [](const Test& t) { return t.got.has_value(); }, "does not say what it got");
  if (!told) co_return told.error();
  report.to_peer = {*sent, *test->got, test->beside_exchange};

  test->doing = fmt::format("{} to {}", report.there, report.here);
  test->beside_exchange = false;
  test->sent.reset();
  send(test->peer, LinkTestFrame::send, test->id, plan);
  auto got = co_await receive_data(test, plan);
  if (!got) co_return got.error();
  told = co_await wait(
      test, kWhileItIsHeard, [](const Test& t) { return t.sent.has_value(); },
      "does not say what it sent");
  if (!told) co_return told.error();
  report.from_peer = {*test->sent, *got, test->beside_exchange};
  report.plan = plan;
  for (auto* direction : {&report.to_peer, &report.from_peer})
    direction->forget_if_short(report.round_trip_min());
  co_return report;
}

// ---- The end that is asked

// Of what TCP carries, and of its losses, nobody can tell whose they were; and this is what delays
// the exchange, which its own site may do as often as it likes.
void LinkTester::note_exchange(Test& test) {
  if (!test.force || context_.exchange().empty()) return;
  test.beside_exchange = true;
  if (!test.asked_here) forced_[test.peer.site] = context_.loop.now();
}

// What the asker says drives it; this ends it when nothing more is said, or an exchange begins.
Task<void> LinkTester::watch(TestPointer test) {
  while (!test->ended) {
    co_await news_.wait_until(context_.loop.now() + kLook);
    if (test->ended) break;
    if (const auto why = refusal(*test); !why.empty())
      end(test, Error{ErrorCode::busy, why});
    else if (!test->moving && context_.loop.now() - test->heard > kLinkTestPatience)
      end(test, Error{ErrorCode::timeout, "nothing more was said"});
    else if (context_.loop.now() - test->began > kLinkTestLongest)
      end(test, Error{ErrorCode::timeout, "it takes longer than any test"});
  }
  leave(test);
}

Task<void> LinkTester::serve_data(TestPointer test, LinkTestPlan plan) {
  const auto sent = co_await send_data(test, plan);
  test->moving = false;
  test->heard = context_.loop.now();
  if (!sent) co_return end(test, sent.error());
  send(test->peer, LinkTestFrame::sent, test->id, *sent);
}

Task<void> LinkTester::serve_receiving(TestPointer test, LinkTestPlan plan) {
  const auto got = co_await receive_data(test, plan);
  test->moving = false;
  test->heard = context_.loop.now();
  if (!got) co_return end(test, got.error());
  send(test->peer, LinkTestFrame::got, test->id, *got);
}

}  // namespace isthmus::inter
