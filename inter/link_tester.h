// LinkTester: measures the link to another gateway, and lets others measure the link to this one
// (PROTOCOL.md, "Link test"): round trips of an idle line, then the rate of the bulk lane, first
// there, then back. One test at a time, whoever asks; time and bytes are bounded here, whatever the
// peer says; and none while outer steps are exchanged, unless it is forced: by this site's operator
// at any time, by each other site once in a while.
//
// It stands beside the links: what comes is from a gateway of the roster, as the wire has proven,
// and needs no session, so that a link can be tested before a run begins. All on the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/random.h"
#include "inter/link_test_report.h"
#include "inter/log_pace.h"
#include "inter/loop.h"
#include "inter/rate_limit.h"
#include "inter/tested_bytes.h"
#include "inter/wire.h"

namespace isthmus::inter {

class LinkTester {
 public:
  // All outlives the tester.
  struct Context {
    Loop& loop;
    Wire& wire;
    RateLimit& limit;
    EventLog& log;
    Random random;
    std::string self;  // this site's name
    std::function<std::string(GatewayId)> name_of;
    std::function<LinkTestSide()> side;  // reads files: it is not asked often
    // Why no test can run now that is not forced; "": it can.
    std::function<std::string()> exchange;
    // Why none can run at all; "": it can.
    std::function<std::string()> objection;
  };
  explicit LinkTester(Context context);
  ~LinkTester();

  // What the operator wants; zeros: chosen by what is measured.
  struct Wish {
    GatewayId peer;
    bool force = false;
    Nanoseconds time = 0;  // each direction
    std::uint64_t bytes_max = 0;
  };
  // Begins a test under a number of the caller's, or, when it is asked again, says how it stands:
  // JSON with "state", "running" or "done" (LinkTestReport::to_json). Errors: why it failed, or
  // cannot begin: busy (an exchange, another test), unavailable, timeout, cancelled.
  Result<std::string> ask(std::uint64_t number, const Wish& wish);

  // It has begun, and may be over.
  bool has_begun(std::uint64_t number) const { return number == number_; }

  // Nobody wants its outcome any more: it ends at both ends. Nothing when it is over.
  void stop(std::uint64_t number);

  // Of what the wire carried to and from the peer: what tests did, and what all others did.
  struct Shares {
    TestedBytes::Count tests, others;
  };
  Shares shares(GatewayId peer);

  // From the wire: what follows kLinkTestFrame.
  void on_message(GatewayId from, Lane lane, std::span<const std::byte> message);
  void on_writable();
  // No control connection with the peer stands: what it was to say next does not come.
  void on_lost(GatewayId peer);

 private:
  struct Test;
  using TestPointer = std::shared_ptr<Test>;  // shared with its coroutines
  struct Pacing;

  Task<void> run(TestPointer test);
  Task<Result<LinkTestReport>> measure(TestPointer test);
  Task<Result<void>> begin(TestPointer test);
  Task<Result<void>> ping(TestPointer test, LinkTestReport& report);
  Task<Result<LinkTestSent>> send_data(TestPointer test, LinkTestPlan plan);
  Task<Result<LinkTestSent>> send_on(TestPointer test, LinkTestPlan plan,
                                     std::vector<BulkPath> paths);
  void end_pacing();
  Task<Result<LinkTestGot>> receive_data(TestPointer test, LinkTestPlan plan);
  Task<void> watch(TestPointer test);
  Task<void> serve_data(TestPointer test, LinkTestPlan plan);
  Task<void> serve_receiving(TestPointer test, LinkTestPlan plan);

  void on_ask(GatewayId from, LinkTestId id, ByteReader& in);
  void on_frame(const TestPointer& test, LinkTestFrame kind, ByteReader& in);
  TestedBytes::Count carried(GatewayId peer) const;
  bool is_current(GatewayId peer, LinkTestId id) const;
  void count(GatewayId peer, LinkTestId id, const TestedBytes::Count& message);
  void send(GatewayId to, LinkTestId id, ByteWriter frame);
  void widen(GatewayId peer);
  template <class Body>
  void send(GatewayId to, LinkTestFrame kind, LinkTestId id, const Body& body);
  const LinkTestSide& side();
  std::string who_tests(const Test& test) const;
  void abandon(const Error& why);
  void end(const TestPointer& test, const Error& why);
  void leave(const TestPointer& test);
  std::string still_ends() const;  // why no other one begins
  void note_exchange(Test& test);  // while its data move
  // Until the rate limit lets so many bytes go, or the test ends; whatever the limit becomes
  // meanwhile. busy: nobody waits so long.
  Task<Result<void>> wait_for_turn(TestPointer test, std::uint64_t bytes);
  std::string refusal(const Test& test) const;
  TestPointer asked_by(GatewayId peer, LinkTestId id, bool force) const;
  // A function alone, and not one with captures: g++ 12 destroys such temporaries of a co_await
  // twice.
  Task<Result<void>> wait(TestPointer test, Nanoseconds until, bool (*done)(const Test&),
                          std::string_view what);

  Context context_;
  TestPointer current_;
  std::weak_ptr<Test> ending_;  // while coroutines of the last one are left
  std::uint64_t number_ = 0;    // of the operator's last test
  Result<std::string> last_ = std::string();
  Signal news_, writable_;
  std::map<GatewayId, TestedBytes> tested_;
  // When data of tests that each asked for went beside an exchange.
  std::map<SiteId, Nanoseconds> forced_;
  LogPace served_;
  LinkTestSide side_;
  std::optional<Nanoseconds> side_asked_;
  std::unique_ptr<Pacing> pacing_;  // of the data that are being sent
};

}  // namespace isthmus::inter
