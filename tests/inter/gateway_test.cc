// Gateways with nothing simulated, in one process: each has a loop on a thread of its own, workers,
// a wire over ZeroMQ, files, and a rank that attaches from another thread. What they decide is the
// matter of tests/sim; here they must get along with real threads (the thread sanitizer watches).
#include "inter/gateway.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/workers.h"
#include "inter/attach_client.h"
#include "inter/attach_server.h"
#include "inter/status_client.h"
#include "tests/base/temporary_folder.h"
#include "tests/inter/loopback_federation.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kLongestStep = 120 * kSecond;
constexpr std::size_t kElements = 300 * 40;  // twelve chunks

SyncOptions sync_options() {
  SyncOptions sync;
  sync.outer_steps = 6;
  sync.codec = compress::CodecId::none;
  sync.chunk_elements = 1024;
  sync.min_sites = 2;
  return sync;
}

class Site {
 public:
  Site(const LoopbackFederation& federation, std::size_t self, const std::string& folder)
      : federation_(federation), self_(self), folder_(folder), socket_(folder + ".sock") {}
  ~Site() { kill(); }

  void start() {
    loop_ = std::make_unique<Loop>(*clock_);
    thread_ = std::thread([this] { run(); });
  }
  // In the middle of whatever it does; only what is on disk remains.
  void kill() {
    if (!thread_.joinable()) return;
    loop_->post([this] { loop_->stop(); });
    thread_.join();
  }
  void wait_until_it_ends() { thread_.join(); }

  const std::string& socket() const { return socket_; }
  // After its end.
  bool finished() const { return finished_; }
  const OuterState& state() const { return *state_; }

 private:
  void run() {
    const auto& self = federation_.roster.sites[self_];
    const auto disk = make_system_disk();
    EventLog log(*clock_, self.name);
    auto workers = make_thread_workers(
        [this](std::function<void()> done) { loop_->post(std::move(done)); }, {});
    const auto wire = make_zmq_wire(*loop_, log, federation_.wire_options(self_));
    ASSERT_TRUE(wire) << wire.error().text();
    const auto verifier = security::make_verifier(federation_.roster);
    GatewayOptions options;
    options.sync = sync_options();
    options.folder = folder_;
    std::unique_ptr<AttachServer> ranks;  // until the gateway has gone
    Gateway gateway({.loop = *loop_,
                     .wire = **wire,
                     .disk = *disk,
                     .workers = *workers,
                     .log = log,
                     .random = Random(++starts_ * 100 + self.id),
                     .signer = federation_.identities[self_],
                     .verifier = *verifier},
                    federation_.roster, self.id, std::move(options));
    ranks = std::make_unique<AttachServer>(
        *loop_, log, socket_, gateway, [&] { return gateway.status(); }, AttachOptions{});
    gateway.serve(*ranks);
    const auto listens = ranks->listen();
    EXPECT_TRUE(listens) << listens.error().text();
    Result<void> ended;
    loop_->spawn(stop_after(gateway, *loop_, ended));
    loop_->run();
    workers.reset();  // their jobs use what the suspended coroutines own
    EXPECT_TRUE(ended) << ended.error().text();
    finished_ = gateway.finished();
    state_ = *gateway.state();
    loop_->abandon();
  }
  static Task<void> stop_after(Gateway& gateway, Loop& loop, Result<void>& ended) {
    ended = co_await gateway.run();
    loop.stop();
  }

  const LoopbackFederation& federation_;
  const std::size_t self_;
  const std::string folder_, socket_;
  const std::unique_ptr<Clock> clock_ = make_system_clock();
  std::unique_ptr<Loop> loop_;
  std::uint64_t starts_ = 0;
  bool finished_ = false;
  std::optional<OuterState> state_;
  std::thread thread_;
};

// A rank that adds `progress` to each parameter between two states. Ends with the last one.
void train(const std::string& socket, float progress) {
  auto attached = AttachClient::attach(socket,
                                       {.model_settings = "one tensor",
                                        .tensors = {{"w", {300, 40}, 0}},
                                        .boxes = {{0, {0, 0}, {300, 40}}}},
                                       kLongestStep);
  ASSERT_TRUE(attached) << attached.error().text();
  auto& client = **attached;
  // The gateway is gone: what is noted is said again when it is back.
  const auto told = [&](const Result<void>& result) {
    if (result) return true;
    EXPECT_EQ(result.error().code, ErrorCode::closed) << result.error().text();
    const auto back = client.reattach(kLongestStep);
    EXPECT_TRUE(back) << back.error().text();
    return back.has_value();
  };
  std::vector<float> parameters(kElements);
  ASSERT_TRUE(told(client.initial(parameters)));
  for (;;) {
    const auto state = client.wait_state(kLongestStep);
    if (!state) {
      ASSERT_TRUE(told(state.error()));
      continue;
    }
    ASSERT_TRUE(*state) << "no state came";
    parameters.assign((*state)->parameters.begin(), (*state)->parameters.end());
    const auto [step, final_step, open] =
        std::tuple((*state)->step, (*state)->final_step, (*state)->contribution_open);
    ASSERT_TRUE(told(client.took()));
    if (final_step) return;
    if (open) continue;
    for (auto& x : parameters) x += progress;
    ASSERT_TRUE(told(client.progress({.inner_step = step, .state = "computing"})));
    ASSERT_TRUE(told(client.contribute(step + 1, parameters, 1000)));
  }
}

class TwoSites : public testing::Test {
 protected:
  TwoSites() : federation(make_loopback_federation(2)) {
    for (std::size_t i = 0; i < 2; ++i) {
      sites.push_back(std::make_unique<Site>(federation, i, folder / std::to_string(i)));
      sites[i]->start();
    }
    // One and three: two in the mean.
    ranks.emplace_back(train, sites[0]->socket(), 1.0F);
    ranks.emplace_back(train, sites[1]->socket(), 3.0F);
  }

  void wait_for_step(std::size_t site, std::uint64_t step) {
    const auto clock = make_system_clock();
    for (const auto start = clock->now(); clock->now() - start < kLongestStep;) {
      const auto status = fetch_status(sites[site]->socket(), kSecond);
      if (status && status->outer_step >= step) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL() << "step " << step << " does not come";
  }
  void expect_agreed() {
    for (auto& rank : ranks) rank.join();
    for (auto& site : sites) site->wait_until_it_ends();
    const auto steps = sync_options().outer_steps;
    for (const auto& site : sites) {
      ASSERT_TRUE(site->finished());
      EXPECT_EQ(site->state().step, steps);
      EXPECT_EQ(site->state().agreed,
                LargeVector<float>(kElements, 2.0F * static_cast<float>(steps)));
    }
  }

  const TemporaryFolder folder;
  LoopbackFederation federation;
  std::vector<std::unique_ptr<Site>> sites;
  std::vector<std::thread> ranks;
};

TEST_F(TwoSites, TrainToTheEnd) { expect_agreed(); }

TEST_F(TwoSites, OneIsKilledAgainAndAgainAndNothingIsLost) {
  for (const std::uint64_t step : {1, 2, 4}) {
    wait_for_step(1, step);
    std::this_thread::sleep_for(std::chrono::milliseconds(step));
    sites[1]->kill();
    sites[1]->start();
  }
  expect_agreed();
}

}  // namespace
}  // namespace isthmus::inter
