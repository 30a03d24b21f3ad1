#include "launcher/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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
       {"init", "launch", "gateway", "train", "check", "keys generate", "keys show", "roster add",
        "roster sign", "roster verify", "roster show", "status", "top", "eval", "generate",
        "simulate", "data prepare", "report"})
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

}  // namespace
}  // namespace isthmus::launcher
