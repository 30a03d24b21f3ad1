#include "base/event_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/base/temporary_folder.h"

namespace isthmus {
namespace {

using nlohmann::json;

class FixedClock final : public Clock {
 public:
  Nanoseconds now() const override { return 0; }
  Nanoseconds unix_time() const override { return 1'700'000'000 * kSecond + 250 * kMillisecond; }
};

Event event_with(std::span<const Field> fields) {
  return {.unix_time = FixedClock().unix_time(),
          .severity = Severity::warning,
          .id = "step_decided",
          .site = "alpha",
          .peer = "beta",
          .outer_step = 3,
          .fields = fields};
}

TEST(EventJson, HasTheCommonKeysAndTheFields) {
  const std::vector<Field> fields{{"bytes", std::uint64_t{1} << 63},
                                  {"offset", -5},
                                  {"seconds", 0.125},
                                  {"named", true},
                                  {"why", "it \"was\" late"}};
  const auto j = json::parse(to_json(event_with(fields)));
  EXPECT_DOUBLE_EQ(j["time"].get<double>(), 1'700'000'000.25);
  EXPECT_EQ(j["severity"], "warning");
  EXPECT_EQ(j["event"], "step_decided");
  EXPECT_EQ(j["site"], "alpha");
  EXPECT_EQ(j["peer"], "beta");
  EXPECT_EQ(j["outer_step"], 3);
  EXPECT_EQ(j["bytes"].get<std::uint64_t>(), std::uint64_t{1} << 63);
  EXPECT_EQ(j["offset"], -5);
  EXPECT_EQ(j["seconds"], 0.125);
  EXPECT_EQ(j["named"], true);
  EXPECT_EQ(j["why"], "it \"was\" late");
}

TEST(EventJson, LeavesOutPeerAndStepWhenThereAreNone) {
  auto event = event_with({});
  event.peer = "";
  event.outer_step = -1;
  const auto j = json::parse(to_json(event));
  EXPECT_FALSE(j.contains("peer"));
  EXPECT_FALSE(j.contains("outer_step"));
}

TEST(EventJson, NumbersThatJsonLacksAreNull) {
  using Limits = std::numeric_limits<double>;
  for (const double v : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    const std::vector<Field> fields{{"x", v}};
    EXPECT_TRUE(json::parse(to_json(event_with(fields)))["x"].is_null());
  }
  for (const double v : {0.0, -0.0, 1e300, -1e-300, 0.1, 1e20, 123456789.0, Limits::denorm_min()}) {
    const std::vector<Field> fields{{"x", v}};
    EXPECT_EQ(json::parse(to_json(event_with(fields)))["x"].get<double>(), v);
  }
}

TEST(EventJson, IsOneLineWhateverTheStringsHold) {
  using namespace std::string_literals;
  const std::string hostile =
      "quote\" back\\ nul\0 newline\n return\r tab\t bell\a esc\x1b del\x7f"s;
  const std::vector<Field> fields{{hostile, hostile}};
  auto event = event_with(fields);
  event.site = event.peer = hostile;
  const auto line = to_json(event);
  for (const char c : line) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7f);
  const auto j = json::parse(line);
  EXPECT_EQ(j["site"], hostile);
  EXPECT_EQ(j["peer"], hostile);
  EXPECT_EQ(j[hostile], hostile);
}

TEST(JsonString, KeepsUtf8AndReplacesWhatIsNot) {
  EXPECT_EQ(json_string("é 日本 🗻"), "\"é 日本 🗻\"");
  const auto replaced = [](std::string_view text) { return json::parse(json_string(text)); };
  EXPECT_EQ(replaced("\x80"), "\uFFFD");            // continuation alone
  EXPECT_EQ(replaced("a\xC3"), "a\uFFFD");          // cut short
  EXPECT_EQ(replaced("\xC0\xAF"), "\uFFFD\uFFFD");  // overlong slash
  EXPECT_EQ(replaced("\xE0\x80\xAF"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replaced("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(replaced("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past U+10FFFF
  EXPECT_EQ(replaced("\xFF\xFE"), "\uFFFD\uFFFD");
}

TEST(JsonString, RandomBytesParse) {
  Random random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random.below(12), '\0');
    for (auto& c : text)
      c = static_cast<char>(random.chance(0.5) ? random.below(256) : 0x80 + random.below(0x70));
    EXPECT_TRUE(json::accept(json_string(text)));
  }
}

TEST(EventSentence, ReadsLikeOne) {
  const std::vector<Field> fields{{"seconds", 0.81234567}, {"bytes", 17}, {"why", "late"}};
  const auto line = to_sentence(event_with(fields));
  EXPECT_EQ(line.substr(8),
            " alpha warning: step_decided step 3 peer beta seconds=0.8123 bytes=17 why=late");
  EXPECT_EQ(line[2], ':');
}

TEST(EventSentence, CarriesNoControlCharactersToTheTerminal) {
  const std::string hostile =
      "a\x1b[2Jb\nc\x9b"
      "31md\x7f\xC2\x9b"
      "e日";
  const std::vector<Field> fields{{"why", hostile}};
  auto event = event_with(fields);
  event.peer = event.site = hostile;
  const auto line = to_sentence(event);
  EXPECT_NO_THROW((void)json(line).dump()) << "not UTF-8";
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    EXPECT_FALSE(c < 0x20 || c == 0x7f);
    const bool c1_control =
        c == 0xC2 && i + 1 < line.size() && static_cast<unsigned char>(line[i + 1]) < 0xA0;
    EXPECT_FALSE(c1_control);
  }
  EXPECT_NE(line.find("日"), std::string::npos);
}

class EventFile : public testing::Test {
 protected:
  std::vector<json> lines() const {
    std::vector<json> all;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }
  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "events.jsonl";
  FixedClock clock_;
};

TEST_F(EventFile, KeepsEveryLineOfEveryThreadWhole) {
  {
    EventLog log(clock_, "alpha");
    auto sink = make_file_sink(path_);
    ASSERT_TRUE(sink);
    log.add(std::move(*sink));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 500; ++i)
          log.info("tick", {.peer = "beta", .outer_step = i}, {{"thread", t}});
      });
    for (auto& thread : threads) thread.join();
  }
  const auto all = lines();
  ASSERT_EQ(all.size(), 2000u);
  std::vector<int> next(4);
  for (const auto& line : all) EXPECT_EQ(line["outer_step"], next[line["thread"].get<int>()]++);
}

TEST_F(EventFile, AppendsToWhatIsThere) {
  for (int i = 0; i < 2; ++i) {
    EventLog log(clock_, "alpha");
    log.add(std::move(*make_file_sink(path_)));
    log.alarm("started", {});
  }
  EXPECT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[1]["severity"], "alarm");
}

TEST_F(EventFile, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(make_file_sink("/nonexistent/events.jsonl").error().code, ErrorCode::not_found);
}

TEST_F(EventFile, CountsWhatItLostAndLeavesNoTornLine) {
  EventLog log(clock_, "alpha");
  log.add(std::move(*make_file_sink(path_)));
  log.info("first", {});
  // No file may grow past the middle of the second line.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit cut{std::filesystem::file_size(path_) + 10, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &cut), 0);
  log.info("torn", {});
  log.info("lost", {});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  log.info("after", {});
  log.info("last", {});

  const auto all = lines();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["event"], "first");
  EXPECT_EQ(all[1]["event"], "after");
  EXPECT_EQ(all[1]["lines_lost_before"], 2);
  EXPECT_FALSE(all[2].contains("lines_lost_before"));
}

// As the gateway, the ranks and the launcher of a site do.
TEST_F(EventFile, LinesOfSeveralWritersStayWhole) {
  constexpr int kWriters = 4, kLines = 4000;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w)
    writers.emplace_back([this, w] {
      EventLog log(clock_, "alpha");
      log.add(std::move(*make_file_sink(path_)));
      for (int i = 0; i < kLines; ++i)
        log.info("line", {},
                 {{"why", std::string(static_cast<std::size_t>(i % 700), 'x')},
                  {"writer", std::int64_t{w}}});
    });
  for (auto& writer : writers) writer.join();
  std::ifstream file(path_);
  int count = 0;
  for (std::string line; std::getline(file, line); ++count)
    ASSERT_TRUE(json::accept(line)) << "line " << count << ": " << line;
  EXPECT_EQ(count, kWriters * kLines);
}

TEST(EventLog, GivesEverySinkEveryEventAndTerminalsOnlyTheSevere) {
  FixedClock clock;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  std::vector<std::string> ids;
  {
    EventLog log(clock, "alpha");
    log.add(make_callback_sink([&](const Event& e) { ids.emplace_back(e.id); }));
    log.add(make_terminal_sink(pipe_ends[1], Severity::warning));
    log.detail("one", {});
    log.info("two", {});
    log.warning("three", {});
    log.alarm("four", {.outer_step = 0});
  }
  ::close(pipe_ends[1]);
  EXPECT_EQ(ids, (std::vector<std::string>{"one", "two", "three", "four"}));
  char buffer[4096];
  const auto n = ::read(pipe_ends[0], buffer, sizeof(buffer));
  ::close(pipe_ends[0]);
  ASSERT_GT(n, 0);
  const std::string text(buffer, static_cast<std::size_t>(n));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_NE(text.find("warning: three"), std::string::npos);
  EXPECT_NE(text.find("alarm: four step 0"), std::string::npos);
}

// As when somebody presses Ctrl-S.
TEST(EventLog, ATerminalThatTakesNothingHoldsUpNobody) {
  FixedClock clock;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EventLog log(clock, "alpha");
  log.add(make_terminal_sink(pipe_ends[1], Severity::info));
  // More than a pipe holds; whoever waited for room would wait for ever.
  constexpr int kLines = 5000;
  for (int i = 0; i < kLines; ++i) log.info("line", {}, {{"text", std::string(100, 'x')}});
  std::vector<char> buffer(1 << 20);
  const auto n = ::read(pipe_ends[0], buffer.data(), buffer.size());
  ASSERT_GT(n, 0);
  const auto taken = std::count(buffer.begin(), buffer.begin() + n, '\n');
  EXPECT_LT(taken, kLines);
  log.info("last", {});
  const auto rest = ::read(pipe_ends[0], buffer.data(), buffer.size());
  ASSERT_GT(rest, 0);
  EXPECT_NE(std::string(buffer.data(), static_cast<std::size_t>(rest))
                .find("(" + std::to_string(kLines - taken) + " of these lines left out"),
            std::string::npos);
  for (const int end : pipe_ends) ::close(end);
}

// poll() finds room in a pipe that has some for a part of a long line.
TEST(EventLog, ALongLineHoldsUpNobodyAndIsGoneOnWith) {
  FixedClock clock;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  ASSERT_EQ(::fcntl(pipe_ends[1], F_SETPIPE_SZ, 2 * PIPE_BUF), 2 * PIPE_BUF);
  EventLog log(clock, "alpha");
  log.add(make_terminal_sink(pipe_ends[1], Severity::info));
  const auto text = [](char c) { return std::string(3 * PIPE_BUF, c); };
  auto logged = std::async(std::launch::async, [&] {
    log.info("first", {}, {{"text", text('a')}});
    log.info("second", {}, {{"text", text('b')}});
  });
  const bool held_up = logged.wait_for(std::chrono::seconds(10)) != std::future_status::ready;
  EXPECT_FALSE(held_up);
  std::string all;
  const auto read_some = [&] {
    char buffer[1 << 16];
    pollfd something{pipe_ends[0], POLLIN, 0};
    while (::poll(&something, 1, 0) > 0)
      all.append(buffer, static_cast<std::size_t>(::read(pipe_ends[0], buffer, sizeof buffer)));
  };
  while (logged.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) read_some();
  logged.get();
  for (int i = 0; i < 3; ++i) {
    read_some();
    log.info("later", {});
  }
  read_some();
  for (const int end : pipe_ends) ::close(end);
  std::vector<std::string> lines;
  std::istringstream in(all);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_GE(lines.size(), 3U);
  EXPECT_NE(lines[0].find("first text=" + text('a')), std::string::npos);
  EXPECT_EQ(lines[0].substr(lines[0].size() - 2), "aa") << "the whole line, and nothing else";
  EXPECT_NE(lines[1].find("of these lines left out"), std::string::npos);
  for (std::size_t i = 2; i < lines.size(); ++i)
    EXPECT_NE(lines[i].find("later"), std::string::npos);
}

}  // namespace
}  // namespace isthmus
