#include "launcher/site_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/thread_pool.h"
#include "launcher/roster_file.h"
#include "launcher/site_schema.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/model.h"
#include "runtime/model_description.h"
#include "runtime/safetensors.h"
#include "runtime/token_file.h"
#include "security/identity.h"
#include "security/roster_memory.h"
#include "security/roster_signature.h"
#include "tests/base/temporary_folder.h"
#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  for (const char* wrong :
       {"vocabulary = 4194305", "vocabulary = 255", "rope_theta = 1e12", "head_dim = 15"}) {
    const auto text = checked(replaced("layers = 6", std::string("layers = 6\n") + wrong));
    ASSERT_EQ(text.faults.size(), 1U) << wrong;
    EXPECT_EQ(text.faults.sorted().front().region.line, 7U) << wrong;
    EXPECT_GT(text.faults.sorted().front().region.column, 1U) << wrong;
  }
}

// Which only a llama's must be.
TEST(SiteCheck, HeadsDivideTheWidthUnlessTheirSizeIsGiven) {
  const auto odd = [](std::string_view family, std::string_view more) {
    return checked(
        replaced("layers = 6", fmt::format("layers = 6\nfamily = \"{}\"\n{}", family, more)),
        {"model.hidden=260"});
  };
  EXPECT_TRUE(odd("qwen3", "head_dim = 32").faults.empty());
  for (const auto& text : {odd("qwen3", ""), odd("llama", ""), odd("llama", "head_dim = 32")})
    EXPECT_THAT(only_fault(text), testing::HasSubstr("does not divide model.hidden = 260"));
}

TEST(SiteCheck, ExpertsBelongToAFamilyThatHasThem) {
  const auto with = [](std::string_view family, std::string_view more) {
    return checked(
        replaced("layers = 6", fmt::format("layers = 6\nfamily = \"{}\"\n{}", family, more)));
  };
  EXPECT_TRUE(with("mixtral", "experts = 8\nexperts_per_token = 2").faults.empty());
  EXPECT_TRUE(with("qwen3_moe",
                   "experts = 8\nexperts_per_token = 2\nexpert_ffn = 96\n"
                   "dense_layers = \"0,4-5\"\nnormalise_top_k = false")
                  .faults.empty());
  EXPECT_EQ(only_fault(with("mixtral", "experts = 8")),
            "model.family = \"mixtral\" needs model.experts_per_token");
  EXPECT_EQ(only_fault(with("llama", "experts = 8")),
            "model.experts has no effect on a llama: families with experts are mixtral, qwen3_moe, "
            "qwen2_moe");
  EXPECT_TRUE(with("qwen2_moe", "experts = 8\nexperts_per_token = 2\nshared_expert_ffn = 9")
                  .faults.empty());
  EXPECT_EQ(only_fault(with("qwen2_moe", "experts = 8\nexperts_per_token = 2")),
            "model.family = \"qwen2_moe\" needs model.shared_expert_ffn");
  EXPECT_THAT(
      only_fault(with("mixtral", "experts = 8\nexperts_per_token = 2\nshared_expert_ffn = 9")),
      testing::HasSubstr("only a qwen2_moe"));
  EXPECT_THAT(only_fault(with("mixtral", "experts = 4\nexperts_per_token = 5")),
              testing::HasSubstr("experts_per_token is 5"));
  EXPECT_THAT(only_fault(with("mixtral", "experts = 4\nexperts_per_token = 1\nexpert_ffn = 9")),
              testing::HasSubstr("as wide as ffn"));
  EXPECT_THAT(
      only_fault(with("qwen3_moe", "experts = 4\nexperts_per_token = 1\ndense_layers = \"0-5\"")),
      testing::HasSubstr("dense_layers"));
  EXPECT_THAT(only_fault(checked(replaced("[data]", "[experts]\nz = 0.1\n[data]"))),
              testing::HasSubstr("experts.z has no effect on a llama"));
}

TEST(SiteCheck, AnEncoderHasKeysOfItsOwn) {
  const auto with = [](std::string_view family, std::string_view more) {
    auto text =
        replaced("layers = 6", fmt::format("layers = 6\nfamily = \"{}\"\n{}", family, more));
    if (const auto at = text.find("kv_heads = 4\n"); family == "bert" && at != std::string::npos)
      text.erase(at, 13);
    return checked(text);
  };
  const auto text = with("bert", "dropout = 0.1\nattention_dropout = 0.2");
  EXPECT_TRUE(text.faults.empty());
  EXPECT_EQ(text.file.model.config.token_types, 2);
  for (const auto* key : {"rope_theta = 5000", "kv_heads = 2", "head_dim = 64", "tied = true"})
    EXPECT_THAT(only_fault(with("bert", key)), testing::HasSubstr("has no effect on a bert"));
  for (const auto* key : {"token_types = 2", "dropout = 0.1", "attention_dropout = 0.1"})
    EXPECT_THAT(only_fault(with("llama", key)), testing::HasSubstr("which is no encoder"));
}

TEST(SiteCheck, MaskingBelongsToAFamilyThatPredictsHiddenTokens) {
  for (const auto* key : {"share = 0.3", "token = 259"})
    EXPECT_EQ(only_fault(checked(replaced("[train]", fmt::format("[masking]\n{}\n[train]", key)))),
              fmt::format("masking.{} has no effect on a llama, which predicts the next token and "
                          "hides none",
                          std::string_view(key, 5)));
  EXPECT_TRUE(checked(replaced("[train]", "[masking]\n[train]")).faults.empty());
  for (const auto* wrong : {"share = 0", "share = 1", "share = -0.1", "token = -1"})
    EXPECT_FALSE(
        checked(replaced("[train]", fmt::format("[masking]\n{}\n[train]", wrong))).faults.empty())
        << wrong;
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

TEST_F(SiteFiles, ARunFolderThatCannotBeMade) {
  EXPECT_EQ(faults("text", {"site.run_dir=new/below"}), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new")) << "nothing is left behind";
  EXPECT_THAT(faults("text", {"site.run_dir=/proc/run"}),
              HasSubstr("site.run_dir: cannot make /proc/run: cannot write in /proc ("));
  EXPECT_THAT(faults("text", {"site.run_dir=text/run"}), HasSubstr("text is no folder"));
}

TEST_F(SiteFiles, ACongestionControlThatIsASlip) {
  machine_.congestion_controls = {"reno", "cubic"};
  const auto written = [this](const std::string& name) {
    return faults("text", {"gateway.congestion_control=" + name});
  };
  EXPECT_THAT(written("brr"),
              HasSubstr("gateway.congestion_control = \"brr\" is none that Linux or "
                        "this machine has; did you mean \"bbr\"?"));
  EXPECT_THAT(written("cubci"), HasSubstr("did you mean \"cubic\"?"));
  EXPECT_THAT(written("a name of several words"), HasSubstr("can be no name of one"));
  for (const char* fine : {"bbr", "cubic", "westwood", "system", "tsunami"})
    EXPECT_EQ(written(fine), "") << fine;
  machine_.congestion_controls.push_back("brr");
  EXPECT_EQ(written("brr"), "") << "a module of somebody's own";
}

TEST_F(SiteFiles, AnAddressThatIsNoneAnywhere) {
  const auto written = [this](const std::string& address) {
    return faults("text", {"gateway.metrics=" + address});
  };
  for (const char* wrong : {"300.1.1.1:9464", "1.2.3:9464", "1.2.3.4.5:9464", "[1::2::3]:9464",
                            "-gate:9464", "a..b:9464"})
    EXPECT_THAT(written(wrong), HasSubstr("is neither an address nor a name")) << wrong;
  for (const char* fine : {"*:9464", "[::1]:9464", "[fe80::1%eth0]:9464", "no-such.invalid:9464",
                           "eth0:9464", "10.0.0.1:9464"})
    EXPECT_EQ(written(fine), "") << fine;
}

TEST(SiteCheck, AGatewayListensAtAnAddressInNumbers) {
  const auto listening = [](const std::string& address) {
    return checked(
        replaced("[gateway]", fmt::format("[gateway]\nlisten = \"{}\"", address)),
        {"site.roster=roster.toml", "site.identity=alpha.key", "site.operator_key=op.pub"});
  };
  for (const char* name : {"localhost:7700", "alpha.example:7700", "eth0:7700"})
    EXPECT_THAT(only_fault(listening(name)), HasSubstr("listens at an address in numbers: as "
                                                       "\"0.0.0.0:7700\" for all addresses"))
        << name;
  EXPECT_THAT(only_fault(listening("300.1.1.1:7700")), HasSubstr("neither an address nor a name"));
  for (const char* number :
       {"10.0.0.1:7700", "0.0.0.0:7700", "*:7700", "[::1]:7700", "[fe80::1%eth0]:7700"})
    EXPECT_TRUE(listening(number).faults.empty()) << number;
}

TEST_F(SiteFiles, TheTokenizerMustBeOneThatModelAndFilesKnow) {
  write("model/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_THAT(faults("text"), AllOf(HasSubstr("model.from: "), HasSubstr("Unigram")));
  std::filesystem::remove(folder_ / "model/tokenizer.json");
  EXPECT_THAT(faults("text", {"model.tokenizer=" + (folder_ / "none")}),
              AllOf(HasSubstr("model.tokenizer: "), HasSubstr("none")));
  write("text.json", runtime::to_json({.tokenizer = "4f", .tokenizer_name = "one", .tokens = 257}));
  EXPECT_THAT(faults("text"),
              AllOf(HasSubstr("data.train: "), HasSubstr("prepared with another tokenizer (one)")));
  write("text.json", "{}");
  EXPECT_THAT(faults("text"), HasSubstr("text.json"));
}

TEST_F(SiteFiles, DocumentsApartMustBeKnown) {
  const std::vector<std::string> apart{"data.documents=apart"};
  EXPECT_EQ(faults("text"), "");
  EXPECT_THAT(faults("text", apart),
              AllOf(HasSubstr("data.train: "), HasSubstr("where the documents of"),
                    HasSubstr("isthmus data prepare")));
  write("text.documents", std::string(8, '\0'));  // one, that begins at 0
  EXPECT_EQ(faults("text", apart), "");
  write("text.documents", "half");
  EXPECT_THAT(faults("text", apart), HasSubstr("prepare them again"));
}

// What was prepared is copied whole, or no rank could open it.
TEST_F(SiteFiles, WhatLiesBesideTokensMustBeThere) {
  const auto tokens = std::filesystem::file_size(folder_ / "text");
  for (const bool mask : {true, false}) {
    write("text.json",
          runtime::to_json({.tokenizer = runtime::make_byte_tokenizer()->digest().hex(),
                            .tokens = tokens,
                            .documents = 1,
                            .has_mask = mask,
                            .has_documents = !mask}));
    EXPECT_THAT(faults("text"),
                AllOf(HasSubstr("data.train: "), HasSubstr(mask ? "text.mask" : "text.documents")));
  }
  EXPECT_THAT(faults("none"), Not(HasSubstr("cannot open")));  // that it is not there is said once
}

TEST_F(SiteFiles, TheModelThatIsThereMustFit) {
  EXPECT_THAT(faults("text", {"train.sequence=600"}), HasSubstr("600 is longer than "
                                                                "max_position_embeddings of "
                                                                "model.from = 512"));
  write("model/config.json", config(100, 512));
  EXPECT_THAT(faults("text"),
              AllOf(HasSubstr("site.toml:5:"),
                    HasSubstr("the tokenizer (bytes) needs a vocabulary of at least "
                              "256, but the model has 100")));
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

// As the gateway would, which refuses it when it starts.
TEST_F(SiteFiles, ARosterThatTheSiteMayNotUseAnyMoreIsRefused) {
  const auto disk = make_system_disk();
  const auto identity = security::Identity::generate();
  ASSERT_TRUE(identity.save(*disk, folder_ / "alpha.key"));
  const auto operator_key = security::SigningKey::generate();
  const auto& part = identity.public_part();
  security::Roster roster{.epoch = 3,
                          .expires = kSecond,
                          .sites = {{.id = 1,
                                     .name = "alpha",
                                     .voter = true,
                                     .identity = part.identity,
                                     .gateways = {{.address = "",
                                                   .curve_key = part.curve_key,
                                                   .curve_signature = part.curve_signature}}}},
                          .digest = {}};
  const auto faults_with = [&](std::uint64_t epoch) {
    roster.epoch = epoch;
    const auto text = roster_text(roster);
    write("roster.toml", text);
    write("roster.toml.sig", *security::sign_roster(std::as_bytes(std::span(text)), operator_key));
    return faults("text", {"site.roster=roster.toml", "site.identity=alpha.key",
                           "site.operator_key=" + operator_key.public_key().hex()});
  };
  EXPECT_EQ(faults_with(3), "");
  std::filesystem::create_directories(folder_ / "run");
  const auto used = parse_roster_text("roster.toml", roster_text(roster)).roster.digest;
  ASSERT_TRUE(security::admit_roster(*disk, folder_ / "run", {.epoch = 3, .digest = used}));
  EXPECT_EQ(faults_with(3), "");
  EXPECT_THAT(faults_with(2), HasSubstr("this site has already used epoch 3"));
  roster.expires *= 2;
  EXPECT_THAT(faults_with(3), AllOf(HasSubstr("already used another roster of epoch 3"),
                                    HasSubstr("writes epoch = 4 in it and signs it again")));
  EXPECT_EQ(faults_with(4), "");
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

TEST_F(SiteFiles, AFileNamedTwiceIsRefused) {
  write("alpha.toml", std::string(kGood));
  const std::vector<std::string> paths = {folder_ / "alpha.toml", folder_ / "./alpha.toml"};
  const auto sites = load_checked_sites(paths, {});
  ASSERT_FALSE(sites);
  EXPECT_EQ(sites.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(sites.error().text(), HasSubstr("is named twice"));
}

}  // namespace
}  // namespace isthmus::launcher
