// A site for tests of attach: a server on its own loop and thread, before a gateway that decides
// what the test says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
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
#include "tests/inter/fake_gateway.h"

namespace isthmus::inter {

inline constexpr Nanoseconds kPatience = 30 * kSecond;      // for what must happen
inline constexpr Nanoseconds kMoment = 150 * kMillisecond;  // for what must not

inline std::vector<float> copy(std::span<const float> span) { return {span.begin(), span.end()}; }

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
