#include "launcher/site_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/thread_pool.h"
#include "launcher/site_check.h"
#include "launcher/site_document.h"
#include "launcher/site_meaning.h"
#include "launcher/site_memory.h"
#include "launcher/site_schema.h"
#include "launcher/sites_together.h"
#include "runtime/model.h"
#include "runtime/model_description.h"
#include "runtime/safetensors.h"
#include "security/identity.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A file without faults; tests change lines of it.
constexpr std::string_view kGood = R"([site]
name = "alpha"
run_dir = "run"

[model]
layers = 6
hidden = 256
heads = 8
kv_heads = 4
ffn = 704

[data]
train = [{ path = "en.bin" }, { path = "/abs/de.bin", weight = 2 }]
held_out = [{ name = "en", path = "en.held.bin" }]

[train]
learning_rate = 2e-3
warmup_steps = 20
cpus = "0-1"
threads = 2

[sync]
inner_steps = 10
outer_steps = 24
straggler_wait = "1 min"

[gateway]
rate_limit = "20 Mbit/s"
memory = "1 GiB"
)";

const Machine kMachine{.cpus = {0, 1, 2, 3}, .unix_time = 0};

std::string replaced(std::string_view from, std::string_view to) {
  std::string text{kGood};
  const auto place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

SiteText checked(std::string source, std::vector<std::string> overrides = {}) {
  auto text = parse_site_text("site.toml", std::move(source), overrides);
  if (text.is_toml) check_values(text, kMachine);
  return text;
}

// The sentence of the only fault.
std::string only_fault(const SiteText& text) {
  EXPECT_EQ(text.faults.size(), 1U) << text.fault_text();
  return text.faults.empty() ? "" : text.faults.sorted().front().message;
}

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
  EXPECT_EQ(only_fault(checked(replaced("[sync]", "[mesh]\ntensor = 2\n[sync]"))),
            "mesh.tensor must be 1 in this version, not 2");
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
// What the table allows the runtime takes: else a file that checks would fail when it is launched.
TEST(SiteCheck, TheRangesOfAModelAreTheRuntimes) {
  for (const auto& key : site_keys()) {
    if (key.section != "model" || key.max == 0) continue;
    for (const double value : {key.above_min ? key.min * (1 + 1e-6) + 1e-9 : key.min, key.max}) {
      const auto written = key.kind == ValueKind::whole_number
                               ? std::to_string(static_cast<std::int64_t>(value))
                               : fmt::format("{:e}", value);
      const auto text = checked(std::string(kGood), {key.full_name() + "=" + written});
      EXPECT_TRUE(!text.faults.empty() || runtime::check(text.file.model.config))
          << key.full_name() << " = " << written;
    }
  }
  for (const char* wrong : {"vocabulary = 4194305", "vocabulary = 255", "rope_theta = 1e12"}) {
    const auto text = checked(replaced("layers = 6", std::string("layers = 6\n") + wrong));
    ASSERT_EQ(text.faults.size(), 1U) << wrong;
    EXPECT_EQ(text.faults.sorted().front().region.line, 7U) << wrong;
    EXPECT_GT(text.faults.sorted().front().region.column, 1U) << wrong;
  }
}

// Should the table and the runtime ever differ.
TEST(SiteCheck, WhatTheRuntimeRefusesIsAFaultAtItsKey) {
  auto text = parse_site_text("site.toml", replaced("ffn = 704", "ffn = 704\nnorm_eps = 0.01"));
  text.file.model.config.norm_eps = 2;
  check_values(text, kMachine);
  EXPECT_EQ(only_fault(text),
            "[model] cannot be trained: norm_eps is 2, but must be between 0 and 1");
  EXPECT_EQ(text.faults.sorted().front().region.line, 11U);
}

class SiteFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "model");
    write("text", std::string(257, 'x'));
    write("short", std::string(256, 'x'));
    write("model/config.json", config(260, 512));
    write_weights();
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  // Of the model that config() describes.
  void write_weights() const {
    const auto disk = make_system_disk();
    ThreadPool pool({-1});
    const auto described = runtime::from_config_json(config(260, 512));
    const auto model = *runtime::Model::create(*described, {.micro_batch = 1, .sequence = 1}, pool);
    std::vector<runtime::TensorToStore> tensors;
    for (std::size_t i = 0; i < model->tensors().size(); ++i)
      tensors.push_back(
          {model->tensors()[i].name, model->tensors()[i].shape, model->parameters(i)});
    std::filesystem::remove(folder_ / "model/model.safetensors");
    ASSERT_TRUE(
        runtime::write_safetensors(*disk, folder_ / "model/model.safetensors", tensors, {}));
  }

  static std::string config(int vocabulary, int context) {
    return fmt::format(
        R"({{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2,
"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
"vocab_size": {}, "max_position_embeddings": {}, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
"hidden_act": "silu", "tie_word_embeddings": true}})",
        vocabulary, context);
  }

  // All that is wrong with a site that trains `text` from the model.
  std::string faults(const std::string& text, std::vector<std::string> overrides = {}) const {
    auto site = parse_site_text(folder_ / "site.toml",
                                fmt::format(R"([site]
name = "alpha"
run_dir = "run"
[model]
from = "model"
[data]
train = [{{ path = "{}" }}]
[sync]
inner_steps = 10
outer_steps = 24
)",
                                            text),
                                overrides);
    const auto disk = make_system_disk();
    const auto site_checked = check_site(std::move(site), *disk, machine_);
    return site_checked.text.fault_text() + site_checked.roster_faults;
  }

  const TemporaryFolder folder_;
  Machine machine_ = kMachine;
};

TEST_F(SiteFiles, TextMustHoldASequence) {
  EXPECT_EQ(faults("text"), "");
  EXPECT_THAT(
      faults("short"),
      AllOf(HasSubstr("site.toml:7:"),
            HasSubstr("has 256 bytes, but one sequence of train.sequence = 256 tokens needs "
                      "257")));
}

TEST_F(SiteFiles, TheModelThatIsThereMustFit) {
  EXPECT_THAT(faults("text", {"train.sequence=600"}), HasSubstr("600 is longer than "
                                                                "max_position_embeddings of "
                                                                "model.from = 512"));
  write("model/config.json", config(100, 512));
  EXPECT_THAT(faults("text"), AllOf(HasSubstr("site.toml:5:"),
                                    HasSubstr("its vocabulary is 100, but text is read as bytes")));
  write("model/config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_THAT(faults("text"), HasSubstr("model.from: "));
  write("model/config.json", config(261, 512));
  EXPECT_THAT(faults("text"), HasSubstr("has shape [260, "));
  write("model/config.json", config(260, 512));
  write("model/model.safetensors", "short");
  EXPECT_THAT(faults("text"), HasSubstr("shorter than any safetensors file"));
  std::filesystem::remove(folder_ / "model/model.safetensors");
  EXPECT_THAT(faults("text"), HasSubstr("there is no"));
  std::filesystem::remove(folder_ / "model/config.json");
  EXPECT_THAT(faults("text"), AllOf(HasSubstr("model.from: "), HasSubstr("config.json")));
}

// Each thing that a site trusts is looked at for itself.
TEST_F(SiteFiles, AllFaultsOfTrustAreToldAtOnce) {
  const auto disk = make_system_disk();
  const auto key = folder_ / "alpha.key";
  ASSERT_TRUE(security::Identity::generate().save(*disk, key));
  std::filesystem::permissions(key, std::filesystem::perms(0644));
  write("roster.toml", "epoch = 0\nexpires = 2100-01-01\n");
  const auto wrong = faults("none", {"site.roster=roster.toml", "site.operator_key=zz",
                                     "site.identity=alpha.key", "train.micro_batch=0"});
  for (const char* part :
       {"site.operator_key: \"", "chmod 600 ", "there is no ", "micro_batch must be"})
    EXPECT_THAT(wrong, HasSubstr(part));
  EXPECT_THAT(wrong, Not(HasSubstr("epoch"))) << "what nobody signed is not parsed";
  std::filesystem::remove(key);
  EXPECT_THAT(faults("text", {"site.roster=roster.toml", "site.operator_key=zz",
                              "site.identity=alpha.key"}),
              AllOf(HasSubstr("alpha.key: No such file"), HasSubstr("isthmus keys generate")));
}

TEST_F(SiteFiles, AModelLargerThanTheMachineIsRefused) {
  const auto fits = [this](double bytes) {
    machine_.memory_bytes = bytes;
    return faults("text");
  };
  EXPECT_EQ(fits(1e9), "");
  EXPECT_THAT(fits(1e5), AllOf(HasSubstr("site.toml:4:1"),
                               HasSubstr(" of memory, and this machine has 100 kB: use a smaller "
                                         "model")));
}

// Its sums do not fit 64 bits.
TEST(SiteMemory, NothingIsTooLargeToBeRefused) {
  auto file = checked(std::string(kGood)).file;
  file.model.config.layers = 1024;
  file.model.config.hidden = 1 << 16;
  file.model.config.ffn_width = 1 << 20;
  file.model.config.sequence_max = file.train.sequence = 1 << 20;
  file.train.micro_batch = 65536;
  EXPECT_GT(memory_of(file, 1).rank, 1e20);
}

TEST_F(SiteFiles, AFileNamedTwiceIsRefused) {
  write("alpha.toml", std::string(kGood));
  const std::vector<std::string> paths = {folder_ / "alpha.toml", folder_ / "./alpha.toml"};
  const auto sites = load_checked_sites(paths, {});
  ASSERT_FALSE(sites);
  EXPECT_EQ(sites.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(sites.error().text(), HasSubstr("is named twice"));
}

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

TEST(SiteSchema, TheStartingFileIsReadable) {
  const auto text = checked(starting_site_file({}));
  EXPECT_EQ(text.fault_text(), "");
  EXPECT_EQ(text.file.gateway.rate_limit, 0);
  EXPECT_EQ(text.file.sync.min_sites, 2);
}

TEST(SiteSchema, EveryDefaultIsAllowed) {
  for (const auto& key : site_keys()) {
    EXPECT_FALSE(key.meaning.empty()) << key.full_name();
    EXPECT_FALSE(key.allowed().empty()) << key.full_name();
    if (key.default_text().empty()) continue;
    const auto source = "[" + std::string(key.section) + "]\n" + std::string(key.name) + " = " +
                        key.default_text() + "\n";
    const auto text = parse_site_text("default.toml", source);
    for (const auto& fault : text.faults.sorted())
      EXPECT_THAT(fault.message, HasSubstr("needs")) << source;
  }
}

TEST(Cpus, Lists) {
  EXPECT_THAT(*parse_cpus("0"), ElementsAre(0));
  EXPECT_THAT(*parse_cpus("0-2,7, 9-10"), ElementsAre(0, 1, 2, 7, 9, 10));
  for (const char* wrong : {"", "-1", "1-", "2-1", "1,1", "1,0", "a", "1,", "0-99999", "1 2"})
    EXPECT_EQ(parse_cpus(wrong), std::nullopt) << wrong;
}

TEST(Address, HostAndPort) {
  EXPECT_EQ(parse_address("alpha.example:7700")->host, "alpha.example");
  EXPECT_EQ(parse_address("[::1]:7700")->host, "::1");
  EXPECT_EQ(parse_address("*:7700")->port, 7700);
  for (const char* wrong :
       {"", ":", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "::1:7700", "a b:1"})
    EXPECT_EQ(parse_address(wrong), std::nullopt) << wrong;
}

security::Roster roster_of(const std::vector<bool>& voters) {
  static constexpr std::array kNames = {"alpha", "beta", "gamma", "delta"};
  security::Roster roster;
  for (std::size_t i = 0; i < voters.size(); ++i)
    roster.sites.push_back({.id = static_cast<std::uint32_t>(i + 1),
                            .name = kNames[i],
                            .voter = voters[i],
                            .identity = {},
                            .gateways = {}});
  return roster;
}

SyncOptions sync_of(std::int64_t min_sites) {
  SyncOptions sync;
  sync.inner_steps = 10;
  sync.outer_steps = 24;
  sync.min_sites = min_sites;
  return sync;
}

TEST(LossLines, TwoEqualVoters) {
  EXPECT_THAT(
      loss_lines(roster_of({true, true}), sync_of(2)),
      ElementsAre(
          "the run begins when all 2 voters are here",
          "if any one of alpha and beta is lost: nothing commits until it returns: 1 of 2 "
          "voters is no majority. Each other site trains on for 10 inner steps past the last "
          "agreed state, then waits",
          "to let one site go on without the other, give it the only vote (voter = false at "
          "the other, in the roster) and set min_sites = 1"));
}

TEST(LossLines, OneVoterOfTwo) {
  EXPECT_THAT(loss_lines(roster_of({true, false}), sync_of(1)),
              ElementsAre("if alpha is lost: nothing commits until it returns: 0 of 1 voter is no "
                          "majority. Each other site trains on for 10 inner steps past the last "
                          "agreed state, then waits",
                          "if beta is lost: the others go on; its work is used when it returns"));
}

TEST(LossLines, ThreeVotersAndMinSites) {
  EXPECT_THAT(loss_lines(roster_of({true, true, true}), sync_of(2)),
              ElementsAre("the run begins when all 3 voters are here",
                          "if any one of alpha, beta and gamma is lost: the others go on; its work "
                          "is used when it returns",
                          "voters that may be lost at the same time: 1"));
  EXPECT_THAT(loss_lines(roster_of({true, true, true}), sync_of(3)),
              ElementsAre("the run begins when all 3 voters are here",
                          "if any one of alpha, beta and gamma is lost: nothing commits until it "
                          "returns: min_sites = 3, and 2 sites are left",
                          "voters that may be lost at the same time: 1"));
}

TEST(CheckTogether, SharedKeysMustBeEqual) {
  std::vector<CheckedSite> sites;
  sites.push_back({checked(std::string(kGood))});
  auto other = parse_site_text(
      "beta.toml",
      replaced("name = \"alpha\"\nrun_dir = \"run\"", "name = \"beta\"\nrun_dir = \"b\""),
      std::vector<std::string>{"sync.inner_steps=20"});
  sites.push_back({std::move(other)});
  check_together(sites);
  EXPECT_TRUE(sites[0].fault_free());
  EXPECT_EQ(only_fault(sites[1].text),
            "sync.inner_steps = 20 here and 10 in site.toml; it must be equal at all sites");
}

TEST(CheckTogether, PortsMustDifferWhateverTheyAreFor) {
  const auto faults = [](const std::string& gateway, const std::string& other_gateway) {
    std::vector<CheckedSite> sites;
    sites.push_back(
        {parse_site_text("alpha.toml", replaced("[gateway]", "[gateway]\n" + gateway))});
    auto other =
        replaced("name = \"alpha\"\nrun_dir = \"run\"", "name = \"beta\"\nrun_dir = \"b\"");
    other.replace(other.find("[gateway]"), 9, "[gateway]\n" + other_gateway);
    sites.push_back({parse_site_text("beta.toml", other)});
    check_together(sites);
    return sites[1].text.fault_text();
  };
  EXPECT_EQ(faults("listen = \"127.0.0.1:7700\"", "listen = \"127.0.0.1:7702\""), "");
  EXPECT_EQ(faults("listen = \"10.0.0.5:7700\"", "metrics = \"127.0.0.1:7701\""), "");
  EXPECT_THAT(faults("listen = \"127.0.0.1:7700\"", "listen = \"127.0.0.1:7699\""),
              HasSubstr("gateway.listen needs port 7700 (it uses its own and the next), which "
                        "gateway.listen takes in alpha.toml"));
  EXPECT_THAT(faults("listen = \"*:7700\"", "metrics = \"127.0.0.1:7701\""),
              HasSubstr("gateway.metrics needs port 7701, which gateway.listen takes in alpha"));
}

TEST(CheckTogether, NamesAndFoldersMustDiffer) {
  std::vector<CheckedSite> sites;
  sites.push_back({checked(std::string(kGood))});
  sites.push_back(
      {parse_site_text("beta.toml", replaced("run_dir = \"run\"", "run_dir = \"x/../run\""))});
  check_together(sites);
  EXPECT_TRUE(sites[0].fault_free());
  EXPECT_THAT(sites[1].text.fault_text(),
              AllOf(HasSubstr("beta.toml:2:8: error: site.name is the same as in site.toml"),
                    HasSubstr("beta.toml:3:11: error: site.run_dir is the same folder as in")));
}

}  // namespace
}  // namespace isthmus::launcher
