// A site that trains alone, as a process of its own, killed at any point: it ends with the bits of
// one that was left in peace. Ranks under mpirun likewise.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "runtime/safetensors.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using std::chrono::milliseconds;

constexpr int kSteps = 100;

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() { write_contents(folder_ / "text", sample_text(3000, 1)); }

  // Starts a program; its output goes to a file that a failure prints.
  pid_t start(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string output = folder_ / "output";
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, 1);
    ::dup2(file, 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  std::vector<std::string> train_once(const std::string& run,
                                      const std::vector<std::string>& more = {}) {
    std::filesystem::create_directories(folder_ / run);
    std::vector<std::string> arguments{ISTHMUS_TRAIN_ONCE, folder_ / run, folder_ / "text",
                                       std::to_string(kSteps)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  int wait_for(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void finish(const std::vector<std::string>& arguments) {
    ASSERT_EQ(wait_for(start(arguments)), 0) << contents_of(folder_ / "output");
  }
  // Waits until a run has done an inner step (its processes append to metrics.jsonl), or half a
  // minute. The last one done.
  std::int64_t wait_for_step(const std::string& run, std::int64_t step) {
    std::int64_t last = -1;
    for (int i = 0; i < 30'000 && last < step; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      const auto metrics = contents_of((folder_ / run) + "/metrics.jsonl");
      const auto at = metrics.rfind("\"inner_step\":");
      if (at != std::string::npos) last = std::atoi(metrics.c_str() + at + 13);
    }
    return last;
  }
  // Starts a run again and again, and kills it ever further on, somewhere inside a step or a
  // checkpoint. Returns how often it was still running then.
  int kill_often(const std::string& run, const std::vector<std::string>& arguments) {
    Random random(1);
    int killed = 0;
    for (std::int64_t step = 3; step < kSteps - 20; step += 17) {
      const pid_t pid = start(arguments);
      wait_for_step(run, step);
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(5000)));
      ::kill(pid, SIGKILL);
      killed += wait_for(pid) == 128 + SIGKILL;
    }
    return killed;
  }
  std::string path_of(const std::string& run, const std::string& name) {
    return (folder_ / run) + "/checkpoints/step_00000100/" + name;
  }
  std::string file_of(const std::string& run, const std::string& name) {
    return contents_of(path_of(run, name));
  }
  void expect_same_end(const std::string& a, const std::string& b) {
    for (const char* name :
         {"model.safetensors", "optimizer.safetensors", "trainer.json", "config.json"}) {
      EXPECT_FALSE(file_of(a, name).empty());
      EXPECT_TRUE(file_of(a, name) == file_of(b, name)) << name << " of " << b << " differs";
    }
  }

  TemporaryFolder folder_;
};

TEST_F(ResumeTest, KilledAtAnyPointEndsWithTheSameBits) {
  finish(train_once("straight"));
  EXPECT_GE(kill_often("killed", train_once("killed")), 1) << "it ended before it was killed";
  finish(train_once("killed"));
  expect_same_end("straight", "killed");
}

TEST_F(ResumeTest, KilledWhereACheckpointIsBeingWrittenEndsWithTheSameBits) {
  finish(train_once("straight", {"every=1"}));
  EXPECT_GE(kill_often("killed", train_once("killed", {"every=1"})), 1);
  finish(train_once("killed", {"every=1"}));
  expect_same_end("straight", "killed");
}

TEST_F(ResumeTest, StoppedByASignalGoesOnWhereItWas) {
  finish(train_once("straight"));
  const auto arguments = train_once("stopped", {"every=1000"});  // only what a stop keeps
  const pid_t pid = start(arguments);
  wait_for_step("stopped", 1);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(wait_for(pid), 3) << contents_of(folder_ / "output");
  finish(arguments);
  expect_same_end("straight", "stopped");
}

class ResumeMpiTest : public ResumeTest {
 protected:
  std::vector<std::string> mpirun(const std::string& run, const std::string& rows) {
    // OpenMPI keeps some memory until the process ends: not our leak.
    std::vector<std::string> arguments{"mpirun", "--allow-run-as-root",         "--oversubscribe",
                                       "-x",     "ASAN_OPTIONS=detect_leaks=0", "-n",
                                       "2"};
    const auto rank = train_once(run, {"mpi", "rows=" + rows});
    arguments.insert(arguments.end(), rank.begin(), rank.end());
    return arguments;
  }
};

TEST_F(ResumeMpiTest, TwoRanksTrainAsOneWithTwiceTheMicroBatches) {
  finish(mpirun("two", "2"));
  finish(train_once("one", {"rows=2", "micro_batches=2"}));
  // The same samples, but the sums over them are rounded elsewhere.
  const auto disk = make_system_disk();
  const auto one = SafetensorsReader::open(*disk, path_of("one", "model.safetensors"));
  const auto two = SafetensorsReader::open(*disk, path_of("two", "model.safetensors"));
  ASSERT_TRUE(one && two);
  double difference = 0, size = 0;
  for (const auto& tensor : one->tensors()) {
    std::vector<float> a(tensor.elements), b(tensor.elements);
    ASSERT_TRUE(one->read(tensor, a));
    ASSERT_TRUE(two->read(*two->find(tensor.name), b));
    for (std::size_t i = 0; i < a.size(); ++i) {
      difference += std::pow(a[i] - b[i], 2);
      size += std::pow(a[i], 2);
    }
  }
  EXPECT_LT(std::sqrt(difference / size), 1e-3);
}

TEST_F(ResumeMpiTest, KilledAndStartedAgainTheyEndWithTheSameBits) {
  finish(mpirun("straight", "1"));
  const auto arguments = mpirun("killed", "1");
  for (int i = 0; i < 2; ++i) {
    const pid_t pid = start(arguments);
    wait_for_step("killed", 10 + 20 * i);
    ::kill(pid, SIGKILL);  // of mpirun: the ranks see it and end
    wait_for(pid);
    std::this_thread::sleep_for(milliseconds(300));
  }
  finish(arguments);
  expect_same_end("straight", "killed");
}

}  // namespace
}  // namespace isthmus::runtime
