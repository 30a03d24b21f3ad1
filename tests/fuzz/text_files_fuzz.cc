// Fuzz target: the JSON and the lines that programs read. The first byte chooses: a model's
// config.json, the index of its files, trainer.json (the text, or an object to which its checksum
// is added), a gateway's status, the traffic of a run, a line of the event log, a run's metrics, a
// line of seeds, an address, a record to train on, what stands beside a file of tokens.
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "base/clock.h"
#include "inter/status.h"
#include "inter/tcp_address.h"
#include "launcher/event_sentence.h"
#include "launcher/event_tail.h"
#include "launcher/report.h"
#include "launcher/seed_record.h"
#include "launcher/traffic.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/document_layout.h"
#include "runtime/metrics_log.h"
#include "runtime/model_description.h"
#include "runtime/stored_model.h"
#include "runtime/token_file.h"
#include "runtime/trainer_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace isthmus {
namespace {

enum Choice : std::uint8_t {
  config,
  trainer,
  checked_trainer,
  status,
  traffic,
  event,
  metrics,
  seed_line,
  address,
  model_index,
  record,
  token_facts,
  kChoices
};

template <class T>
void expect_clear(const Result<T>& result) {
  if (!result) ISTHMUS_ASSERT(!result.error().text().empty());
}

void check_config(std::string_view text) {
  const auto read = runtime::from_config_json(text);
  expect_clear(read);
  if (!read) return;
  ISTHMUS_ASSERT(runtime::parameter_count(*read) > 0);
  const auto again = runtime::from_config_json(runtime::to_config_json(*read));
  ISTHMUS_ASSERT(again && *again == *read);
}

void check_model_index(std::string_view text) {
  const auto read = runtime::parse_model_index(text);
  expect_clear(read);
  if (!read) return;
  for (const auto& [tensor, file] : *read)
    ISTHMUS_ASSERT(!file.empty() && file.find('/') == std::string::npos && file != "..");
}

void check_record(std::string_view line) {
  const auto read = runtime::parse_record(line);
  expect_clear(read);
  if (!read) return;
  runtime::Tokens tokens;
  const auto laid_out = runtime::lay_out(*read, *runtime::make_byte_tokenizer(), tokens);
  ISTHMUS_ASSERT(laid_out && tokens.ids.size() == tokens.targets.size());
}

void check_token_facts(std::string_view text) {
  const auto read = runtime::parse_token_file_facts(text);
  expect_clear(read);
  if (!read) return;
  const auto again = runtime::parse_token_file_facts(runtime::to_json(*read));
  ISTHMUS_ASSERT(again && *again == *read);
}

void check_trainer(std::string_view text) {
  const auto read = runtime::decode_trainer_file(text);
  expect_clear(read);
  if (!read) return;
  const auto again = runtime::decode_trainer_file(runtime::encode(*read));
  ISTHMUS_ASSERT(again && again->progress == read->progress && again->files == read->files);
}
void check_trainer_of(std::string_view object) {
  auto json = nlohmann::ordered_json::parse(object, nullptr, false);
  if (!json.is_object()) return;
  json.erase("blake2b");
  json["blake2b"] = security::blake2b(bytes_of(json.dump())).hex();
  check_trainer(json.dump());
}

void check_status(std::string_view text) {
  const auto read = inter::parse_status(text);
  expect_clear(read);
  if (!read) return;
  // What is no UTF-8 is replaced when it is written first.
  const auto second = inter::parse_status(inter::to_json(*read));
  ISTHMUS_ASSERT(second);
  const auto third = inter::parse_status(inter::to_json(*second));
  ISTHMUS_ASSERT(third && inter::to_json(*third) == inter::to_json(*second));
}

void check_traffic(std::string_view text) {
  const auto read = launcher::parse_traffic(text);
  expect_clear(read);
  if (!read) return;
  const auto written = launcher::to_json(*read);
  const auto again = launcher::parse_traffic(written);
  ISTHMUS_ASSERT(again && launcher::to_json(*again) == written);
  launcher::Report report;
  report.sites.emplace_back().traffic = *read;
  ISTHMUS_ASSERT(!launcher::to_text(report).empty() && !launcher::to_json(report).empty());
}

void check_event(const std::string& line) {
  if (const auto read = launcher::parse_event(line)) {
    ISTHMUS_ASSERT(!read->id.empty());
    (void)launcher::sentence_of(*read);
  }
}

// Those who read it want a path.
void check_metrics(std::string_view text) {
  static const int file = ::memfd_create("metrics", MFD_CLOEXEC);
  static const auto path = "/proc/self/fd/" + std::to_string(file);
  static const auto clock = make_system_clock();
  ISTHMUS_ASSERT(::ftruncate(file, 0) == 0 &&
                 ::pwrite(file, text.data(), text.size(), 0) == std::ssize(text));
  launcher::SiteReport report;
  launcher::read_metrics(path, 3, report);
  ISTHMUS_ASSERT(!launcher::to_text({.sites = {report}, .controls = {}}).empty());
  const auto log = runtime::MetricsLog::open(*clock, path);
  ISTHMUS_ASSERT(log);
  if (const auto& last = (*log)->last()) ISTHMUS_ASSERT(last->inner_step >= 0);
}

void check_seed_line(std::string_view line) {
  const auto read = launcher::parse_seed_line(line);
  if (!read) return;
  const auto written = read->line();
  const auto again =
      launcher::parse_seed_line(std::string_view(written).substr(0, written.size() - 1));
  ISTHMUS_ASSERT(again && again->line() == written);
}

void check_address(std::string_view text) {
  const auto read = inter::parse_tcp_address(text);
  expect_clear(read);
  if (read) ISTHMUS_ASSERT(!inter::lane_address(*read, inter::Lane::bulk).endpoint().empty());
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  const auto add = [&seeds](Choice choice, std::string_view text) {
    seeds.push_back(ByteWriter().put(choice).raw(bytes_of(text)).take());
  };
  runtime::ModelConfig model;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.ffn_width = 96;
  model.vocabulary = 260;
  add(config, runtime::to_config_json(model));
  add(config,
      R"({"model_type":"llama","vocab_size":260,"hidden_size":64,"intermediate_size":96,)"
      R"("num_hidden_layers":2,"num_attention_heads":4,"rope_parameters":{"rope_type":"default",)"
      R"("rope_theta":5e5},"rope_scaling":null})");
  runtime::TrainerFile trained;
  trained.progress.inner_step = 12;
  trained.trained_on.emplace();
  add(trainer, runtime::encode(trained));
  add(checked_trainer, runtime::encode(trained));
  inter::GatewayStatus gateway;
  gateway.site = "alpha";
  gateway.members = {"alpha", "beta"};
  gateway.links.resize(1);
  gateway.links[0].cap_mbit_s = 20;
  gateway.ranks.push_back({.state = "comp\"uting\n"});
  add(status, inter::to_json(gateway));
  add(status, R"({"site":"\u00e9\ud83d\ude00","unknown":[1,{"a":[true,null]}],"uptime_s":1e3})");
  launcher::Traffic carried;
  carried.links["beta"].waited_seconds["credit"] = 3;
  carried.links["beta"].observed_seconds = 4;
  carried.links["beta"].wire_sent_bytes = 1000000;
  add(traffic, launcher::to_json(carried));
  for (
      const std::string_view line :
      {R"({"time":12.5,"severity":"warning","event":"session_ended","site":"a","peer":"b","outer_step":3,"reason":"x"})",
       R"({"time":1,"severity":"info","event":"step_decided","site":"a","outer_step":4,"seconds":0.25,"parts":2})"})
    add(event, line);
  add(metrics,
      "{\"time\":1.5,\"kind\":\"inner_step\",\"inner_step\":1,\"tokens\":10,\"loss\":2.5,"
      "\"tokens_contributed\":0}\n{\"time\":2,\"kind\":\"merge\",\"outer_step\":1}\n"
      "{\"time\":3,\"kind\":\"resumed\",\"tokens\":10}\n{\"time\":4,\"kind\":\"inner_step\","
      "\"inner_step\":2,\"tokens\":20,\"tokens_contributed\":10}\n{\"torn");
  add(seed_line, "17 20345 12 61.250 held");
  add(seed_line, "18 345 1 6.5 failed a state was lost");
  for (const std::string_view text :
       {"alpha.example:7700", "[fe80::1]:7700", "*:1", "1.2.3.4:65535"})
    add(address, text);
  for (const std::string_view line :
       {R"({"text":"a \u00e9"})", R"({"prompt":"q","completion":"a","id":7})",
        R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})"})
    add(record, line);
  add(token_facts, runtime::to_json({.width = runtime::TokenWidth::four,
                                     .tokenizer = "4f",
                                     .tokens = 9,
                                     .targets = 3,
                                     .source = "a",
                                     .split = "b"}));
  return seeds;
}

}  // namespace isthmus

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  if (size == 0) return 0;
  const auto text = text_of(fuzz_input(data, size).subspan(1));
  switch (data[0] % kChoices) {
    case config:
      check_config(text);
      break;
    case trainer:
      check_trainer(text);
      break;
    case checked_trainer:
      check_trainer_of(text);
      break;
    case status:
      check_status(text);
      break;
    case traffic:
      check_traffic(text);
      break;
    case event:
      check_event(std::string(text));
      break;
    case metrics:
      check_metrics(text);
      break;
    case seed_line:
      check_seed_line(text);
      break;
    case address:
      check_address(text);
      break;
    case model_index:
      check_model_index(text);
      break;
    case record:
      check_record(text);
      break;
    case token_facts:
      check_token_facts(text);
  }
  return 0;
}
