#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/event_log.h"
#include "base/random.h"
#include "inter/attach_client.h"
#include "inter/attach_messages.h"
#include "inter/attach_server.h"
#include "inter/local_socket.h"
#include "inter/shared_memory.h"
#include "inter/status_client.h"

extern char** environ;

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

constexpr Nanoseconds kPatience = 30 * kSecond;      // for what must happen
constexpr Nanoseconds kMoment = 150 * kMillisecond;  // for what must not

// An outer step without a network: what it decides is what the test says.
class FakeGateway final : public OuterSteps {
 public:
  struct Contribution {
    std::uint64_t step = 0;
    std::vector<float> parameters;
    std::uint64_t tokens = 0;
  };

  Result<void> attached(const ModelLayout& layout, std::string_view model) override {
    if (attach_error) return *attach_error;
    ++attached_count;
    model_description = model;
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
  Result<void> contribute(std::uint64_t number, std::vector<float> parameters,
                          std::uint64_t tokens) override {
    if (contribute_error) return *contribute_error;
    if (number != step + 1 || is_open) return Error{ErrorCode::mismatch, "another step is due"};
    contributions.push_back({number, std::move(parameters), tokens});
    is_open = true;
    if (decides) decide_half();
    return {};
  }
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
  int attached_count = 0, initial_count = 0, progress_count = 0, leaving_count = 0;
  std::string model_description;
  std::uint64_t elements = 0;
  std::vector<Contribution> contributions;
};

class AttachTest : public testing::Test {
 protected:
  AttachTest() {
    char name[] = "/tmp/isthmus-attach-XXXXXX";
    folder = mkdtemp(name);
    path = folder + "/gateway.sock";
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
    std::filesystem::remove_all(folder);
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

  std::string folder, path;
  std::unique_ptr<Clock> clock = make_system_clock();
  EventLog log{*clock, "alpha"};
  Loop loop{*clock};
  FakeGateway gateway;
  std::unique_ptr<AttachServer> server;
  std::thread thread;
  std::mutex events_mutex;
  std::vector<std::string> events;
};

std::vector<float> values(std::size_t count, float first) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}
std::vector<float> copy(std::span<const float> span) { return {span.begin(), span.end()}; }

// As attach_client.py has it.
AttachRequest whole() {
  AttachRequest request;
  request.model = "a model of one tensor";
  request.tensors = {{"weight", {4, 6}, 0}};
  request.boxes = {{0, {0, 0}, {4, 6}}};
  return request;
}
constexpr std::size_t kWhole = 24;

// Three ranks and one without values; slices across rows, across columns and within.
AttachRequest slice(std::uint32_t rank) {
  AttachRequest request;
  request.rank = rank;
  request.world = 4;
  request.model = "sliced";
  request.tensors = {{"a", {4, 6}, 0}, {"b", {5}, 0}, {"c", {2, 3, 4}, 0}};
  if (rank == 0) request.boxes = {{0, {0, 0}, {4, 2}}, {1, {0}, {5}}};
  if (rank == 1) request.boxes = {{2, {0, 0, 0}, {2, 2, 4}}, {0, {0, 2}, {4, 4}}};
  if (rank == 2) request.boxes = {{2, {0, 2, 0}, {2, 1, 4}}};
  return request;
}
constexpr std::size_t kSliced = 24 + 5 + 24;
// Which canonical elements a rank of slice() holds, in the order of its memory.
std::vector<std::size_t> slice_elements(std::uint32_t rank) {
  std::vector<std::size_t> elements;
  const auto a = [&](std::size_t from, std::size_t to) {
    for (std::size_t row = 0; row < 4; ++row)
      for (std::size_t column = from; column < to; ++column) elements.push_back(row * 6 + column);
  };
  const auto c = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = from; j < to; ++j)
        for (std::size_t k = 0; k < 4; ++k) elements.push_back(29 + (i * 3 + j) * 4 + k);
  };
  if (rank == 0) {
    a(0, 2);
    for (std::size_t i = 0; i < 5; ++i) elements.push_back(24 + i);
  }
  if (rank == 1) {
    c(0, 2);
    a(2, 6);
  }
  if (rank == 2) c(2, 3);
  return elements;
}
std::vector<float> slice_of(const std::vector<float>& canonical, std::uint32_t rank) {
  std::vector<float> mine;
  for (const std::size_t e : slice_elements(rank)) mine.push_back(canonical[e]);
  return mine;
}

// A socket without a client behind it.
FileDescriptor raw_connection(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  timeval patience{30, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return socket;
}
void raw_send(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  (void)!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
// Everything up to the end that the gateway makes; nothing when it makes none.
std::optional<Bytes> raw_receive_all(const FileDescriptor& socket) {
  Bytes all;
  std::byte buffer[4096];
  for (;;) {
    const ssize_t got = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return all;
    if (got < 0) return std::nullopt;
    all.insert(all.end(), buffer, buffer + got);
  }
}
std::string refusal_in(const Bytes& bytes) {
  if (bytes.size() < attach::kHeaderBytes) return "";
  const auto refused =
      attach::decode<attach::Refused>(std::span(bytes).subspan(attach::kHeaderBytes));
  return refused ? refused->code : "";
}

attach::Attach whole_message() {
  const AttachRequest request = whole();
  attach::Attach message;
  message.pid = getpid();
  message.model = request.model;
  message.tensors = request.tensors;
  message.boxes = request.boxes;
  return message;
}

// ---- One rank

TEST_F(AttachTest, ARankStartsTheRunAndTakesPartInOuterSteps) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client);
  EXPECT_EQ(client->elements(), kWhole);
  EXPECT_FALSE(*client->poll_state());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 0u);
  EXPECT_EQ(state.from, MergeFrom::nothing);
  EXPECT_EQ(state.record.bytes[0], std::byte{1});
  EXPECT_EQ(copy(state.parameters), values(kWhole, 0));
  ASSERT_TRUE(client->took());

  for (std::uint64_t step = 1; step <= 3; ++step) {
    if (step == 3) on_loop([&] { gateway.final_step = 3; });
    ASSERT_TRUE(client->contribute(step, values(kWhole, static_cast<float>(step)), 100 * step));
    EXPECT_EQ(copy(client->contributed()), values(kWhole, static_cast<float>(step)));
    // Computes on: no state comes before there is one.
    ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == step; }));
    expect_no_state(*client);
    on_loop([&] { gateway.decide(values(kWhole, 1000)); });
    state = state_of(*client);
    EXPECT_EQ(state.step, step);
    EXPECT_EQ(state.from, MergeFrom::contribution);
    EXPECT_EQ(state.final_step, step == 3);
    EXPECT_EQ(copy(state.parameters), values(kWhole, 1000));
    ASSERT_TRUE(client->took());
  }
  on_loop([&] {
    EXPECT_EQ(gateway.attached_count, 1);
    EXPECT_EQ(gateway.model_description, "a model of one tensor");
    EXPECT_EQ(gateway.contributions[1].step, 2u);
    EXPECT_EQ(gateway.contributions[1].tokens, 200u);
    EXPECT_EQ(gateway.contributions[1].parameters, values(kWhole, 2));
  });
}

TEST_F(AttachTest, AStateDecidedWithinTheCallDoesNotOvertakeItsAnswer) {
  gateway.decides = true;
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  for (std::uint64_t step = 1; step <= 20; ++step) {
    ASSERT_TRUE(client->contribute(step, values(kWhole, 2), 1));
    const AgreedState state = state_of(*client);
    ASSERT_EQ(state.step, step);
    ASSERT_EQ(state.from, MergeFrom::contribution);
    ASSERT_EQ(state.parameters[1], 1.5f);
    ASSERT_TRUE(client->took());
  }
}

TEST_F(AttachTest, ALateContributionIsNotTakenAndTheRankKnows) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  on_loop([&] { gateway.decide(values(kWhole, 50)); });  // without us
  ASSERT_TRUE(client->contribute(1, values(kWhole, 1), 10));
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(state.from, MergeFrom::base);
  ASSERT_TRUE(client->took());
  ASSERT_TRUE(client->contribute(2, values(kWhole, 2), 10));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] { EXPECT_EQ(gateway.contributions[0].step, 2u); });
}

TEST_F(AttachTest, ANewStateWaitsUntilTheLastOneIsTaken) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  AgreedState state = state_of(*client);
  on_loop([&] {
    gateway.decide(values(kWhole, 100));
    gateway.decide(values(kWhole, 200));
  });
  std::this_thread::sleep_for(std::chrono::nanoseconds(kMoment));
  EXPECT_EQ(copy(state.parameters), values(kWhole, 0));  // not written under the reader
  ASSERT_TRUE(client->took());
  state = state_of(*client);
  EXPECT_EQ(state.step, 2u);
  EXPECT_EQ(state.from, MergeFrom::base);
  EXPECT_EQ(copy(state.parameters), values(kWhole, 200));
  ASSERT_TRUE(client->took());
  expect_no_state(*client);
}

TEST_F(AttachTest, WhatIsCopiedIsWhatCountsWhateverTheRankWritesLater) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  ASSERT_TRUE(client->contribute(1, values(kWhole, 1), 10));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  auto contributed = client->contributed();
  std::fill_n(const_cast<float*>(contributed.data()), contributed.size(), -1.0f);
  on_loop([&] { EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 1)); });
}

TEST_F(AttachTest, ProgressAndLeavingReachTheGatewayAndItsStatus) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->progress({70, 2.75, 9000, "computing"}));
  ASSERT_TRUE(eventually([&] { return gateway.progress_count == 1; }));
  const auto status = fetch_status(path, kPatience);
  ASSERT_TRUE(status) << status.error().text();
  ASSERT_EQ(status->ranks.size(), 1u);
  EXPECT_EQ(status->ranks[0].inner_step, 70u);
  EXPECT_EQ(status->ranks[0].loss, 2.75);
  EXPECT_EQ(status->ranks[0].pid, getpid());
  EXPECT_EQ(status->ranks[0].state, "computing");
  ASSERT_TRUE(client->leaving());
  ASSERT_TRUE(eventually([&] { return gateway.leaving_count == 1; }));
  client.reset();
  ASSERT_TRUE(eventually([&] { return server->status()[0].state == "not attached"; }));
}

TEST_F(AttachTest, ManyValuesAreCopiedInSlices) {
  start_server();
  AttachRequest request = whole();
  request.tensors = {{"weight", {3, 1'500'000}, 0}};
  request.boxes = {{0, {0, 1'000'000}, {3, 500'000}}, {0, {0, 0}, {3, 1'000'000}}};
  auto client = attach(request);
  std::vector<float> mine = values(4'500'000, 0);
  ASSERT_TRUE(client->initial(mine));
  const AgreedState state = state_of(*client);
  EXPECT_EQ(copy(state.parameters), mine);
  on_loop([&] {
    for (std::size_t row = 0; row < 3; ++row) {
      EXPECT_EQ((*gateway.state)[row * 1'500'000 + 1'000'000 + 7], mine[row * 500'000 + 7]);
      EXPECT_EQ((*gateway.state)[row * 1'500'000 + 7], mine[1'500'000 + row * 1'000'000 + 7]);
    }
  });
}

// ---- Several ranks

TEST_F(AttachTest, RanksContributeAndTakeTheirBoxes) {
  start_server();
  std::vector<std::unique_ptr<AttachClient>> clients(4);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] { clients[rank] = attach(slice(rank)); });
  }
  const std::vector<float> initial = values(kSliced, 0);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    on_loop([&] { EXPECT_EQ(gateway.initial_count, 0); });
    ASSERT_TRUE(clients[rank]->initial(slice_of(initial, rank)));
  }
  for (auto& client : clients) {
    state_of(*client);
    ASSERT_TRUE(client->took());
  }
  on_loop([&] { EXPECT_EQ(*gateway.state, initial); });

  const std::vector<float> contributed = values(kSliced, 500);
  const std::vector<float> agreed = values(kSliced, 9000);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    on_loop([&] { EXPECT_EQ(gateway.contributions.size(), 0u); });
    ASSERT_TRUE(clients[rank]->contribute(1, slice_of(contributed, rank), 10 + rank));
  }
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] {
    EXPECT_EQ(gateway.contributions[0].parameters, contributed);
    EXPECT_EQ(gateway.contributions[0].tokens, 46u);
    gateway.decide(agreed);
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const AgreedState state = state_of(*clients[rank]);
    EXPECT_EQ(state.from, MergeFrom::contribution);
    EXPECT_EQ(copy(state.parameters), slice_of(agreed, rank));
    ASSERT_TRUE(clients[rank]->took());
  }
}

TEST_F(AttachTest, ARankThatComesBackFindsTheOthersWaiting) {
  start_server();
  std::vector<std::unique_ptr<AttachClient>> clients(4);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] { clients[rank] = attach(slice(rank)); });
  }
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    ASSERT_TRUE(clients[rank]->initial(slice_of(values(kSliced, 0), rank)));
  for (auto& client : clients) {
    state_of(*client);
    ASSERT_TRUE(client->took());
  }
  // Three contribute, the fourth dies before it does: nothing reaches the gateway.
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(clients[rank]->contribute(1, slice_of(values(kSliced, 7), rank), 1));
  clients[3].reset();
  ASSERT_TRUE(eventually([&] { return server->status()[3].state == "not attached"; }));
  clients[3] = attach(slice(3));
  AgreedState state = state_of(*clients[3]);
  EXPECT_EQ(state.from, MergeFrom::nothing);
  ASSERT_TRUE(clients[3]->took());
  ASSERT_TRUE(clients[3]->contribute(1, {}, 5));
  // The others hear of the repeated state and hand over the same again, by themselves.
  for (std::uint32_t rank = 0; rank < 3; ++rank) expect_no_state(*clients[rank]);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] {
    EXPECT_EQ(gateway.attached_count, 2);
    EXPECT_EQ(gateway.contributions[0].parameters, values(kSliced, 7));
    EXPECT_EQ(gateway.contributions[0].tokens, 8u);
    gateway.decide(values(kSliced, 100));
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    state = state_of(*clients[rank]);
    EXPECT_EQ(state.from, MergeFrom::contribution);
    EXPECT_EQ(copy(state.parameters), slice_of(values(kSliced, 100), rank));
  }
}

TEST_F(AttachTest, ARunMayBeginWithRanksThatCameAtDifferentTimes) {
  start_server();
  std::unique_ptr<AttachClient> early, late;
  AttachRequest request = whole();
  request.world = 2;
  AttachRequest other = request;
  other.rank = 1;
  other.boxes = {};
  auto waiting = std::async(std::launch::async, [&] { return attach(request); });
  late = attach(other);
  early = waiting.get();
  ASSERT_TRUE(late->initial({}));
  late.reset();  // dies having offered
  ASSERT_TRUE(eventually([&] { return server->status()[1].state == "not attached"; }));
  ASSERT_TRUE(early->initial(values(kWhole, 3)));
  late = attach(other);
  ASSERT_TRUE(late->initial({}));
  EXPECT_EQ(copy(state_of(*early).parameters), values(kWhole, 3));
  EXPECT_EQ(state_of(*late).step, 0u);
}

TEST_F(AttachTest, ARankThatComesBackBeforeTheRunBeginsIsAnsweredToo) {
  gateway.holds_start = true;
  start_server();
  AttachRequest request = whole();
  request.world = 2;
  AttachRequest other = request;
  other.rank = 1;
  other.boxes = {};
  auto waiting = std::async(std::launch::async, [&] { return attach(request); });
  auto second = attach(other);
  auto first = waiting.get();
  ASSERT_TRUE(second->initial({}));
  ASSERT_TRUE(first->initial(values(kWhole, 3)));
  ASSERT_TRUE(eventually([&] { return gateway.initial_count == 1; }));
  second.reset();
  second = attach(other);
  ASSERT_TRUE(second->initial({}));
  expect_no_state(*second);
  on_loop([&] {
    EXPECT_EQ(gateway.initial_count, 1);
    gateway.state = values(kWhole, 3);
    gateway.publish();
  });
  EXPECT_EQ(copy(state_of(*first).parameters), values(kWhole, 3));
  EXPECT_EQ(state_of(*second).step, 0u);
}

TEST_F(AttachTest, BoxesThatDoNotCoverTheModelOnceAreRefusedToAll) {
  start_server();
  AttachRequest first = whole();
  first.world = 2;
  first.boxes = {{0, {0, 0}, {4, 4}}};
  for (const Box& box : {Box{0, {0, 3}, {4, 3}}, Box{0, {0, 5}, {4, 1}}}) {
    AttachRequest second = first;
    second.rank = 1;
    second.boxes = {box};
    auto one = std::async(std::launch::async,
                          [&] { return AttachClient::attach(path, first, kPatience); });
    auto two = AttachClient::attach(path, second, kPatience);
    ASSERT_FALSE(two);
    EXPECT_EQ(two.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(two.error().text(), HasSubstr("weight"));
    const auto other = one.get();
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::invalid_argument);
  }
  on_loop([&] { EXPECT_EQ(gateway.attached_count, 0); });
}

TEST_F(AttachTest, RanksThatDisagreeAreRefused) {
  start_server();
  AttachRequest first = whole();
  first.world = 2;
  auto stop = std::async(std::launch::async, [&] {
    return AttachClient::attach(path, first, 2 * kSecond).error().code;
  });
  ASSERT_TRUE(eventually([&] { return server->status().size() == 2; }));
  AttachRequest second = first;
  second.rank = 1;
  second.world = 3;
  EXPECT_EQ(AttachClient::attach(path, second, kPatience).error().code, ErrorCode::mismatch);
  second.world = 2;
  second.tensors[0].shape = {5, 6};
  EXPECT_EQ(AttachClient::attach(path, second, kPatience).error().code, ErrorCode::mismatch);
  EXPECT_EQ(AttachClient::attach(path, first, kPatience).error().code, ErrorCode::already_exists);
  first.rank = 2;
  EXPECT_EQ(AttachClient::attach(path, first, kPatience).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(stop.get(), ErrorCode::timeout);
}

// ---- Refusals

TEST_F(AttachTest, TheGatewaysRefusalReachesTheRankAndStays) {
  start_server();
  auto client = attach(whole());
  on_loop([&] { server->refuse(Error{ErrorCode::mismatch, "beta has another codec"}); });
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::mismatch);
  EXPECT_THAT(state.error().text(), HasSubstr("beta has another codec"));
  EXPECT_EQ(client->leaving().error().code, ErrorCode::mismatch);
  EXPECT_EQ(client->reattach(kPatience).error().code, ErrorCode::mismatch);
  // And whoever comes later.
  EXPECT_EQ(AttachClient::attach(path, whole(), kPatience).error().code, ErrorCode::mismatch);
  expect_healthy();
}

TEST_F(AttachTest, AModelThatTheGatewayDoesNotWantIsRefused) {
  gateway.attach_error = Error{ErrorCode::mismatch, "this gateway's state is of another model"};
  start_server();
  const auto client = AttachClient::attach(path, whole(), kPatience);
  // The memory may come first; then the first wait learns it.
  const auto error = client ? (*client)->wait_state(kPatience).error() : client.error();
  EXPECT_EQ(error.code, ErrorCode::mismatch);
  on_loop([&] { gateway.attach_error.reset(); });
  ASSERT_TRUE(attach(whole())->initial(values(kWhole, 0)));
}

TEST_F(AttachTest, AContributionThatIsNotFiniteEndsTheRank) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  on_loop([&] { gateway.contribute_error = Error{ErrorCode::non_finite, "a NaN in weight"}; });
  ASSERT_TRUE(client->contribute(1, values(kWhole, 0), 1));
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::non_finite);
  on_loop([&] { gateway.contribute_error.reset(); });
  EXPECT_EQ(state_of(*attach(whole())).step, 0u);
}

TEST_F(AttachTest, MoreMemoryThanAllowedIsRefusedBeforeItIsMade) {
  start_server({.memory_bytes_max = 1 << 20});
  AttachRequest request = whole();
  request.tensors = {{"weight", {1024, 1024}, 0}};
  request.boxes = {{0, {0, 0}, {1024, 1024}}};
  const auto client = AttachClient::attach(path, request, kPatience);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::too_large);
}

TEST_F(AttachTest, WithoutAGatewayThereIsAClearError) {
  const auto status = fetch_status(path, kSecond);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::unavailable);
  const auto client = AttachClient::attach(path, whole(), 200 * kMillisecond);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::timeout);
  EXPECT_THAT(client.error().text(), HasSubstr("is the site running?"));
}

// ---- A gateway that dies and comes back

class AttachRestartTest : public AttachTest {
 protected:
  // At the state of step 0, with a contribution to step 1 made; taken when the gateway answers.
  std::unique_ptr<AttachClient> contributing_rank() {
    start_server();
    auto client = attach(whole());
    EXPECT_TRUE(client->initial(values(kWhole, 0)));
    state_of(*client);
    EXPECT_TRUE(client->took());
    EXPECT_TRUE(client->contribute(1, values(kWhole, 7), 30));
    EXPECT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
    return client;
  }
  void expect_closed(AttachClient& client) {
    const auto state = client.wait_state(kPatience);
    ASSERT_FALSE(state);
    EXPECT_EQ(state.error().code, ErrorCode::closed);
  }
};

TEST_F(AttachRestartTest, AContributionThatItHasIsWaitedFor) {
  auto client = contributing_rank();
  stop_server();
  expect_closed(*client);
  EXPECT_EQ(client->leaving().error().code, ErrorCode::closed);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  EXPECT_EQ(copy(client->contributed()), values(kWhole, 7));
  expect_no_state(*client);
  on_loop([&] {
    EXPECT_EQ(gateway.contributions.size(), 1u);
    gateway.decide_half();
  });
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(state.from, MergeFrom::contribution);
  EXPECT_EQ(state.parameters[1], 4.0f);
}

TEST_F(AttachRestartTest, AContributionThatItLostIsMadeAgainToTheByte) {
  auto client = contributing_rank();
  stop_server();
  on_loop([&] { gateway.is_open = false; });
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 2; }));
  on_loop([&] {
    EXPECT_EQ(gateway.contributions[1].parameters, gateway.contributions[0].parameters);
    EXPECT_EQ(gateway.contributions[1].tokens, 30u);
    gateway.decide_half();
  });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
}

TEST_F(AttachRestartTest, AStepDecidedMeanwhileIsMerged) {
  auto client = contributing_rank();
  expect_no_state(*client);  // reads that it was taken
  stop_server();
  on_loop([&] {
    gateway.step = 3;
    gateway.is_open = false;
    gateway.state = values(kWhole, 300);
  });
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 3u);
  EXPECT_EQ(state.from, MergeFrom::contribution);
  EXPECT_EQ(copy(state.parameters), values(kWhole, 300));
}

TEST_F(AttachRestartTest, AContributionMadeWhileItIsAwayArrivesLater) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  stop_server();
  const auto contributed = client->contribute(1, values(kWhole, 9), 3);
  ASSERT_FALSE(contributed);
  EXPECT_EQ(contributed.error().code, ErrorCode::closed);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  ASSERT_TRUE(client->contribute(1, values(kWhole, 10), 3));  // again: the first is what counts
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] { EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 9)); });
}

TEST_F(AttachRestartTest, AContributionMadeBeforeItTellsItsStateWaitsForThat) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  stop_server();
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  // The numbers of publications begin anew: the old one must not be taken for the new.
  ASSERT_TRUE(client->contribute(1, values(kWhole, 9), 3));
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] { gateway.decide_half(); });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
}

TEST_F(AttachRestartTest, ARankThatIsStillComputingGoesOn) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  stop_server();
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  expect_no_state(*client);
  ASSERT_TRUE(client->contribute(1, values(kWhole, 9), 3));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
}

TEST_F(AttachRestartTest, AStateMergedWhileItIsAwayIsNotMergedTwice) {
  for (const bool before_reattach : {true, false}) {
    SCOPED_TRACE(before_reattach);
    gateway = FakeGateway();
    auto client = contributing_rank();
    on_loop([&] { gateway.decide_half(); });
    EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
    stop_server();
    if (before_reattach) {
      const auto took = client->took();
      ASSERT_FALSE(took);
      EXPECT_EQ(took.error().code, ErrorCode::closed);
    }
    start_server();
    ASSERT_TRUE(client->reattach(kPatience));
    if (!before_reattach) {
      ASSERT_TRUE(client->took());
    }
    ASSERT_TRUE(client->contribute(2, values(kWhole, 9), 3));
    expect_no_state(*client);
    ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 2; }));
    stop_server();
  }
}

TEST_F(AttachRestartTest, AStateNotMergedWhenItWentAwayIsToldAgain) {
  auto client = contributing_rank();
  on_loop([&] { gateway.decide_half(); });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
  stop_server();
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  const AgreedState again = state_of(*client);
  EXPECT_EQ(again.step, 1u);
  EXPECT_EQ(again.from, MergeFrom::contribution);
  EXPECT_EQ(again.parameters[1], 4.0f);
  EXPECT_EQ(copy(client->contributed()), values(kWhole, 7));
}

TEST_F(AttachRestartTest, BeforeTheFirstStateTheInitialParametersAreOfferedAgain) {
  gateway.holds_start = true;
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 5)));
  ASSERT_TRUE(eventually([&] { return gateway.initial_count == 1; }));
  stop_server();
  expect_closed(*client);
  on_loop([&] { gateway.holds_start = false; });
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  EXPECT_EQ(copy(state_of(*client).parameters), values(kWhole, 5));
}

TEST_F(AttachRestartTest, AnOlderStateIsNotForTheRank) {
  auto client = contributing_rank();
  on_loop([&] { gateway.decide(values(kWhole, 100)); });
  state_of(*client);
  ASSERT_TRUE(client->took());
  stop_server();
  on_loop([&] {  // came back with the state before, as if the last one had not been saved
    gateway.step = 0;
    gateway.state = values(kWhole, 0);
  });
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  ASSERT_TRUE(client->contribute(2, values(kWhole, 9), 3));
  expect_no_state(*client);
  on_loop([&] {
    EXPECT_EQ(gateway.contributions.size(), 1u);
    gateway.decide(values(kWhole, 100));  // catches up
  });
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 2; }));
  on_loop([&] {
    EXPECT_EQ(gateway.contributions[1].step, 2u);
    gateway.decide_half();
  });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
}

TEST_F(AttachRestartTest, AnotherRunIsNoticed) {
  auto client = contributing_rank();
  on_loop([&] { gateway.decide(values(kWhole, 100)); });
  state_of(*client);
  ASSERT_TRUE(client->took());
  on_loop([&] {
    Published other;
    other.step = 1;
    other.parameters = *gateway.state;
    server->publish(other);
  });
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::mismatch);
}

TEST_F(AttachRestartTest, ANewRankProcessWaitsForTheOpenStep) {
  contributing_rank().reset();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 77)));  // not needed, not used
  AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 0u);
  EXPECT_TRUE(state.contribution_open);
  EXPECT_EQ(copy(state.parameters), values(kWhole, 0));
  ASSERT_TRUE(client->took());
  ASSERT_TRUE(client->contribute(1, values(kWhole, 9), 3));  // goes into the next
  expect_no_state(*client);
  on_loop([&] {
    EXPECT_EQ(gateway.contributions.size(), 1u);
    gateway.decide_half();
  });
  state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(state.from, MergeFrom::base);
}

// ---- Processes that die, stall, or send anything

class Subprocess {
 public:
  Subprocess(const std::string& socket, const std::vector<std::string>& more) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_ = FileDescriptor(ends[0]);
    const FileDescriptor input(ends[1]);
    std::vector<std::string> words = {"python3", ISTHMUS_ATTACH_CLIENT, socket};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.get(), 1);
    EXPECT_EQ(posix_spawnp(&pid_, "python3", &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Subprocess() { kill_now(); }
  // "" at its end.
  std::string line() {
    std::string text;
    char c = 0;
    while (::read(output_.get(), &c, 1) == 1 && c != '\n') text += c;
    return text;
  }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor output_;
};

TEST_F(AttachTest, ARankInPythonTakesPart) {
  gateway.decides = true;
  start_server();
  Subprocess rank(path, {"--steps", "3"});
  // x0 = 0…23; x_k = (x_{k-1} + 1) / 2.
  EXPECT_EQ(rank.line(), "done 3 0.875 3.75");
  EXPECT_EQ(rank.wait(), 0);
  on_loop([&] {
    ASSERT_EQ(gateway.contributions.size(), 3u);
    EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 1));
    EXPECT_EQ(gateway.contributions[2].tokens, 640u);
    EXPECT_GE(gateway.progress_count, 3);
    EXPECT_EQ(gateway.leaving_count, 1);
  });
}

TEST_F(AttachTest, ARankKilledAtAnyPointHarmsNobody) {
  start_server();
  for (const char* phase : {"connected", "half", "attached", "initial", "half_contribution",
                            "state", "contributed", "flood"}) {
    SCOPED_TRACE(phase);
    Subprocess rank(path, {"--stop-at", phase});
    ASSERT_EQ(rank.line(), phase);
    if (std::string_view(phase) == "contributed") {
      ASSERT_TRUE(eventually([&] { return gateway.is_open; }));
      on_loop([&] { gateway.decide_half(); });  // told to a rank that does not listen
    }
    expect_healthy();
    rank.kill_now();
    // The next process of this rank is welcome at once.
    auto client = AttachClient::attach(path, whole(), kPatience);
    ASSERT_TRUE(client) << client.error().text();
    ASSERT_TRUE((*client)->initial(values(kWhole, 0)));
    AgreedState state = state_of(**client);
    ASSERT_TRUE((*client)->took());
    if (state.contribution_open) on_loop([&] { gateway.decide_half(); });
    if (state.contribution_open) {
      state = state_of(**client);
      ASSERT_TRUE((*client)->took());
    }
    ASSERT_TRUE((*client)->contribute(state.step + 1, values(kWhole, 1), 1));
    ASSERT_TRUE(eventually([&] { return gateway.is_open; }));
    on_loop([&] { gateway.decide_half(); });
    EXPECT_EQ(state_of(**client).from, MergeFrom::contribution);
  }
}

TEST_F(AttachTest, AStoppedRankDelaysNobodyAndIsNotReplaced) {
  start_server();
  Subprocess rank(path, {"--stop-at", "state"});
  ASSERT_EQ(rank.line(), "state");
  const auto client = AttachClient::attach(path, whole(), kPatience);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::already_exists);
  for (int i = 0; i < 1000; ++i) on_loop([&] { gateway.decide(values(kWhole, 1)); });
  expect_healthy();
}

TEST_F(AttachTest, GarbageIsRefusedOrClosed) {
  start_server();
  Random random(11);
  const Bytes valid = attach::encode(whole_message());
  for (int i = 0; i < 300; ++i) {
    const FileDescriptor socket = raw_connection(path);
    Bytes bytes;
    if (i % 3 == 0) {
      bytes.resize(1 + random.below(300));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    } else {
      bytes = valid;
      for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
        bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    }
    raw_send(socket, bytes);
    ::shutdown(socket.get(), SHUT_WR);
    ASSERT_TRUE(raw_receive_all(socket)) << i;
  }
  expect_healthy();
  ASSERT_TRUE(attach(whole())->initial(values(kWhole, 0)));
}

TEST_F(AttachTest, ATruncatedMessageIsNoMessage) {
  start_server();
  const Bytes valid = attach::encode(whole_message());
  for (std::size_t bytes = 0; bytes < valid.size(); ++bytes) {
    const FileDescriptor socket = raw_connection(path);
    raw_send(socket, std::span(valid).first(bytes));
    ::shutdown(socket.get(), SHUT_WR);
    const auto answer = raw_receive_all(socket);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->empty()) << bytes;
  }
  on_loop([&] { EXPECT_EQ(gateway.attached_count, 0); });
}

TEST_F(AttachTest, WrongMessagesAreRefusedWithASentence) {
  start_server();
  const auto answer_to = [&](const Bytes& bytes) {
    const FileDescriptor socket = raw_connection(path);
    raw_send(socket, bytes);
    const auto answer = raw_receive_all(socket);
    EXPECT_TRUE(answer);
    return refusal_in(*answer);
  };
  attach::Attach message = whole_message();
  message.version = 2;
  EXPECT_EQ(answer_to(attach::encode(message)), "unsupported");
  message = whole_message();
  message.tensors.push_back({"a name before weight", {1}, 0});
  EXPECT_EQ(answer_to(attach::encode(message)), "invalid_argument");
  message = whole_message();
  message.tensors[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_EQ(answer_to(attach::encode(message)), "too_large");
  message.tensors[0].shape = {4, -6};
  EXPECT_EQ(answer_to(attach::encode(message)), "invalid_argument");
  message = whole_message();
  message.boxes.push_back(message.boxes[0]);
  EXPECT_EQ(answer_to(attach::encode(message)), "invalid_argument");
  message = whole_message();
  message.world = 1'000'000;
  EXPECT_EQ(answer_to(attach::encode(message)), "invalid_argument");
  EXPECT_EQ(answer_to(attach::encode(attach::Took{1})), "bad_frame");
  EXPECT_EQ(answer_to(attach::encode(attach::State{})), "bad_frame");
  ByteWriter too_long;
  too_long.put(std::uint32_t{17 << 20}).put(attach::Kind::attach);
  EXPECT_EQ(answer_to(too_long.take()), "bad_frame");
  ByteWriter long_took;
  long_took.put(std::uint32_t{5000}).put(attach::Kind::took);
  EXPECT_EQ(answer_to(long_took.take()), "bad_frame");

  // From a rank.
  const FileDescriptor socket = raw_connection(path);
  raw_send(socket, attach::encode(whole_message()));
  raw_send(socket, attach::encode(attach::Took{99}));  // never told: no harm
  raw_send(socket, attach::encode(attach::Contribute{99, 1, 1}));
  raw_send(socket, attach::encode(whole_message()));
  const auto answer = raw_receive_all(socket);
  ASSERT_TRUE(answer);
  const std::size_t memory_bytes = attach::encode(attach::Memory{}).size();
  ASSERT_GT(answer->size(), memory_bytes);
  EXPECT_EQ(
      refusal_in(Bytes(answer->begin() + static_cast<std::ptrdiff_t>(memory_bytes), answer->end())),
      "bad_frame");
  expect_healthy();
}

TEST_F(AttachTest, ConnectionsThatStallAreClosed) {
  start_server({.message_timeout = 200 * kMillisecond});
  const FileDescriptor silent = raw_connection(path);
  const FileDescriptor half = raw_connection(path);
  ByteWriter header;
  header.put(std::uint32_t{10 << 20}).put(attach::Kind::attach).put(std::uint64_t{0});
  raw_send(half, header.view());
  // Asks and asks, and reads nothing.
  const FileDescriptor deaf = raw_connection(path);
  fcntl(deaf.get(), F_SETFL, O_NONBLOCK);
  const Bytes question = attach::encode(attach::Status{});
  for (const Nanoseconds start = local_now(); local_now() - start < kSecond;) {
    raw_send(deaf, question);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  EXPECT_TRUE(raw_receive_all(silent)->empty());
  EXPECT_TRUE(raw_receive_all(half)->empty());
  expect_healthy();
  // A rank is silent for as long as it computes.
  auto client = attach(whole());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
}

TEST_F(AttachTest, ConnectionsAreBounded) {
  start_server({.visitors_max = 8});
  auto client = attach(whole());
  std::vector<FileDescriptor> visitors;
  for (int i = 0; i < 8; ++i) visitors.push_back(raw_connection(path));
  const auto answer = raw_receive_all(raw_connection(path));
  ASSERT_TRUE(answer);
  EXPECT_EQ(refusal_in(*answer), "busy");
  const auto status = fetch_status(path, kPatience);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::busy);
  // The rank does not notice; and there is room again when visitors leave.
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  visitors.clear();
  Result<GatewayStatus> again = fetch_status(path, kPatience);
  for (int i = 0; i < 100 && !again; ++i) again = fetch_status(path, kPatience);
  EXPECT_TRUE(again);
}

// ---- Who may come

TEST_F(AttachTest, TheSocketIsOursAloneWhateverTheUmask) {
  const mode_t before = umask(0);
  start_server();
  umask(before);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  stop_server();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(AttachTest, WhatADeadGatewayLeftIsReplaced) {
  {
    const auto left = listen_local(path);
    ASSERT_TRUE(left);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  start_server();
  expect_healthy();
}

TEST_F(AttachTest, APathMayBeLongerThanAnAddress) {
  path = folder + "/" + std::string(100, 'd') + "/" + std::string(100, 'e');
  std::filesystem::create_directories(path);
  path += "/gateway.sock";
  start_server();
  expect_healthy();
  ASSERT_TRUE(attach(whole())->initial(values(kWhole, 0)));
}

TEST_F(AttachTest, AFolderThatIsNotThereIsAnError) {
  const auto listens = listen_local(folder + "/none/gateway.sock");
  ASSERT_FALSE(listens);
  EXPECT_EQ(listens.error().code, ErrorCode::not_found);
}

TEST_F(AttachTest, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can become another user";
  start_server();
  // First as it is; then with the modes opened, so that only the credentials are left to tell.
  for (const bool opened : {false, true}) {
    if (opened) {
      ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
      ASSERT_EQ(chmod(path.c_str(), 0666), 0);
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    const Bytes question = attach::encode(attach::Status{});
    const pid_t child = fork();
    if (child == 0) {
      // Only system calls: this process has one thread of several.
      constexpr uid_t kNobody = 65534;
      if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(10);
      const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
        _exit(errno == EACCES ? 1 : 11);
      (void)!::send(socket, question.data(), question.size(), MSG_NOSIGNAL);
      char byte = 0;
      const ssize_t got = ::recv(socket, &byte, 1, 0);
      _exit(got == 0 || (got < 0 && errno == ECONNRESET) ? 2 : 12);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), opened ? 2 : 1);
  }
  EXPECT_TRUE(logged("attach_denied"));
  expect_healthy();
}

// ---- Shared memory

TEST(SharedMemoryTest, ItsSizeCannotBeChangedByTheOtherSide) {
  auto memory = SharedMemory::make(8192);
  ASSERT_TRUE(memory) << memory.error().text();
  ASSERT_TRUE(memory->reserve(0, 8192));
  memory->floats(4096, 2)[1] = 2.5f;
  FileDescriptor passed(dup(memory->descriptor()));
  EXPECT_NE(ftruncate(passed.get(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(passed.get(), 1 << 20), 0);
  EXPECT_NE(fcntl(passed.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  auto other = SharedMemory::map(std::move(passed), 8192);
  ASSERT_TRUE(other) << other.error().text();
  EXPECT_EQ(other->floats(4096, 2)[1], 2.5f);
}

TEST(SharedMemoryTest, MemoryThatIsNotSealedOrOfAnotherSizeIsNotMapped) {
  FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(SharedMemory::map(std::move(unsealed), 4096).error().code, ErrorCode::mismatch);
  const auto memory = SharedMemory::make(4096);
  ASSERT_TRUE(memory);
  EXPECT_EQ(SharedMemory::map(FileDescriptor(dup(memory->descriptor())), 8192).error().code,
            ErrorCode::mismatch);
}

}  // namespace
}  // namespace isthmus::inter
