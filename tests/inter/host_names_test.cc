#include "inter/host_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "inter/host_look_up.h"
#include "tests/inter/zmq_pair.h"

namespace isthmus::inter {
namespace {

using testing::ElementsAre;

// Answers look-ups of names, which may have to wait for it. Threads may still ask when it is gone.
class Server {
 public:
  ~Server() { silent(false); }
  HostNames::LookUp look_up() {
    return [state = state_](const std::string& name) -> Result<NumericHosts> {
      std::unique_lock lock(state->mutex);
      ++state->asked[name];
      state->changed.wait(lock, [&] { return !state->silent || name == state->but_for; });
      ++state->answered[name];
      if (state->hosts[name].empty()) return Error{ErrorCode::unavailable, "no such name"};
      return state->hosts[name];
    };
  }
  void has(const std::string& name, NumericHosts hosts) {
    const std::lock_guard lock(state_->mutex);
    state_->hosts[name] = std::move(hosts);
  }
  // But for one name.
  void silent(bool is_silent, const std::string& but_for = "") {
    const std::lock_guard lock(state_->mutex);
    state_->silent = is_silent;
    state_->but_for = but_for;
    state_->changed.notify_all();
  }
  int asked(const std::string& name) {
    const std::lock_guard lock(state_->mutex);
    return state_->asked[name];
  }
  int answered(const std::string& name) {
    const std::lock_guard lock(state_->mutex);
    return state_->answered[name];
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, NumericHosts> hosts;
    std::map<std::string, int> asked, answered;
    bool silent = false;
    std::string but_for;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class HostNamesTest : public testing::Test {
 protected:
  HostNamesTest() { mailbox_->start(); }

  bool wait(const std::function<bool()>& condition) {
    const auto deadline = clock_->now() + 20 * kSecond;
    while (clock_->now() < deadline) {
      loop_.run_ready();
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  struct Answer {
    bool came = false;
    NumericHosts hosts;
  };
  std::shared_ptr<const Answer> begin_to_ask(const std::string& name) {
    auto answer = std::make_shared<Answer>();
    names_->ask(name, [answer](const Result<NumericHosts>& hosts) {
      *answer = {true, hosts ? *hosts : NumericHosts()};
    });
    return answer;
  }
  NumericHosts ask(const std::string& name) {
    const auto answer = begin_to_ask(name);
    EXPECT_TRUE(wait([&] { return answer->came; }));
    return answer->hosts;
  }

  const std::unique_ptr<Clock> clock_ = make_system_clock();
  Loop loop_{*clock_};
  const std::unique_ptr<LoopMailbox> mailbox_ = std::move(*LoopMailbox::make(loop_));
  Server server_;
  std::optional<HostNames> names_{std::in_place, loop_, *mailbox_, server_.look_up()};
};

TEST_F(HostNamesTest, ANameWhoseServerIsSilentHoldsUpNoOther) {
  server_.has("good", {"192.0.2.1"});
  server_.silent(true, "good");
  const auto dead = begin_to_ask("dead");
  EXPECT_THAT(ask("good"), ElementsAre("192.0.2.1"));
  EXPECT_FALSE(dead->came);
  server_.silent(false);
  EXPECT_TRUE(wait([&] { return dead->came; }));
  EXPECT_THAT(dead->hosts, ElementsAre());
}

TEST_F(HostNamesTest, WhoAsksMeanwhileWaitsForTheSameAnswer) {
  server_.has("one", {"192.0.2.1"});
  server_.silent(true);
  const auto first = begin_to_ask("one"), second = begin_to_ask("one");
  server_.silent(false);
  EXPECT_TRUE(wait([&] { return first->came && second->came; }));
  EXPECT_THAT(second->hosts, ElementsAre("192.0.2.1"));
  EXPECT_EQ(server_.asked("one"), 1);
}

TEST_F(HostNamesTest, ANameIsLookedUpAnewEachTime) {
  server_.has("one", {"192.0.2.1"});
  EXPECT_THAT(ask("one"), ElementsAre("192.0.2.1"));
  server_.has("one", {"192.0.2.2", "2001:db8::2"});
  EXPECT_THAT(ask("one"), ElementsAre("192.0.2.2", "2001:db8::2"));
}

TEST_F(HostNamesTest, WhatWasFoundBeforeIsGivenWhereNobodyAnswers) {
  server_.has("one", {"192.0.2.1"});
  EXPECT_THAT(ask("one"), ElementsAre("192.0.2.1"));
  server_.silent(true);
  EXPECT_THAT(ask("one"), ElementsAre("192.0.2.1")) << "after a while";
  EXPECT_THAT(begin_to_ask("one")->hosts, ElementsAre("192.0.2.1")) << "at once";
  EXPECT_EQ(server_.asked("one"), 2) << "one look-up at a time";

  // The late answer is of use to who asks next, who still does not wait for another one.
  server_.has("one", {"192.0.2.2"});
  server_.silent(false);
  EXPECT_TRUE(wait([&] { return server_.answered("one") == 2; }));
  EXPECT_TRUE(wait([&] { return begin_to_ask("one")->hosts == NumericHosts{"192.0.2.2"}; }));
}

TEST_F(HostNamesTest, WhatWasFoundBeforeIsGivenWhereThereIsNoSuchNameNow) {
  server_.has("one", {"192.0.2.1"});
  EXPECT_THAT(ask("one"), ElementsAre("192.0.2.1"));
  server_.has("one", {});
  EXPECT_THAT(ask("one"), ElementsAre("192.0.2.1"));
  EXPECT_THAT(ask("never"), ElementsAre());
}

// As of a machine that begins before its network does.
TEST_F(HostNamesTest, AfterOneThatFailedThereIsAnother) {
  for (int i = 0; i < 3; ++i) EXPECT_THAT(ask("late"), ElementsAre());
  EXPECT_EQ(server_.asked("late"), 3);
  server_.has("late", {"192.0.2.1"});
  EXPECT_THAT(ask("late"), ElementsAre("192.0.2.1"));
  for (int i = 0; i < 2; ++i) {
    server_.has("late", {});
    EXPECT_THAT(ask("late"), ElementsAre("192.0.2.1"));
  }
  server_.has("late", {"192.0.2.2"});
  EXPECT_TRUE(wait([&] { return ask("late") == NumericHosts{"192.0.2.2"}; }));
}

TEST_F(HostNamesTest, MayBeGoneBeforeALookUpEnds) {
  server_.silent(true);
  const auto answer = begin_to_ask("one");
  ASSERT_TRUE(wait([&] { return server_.asked("one") == 1; }));
  names_.reset();
  server_.silent(false);
  EXPECT_TRUE(wait([&] { return server_.answered("one") == 1; }));
  for (int i = 0; i < 20; ++i) {
    loop_.run_ready();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(answer->came);
}

TEST_F(HostNamesTest, TheAddressThatWasReachedIsTriedFirst) {
  server_.has("many", {"192.0.2.1", "192.0.2.2", "192.0.2.3"});
  HostLookUp look_up(loop_, *names_, "many");
  const auto next = [&] {
    std::string host;
    look_up.next([&](const Result<std::string>& found) { host = found ? *found : "none"; });
    EXPECT_TRUE(wait([&] { return !host.empty(); }));
    return host;
  };
  EXPECT_EQ(next(), "192.0.2.1");
  EXPECT_EQ(next(), "192.0.2.2");
  look_up.reached();
  EXPECT_EQ(next(), "192.0.2.2");
  EXPECT_EQ(next(), "192.0.2.1");
  EXPECT_EQ(next(), "192.0.2.3");
  server_.has("many", {"192.0.2.1", "192.0.2.2"});
  look_up.reached();
  EXPECT_EQ(next(), "192.0.2.1") << "the one reached last has gone";
  HostLookUp number(loop_, *names_, "2001:db8::7");
  std::string at_once;
  number.next([&](const Result<std::string>& found) { at_once = *found; });
  EXPECT_EQ(at_once, "2001:db8::7");
}

// Servers of names turn the list with each answer, or give a part of it.
TEST_F(HostNamesTest, EachAddressIsTriedInWhateverOrderTheyCome) {
  HostLookUp look_up(loop_, *names_, "many");
  NumericHosts hosts = {"192.0.2.1", "192.0.2.2", "192.0.2.3"};
  const auto next = [&] {
    server_.has("many", hosts);
    std::string host;
    look_up.next([&](const Result<std::string>& found) { host = found ? *found : "none"; });
    EXPECT_TRUE(wait([&] { return !host.empty(); }));
    std::ranges::rotate(hosts, hosts.begin() + 1);
    return host;
  };
  for (int round = 0; round < 3; ++round) {
    std::set<std::string> tried;
    for (std::size_t i = 0; i < 3; ++i) tried.insert(next());
    EXPECT_EQ(tried.size(), 3U) << round;
  }
  const auto reached = next();
  look_up.reached();
  EXPECT_EQ(next(), reached);
  EXPECT_NE(next(), reached);
}

// Of three gateways the last one dials both others by their names.
TEST(HostNamesOfPeers, OneThatIsNotAnsweredKeepsNobodyElseAway) {
  Server server;
  server.has("good.example", {"127.0.0.1"});
  server.silent(true, "good.example");
  ZmqWorld world(3);
  Counter counters[3];
  auto& options = world.options(2);
  options.look_up_host = server.look_up();
  for (auto& peer : options.peers) {
    const auto port = parse_tcp_address(peer.address)->port;
    peer.address =
        fmt::format("{}.example:{}", peer.id == world_gateway(0) ? "dead" : "good", port);
  }
  for (std::size_t i = 0; i < 3; ++i) world.start(i, counters[i]);
  EXPECT_TRUE(
      world.run_until([&] { return counters[2].up(); }, options.dial_timeout - 2 * kSecond));
}

}  // namespace
}  // namespace isthmus::inter
