#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/random.h"
#include "inter/attach_messages.h"
#include "tests/inter/attach_site.h"

extern char** environ;

namespace isthmus::inter {
namespace {

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
  message.model_settings = request.model_settings;
  message.tensors = request.tensors;
  message.boxes = request.boxes;
  return message;
}

class AttachHostileTest : public AttachTest {};

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

TEST_F(AttachHostileTest, ARankInPythonTakesPart) {
  gateway.decides = true;
  start_server();
  Subprocess rank(path, {"--steps", "3"});
  // x0 = 0…23; x_k = (x_{k-1} + 1) / 2.
  EXPECT_EQ(rank.line(), "done 3 0.875 3.75");
  EXPECT_EQ(rank.wait(), 0);
  EXPECT_TRUE(eventually([&] { return gateway.leaving_count > 0; }));
  on_loop([&] {
    ASSERT_EQ(gateway.contributions.size(), 3u);
    EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 1));
    EXPECT_EQ(gateway.contributions[2].tokens, 640u);
    EXPECT_GE(gateway.progress_count, 3);
    EXPECT_EQ(gateway.leaving_count, 1);
  });
}

// Taken is said before anything is on disk: only a state tells what counts.
TEST_F(AttachHostileTest, ARankInPythonKeepsWorkThatWasTakenAndLost) {
  for (const std::uint64_t step : {0, 3}) {  // that the gateway is at when it is back
    SCOPED_TRACE(step);
    gateway = FakeGateway();
    start_server();
    Subprocess rank(path, {"--steps", "3", "--tell"});
    ASSERT_EQ(rank.line(), "taken");
    stop_server();
    on_loop([&] {
      gateway.is_open = false;
      gateway.contributions.clear();
      gateway.step = step;
      if (step > 0) gateway.state = values(kWhole, 300);
      gateway.final_step = 3;
    });
    start_server();
    if (step == 0) {
      EXPECT_EQ(rank.line(), "taken");
      on_loop([&] {
        ASSERT_EQ(gateway.contributions.size(), 1u);
        EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 1));
        gateway.step = 2;
        gateway.contributions.back().step = 3;
        gateway.decide_half();
      });
      EXPECT_EQ(rank.line(), "done 3 0.5 12.0");
    } else {
      EXPECT_EQ(rank.line(), "done 3 301.0 324.0");  // the 1 that it had added is still there
    }
    EXPECT_EQ(rank.wait(), 0);
    stop_server();
  }
}

TEST_F(AttachHostileTest, ARankKilledAtAnyPointHarmsNobody) {
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

TEST_F(AttachHostileTest, AStoppedRankDelaysNobodyAndIsNotReplaced) {
  start_server();
  Subprocess rank(path, {"--stop-at", "state"});
  ASSERT_EQ(rank.line(), "state");
  const auto client = AttachClient::attach(path, whole(), kPatience);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::already_exists);
  for (int i = 0; i < 1000; ++i) on_loop([&] { gateway.decide(values(kWhole, 1)); });
  expect_healthy();
}

TEST_F(AttachHostileTest, GarbageIsRefusedOrClosed) {
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

TEST_F(AttachHostileTest, ATruncatedMessageIsNoMessage) {
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

TEST_F(AttachHostileTest, WrongMessagesAreRefusedWithASentence) {
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
  // It may have been told of its memory before.
  Bytes last = *answer;
  const std::size_t memory_bytes = attach::encode(attach::Memory{}).size();
  if (refusal_in(last).empty() && last.size() > memory_bytes)
    last.erase(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(memory_bytes));
  EXPECT_EQ(refusal_in(last), "bad_frame");
  expect_healthy();
}

TEST_F(AttachHostileTest, ConnectionsThatStallAreClosed) {
  AttachOptions options;
  options.listener.message_timeout = 200 * kMillisecond;
  start_server(options);
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

TEST_F(AttachHostileTest, ConnectionsAreBounded) {
  AttachOptions options;
  options.listener.visitors_max = 8;
  start_server(options);
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

TEST_F(AttachHostileTest, TheSocketIsOursAloneWhateverTheUmask) {
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

TEST_F(AttachHostileTest, WhatADeadGatewayLeftIsReplaced) {
  {
    const auto left = listen_local(path);
    ASSERT_TRUE(left);
  }
  ASSERT_TRUE(std::filesystem::exists(path));
  start_server();
  expect_healthy();
}

TEST_F(AttachHostileTest, APathMayBeLongerThanAnAddress) {
  path = folder / std::string(100, 'd') + "/" + std::string(100, 'e');
  std::filesystem::create_directories(path);
  path += "/gateway.sock";
  start_server();
  expect_healthy();
  ASSERT_TRUE(attach(whole())->initial(values(kWhole, 0)));
}

TEST_F(AttachHostileTest, AFolderThatIsNotThereIsAnError) {
  const auto listens = listen_local(folder / "none/gateway.sock");
  ASSERT_FALSE(listens);
  EXPECT_EQ(listens.error().code, ErrorCode::not_found);
}

TEST_F(AttachHostileTest, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can become another user";
  start_server();
  // First as it is; then with the modes opened, so that only the credentials are left to tell.
  for (const bool opened : {false, true}) {
    if (opened) {
      ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
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

}  // namespace
}  // namespace isthmus::inter
