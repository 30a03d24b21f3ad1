// A site for tests of attach: a server on its own loop and thread, before a gateway that decides
// what the test says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/event_log.h"
#include "inter/attach_client.h"
#include "inter/attach_server.h"
#include "inter/local_socket.h"
#include "inter/status_client.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::inter {

inline constexpr Nanoseconds kPatience = 30 * kSecond;      // for what must happen
inline constexpr Nanoseconds kMoment = 150 * kMillisecond;  // for what must not

inline std::vector<float> values(std::size_t count, float first) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}
inline std::vector<float> copy(std::span<const float> span) { return {span.begin(), span.end()}; }

// As attach_client.py has it.
inline AttachRequest whole() {
  AttachRequest request;
  request.model_settings = "a model of one tensor";
  request.tensors = {{"weight", {4, 6}, 0}};
  request.boxes = {{0, {0, 0}, {4, 6}}};
  return request;
}
inline constexpr std::size_t kWhole = 24;

// An outer step without a network: what it decides is what the test says.
class FakeGateway final : public OuterSteps {
 public:
  struct Contribution {
    std::uint64_t step = 0;
    std::vector<float> parameters;
    std::uint64_t tokens = 0;
  };

  Result<void> attached(const ModelLayout& layout) override {
    if (attach_error) return *attach_error;
    ++attached_count;
    settings = layout.settings();
    elements = layout.elements();
    if (state) publish();
    return {};
  }
  void offer_initial(std::vector<float> parameters) override {
    ++initial_count;
    if (state || holds_start) return;
    state = std::move(parameters);
    publish();
  }
  Result<void> contribute(std::uint64_t number, std::shared_ptr<const ContributedValues> values,
                          std::uint64_t tokens) override {
    if (contribute_error) return *contribute_error;
    if (number != step + 1 || is_open) return Error{ErrorCode::mismatch, "another step is due"};
    std::vector<float> parameters(values->size());
    values->read(0, parameters);
    contributions.push_back({number, std::move(parameters), tokens});
    is_open = true;
    if (decides) decide_half();
    return {};
  }
  void detached() override { ++detached_count; }
  void progressing() override { ++progress_count; }
  void leaving() override { ++leaving_count; }

  // The next state is half of the contribution; here from within contribute(), the hardest moment.
  void decide_half() {
    std::vector<float> next = contributions.back().parameters;
    for (float& x : next) x /= 2;
    decide(std::move(next));
  }
  void decide(std::vector<float> next) {
    ++step;
    state = std::move(next);
    is_open = false;
    publish();
  }
  void publish() {
    Published published;
    published.step = step;
    published.record.bytes[0] = static_cast<std::byte>(step + 1);
    published.parameters = *state;
    published.final_step = step == final_step;
    published.contribution_open = is_open;
    if (!contributions.empty()) published.contributed = contributions.back().step;
    ranks->publish(published);
  }

  Ranks* ranks = nullptr;
  bool decides = false;      // at once, half of each contribution
  bool holds_start = false;  // the run does not begin
  std::optional<std::vector<float>> state;
  std::uint64_t step = 0;
  std::uint64_t final_step = std::numeric_limits<std::uint64_t>::max();
  bool is_open = false;
  std::optional<Error> attach_error, contribute_error;
  int attached_count = 0, detached_count = 0, initial_count = 0, progress_count = 0,
      leaving_count = 0;
  std::string settings;
  std::uint64_t elements = 0;
  std::vector<Contribution> contributions;
};

class AttachTest : public testing::Test {
 protected:
  AttachTest() {
    log.add(make_callback_sink([this](const Event& event) {
      const std::lock_guard lock(events_mutex);
      events.emplace_back(event.id);
    }));
    thread = std::thread([this] { loop.run(); });
  }
  ~AttachTest() override {
    stop_server();
    loop.post([this] { loop.stop(); });
    thread.join();
  }

  // Runs on the loop's thread and returns its value.
  template <class Function>
  auto on_loop(Function function) {
    using Value = std::invoke_result_t<Function>;
    std::promise<Value> promise;
    loop.post([&] {
      if constexpr (std::is_void_v<Value>) {
        function();
        promise.set_value();
      } else {
        promise.set_value(function());
      }
    });
    return promise.get_future().get();
  }

  void start_server(AttachOptions options = {}) {
    on_loop([&] {
      server = std::make_unique<AttachServer>(
          loop, log, path, gateway,
          [this] {
            GatewayStatus status;
            status.site = "alpha";
            status.ranks = server->status();
            return status;
          },
          options);
      gateway.ranks = server.get();
      const auto listens = server->listen();
      ASSERT_TRUE(listens) << listens.error().text();
    });
  }
  void stop_server() {
    on_loop([&] { server.reset(); });
  }

  bool eventually(const std::function<bool()>& condition) {
    for (const Nanoseconds start = local_now(); local_now() - start < kPatience;) {
      if (on_loop(condition)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  bool logged(std::string_view id) {
    const std::lock_guard lock(events_mutex);
    return std::ranges::find(events, id) != events.end();
  }

  // The gateway is well: it answers, and a rank can take part in one outer step.
  void expect_healthy() {
    const auto status = fetch_status(path, kPatience);
    ASSERT_TRUE(status) << status.error().text();
    EXPECT_EQ(status->site, "alpha");
  }

  std::unique_ptr<AttachClient> attach(AttachRequest request) {
    auto client = AttachClient::attach(path, std::move(request), kPatience);
    EXPECT_TRUE(client) << client.error().text();
    return client ? std::move(*client) : nullptr;
  }
  // The site's only rank, which has taken the state of step 0.
  std::unique_ptr<AttachClient> computing_rank() {
    auto client = attach(whole());
    EXPECT_TRUE(client->initial(values(kWhole, 0)));
    state_of(*client);
    EXPECT_TRUE(client->took());
    return client;
  }
  static AgreedState state_of(AttachClient& client) {
    auto state = client.wait_state(kPatience);
    EXPECT_TRUE(state) << state.error().text();
    EXPECT_TRUE(!state || *state) << "no state came";
    return state && *state ? **state : AgreedState{};
  }
  static void expect_no_state(AttachClient& client) {
    const auto state = client.wait_state(kMoment);
    ASSERT_TRUE(state) << state.error().text();
    EXPECT_FALSE(*state);
  }

  const TemporaryFolder folder;
  std::string path = folder / "gateway.sock";
  std::unique_ptr<Clock> clock = make_system_clock();
  EventLog log{*clock, "alpha"};
  Loop loop{*clock};
  FakeGateway gateway;
  std::unique_ptr<AttachServer> server;
  std::thread thread;
  std::mutex events_mutex;
  std::vector<std::string> events;
};

}  // namespace isthmus::inter
