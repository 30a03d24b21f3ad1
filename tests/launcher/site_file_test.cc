#include "launcher/site_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/site_schema.h"
#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SiteFile, ReadsValuesDefaultsAndUnits) {
  const auto text = checked(std::string(kGood));
  EXPECT_EQ(text.fault_text(), "");
  const auto& file = text.file;
  EXPECT_EQ(file.site.name, "alpha");
  EXPECT_TRUE(file.alone());
  EXPECT_EQ(file.model.config.layers, 6);
  EXPECT_EQ(file.model.config.vocabulary, 260);
  ASSERT_EQ(file.data.train.size(), 2U);
  EXPECT_EQ(file.data.train[0].weight, 1);
  EXPECT_EQ(file.data.train[1].weight, 2);
  EXPECT_EQ(file.train.rate.peak, 2e-3);
  EXPECT_EQ(file.train.rate.steps, 240);
  EXPECT_THAT(file.train.cpus, ElementsAre(0, 1));
  EXPECT_EQ(file.sync.straggler_wait, 60 * kSecond);
  EXPECT_EQ(file.sync.codec, compress::CodecId::int8);
  EXPECT_EQ(file.gateway.rate_limit, 20'000'000);
  EXPECT_EQ(file.gateway.memory, 1 << 30);
  EXPECT_EQ(file.tokens_per_inner_step(), 8 * 256);
}

TEST(SiteFile, PathsAreRelativeToTheFile) {
  const auto text = parse_site_text("/runs/here/site.toml", std::string(kGood));
  EXPECT_EQ(text.file.site.run_dir, "/runs/here/run");
  EXPECT_EQ(text.file.data.train[0].path, "/runs/here/en.bin");
  EXPECT_EQ(text.file.data.train[1].path, "/abs/de.bin");
}

TEST(SiteFile, FewerKeyValueHeadsAreOptional) {
  EXPECT_EQ(checked(replaced("kv_heads = 4\n", "")).file.model.config.kv_heads, 8);
}

// What a user sees who has made six mistakes, one of them in a section whose name is another.
TEST(SiteFile, EveryFaultAtOnce) {
  const auto text = checked(R"([site]
name = "alpha"
run_dir = "run"

[model]
lyers = 6
hidden = 256
layers = 6
heads = 7
ffn = 704

[data]
train = [{ path = "en.bin", weight = -1 }]

[train]
precision = "fp32"

[sync]
inner_steps = 10
outer_steps = 24

[gatewy]
rate_limit = 20
)");
  EXPECT_EQ(text.fault_text(),
            R"(site.toml:6:1: error: [model] has no "lyers"; did you mean "layers"?
    6 | lyers = 6
      | ^~~~~
site.toml:9:9: error: model.heads = 7 does not divide model.hidden = 256; the nearest that do are 4 and 8
    9 | heads = 7
      |         ^
site.toml:13:38: error: data.train weight must be a number above 0, not -1
   13 | train = [{ path = "en.bin", weight = -1 }]
      |                                      ^~
site.toml:16:13: error: train.precision must be "f32" or "bf16"; did you mean "f32"?
   16 | precision = "fp32"
      |             ^~~~~~
site.toml:22:2: error: there is no section "gatewy"; did you mean "gateway"?
   22 | [gatewy]
      |  ^~~~~~
site.toml:23:14: error: gateway.rate_limit needs a unit: "64 kbit/s" to "10000 Gbit/s" or "unlimited", not 20
   23 | rate_limit = 20
      |              ^~
site.toml: 6 faults
)");
}

TEST(SiteFile, ALongLineIsShownAroundTheFault) {
  const std::string longer(150, 'x');
  const auto text = checked(replaced("layers = 6", "layers = 0  # " + longer)).fault_text();
  EXPECT_THAT(text, HasSubstr("layers = 0  # " + longer.substr(0, 86) + "…\n      |          ^\n"));
  const auto entry = fmt::format("train = [{{ path = \"{}.bin\", weight = -1 }}]", longer);
  const auto far =
      checked(replaced("train = [{ path = \"en.bin\" }, { path = \"/abs/de.bin\", weight = 2 }]",
                       entry))
          .fault_text();
  EXPECT_THAT(far, HasSubstr(" | …" + longer.substr(0, 79) + ".bin\", weight = -1 }]\n"));
  EXPECT_THAT(far, HasSubstr("      | " + std::string(96, ' ') + "^~\n"));
}

TEST(SiteFile, RateWindowsAreReadAndCheckedTogether) {
  const auto with = [](const std::string& windows) {
    return checked(std::string(kGood) + "zone = \"UTC\"\n" + windows);
  };
  const auto window = [](std::string_view from, std::string_view to, std::string_view rate) {
    return fmt::format("[[gateway.windows]]\nfrom = \"{}\"\nto = \"{}\"\nrate_limit = \"{}\"\n",
                       from, to, rate);
  };
  const auto good =
      with(window("08:00", "18:00", "5 Mbit/s") + window("22:00", "06:00", "unlimited"));
  EXPECT_TRUE(good.faults.empty()) << good.fault_text();
  ASSERT_EQ(good.file.gateway.windows.size(), 2U);
  EXPECT_EQ(good.file.gateway.windows[0].from, 480);
  EXPECT_EQ(good.file.gateway.windows[0].to, 1080);
  EXPECT_EQ(good.file.gateway.windows[0].rate_limit, 5'000'000);
  EXPECT_EQ(good.file.gateway.windows[1].rate_limit, 0);
  EXPECT_EQ(good.file.gateway.rate_limit_min(), 5'000'000);

  EXPECT_EQ(
      only_fault(with(window("08:00", "18:00", "5 Mbit/s") + window("17:59", "20:00", "1 Mbit/s"))),
      "[[gateway.windows]]: the window from \"17:59\" to \"20:00\" overlaps with the one from "
      "\"08:00\" to \"18:00\"; at any time one holds at most");
  EXPECT_EQ(only_fault(with(window("8:00", "18:00", "5 Mbit/s"))),
            "from = \"8:00\" of [[gateway.windows]] is no time of the day: hours and minutes with "
            "two digits each, from \"00:00\" to \"24:00\", as \"08:00\"; did you mean \"08:00\"?");
  EXPECT_THAT(only_fault(with(window("08:00", "late", "5 Mbit/s"))),
              AllOf(HasSubstr("to = \"late\""), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(only_fault(with("[[gateway.windows]]\nfrom = 8\nto = \"18:00\"\nrate_limit = "
                              "\"5 Mbit/s\"\n")),
              HasSubstr("from must be text (a time of the day in quotes, as \"08:00\")"));
  EXPECT_THAT(only_fault(with(window("24:00", "06:00", "5 Mbit/s"))),
              HasSubstr("a window from midnight on has from = \"00:00\""));
  EXPECT_EQ(only_fault(with(window("08:00", "08:00", "5 Mbit/s"))),
            "a window of [[gateway.windows]] from \"08:00\" to \"08:00\" is no time at all; the "
            "whole day is from = \"00:00\", to = \"24:00\"");
  EXPECT_EQ(
      only_fault(with(window("08:00", "18:00", "5 bit/s"))),
      "rate_limit of [[gateway.windows]] must be 64 kbit/s to 10000 Gbit/s or \"unlimited\", not "
      "\"5 bit/s\"");
  // All at once.
  EXPECT_EQ(with(window("08:00", "08:00", "5 bit/s")).faults.size(), 2U);
  EXPECT_EQ(with(window("8", "9", "5 bit/s")).faults.size(), 3U);
  EXPECT_THAT(
      only_fault(with("[[gateway.windows]]\nfrom = \"08:00\"\nrate_limit = \"5 Mbit/s\"\n")),
      HasSubstr("needs to: a time of the day"));
  EXPECT_THAT(only_fault(with(window("08:00", "18:00", "5 Mbit/s") + "until = 3\n")),
              HasSubstr("\"until\""));
  EXPECT_TRUE(with("").faults.empty()) << "it is the zone of what is printed, too";
  EXPECT_THAT(only_fault(checked(std::string(kGood) + "zone = \"Mars/Base\"\n" +
                                 window("08:00", "18:00", "5 Mbit/s"))),
              HasSubstr("gateway.zone = \"Mars/Base\" is no time zone that this machine knows:"));
  for (const std::string written : {"Berlin", "Europe/Berln", "europe/berlin"})
    EXPECT_THAT(only_fault(checked(std::string(kGood) + "zone = \"" + written + "\"\n")),
                HasSubstr("did you mean \"Europe/Berlin\"?"));
}

TEST(SiteFile, EachValueSaysWhatIsAllowed) {
  EXPECT_EQ(only_fault(checked(replaced("layers = 6", "layers = 0"))),
            "model.layers must be 1 to 1024 blocks, not 0");
  EXPECT_EQ(only_fault(checked(replaced("layers = 6", "layers = 6.5"))),
            "model.layers must be a whole number, 1 to 1024 blocks, written without a fraction or "
            "an exponent");
  EXPECT_THAT(only_fault(checked(replaced("heads = 8\n", "heads = 1e3\n"))),
              HasSubstr("must be a whole number, 1 to 1024 heads"));
  EXPECT_EQ(only_fault(checked(replaced("layers = 6", "layers = \"six\""))),
            "model.layers must be 1 to 1024 blocks, not \"six\"");
  EXPECT_EQ(only_fault(checked(replaced("= 2e-3", "= 0"))),
            "train.learning_rate must be above 0 to 10, not 0");
  EXPECT_EQ(only_fault(checked(replaced("= 2e-3", "= nan"))),
            "train.learning_rate must be above 0 to 10, not nan");
  EXPECT_EQ(
      only_fault(checked(replaced("\"20 Mbit/s\"", "20"))),
      "gateway.rate_limit needs a unit: \"64 kbit/s\" to \"10000 Gbit/s\" or \"unlimited\", not "
      "20");
  EXPECT_EQ(
      only_fault(checked(replaced("\"20 Mbit/s\"", "\"1 bit/s\""))),
      "gateway.rate_limit must be \"64 kbit/s\" to \"10000 Gbit/s\" or \"unlimited\", not \"1 "
      "bit/s\"");
  EXPECT_THAT(only_fault(checked(replaced("\"1 min\"", "\"1 m\""))),
              HasSubstr("\"m\" could be minutes or milliseconds"));
  EXPECT_EQ(only_fault(checked(std::string(kGood) + "congestion_control = \"\"\n")),
            "gateway.congestion_control is empty; leave it out for \"bbr\"");
  EXPECT_EQ(only_fault(checked(std::string(kGood) + "metrics = \"\"\n")),
            "gateway.metrics is empty; leave it out instead (left out: no endpoint)");
  EXPECT_EQ(only_fault(checked(replaced("\"0-1\"", "\"1-0\""))),
            "train.cpus must be a list like \"0-3,8\", not \"1-0\"");
  EXPECT_EQ(
      only_fault(checked(replaced("\"alpha\"", "\"al pha\""))),
      "site.name must be 1 to 64 letters (a-z, A-Z), digits, '.', '_' or '-', not \"al pha\"");
}

TEST(SiteFile, MissingKeysAreNamed) {
  EXPECT_EQ(only_fault(checked(replaced("inner_steps = 10\n", ""))),
            "[sync] needs inner_steps: Between two outer steps. Allowed: 1 to 1000000 inner steps");
  EXPECT_EQ(only_fault(checked(replaced("hidden = 256\n", ""))),
            "[model] needs hidden, or from = \"a Hugging Face directory\"");
}

// What its value is for is clear: it counts as one fault, and its value is checked.
TEST(SiteFile, AMisspeltNameIsNotTakenAsLeftOut) {
  EXPECT_EQ(only_fault(checked(replaced("hidden = 256", "hiden = 256"))),
            "[model] has no \"hiden\"; did you mean \"hidden\"?");
  const auto text = checked(replaced("[sync]\ninner_steps = 10", "[snyc]\niner_steps = 0"));
  EXPECT_THAT(text.fault_text(), HasSubstr("no section \"snyc\"; did you mean \"sync\"?"));
  EXPECT_THAT(text.fault_text(), HasSubstr("no \"iner_steps\"; did you mean \"inner_steps\"?"));
  EXPECT_THAT(text.fault_text(), HasSubstr("sync.inner_steps must be 1 to"));
  EXPECT_EQ(text.faults.size(), 3U) << text.fault_text();
  EXPECT_EQ(checked(std::string(kGood), {"snyc.codec=int9"}).fault_text(),
            "site.toml: error: --set: there is no section \"snyc\"; did you mean \"sync\"?\n"
            "site.toml: 1 fault\n");
}

TEST(SiteFile, MisplacedKeysAreSentHome) {
  EXPECT_EQ(only_fault(checked(replaced("[gateway]\n", "[gateway]\ncodec = \"int8\"\n"))),
            "[gateway] has no \"codec\"; it belongs in [sync]");
  EXPECT_EQ(only_fault(checked("micro_batch = 8\n" + std::string(kGood))),
            "\"micro_batch\" stands outside any section; it belongs in [train]");
  EXPECT_EQ(only_fault(checked("mesh = 4\n" + std::string(kGood))),
            "mesh must be a section: write [mesh] on a line of its own");
}

TEST(SiteFile, KeysMustFitTogether) {
  EXPECT_EQ(only_fault(checked(replaced("kv_heads = 4", "kv_heads = 3"))),
            "model.kv_heads = 3 does not divide model.heads = 8; the nearest that do are 2 and 4");
  EXPECT_EQ(only_fault(checked(replaced("hidden = 256", "hidden = 264"))),
            "model.hidden / model.heads = 33 is odd, but rotary positions turn pairs of elements; "
            "choose heads so that it is even");
  EXPECT_EQ(
      only_fault(checked(replaced("warmup_steps = 20", "warmup_steps = 241"))),
      "train.warmup_steps = 241 is more than the run has: sync.inner_steps x sync.outer_steps "
      "= 240");
  EXPECT_EQ(only_fault(checked(replaced("cpus = \"0-1\"", "cpus = \"2-5\""))),
            "train.cpus: there is no CPU 4-5 here; this process may use 0-3");
  EXPECT_EQ(only_fault(checked(replaced("threads = 2", "threads = 3"))),
            "train.threads = 3 is more than the 2 CPUs that train.cpus leaves each rank");
  EXPECT_EQ(only_fault(checked(replaced("[gateway]", "outer_rate = 0.5\n[gateway]"))),
            "sync.outer_rate has no effect unless sync.outer = \"nesterov\"");
  EXPECT_EQ(only_fault(checked(replaced("threads = 2", "threads = 2\nsequence = 4096"))),
            "train.sequence = 4096 is longer than model.context = 2048");
  EXPECT_EQ(only_fault(checked(replaced("threads = 2", "threads = 2\ndecay_steps = 4"))),
            "train.decay_steps has no effect unless train.schedule = \"wsd\"");
  EXPECT_EQ(only_fault(checked(replaced("threads = 2",
                                        "threads = 2\nfinal_rate = 0.1\nschedule = "
                                        "\"constant\""))),
            "train.final_rate has no effect with train.schedule = \"constant\"");
  EXPECT_EQ(
      only_fault(checked(replaced("held_out = [{ name = \"en\", path = \"en.held.bin\" }]", ""),
                         {"train.evaluate_every=5"})),
      "train.evaluate_every needs data.held_out: texts to judge by");
  EXPECT_EQ(only_fault(checked(replaced("threads = 2", "threads = 2\nspike = 0.5"))),
            "train.spike = 0.5 would skip every other step: 5 to 20 times the usual norm is "
            "common, 0 skips none");
  EXPECT_EQ(only_fault(checked(replaced("[sync]", "[mesh]\ntensor = 2\n[sync]"))),
            "mesh.tensor must be 1 in this version, not 2");
}

TEST(SiteFile, SomeTensorsHaveRatesOfTheirOwn) {
  const auto with = [](const std::string& rates) {
    return checked(replaced("threads = 2", "threads = 2\nschedule = \"wsd\"\nrates = " + rates));
  };
  const auto text =
      with("[{ tensors = \"*embed*\", factor = 0.1 }, { tensors = \"*\", factor = 2 }]");
  EXPECT_EQ(text.fault_text(), "");
  EXPECT_EQ(text.file.train.rate.shape, runtime::RateShape::wsd);
  ASSERT_EQ(text.file.train.rates.size(), 2U);
  EXPECT_EQ(text.file.train.rates[0].tensors, "*embed*");
  EXPECT_EQ(text.file.train.rates[0].factor, 0.1);
  EXPECT_EQ(text.file.train.rates[1].factor, 2);
  EXPECT_EQ(only_fault(with("[{ tensors = \"*embed*\" }]")),
            "train.rates factor must be a number above 0");
  EXPECT_EQ(only_fault(with("[{ tensors = \"*embed*\", factor = \"x\" }]")),
            "train.rates factor must be a number above 0, not \"x\"");
  EXPECT_EQ(only_fault(with("[{ tensors = \"*embed*\", factor = -1 }]")),
            "train.rates: the factor of \"*embed*\" is -1, but must be above 0: what is not to "
            "train at all is frozen");
  EXPECT_THAT(only_fault(with("[{ tensors = \"embed\", factor = 1 }]")),
              HasSubstr("train.rates: no tensor that trains fits \"embed\""));
  EXPECT_THAT(with("[{ tensor = \"*\", factor = 1 }]").fault_text(),
              HasSubstr("train.rates has no \"tensor\"; did you mean \"tensors\"?"));
  EXPECT_THAT(only_fault(with("0.5")), HasSubstr("a list of { tensors, factor }"));
}

TEST(SiteFile, ASyntaxErrorHasItsPlace) {
  const auto text = checked("[site]\nname = = 5\n");
  EXPECT_FALSE(text.is_toml);
  EXPECT_THAT(text.fault_text(), HasSubstr("site.toml:2:8: error: "));
  EXPECT_THAT(text.fault_text(), HasSubstr("    2 | name = = 5\n      |        ^\n"));
}

// The commonest slip: it is named as such, and hides no other.
TEST(SiteFile, ForgottenQuotesAreNamed) {
  auto source = replaced("name = \"alpha\"", "name = alpha  # here");
  const std::string_view steps = "inner_steps = 10";
  source.replace(source.find(steps), steps.size(), "inner_steps = 0");
  const auto text = checked(source);
  EXPECT_THAT(text.fault_text(), HasSubstr("error: text needs quotes: \"alpha\""));
  EXPECT_THAT(text.fault_text(), HasSubstr("sync.inner_steps must be"));
  EXPECT_EQ(text.faults.size(), 2U) << text.fault_text();
}

// Each is found by reading all of the file anew.
TEST(SiteFile, ManyForgottenQuotesTakeNoLongTime) {
  std::string source = "[site]\n";
  for (int i = 0; i < 20000; ++i) source += fmt::format("k{} = w\n", i);
  const auto text = parse_site_text("site.toml", source);
  EXPECT_FALSE(text.is_toml);
  EXPECT_LE(text.faults.size(), 30U);
  EXPECT_THAT(text.fault_text(), HasSubstr("other faults show once this is mended"));
}

// TOML++ frees nested tables by recursion.
TEST(SiteFile, AKeyOfManyPartsIsAFault) {
  std::string key = "a";
  for (int i = 0; i < 400000; ++i) key += ".a";
  for (const auto& source : {"[" + key + "]\n", key + " = 1\n", "[x]\ny = {" + key + " = 1}\n"})
    EXPECT_THAT(only_fault(parse_site_text("site.toml", source)), HasSubstr("parts"));
  // What is no key has as many dots as it likes.
  EXPECT_EQ(
      checked(replaced("run_dir = \"run\"", "run_dir = \"run" + std::string(40, '.') + "\" # " +
                                                std::string(40, '.') + " [1.5, 2.5]"))
          .fault_text(),
      "");
}

// TOML++ stops at its first fault, and that must not look like the only one.
TEST(SiteFile, ANumberThatNoIntegerHoldsSaysThatMoreMayFollow) {
  const auto text = checked(replaced("inner_steps = 10", "inner_steps = 99999999999999999999"));
  EXPECT_THAT(only_fault(text), AllOf(HasSubstr("not representable"),
                                      HasSubstr("other faults show once this is mended")));
}

TEST(SiteFile, OverridesReplaceKeys) {
  const auto text = checked(std::string(kGood), {"sync.outer_steps=8", "sync.codec = bf16",
                                                 "mesh.data=1", "gateway.rate_limit=unlimited"});
  EXPECT_EQ(text.fault_text(), "");
  EXPECT_EQ(text.file.sync.outer_steps, 8);
  EXPECT_EQ(text.file.sync.codec, compress::CodecId::bf16);
  EXPECT_EQ(text.file.gateway.rate_limit, 0);

  EXPECT_EQ(
      checked(std::string(kGood), {"sync.codec=int9"}).fault_text(),
      "site.toml: error: --set: sync.codec must be \"none\", \"bf16\" or \"int8\"; did you mean "
      "\"int8\"?\nsite.toml: 1 fault\n");
  EXPECT_EQ(checked(std::string(kGood), {"codec"}).fault_text(),
            "site.toml: error: --set: \"codec\": write it as section.key=value\nsite.toml: 1 "
            "fault\n");
}

// No text may crash the reader; what is no good says so.
TEST(SiteFile, EveryTruncationIsRead) {
  for (std::size_t n = 0; n < kGood.size(); ++n) {
    const auto text = checked(std::string(kGood.substr(0, n)));
    EXPECT_TRUE(n >= kGood.find("outer_steps = 24") || !text.faults.empty()) << n;
    EXPECT_EQ(text.fault_text().empty(), text.faults.empty());
  }
  for (const char* odd :
       {"site = [[]]", "[[site]]\n", "[site.name]\n", "data.train.x = 1", "\xff\xfe",
        "[data]\ntrain = [1, [], {}]", "[site]\nname = \"\\u0000\"", "a.b.c.d = {}"})
    EXPECT_FALSE(checked(odd).faults.empty()) << odd;
}

TEST(SiteFile, AnOverrideOfTextNeedsNoQuotes) {
  const auto text =
      parse_site_text("site.toml", std::string(kGood),
                      std::vector<std::string>{"gateway.cpus=1", "site.name=2027",
                                               "train.cpus=\"0-1\"", "gateway.zone=UTC"});
  EXPECT_EQ(text.fault_text(), "");
  EXPECT_EQ(text.file.gateway.cpus, std::vector<int>{1});
  EXPECT_EQ(text.file.train.cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(text.file.site.name, "2027");
  EXPECT_EQ(text.file.gateway.zone, "UTC");
  const auto number = parse_site_text("site.toml", std::string(kGood),
                                      std::vector<std::string>{"train.threads=two"});
  EXPECT_THAT(number.fault_text(), HasSubstr("train.threads must be"));
}

}  // namespace
}  // namespace isthmus::launcher
