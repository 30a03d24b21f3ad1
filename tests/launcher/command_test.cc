#include "launcher/command.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/disk.h"
#include "launcher/rank_setup.h"
#include "launcher/run_folder.h"
#include "security/identity.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

// Every command below `command`, with the words that call it.
void collect(const CLI::App& command, const std::string& words,
             std::vector<std::pair<std::string, const CLI::App*>>& all) {
  for (const auto* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    const auto more = words + " " + sub->get_name();
    all.emplace_back(more, sub);
    collect(*sub, more, all);
  }
}

class Commands : public ::testing::Test {
 protected:
  Commands() {
    program_.require_subcommand(1);
    add_commands(program_, action_);
    collect(program_, "isthmus", all_);
  }

  CLI::App program_{"", "isthmus"};
  Action action_;
  std::vector<std::pair<std::string, const CLI::App*>> all_;
};

TEST_F(Commands, AreAllThere) {
  std::set<std::string> names;
  for (const auto& [words, command] : all_) names.insert(words);
  for (const char* name :
       {"init",          "launch",         "gateway",       "train",       "check",
        "keys generate", "keys rotate",    "keys show",     "roster add",  "roster sign",
        "roster remove", "roster recover", "roster verify", "roster show", "status",
        "top",           "eval",           "export",        "generate",    "simulate",
        "data prepare",  "report"})
    EXPECT_TRUE(names.contains(std::string("isthmus ") + name)) << name;
}

TEST_F(Commands, EachHasAMeaningAndAnExample) {
  for (const auto& [words, command] : all_) {
    EXPECT_FALSE(command->get_description().empty()) << words;
    EXPECT_THAT(command->get_footer(), HasSubstr("Example:\n  " + words)) << words;
  }
}

// What an example says must be a command line that is understood.
TEST_F(Commands, EachExampleIsUnderstood) {
  for (const auto& [words, command] : all_) {
    const auto footer = command->get_footer();
    std::istringstream lines(footer.substr(footer.find("Example:")));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  isthmus ")) continue;
      CLI::App program("", "isthmus");
      Action action;
      add_commands(program, action);
      EXPECT_NO_THROW(program.parse(line.substr(2), true)) << line;
      EXPECT_TRUE(action) << line;
    }
  }
}

TEST_F(Commands, NothingIsDoneWhileReading) {
  EXPECT_THROW(program_.parse("isthmus launch", true), CLI::RequiredError);
  EXPECT_FALSE(action_);
  EXPECT_THROW(program_.parse("isthmus check", true), CLI::ParseError);
  EXPECT_THROW(program_.parse("isthmus gateway a.toml b.toml", true), CLI::ParseError);
}

// A file that need not be named is a file all the same.
TEST_F(Commands, SetTakesOneValueWhereverItStands) {
  int tried = 0;
  for (const auto& [words, command] : all_) {
    if (command->get_option_no_throw("--set") == nullptr) continue;
    ++tried;
    CLI::App program("", "isthmus");
    Action action;
    add_commands(program, action);
    const bool of_link = words == "isthmus link test";
    ASSERT_NO_THROW(program.parse(words.substr(words.find(' ') + 1) + (of_link ? " beta" : "") +
                                  " --set sync.outer_steps=8 --set a.b=c alpha.toml" +
                                  (words == "isthmus export" ? " --to folder" : "")))
        << words;
    const CLI::App* chosen = &program;
    while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
    EXPECT_EQ(chosen->get_option("FILE")->results(), std::vector<std::string>{"alpha.toml"})
        << words;
    EXPECT_EQ(chosen->get_option("--set")->results().size(), 2U) << words;
  }
  EXPECT_GE(tried, 8);
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
    CLI::App program("", "isthmus");
    Action action;
    add_commands(program, action);
    program.parse("isthmus " + line, true);
    return action();
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
