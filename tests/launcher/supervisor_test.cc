#include "launcher/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

// Shell scripts in the place of gateways and ranks; each notes what it does in one file.
class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.restart.first_delay = 20 * kMillisecond;
    options_.restart.instant_failures_max = 3;
    options_.patience = 20 * kSecond;
  }

  void add(std::string name, const std::string& script, bool is_gateway) {
    processes_.push_back({.name = std::move(name),
                          .command = {.arguments = {"/bin/sh", "-c",
                                                    "note() { echo \"$1\" >> notes; }; cd " +
                                                        folder_.path() + "; " + script},
                                      .environment = {},
                                      .log_path = folder_ / "log"},
                          .is_gateway = is_gateway});
  }

  // Runs until it is over; calls `act` with the supervisor as soon as `when` has been noted.
  void run(const std::string& when = "", const std::function<void(Supervisor&)>& act = {}) {
    Supervisor supervisor(
        io_, *clock_, processes_, options_,
        [this](const Happening& what) {
          told_ += what.text + "\n";
          why_ += what.why;
        },
        [this](ExitCode code) { code_ = code; });
    supervisor.start();
    bool acted = false;
    boost::asio::steady_timer tick(io_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!code_ && std::chrono::steady_clock::now() < deadline) {
      io_.run_for(milliseconds(10));
      io_.restart();
      if (acted || when.empty() || notes().find(when) == std::string::npos) continue;
      acted = true;
      act(supervisor);
    }
    EXPECT_TRUE(code_.has_value()) << "still running after 30 s: " << told_;
  }

  std::string notes() const {
    std::ifstream in(folder_ / "notes");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const TemporaryFolder folder_;
  boost::asio::io_context io_;
  std::unique_ptr<Clock> clock_ = make_system_clock();
  std::vector<SupervisedProcess> processes_;
  SupervisorOptions options_;
  std::string told_, why_;
  std::optional<ExitCode> code_;
};

TEST_F(SupervisorTest, IsOverWhenAllHaveFinished) {
  add("alpha gateway", "note gateway", true);
  add("alpha ranks", "note ranks", false);
  run();
  EXPECT_EQ(code_, ExitCode::done);
  EXPECT_THAT(notes(), HasSubstr("gateway"));
  EXPECT_THAT(notes(), HasSubstr("ranks"));
}

TEST_F(SupervisorTest, StartsAgainWhatDied) {
  add("alpha ranks", "if [ -e once ]; then note again; else : > once; kill -9 $$; fi", false);
  run();
  EXPECT_EQ(code_, ExitCode::done);
  EXPECT_EQ(notes(), "again\n");
  EXPECT_THAT(told_, HasSubstr("alpha ranks: ended by signal 9 (Killed); started again in 0.0 s"));
}

TEST_F(SupervisorTest, WhatDiesWhileItStopsHasSavedNothing) {
  add("alpha ranks", "trap 'kill -ABRT $$' TERM; note up; while :; do sleep 0.02; done", false);
  run("up", [](Supervisor& supervisor) { supervisor.stop(); });
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(told_,
              HasSubstr("while it stopped: what it did since its last checkpoint may be lost"));
}

TEST_F(SupervisorTest, EachThatDiesWhileItStopsIsTold) {
  add("alpha gateway", "trap 'kill -ABRT $$' TERM; note up; while :; do sleep 0.02; done", true);
  add("alpha ranks", "trap 'exit 7' TERM; note up; while :; do sleep 0.02; done", false);
  run("up\nup", [](Supervisor& supervisor) { supervisor.stop(); });
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(told_, HasSubstr("alpha ranks: found no room on the disk while it stopped"));
  EXPECT_THAT(told_, HasSubstr("alpha gateway: ended by signal 6 (Aborted) while it stopped"));
}

TEST_F(SupervisorTest, SaysWhyTheWholeDoesNotEndWell) {
  add("alpha ranks",
      "trap 'echo isthmus: no room on /disk; echo 12:00:03 alpha alarm: training_failed; exit 7' "
      "TERM; note up; while :; do sleep 0.02; done",
      false);
  run("up", [](Supervisor& supervisor) {
    EXPECT_FALSE(supervisor.stopping());
    supervisor.stop();
    EXPECT_TRUE(supervisor.stopping());
  });
  EXPECT_EQ(why_, "alpha ranks found no room on the disk: no room on /disk");
  EXPECT_THAT(told_, Not(HasSubstr("training_failed"))) << "whoever shows events has shown it";
}

TEST_F(SupervisorTest, SaysWhichAssertionItWas) {
  add("alpha gateway", "echo 'isthmus: bug: a.cc:7: size >= 3'; kill -ABRT $$", true);
  run();
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(why_, HasSubstr("ended by signal 6 (Aborted): bug: a.cc:7: size >= 3"));
}

TEST_F(SupervisorTest, SaysWhyItStartsAgain) {
  add("alpha gateway",
      "if [ -e once ]; then note again; else : > once; echo the port is taken >&2; "
      "exit 4; fi",
      true);
  run();
  EXPECT_EQ(code_, ExitCode::done);
  EXPECT_THAT(told_, HasSubstr("started again in 0.0 s: the port is taken"));
}

TEST_F(SupervisorTest, GivesUpAfterInstantFailuresAndShowsTheLog) {
  add("alpha gateway", "note up; trap 'note down; exit 3' TERM; while :; do sleep 0.02; done",
      true);
  add("alpha ranks", "echo the reason >&2; exit 5", false);
  run();
  EXPECT_EQ(code_, ExitCode::broken);
  EXPECT_THAT(told_, HasSubstr("it failed 3 times in a row"));
  EXPECT_THAT(told_, HasSubstr("the reason"));
}

TEST_F(SupervisorTest, OthersGoOnWhereTheyCanDoWithoutASite) {
  const std::string when = "until grep -q ", noted = " notes 2>/dev/null; do sleep 0.02; done; ";
  add("alpha gateway", when + "stopped" + noted + "note alpha_done", true);
  add("gamma gateway", "trap 'note stopped; exit 3' TERM; note up; while :; do sleep 0.02; done",
      true);
  add("gamma ranks", when + "up" + noted + "exit 2", false);
  processes_[1].site = processes_[2].site = 1;
  options_.go_on_without = [](int site) { return site == 1; };
  run();
  EXPECT_EQ(code_, ExitCode::bad_usage);
  EXPECT_THAT(notes(), HasSubstr("alpha_done"));
  EXPECT_THAT(told_, HasSubstr("the other sites go on"));
}

TEST_F(SupervisorTest, AFaultyFileIsNotTriedTwice) {
  add("alpha ranks", "note try; exit 2", false);
  run();
  EXPECT_EQ(code_, ExitCode::bad_usage);
  EXPECT_EQ(notes(), "try\n");
}

TEST_F(SupervisorTest, AStopEndsRanksBeforeGateways) {
  add("alpha gateway", "trap 'note gateway; exit 3' TERM; note ready; while :; do sleep 0.02; done",
      true);
  add("alpha ranks",
      "trap 'sleep 0.2; note ranks; exit 3' TERM; note ready; while :; do sleep 0.02; done", false);
  run("ready\nready", [](Supervisor& supervisor) { supervisor.stop(); });
  EXPECT_EQ(code_, ExitCode::stopped);
  EXPECT_EQ(notes(), "ready\nready\nranks\ngateway\n");
}

TEST_F(SupervisorTest, AKeyThatRepeatsIsOneWish) {
  add("alpha ranks",
      "trap 'sleep 0.2; note saved; exit 3' TERM; note ready; while :; do sleep 0.02; done", false);
  run("ready", [](Supervisor& supervisor) {
    for (int i = 0; i < 5; ++i) supervisor.stop();
  });
  EXPECT_EQ(code_, ExitCode::stopped);
  EXPECT_EQ(notes(), "ready\nsaved\n");
}

// A wish that is ignored as a repetition does not put off the next.
TEST_F(SupervisorTest, ImpatienceIsHeard) {
  options_.same_wish = 300 * kMillisecond;
  add("alpha ranks", "trap '' TERM; note ready; while :; do sleep 0.02; done", false);
  run("ready", [](Supervisor& supervisor) {
    for (int i = 0; i < 3; ++i) {
      supervisor.stop();
      std::this_thread::sleep_for(milliseconds(200));
    }
  });
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(told_, HasSubstr("alpha ranks: stopped at once"));
}

TEST_F(SupervisorTest, ASecondStopKills) {
  options_.same_wish = 0;
  add("alpha ranks", "trap '' TERM; note ready; while :; do sleep 0.02; done", false);
  run("ready", [](Supervisor& supervisor) {
    supervisor.stop();
    supervisor.stop();
  });
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(told_, HasSubstr("alpha ranks: stopped at once"));
  EXPECT_THAT(told_, Not(HasSubstr("while it stopped"))) << "which is told already";
}

TEST_F(SupervisorTest, PatienceEnds) {
  options_.patience = 100 * kMillisecond;
  add("alpha ranks", "trap '' TERM; note ready; while :; do sleep 0.02; done", false);
  run("ready", [](Supervisor& supervisor) { supervisor.stop(); });
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(told_, HasSubstr("still waits for alpha ranks"));
}

TEST_F(SupervisorTest, RanksThatComeBackGetTheirGatewayBack) {
  add("alpha gateway", "note gateway; sleep 0.05", true);
  add("alpha ranks", "if [ -e once ]; then note again; else : > once; sleep 0.3; exit 4; fi",
      false);
  run();
  EXPECT_EQ(code_, ExitCode::done);
  EXPECT_EQ(notes().size(), std::string("gateway\nagain\ngateway\n").size());
}

TEST_F(SupervisorTest, LateRanksGetAGatewayThatHadFinished) {
  options_.serve_again = 100 * kMillisecond;
  add("alpha gateway", "note gateway", true);
  add("alpha ranks",
      "while [ $(cat notes | grep -c gateway) -lt 3 ]; do sleep 0.02; done; note ranks", false);
  run();
  EXPECT_EQ(code_, ExitCode::done);
  EXPECT_EQ(notes(), "gateway\ngateway\ngateway\nranks\n");
}

TEST_F(SupervisorTest, AProgramThatIsNotThereIsAFailure) {
  processes_.push_back({.name = "alpha ranks", .command = {.arguments = {"/no/such/program"}}});
  run();
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_THAT(told_, HasSubstr("cannot run /no/such/program"));
  EXPECT_THAT(why_, HasSubstr("cannot run /no/such/program"));
}

// What would be started after that had missed the signal to stop, and would be killed a minute
// later.
TEST_F(SupervisorTest, NothingIsStartedAfterAFailedStart) {
  processes_.push_back({.name = "alpha gateway",
                        .command = {.arguments = {"/no/such/program"}},
                        .is_gateway = true});
  add("alpha ranks", "note started; trap 'exit 3' TERM; while :; do sleep 0.02; done", false);
  run();
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_EQ(notes(), "");
}

TEST_F(SupervisorTest, GivesUpWithoutProgress) {
  options_.restart.instant_failures_max = 100;
  options_.restart.futile_failures_max = 3;
  add("alpha ranks", "note try; exit 1", false);
  std::int64_t asked = 0;
  processes_.back().progress = [&asked] { return ++asked <= 2 ? asked : 2; };
  run();
  EXPECT_EQ(code_, ExitCode::failed);
  EXPECT_EQ(notes(), "try\ntry\ntry\ntry\n");
  EXPECT_THAT(told_, HasSubstr("it failed 3 times without a new checkpoint or outer step"));
}

TEST(ChildProcess, DiesWithItsParent) {
  const TemporaryFolder folder;
  const auto pid_file = folder / "pid";
  const int middle = ::fork();
  if (middle == 0) {
    const auto child =
        start_child({.arguments = {"/bin/sh", "-c", "echo $$ > " + pid_file + "; exec sleep 60"}});
    while (child && !std::filesystem::exists(pid_file)) ::usleep(1000);
    ::usleep(50'000);
    ::_exit(child ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(middle, &status, 0), middle);
  ASSERT_EQ(status, 0);
  int child = 0;
  std::ifstream(pid_file) >> child;
  ASSERT_GT(child, 0);
  const auto gone = [child] {  // or a zombie, where nobody collects it
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string id, name, state;
    return !(stat >> id >> name >> state) || state == "Z";
  };
  for (int i = 0; i < 500 && !gone(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(gone());
}

TEST(ChildProcess, LastLines) {
  const TemporaryFolder folder;
  const auto path = folder / "lines";
  std::ofstream(path) << "one\ntwo\nthree\n";
  EXPECT_EQ(last_lines(path, 2), "two\nthree");
  EXPECT_EQ(last_lines(path, 9), "one\ntwo\nthree");
  EXPECT_EQ(last_lines(path, 9, 4), "two\nthree");
  EXPECT_EQ(last_lines(path, 9, 100), "");
  EXPECT_EQ(last_lines("/no/such/file", 2), "");
  std::ofstream(path, std::ios::app) << "four\n-----\n\n";
  EXPECT_EQ(last_words(path), "four");
  EXPECT_EQ(last_words("/no/such/file"), "");
}

// Not how many faults there are, nor mpirun's word that somebody ended.
TEST(ChildProcess, LastWordsAreTheFault) {
  const TemporaryFolder folder;
  const auto path = folder / "log";
  std::ofstream(path) << "isthmus: warning: core dumps are possible\n"
                         "a.toml:4:9: error: train.micro_batch must be 1 to 1048576\n"
                         "    4 | micro_batch = 0\n      |               ^\n"
                         "a.toml:9:1: error: there is no key \"hiden\"\na.toml: 2 faults\n";
  EXPECT_EQ(last_words(path), "a.toml:4:9: error: train.micro_batch must be 1 to 1048576");
  std::ofstream(path, std::ios::trunc)
      << "12:00:03 alpha alarm: training_failed\nisthmus: text.bin is missing\n"
         "isthmus: a collective broke\n-----\n"
         "Primary job  terminated normally, but 1 process returned\n"
         "a non-zero exit code. Per user-direction, the job has been aborted.\n-----\n-----\n"
         "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
         "the job to be terminated. The first process to do so was:\n\n"
         "  Process name: [[1,1],0]\n  Exit code:    6\n-----\n";
  EXPECT_EQ(last_words(path), "isthmus: text.bin is missing");
}

}  // namespace
}  // namespace isthmus::launcher
