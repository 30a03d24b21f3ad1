#include "launcher/command.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk.h"
#include "launcher/argument_parser.h"
#include "launcher/rank_setup.h"
#include "launcher/run_folder.h"
#include "security/identity.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// The words of a line; "…" is one.
std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> std::quoted(word);) words.push_back(word);
  return words;
}

Result<Action> parse(const std::string& line) {
  ArgumentParser parser("isthmus", "", "1");
  add_commands(parser.program());
  return parser.parse(words_of(line));
}

std::string help_of(const std::string& command) {
  const auto help = parse(command + " --help");
  if (!help) return help.error().text();
  ::testing::internal::CaptureStdout();
  EXPECT_EQ((*help)(), ExitCode::done);
  return ::testing::internal::GetCapturedStdout();
}

// Every command below `command`, as the words that call it.
void collect(Command command, const std::string& words, std::vector<std::string>& all) {
  for (const auto& sub : command.subcommands()) {
    const auto more = words + (words.empty() ? "" : " ") + sub.name();
    all.push_back(more);
    collect(sub, more, all);
  }
}

std::vector<std::string> all_commands() {
  ArgumentParser parser("isthmus", "", "1");
  add_commands(parser.program());
  std::vector<std::string> all;
  collect(parser.program(), "", all);
  return all;
}

TEST(Commands, AreAllThere) {
  EXPECT_THAT(all_commands(),
              IsSupersetOf(
                  {"init",        "launch",        "gateway",        "train",         "plan",
                   "check",       "keys generate", "keys rotate",    "keys show",     "roster add",
                   "roster sign", "roster remove", "roster recover", "roster verify", "roster show",
                   "status",      "top",           "eval",           "export",        "generate",
                   "simulate",    "data prepare",  "report",         "link test"}));
}

TEST(Commands, EachHasAMeaningAndAnExample) {
  for (const auto& command : all_commands()) {
    const auto help = help_of(command);
    EXPECT_THAT(help, ContainsRegex("^[^\n]+\nUsage: isthmus " + command + " ")) << command;
    EXPECT_THAT(help, HasSubstr("Example:\n  isthmus " + command + " ")) << command;
  }
}

// What an example says must be a command line that is understood.
TEST(Commands, EachExampleIsUnderstood) {
  for (const auto& command : all_commands()) {
    const auto help = help_of(command);
    std::istringstream lines(help.substr(std::min(help.find("Example:"), help.size())));
    for (std::string line; std::getline(lines, line);) {
      const std::string_view start = "  isthmus ";
      if (!line.starts_with(start)) continue;
      const auto action = parse(line.substr(start.size()));
      EXPECT_TRUE(action && *action) << line;
    }
  }
}

TEST(Commands, SayWhatIsMissing) {
  for (const char* command : {"launch", "check", "gateway", "check --document=false"}) {
    const auto action = parse(command);
    ASSERT_FALSE(action) << command;
    EXPECT_THAT(action.error().text(), HasSubstr("isthmus: FILE is required\n")) << command;
  }
  EXPECT_TRUE(parse("check --document"));
  EXPECT_FALSE(parse("gateway a.toml b.toml"));
}

// A file that need not be named is a file all the same.
TEST(Commands, SetTakesOneValueWhereverItStands) {
  for (const auto how_many : {HowManySites::one, HowManySites::some, HowManySites::any_in_folder}) {
    ArgumentParser parser("isthmus", "", "1");
    SiteArguments site;
    add_site_arguments(parser.program(), site, how_many);
    ASSERT_TRUE(parser.parse(words_of("--set sync.outer_steps=8 --set a.b=c alpha.toml")));
    EXPECT_THAT(site.overrides, ElementsAre("sync.outer_steps=8", "a.b=c"));
    EXPECT_THAT(site.paths, ElementsAre("alpha.toml"));
  }
}

// A site in a folder of its own, and a command line for it.
class CommandsOfASite : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "text") << std::string(1000, 'x');
    std::ofstream(folder_ / "alone.toml") << R"([site]
name = "alone"
run_dir = "run"
[model]
layers = 1
hidden = 16
heads = 2
ffn = 16
[data]
train = [{ path = "text" }]
[train]
sequence = 16
micro_batch = 1
warmup_steps = 0
threads = 1
[sync]
inner_steps = 1
outer_steps = 1
)";
  }
  void TearDown() override {
    // A command that saw secrets has hardened this process, which a leak sanitizer wants to look
    // at.
    ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  }

  ExitCode run(const std::string& command) {
    return run_line(command + " " + folder_ / "alone.toml");
  }
  static ExitCode run_line(const std::string& line) {
    const auto action = parse(line);
    return action ? (*action)() : fail(action.error());
  }

  const TemporaryFolder folder_;
};

TEST_F(CommandsOfASite, OneProcessTrainsInARunFolder) {
  const auto disk = make_system_disk();
  const RunFolder folder(folder_ / "run");
  auto lock = lock_run(*disk, folder);
  ASSERT_TRUE(lock) << lock.error().text();
  const auto second = lock_run(*disk, folder);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::busy);
  EXPECT_THAT(second.error().text(), HasSubstr("another process already runs this site in"));
  EXPECT_EQ(run("train"), ExitCode::unavailable);
  EXPECT_FALSE(std::filesystem::exists(folder.checkpoints()));
  lock->reset();
  EXPECT_EQ(run("status"), ExitCode::unavailable);
  EXPECT_EQ(run("train"), ExitCode::done);
  EXPECT_TRUE(std::filesystem::exists(folder.checkpoints()));
}

// A script that waits for the end can tell it from a site that is down.
TEST_F(CommandsOfASite, ACompleteRunIsNoTrouble) {
  ASSERT_EQ(run("train"), ExitCode::done);
  EXPECT_EQ(run("status"), ExitCode::done);
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run("status --json"), ExitCode::done);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "{\"site\":\"alone\",\"complete\":true,\"outer_step\":1}\n");
}

TEST_F(CommandsOfASite, AMissingFileIsAFaultOfUsage) {
  std::filesystem::remove(folder_ / "alone.toml");
  for (const char* command : {"check", "train", "launch", "eval", "generate", "status"})
    EXPECT_EQ(run(command), ExitCode::bad_usage) << command;
}

// Also when it then finds nothing: the guard comes before the secret.
TEST_F(CommandsOfASite, EachThatSeesASecretIsGuardedFirst) {
  const auto guarded = [](const std::string& line) {
    run_line(line);
    rlimit core{};
    ::getrlimit(RLIMIT_CORE, &core);
    ::_exit(core.rlim_cur == 0 && ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0 ? 0 : 1);
  };
  const auto at = [this](const char* name) { return folder_ / name; };
  const auto roster = at("roster.toml"), key = at("none.key");
  for (const std::string& line :
       {"check " + at("none.toml"), "launch " + at("none.toml"), "gateway " + at("none.toml"),
        "keys generate " + at("no/alpha.key"), "keys show " + key,
        "keys rotate " + key + " " + at("new.key"), "roster sign " + roster + " --key " + key,
        "roster recover " + roster + " --key " + key + " --run 1 --step 1 --root 1 --voter a"})
    EXPECT_EXIT(guarded(line), ::testing::ExitedWithCode(0), "") << line;
}

TEST_F(CommandsOfASite, ARotatedKeyIsOfTheSameSiteAndNeedsItsPlaceInTheRoster) {
  const auto at = [this](const char* name) { return folder_ / name; };
  const auto done = [](const std::string& line) { EXPECT_EQ(run_line(line), ExitCode::done); };
  done("keys generate --operator " + at("operator.key"));
  done("keys generate " + at("alpha.key"));
  done(fmt::format("roster add {} --name alone --public {}", at("roster.toml"),
                   at("alpha.key.pub")));
  done(fmt::format("roster sign {} --key {}", at("roster.toml"), at("operator.key")));
  const auto check = [&](const char* identity) {
    ::testing::internal::CaptureStderr();
    run_line(
        fmt::format("check {} --set site.roster={} --set site.operator_key={} --set "
                    "site.identity={} --set sync.min_sites=1",
                    at("alone.toml"), at("roster.toml"), at("operator.key.pub"), at(identity)));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(check("alpha.key"), "");

  const auto rotate = fmt::format("keys rotate {} {}", at("alpha.key"), at("alpha-2.key"));
  done(rotate);
  const auto before = security::Identity::load(at("alpha.key"));
  const auto after = security::Identity::load(at("alpha-2.key"));
  ASSERT_TRUE(before && after);
  EXPECT_EQ(after->public_part().identity, before->public_part().identity);
  EXPECT_NE(after->public_part().curve_key, before->public_part().curve_key);
  EXPECT_TRUE(std::filesystem::exists(at("alpha-2.key.pub")));
  EXPECT_THAT(check("alpha-2.key"),
              HasSubstr("alpha-2.key holds another CURVE key than the roster"));
  EXPECT_NE(run_line(rotate), ExitCode::done);  // never overwrites
  EXPECT_NE(run_line(fmt::format("keys rotate {} {}", at("none.key"), at("alpha-3.key"))),
            ExitCode::done);
  EXPECT_FALSE(std::filesystem::exists(at("alpha-3.key")));
}

// Of the model that the site began with: no checkpoint is there.
TEST_F(CommandsOfASite, WhatCannotBeMendedByStartingAgainSaysSo) {
  EXPECT_EQ(run("generate"), ExitCode::hopeless);
  EXPECT_EQ(fail({ErrorCode::corrupt, "x"}), ExitCode::hopeless);
  EXPECT_EQ(fail({ErrorCode::non_finite, "x"}), ExitCode::hopeless);
  EXPECT_EQ(fail({ErrorCode::too_large, "x"}), ExitCode::hopeless);
  EXPECT_EQ(fail({ErrorCode::in_use, "x"}), ExitCode::hopeless);
  EXPECT_EQ(fail({ErrorCode::wrong_kind, "x"}), ExitCode::hopeless);
  EXPECT_EQ(fail({ErrorCode::disk_full, "x"}), ExitCode::no_room);
}

TEST(RankSetup, LossesAreComputedInF32) {
  SiteFile file;
  file.train.precision = runtime::Precision::bf16;
  file.train.micro_batch = 8;
  EXPECT_EQ(training_shape(file).precision, runtime::Precision::bf16);
  EXPECT_EQ(evaluation_shape(file).precision, runtime::Precision::f32);
  EXPECT_EQ(evaluation_shape(file).micro_batch, 1);
}

}  // namespace
}  // namespace isthmus::launcher
