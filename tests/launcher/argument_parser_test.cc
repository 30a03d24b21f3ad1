#include "launcher/argument_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Words = std::vector<std::string>;

class ArgumentParsing : public ::testing::Test {
 protected:
  // "" where all is fine.
  std::string wrong_with(const Words& words) {
    const auto action = parser_.parse(words);
    if (action) return {};
    EXPECT_EQ(action.error().code, ErrorCode::invalid_argument);
    return action.error().text();
  }

  std::string output_of(const Words& words) {
    const auto action = parser_.parse(words);
    if (!action) return action.error().text();
    ::testing::internal::CaptureStdout();
    EXPECT_EQ((*action)(), ExitCode::done);
    return ::testing::internal::GetCapturedStdout();
  }

  ArgumentParser parser_{"boat", "Crosses.", "1.2"};
  Command program_ = parser_.program();
};

TEST_F(ArgumentParsing, FillsVariablesOfEachType) {
  std::string text = "before", place;
  std::vector<std::string> texts;
  int number = 0;
  std::int64_t wide = 0;
  std::uint32_t narrow = 0;
  std::uint64_t large = 0;
  double real = 0;
  bool flag = false, untouched = false;
  program_.option("PLACE", place, "");
  program_.option("--text", text, "");
  program_.option("--texts", texts, "");
  program_.option("--number", number, "");
  program_.option("--wide", wide, "");
  program_.option("--narrow", narrow, "");
  program_.option("--large", large, "");
  program_.option("--real", real, "");
  program_.flag("--flag", flag, "");
  program_.flag("--untouched", untouched, "");
  EXPECT_EQ(wrong_with({"here", "--text=a b", "--number", "-1", "--wide", "-5000000000", "--narrow",
                        "2", "--large", "18446744073709551615", "--real", "0.5", "--flag",
                        "--texts", "c", "d"}),
            "");
  EXPECT_EQ(place, "here");
  EXPECT_EQ(text, "a b");
  EXPECT_THAT(texts, ElementsAre("c", "d"));
  EXPECT_EQ(number, -1);
  EXPECT_EQ(wide, -5'000'000'000);
  EXPECT_EQ(narrow, 2U);
  EXPECT_EQ(large, UINT64_MAX);
  EXPECT_EQ(real, 0.5);
  EXPECT_TRUE(flag);
  EXPECT_FALSE(untouched);
}

TEST_F(ArgumentParsing, ARepeatableOptionLeavesTheNextWordAlone) {
  std::vector<std::string> places, texts;
  program_.option("PLACE", places, "").takes_one();
  program_.option("--text", texts, "").repeatable();
  EXPECT_EQ(wrong_with({"--text", "a", "--text", "b", "here"}), "");
  EXPECT_THAT(texts, ElementsAre("a", "b"));
  EXPECT_THAT(places, ElementsAre("here"));
  EXPECT_EQ(wrong_with({"here", "there"}),
            "boat: PLACE: At Most 1 required but received 2\nboat --help says how\n");
}

TEST_F(ArgumentParsing, SaysWhatIsWrongWithAValue) {
  int number = 0;
  double real = 0;
  std::uint64_t seed = 1;
  std::string dtype, name;
  program_.option("--number", number, "").in_range(1, 8);
  program_.option("--real", real, "").in_range(0.0, 1.0);
  program_.option("--seed", seed, "").whole_number();
  program_.option("--dtype", dtype, "").one_of({"f32", "bf16"});
  program_.option("--name", name, "").check([](const std::string& text) {
    return std::string(text == "alpha" ? "" : "that is another");
  });
  EXPECT_EQ(wrong_with({"--number", "9"}),
            "boat: --number: Value 9 not in range 1 to 8\nboat --help says how\n");
  EXPECT_THAT(wrong_with({"--number", "many"}), HasSubstr("--number"));
  EXPECT_THAT(wrong_with({"--real", "1.5"}), HasSubstr("--real: Value 1.5 not in range"));
  EXPECT_THAT(wrong_with({"--dtype", "f64"}), HasSubstr("--dtype: f64 not in {f32,bf16}"));
  EXPECT_THAT(wrong_with({"--name", "beta"}), HasSubstr("--name: that is another"));
  for (const char* text : {"-1", "1.5", "", "1e3", "9223372036854775808"})
    EXPECT_THAT(wrong_with({"--seed=" + std::string(text)}), HasSubstr("--seed")) << text;
  EXPECT_EQ(wrong_with({"--number", "8", "--real", "1", "--seed", "9223372036854775807", "--dtype",
                        "bf16", "--name", "alpha"}),
            "");
  EXPECT_EQ(seed, std::uint64_t{INT64_MAX});
}

TEST_F(ArgumentParsing, SaysWhichOptionsGoTogether) {
  std::string key, run;
  bool many = false, one = false;
  program_.option("--key", key, "").required();
  program_.option("--run", run, "").required().required(false);
  const auto seeds = program_.flag("--many", many, "");
  program_.flag("--one", one, "").excludes(seeds);
  program_.option("--resume", run, "").needs(seeds);
  EXPECT_THAT(wrong_with({}), HasSubstr("boat: --key is required\n"));
  EXPECT_THAT(wrong_with({"--key", "k", "--one", "--many"}), HasSubstr("excludes"));
  EXPECT_THAT(wrong_with({"--key", "k", "--resume", "r"}), HasSubstr("--resume requires --many"));
  EXPECT_EQ(wrong_with({"--key", "k", "--resume", "r", "--many"}), "");
}

TEST_F(ArgumentParsing, TheChosenCommandSaysWhatIsToBeDone) {
  bool done = false, allowed = false;
  const auto keys = program_.subcommand("keys", "Of the boat");
  keys.subcommand("show", "Print them").runs([] { return ExitCode::failed; });
  const auto turn = keys.subcommand("turn", "Start");
  turn.flag("--allowed", allowed, "");
  turn.runs(
      [&done] {
        done = true;
        return ExitCode::stopped;
      },
      [&allowed] { return std::string(allowed ? "" : "nobody allowed it"); });
  EXPECT_EQ(wrong_with({"keys", "turn"}),
            "boat: nobody allowed it\nboat keys turn --help says how\n");
  const auto action = parser_.parse({"keys", "turn", "--allowed"});
  ASSERT_TRUE(action);
  EXPECT_FALSE(done);  // nothing is done while it is read
  EXPECT_EQ((*action)(), ExitCode::stopped);
  EXPECT_TRUE(done);
}

TEST_F(ArgumentParsing, AWrongWordForACommandIsNamed) {
  program_.subcommand("keys", "Of the boat").subcommand("show", "Print them");
  program_.subcommand("link", "Rope");
  EXPECT_EQ(wrong_with({}), "boat: A subcommand is required\nboat --help says how\n");
  EXPECT_EQ(wrong_with({"kyes"}), "boat: there is no command \"kyes\"; did you mean \"keys\"?\n");
  EXPECT_EQ(wrong_with({"keys", "shw"}),
            "boat keys: there is no command \"shw\"; did you mean \"show\"?\n");
  EXPECT_EQ(wrong_with({"--quick"}),
            "boat: there is no option \"--quick\"; boat --help lists what there is\n");
  EXPECT_EQ(wrong_with({"keys"}), "boat: A subcommand is required\nboat keys --help says how\n");
}

TEST_F(ArgumentParsing, CommandsCanBeListed) {
  EXPECT_THAT(program_.subcommands(), IsEmpty());
  program_.subcommand("keys", "Of the boat").subcommand("show", "Print them");
  ASSERT_EQ(program_.subcommands().size(), 1U);
  EXPECT_EQ(program_.subcommands().front().name(), "keys");
  EXPECT_EQ(program_.subcommands().front().subcommands().front().name(), "show");
}

TEST_F(ArgumentParsing, HelpTellsDefaultsAndBounds) {
  int number = 3;
  std::string path;
  const auto row = program_.subcommand("row", "Without wind");
  row.option("--number", number, "Of oars").in_range(1, 8).shows_default();
  row.option("--log", path, "Where it is written").type_name("FILE");
  row.footer("Example:\n  boat row");
  EXPECT_EQ(output_of({"row", "--help"}), R"(Without wind
Usage: boat row [OPTIONS]

Options:
  -h,--help             Print this help
  --number INT:INT in [1 - 8]=3
                        Of oars
  --log FILE            Where it is written

Example:
  boat row
)");
}

TEST_F(ArgumentParsing, TellsItsVersion) { EXPECT_EQ(output_of({"--version"}), "boat 1.2\n"); }

}  // namespace
}  // namespace isthmus::launcher
