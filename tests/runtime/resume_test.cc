// A site that trains alone, as a process of its own, killed at any point: it ends with the bits of
// one that was left in peace. Ranks under mpirun likewise.
#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
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
                                      const std::vector<std::string>& more = {},
                                      int steps = kSteps) {
    std::filesystem::create_directories(folder_ / run);
    std::vector<std::string> arguments{ISTHMUS_TRAIN_ONCE, folder_ / run, folder_ / "text",
                                       std::to_string(steps)};
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
  // The last inner step that a run has done: its processes append to metrics.jsonl.
  std::int64_t step_of(const std::string& run) {
    const auto metrics = contents_of((folder_ / run) + "/metrics.jsonl");
    const auto at = metrics.rfind("\"inner_step\":");
    return at == std::string::npos ? -1 : std::atoi(metrics.c_str() + at + 13);
  }
  // Until it has done that, or the time is over.
  void wait_for_step(const std::string& run, std::int64_t step,
                     std::chrono::duration<double> time = std::chrono::seconds(30)) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (step_of(run) < step && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(milliseconds(1));
  }
  struct Kills {
    int tried = 0;
    int running = 0;       // when the signal came
    int writing = 0;       // of these: in the middle of a checkpoint
    int accumulating = 0;  // of these: in the first or second micro-batch of a step's three
    int with_a_step = 0;   // of these: after an inner step of theirs

    bool of_all_kinds() const { return with_a_step >= 5 && writing >= 1 && accumulating >= 1; }
  };
  // A row's tokens are read, then the target of its last one: of a step of three rows, six times.
  bool is_accumulating(const std::string& run) {
    const auto reads = contents_of((folder_ / run) + "/reads").size() % 6;
    return 1 <= reads && reads <= 4;
  }
  // Starts a run again and again, each time with other threads, and kills it at a random moment
  // while it starts or does its next few steps; two a time at most, so that it does not end. More
  // often, and later, where others' work made so few moments of some kind that there was none.
  Kills kill_often(const std::string& run, const std::vector<std::string>& more, int times,
                   std::uint64_t seed) {
    const auto seconds_of = [&](int steps) {
      const auto begin = std::chrono::steady_clock::now();
      finish(train_once("paced", more, steps));
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const double start_up = seconds_of(1);
    const double step = std::max(seconds_of(21) - start_up, 1e-3) / 20;
    Random random(seed);
    Kills kills;
    std::int64_t done_before = -1;
    constexpr int kTimesMax = kSteps / 2 - 5;
    for (int i = 0; i < times || (i < kTimesMax && !kills.of_all_kinds()); ++i) {
      ++kills.tried;
      const double longest = (start_up + 4 * step) * (i < times ? 1 : 3);
      auto arguments = train_once(run, more);
      arguments.push_back(fmt::format("threads={}", 1 + i % 3));
      std::filesystem::remove((folder_ / run) + "/reads");
      const pid_t pid = start(arguments);
      wait_for_step(run, 2 * i + 1, std::chrono::duration<double>(random.uniform() * longest));
      ::kill(pid, SIGKILL);
      if (wait_for(pid) != 128 + SIGKILL) continue;
      ++kills.running;
      const auto done = step_of(run);
      kills.with_a_step += done != done_before;
      done_before = done;
      kills.accumulating += is_accumulating(run);
      const std::string checkpoints = (folder_ / run) + "/checkpoints";
      std::error_code none;
      for (const auto& entry : std::filesystem::directory_iterator(checkpoints, none))
        kills.writing += entry.path().filename().string().starts_with(".writing_");
    }
    return kills;
  }
  std::string path_of(const std::string& run, const std::string& name) {
    return (folder_ / run) + "/checkpoints/step_00000100/" + name;
  }
  std::string file_of(const std::string& run, const std::string& name) {
    return contents_of(path_of(run, name));
  }
  void expect_same_end(const std::string& a, const std::string& b,
                       const char* parameters = "model.safetensors") {
    for (const char* name : {parameters, "optimizer.safetensors", "trainer.json", "config.json"}) {
      EXPECT_FALSE(file_of(a, name).empty());
      EXPECT_TRUE(file_of(a, name) == file_of(b, name)) << name << " of " << b << " differs";
    }
  }

  // The same samples, but the sums over them were rounded elsewhere.
  void expect_nearly_same_end(const std::string& run, const std::string& other) {
    const auto disk = make_system_disk();
    const auto one = SafetensorsReader::open(*disk, path_of(run, "model.safetensors"));
    const auto two = SafetensorsReader::open(*disk, path_of(other, "model.safetensors"));
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

  TemporaryFolder folder_;
};

// The position counts samples, however they are dealt: each is drawn once, and none left out.
// Of an encoder, what is hidden and dropped of it goes with it.
TEST_F(ResumeTest, KeepsItsPositionWithOtherMicroBatches) {
  for (const std::string family : {"llama", "bert"}) {
    SCOPED_TRACE(family);
    const auto of = [&](std::vector<std::string> more) {
      more.push_back("family=" + family);
      return more;
    };
    const auto straight = family + "_straight", dealt = family + "_dealt";
    finish(train_once(straight, of({"rows=4"})));
    const auto first = start(train_once(dealt, of({"rows=1", "micro_batches=4", "every=1000"})));
    wait_for_step(dealt, 3);
    ::kill(first, SIGTERM);
    EXPECT_EQ(wait_for(first), 3);
    finish(train_once(dealt, of({"rows=2", "micro_batches=2"})));
    expect_nearly_same_end(straight, dealt);
  }
}

struct KilledCase {
  const char* name;
  std::vector<std::string> arguments;
};

void PrintTo(const KilledCase& tested, std::ostream* out) { *out << tested.name; }

class KilledAtAnyMoment
    : public ResumeTest,
      public testing::WithParamInterface<std::tuple<KilledCase, std::uint64_t>> {};

// At 50 moments of each kind, in two tests.
TEST_P(KilledAtAnyMoment, EndsWithTheSameBits) {
  constexpr int kTimes = 25;
  const auto& [tested, seed] = GetParam();
  std::vector<std::string> more{"every=2", "micro_batches=3", "rows=1"};
  more.insert(more.end(), tested.arguments.begin(), tested.arguments.end());
  finish(train_once("straight", more));
  const auto kills = kill_often("killed", more, kTimes, seed);
  EXPECT_GE(kills.tried, kTimes);
  EXPECT_EQ(kills.running, kills.tried) << "it ended before it was killed";
  EXPECT_TRUE(kills.of_all_kinds())
      << kills.with_a_step << ", " << kills.writing << ", " << kills.accumulating;
  finish(train_once("killed", more));
  const bool adapted = std::ranges::count(more, "lora") > 0;
  expect_same_end("straight", "killed",
                  adapted ? "adapter_model.safetensors" : "model.safetensors");
}

INSTANTIATE_TEST_SUITE_P(
    While, KilledAtAnyMoment,
    testing::Combine(testing::Values(KilledCase{"all_train", {}},
                                     KilledCase{"adapters_train", {"lora", "bf16"}},
                                     KilledCase{"encoder_trains", {"family=bert", "bf16"}},
                                     KilledCase{"experts_train", {"family=qwen3_moe", "bf16"}}),
                     testing::Values(1, 2)),
    [](const auto& drawn) {
      return fmt::format("{}_{}", std::get<0>(drawn.param).name, std::get<1>(drawn.param));
    });

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
  expect_nearly_same_end("one", "two");
}

TEST_F(ResumeMpiTest, KeepsItsPositionWithOtherRanks) {
  finish(train_once("one", {"rows=4"}));
  const auto first = start(train_once("more", {"rows=4", "every=1000"}));
  wait_for_step("more", 3);
  ::kill(first, SIGTERM);
  EXPECT_EQ(wait_for(first), 3);
  finish(mpirun("more", "2"));
  expect_nearly_same_end("one", "more");
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
