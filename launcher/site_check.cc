#include "launcher/site_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "base/byte_stream.h"
#include "base/counted.h"
#include "base/host_form.h"
#include "base/machine_memory.h"
#include "base/thread_pool.h"
#include "launcher/host_here.h"
#include "launcher/nearest_name.h"
#include "launcher/roster_file.h"
#include "launcher/site_check_model.h"
#include "launcher/site_memory.h"
#include "launcher/site_schema.h"
#include "launcher/sites_together.h"
#include "launcher/units.h"
#include "runtime/family.h"
#include "security/identity.h"
#include "security/roster_memory.h"
#include "security/roster_signature.h"

namespace isthmus::launcher {
namespace {

class ValueCheck {
 public:
  ValueCheck(SiteText& text, const Machine& machine)
      : text_(text), file_(text.file), machine_(machine) {}

  void run() {
    site();
    model();
    lora();
    train();
    sync();
    gateway();
  }

 private:
  template <class... Values>
  void fault(std::string_view key, fmt::format_string<Values...> format, Values&&... values) {
    text_.faults.add(text_.region(key), fmt::format(format, std::forward<Values>(values)...));
  }

  bool written(std::string_view key) const { return text_.written(key); }

  void site() {
    if (file_.alone()) {
      for (const auto key : {"site.operator_key", "site.identity"})
        if (written(key) && !written("site.roster"))
          fault(key, "{} has no effect without site.roster: a site without a roster trains alone",
                key);
      if (written("gateway.listen") && !written("site.roster"))
        fault("gateway.listen",
              "gateway.listen has no effect without site.roster: a site without a roster trains "
              "alone");
      return;
    }
    if (!written("site.operator_key"))
      fault("site.roster",
            "site.roster needs site.operator_key: the public key that must have signed it, so that "
            "nobody else can name the sites");
    if (!written("site.identity"))
      fault("site.roster",
            "site.roster needs site.identity: this site's secret keys (`isthmus keys generate`)");
  }

  void model() {
    const auto before = text_.faults.size();
    const auto& model = file_.model.config;
    static constexpr std::array kShape = {"layers",
                                          "hidden",
                                          "heads",
                                          "kv_heads",
                                          "ffn",
                                          "vocabulary",
                                          "tied",
                                          "context",
                                          "family",
                                          "rope_theta",
                                          "norm_eps",
                                          "seed",
                                          "head_dim",
                                          "experts",
                                          "experts_per_token",
                                          "expert_ffn",
                                          "dense_layers",
                                          "normalise_top_k",
                                          "shared_expert_ffn",
                                          "token_types",
                                          "dropout",
                                          "attention_dropout"};
    if (written("model.from")) {
      for (const std::string_view key : kShape)
        if (const auto full = fmt::format("model.{}", key); written(full))
          fault(full, "{} must be left out: model.from says it already", full);
      return;
    }
    for (const std::string_view key : {"layers", "hidden", "heads", "ffn"})
      if (const auto full = fmt::format("model.{}", key); !written(full))
        fault(full, "[model] needs {}, or from = \"a Hugging Face directory\"", key);
    if (model.hidden <= 0 || model.heads <= 0) return;
    const auto* family = runtime::find_family(model.family);
    if (family != nullptr) experts(*family);
    if (family != nullptr) structure(*family);
    const bool rotates = family == nullptr || family->objective == runtime::Objective::next_token;
    const bool must_divide =
        !written("model.head_dim") || (family != nullptr && family->heads_divide_hidden);
    if (must_divide && model.hidden % model.heads != 0) {
      fault("model.heads", "model.heads = {} does not divide model.hidden = {}; {}", model.heads,
            model.hidden,
            !rotates ? near_divisors(model.hidden, model.heads)
            : model.hidden % 2 == 0
                ? near_divisors(model.hidden / 2, model.heads)
                : "choose an even model.hidden, as rotary positions turn pairs of elements");
    } else if (rotates && !written("model.head_dim") && model.hidden / model.heads % 2 != 0) {
      fault("model.heads",
            "model.hidden / model.heads = {} is odd, but rotary positions turn pairs of elements; "
            "choose heads so that it is even",
            model.hidden / model.heads);
    }
    if (model.kv_heads > 0 && model.heads % model.kv_heads != 0)
      fault("model.kv_heads", "model.kv_heads = {} does not divide model.heads = {}; {}",
            model.kv_heads, model.heads, near_divisors(model.heads, model.kv_heads));
    // What remains is a number outside what the runtime takes; said already when another is wrong.
    if (text_.faults.size() > before || faulty_model_key()) return;
    if (const auto valid = runtime::check(model); !valid)
      fault(key_named_in(valid.error().message), "[model] cannot be trained: {}",
            valid.error().text());
  }

  void experts(const runtime::Family& family) {
    const auto need = [&](std::string_view key, bool has) {
      if (has && !written(key))
        fault("model.family", "model.family = \"{}\" needs {}", family.name, key);
    };
    need("model.experts", family.has_experts);
    need("model.experts_per_token", family.has_experts);
    need("model.shared_expert_ffn", family.has_shared_expert);
    if (written("model.shared_expert_ffn") && family.has_experts && !family.has_shared_expert)
      fault(
          "model.shared_expert_ffn",
          "model.shared_expert_ffn has no effect on a {}: only a qwen2_moe has an expert that all "
          "tokens share",
          family.name);
    if (family.has_experts) return;
    for (const std::string_view key :
         {"model.experts", "model.experts_per_token", "model.expert_ffn", "model.dense_layers",
          "model.normalise_top_k", "model.shared_expert_ffn"})
      if (written(key))
        fault(key, "{} has no effect on a {}: families with experts are {}", key, family.name,
              fmt::join(runtime::family_names_with_experts(), ", "));
  }

  // What encoders have and decoders have not, and the other way round.
  void structure(const runtime::Family& family) {
    const auto refuse = [&](std::initializer_list<std::string_view> keys, std::string_view why) {
      for (const auto key : keys)
        if (written(key)) fault(key, "{} has no effect on a {}, {}", key, family.name, why);
    };
    if (family.objective == runtime::Objective::masked_tokens)
      refuse({"model.rope_theta", "model.kv_heads", "model.head_dim", "model.tied"},
             "which has learnt positions, heads that share nothing, and a head that is its "
             "embedding");
    else
      refuse({"model.token_types", "model.dropout", "model.attention_dropout"},
             "which is no encoder");
  }

  bool faulty_model_key() const {
    const auto faults = text_.faults.sorted();
    return std::any_of(site_keys().begin(), site_keys().end(), [&](const SiteKey& key) {
      if (key.section != "model" || !written(key.full_name())) return false;
      const auto place = text_.region(key.full_name());
      return std::any_of(faults.begin(), faults.end(),
                         [&place](const Fault& fault) { return fault.region.line == place.line; });
    });
  }

  // The runtime's sentences begin with the name of a field of ModelConfig.
  static std::string key_named_in(std::string_view sentence) {
    const auto field = sentence.substr(0, sentence.find(' '));
    if (field == "ffn_width") return "model.ffn";
    if (field == "sequence_max") return "model.context";
    if (field == "expert_width") return "model.expert_ffn";
    if (field == "shared_expert_width") return "model.shared_expert_ffn";
    return fmt::format("model.{}", field);
  }

  // "the nearest that do are 4 and 8".
  static std::string near_divisors(std::int64_t whole, std::int64_t wish) {
    std::int64_t below = std::min(wish, whole), above = wish;
    while (whole % below != 0) --below;
    while (above < whole && whole % above != 0) ++above;
    if (above >= whole && whole % std::max<std::int64_t>(above, 1) != 0) above = whole;
    if (below == above) return fmt::format("{} does", below);
    return fmt::format("the nearest that do are {} and {}", below, above);
  }

  void lora() {
    for (const std::string_view key : {"lora.alpha", "lora.targets", "lora.from"})
      if (written(key) && !written("lora.rank"))
        fault(key, "{} has no effect without lora.rank: there are no adapters", key);
    if (!written("lora.rank")) return;
    if (!written("model.from"))
      fault("lora.rank", "lora.rank needs model.from: the model that the adapters are beside");
    if (written("train.freeze"))
      fault("train.freeze",
            "train.freeze must be left out: beside adapters all of the model is frozen");
  }

  void train() {
    const auto& train = file_.train;
    if (!written("model.from")) check_context(text_);
    if (!written("model.from")) check_router(text_);
    if (!written("model.from")) check_masking(text_);
    const auto total = file_.inner_steps_total();
    if (written("train.warmup_steps") && total > 0 && train.rate.warmup_steps > total)
      fault("train.warmup_steps",
            "train.warmup_steps = {} is more than the run has: sync.inner_steps x "
            "sync.outer_steps = {}",
            train.rate.warmup_steps, total);
    if (written("train.decay_steps") && train.rate.shape != runtime::RateShape::wsd)
      fault("train.decay_steps", "train.decay_steps has no effect unless train.schedule = \"wsd\"");
    if (written("train.final_rate") && train.rate.shape == runtime::RateShape::constant)
      fault("train.final_rate",
            "train.final_rate has no effect with train.schedule = \"constant\"");
    if (train.evaluate_every > 0 && file_.data.held_out.empty())
      fault("train.evaluate_every", "train.evaluate_every needs data.held_out: texts to judge by");
    if (train.spike > 0 && train.spike <= 1)
      fault("train.spike",
            "train.spike = {} would skip every other step: 5 to 20 times the usual norm is common, "
            "0 skips none",
            train.spike);
    cpus("train.cpus", train.cpus);
    const auto ranks = static_cast<std::size_t>(file_.mesh.ranks());
    if (train.cpus.empty()) return;
    if (train.cpus.size() % ranks != 0)
      fault("train.cpus", "train.cpus has {}, which {} ranks cannot share evenly",
            counted(train.cpus.size(), "CPU"), ranks);
    else if (train.threads > static_cast<std::int64_t>(train.cpus.size() / ranks))
      fault("train.threads",
            "train.threads = {} is more than the {} that train.cpus leaves each rank",
            train.threads, counted(train.cpus.size() / ranks, "CPU"));
  }

  void cpus(std::string_view key, const std::vector<int>& wished) {
    std::vector<int> missing;
    std::set_difference(wished.begin(), wished.end(), machine_.cpus.begin(), machine_.cpus.end(),
                        std::back_inserter(missing));
    if (!missing.empty())
      fault(key, "{}: there is no CPU {} here; this process may use {}", key, ranges(missing),
            ranges(machine_.cpus));
  }

  static std::string ranges(const std::vector<int>& numbers) {
    std::string text;
    for (std::size_t i = 0; i < numbers.size();) {
      std::size_t end = i;
      while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
      text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
      if (end > i) text += fmt::format("-{}", numbers[end]);
      i = end + 1;
    }
    return text;
  }

  void sync() {
    if (file_.sync.outer == inter::OuterRuleKind::average)
      for (const auto key : {"sync.outer_rate", "sync.outer_momentum"})
        if (written(key)) fault(key, "{} has no effect unless sync.outer = \"nesterov\"", key);
    if (file_.sync.inner_steps > 0 && file_.inner_steps_total() > 1'000'000'000'000)
      fault("sync.outer_steps", "the run has more than 10^12 inner steps");
  }

  void gateway() {
    const auto& gateway = file_.gateway;
    cpus("gateway.cpus", gateway.cpus);
    const auto listen = parse_address(gateway.listen);
    const auto metrics = parse_address(gateway.metrics);
    for (const auto& [key, address] :
         {std::pair("gateway.listen", &listen), std::pair("gateway.metrics", &metrics)})
      if (*address && form_of_host((*address)->host) == HostForm::none)
        fault(key,
              "{}: \"{}\" is neither an address nor a name: as \"0.0.0.0:7700\" for all "
              "addresses of the gateway's machine, or \"10.0.0.1:7700\"",
              key, (*address)->host);
    if (listen && form_of_host(listen->host) == HostForm::name)
      fault("gateway.listen",
            "gateway.listen: \"{}\" is a name, but a gateway listens at an address in numbers: as "
            "\"0.0.0.0:{}\" for all addresses of its machine, or \"10.0.0.1:{}\"",
            listen->host, listen->port, listen->port);
    if (listen && metrics && same_host(*listen, *metrics) &&
        (metrics->port == listen->port || metrics->port == listen->port + 1))
      fault("gateway.metrics",
            "gateway.metrics uses port {}, which gateway.listen takes (it uses {} and {})",
            metrics->port, listen->port, listen->port + 1);
    if (!gateway.zone.empty() && !is_time_zone(gateway.zone)) {
      const auto near = near_time_zone(gateway.zone);
      fault("gateway.zone", "gateway.zone = \"{}\" is no time zone that this machine knows{}",
            gateway.zone,
            near ? fmt::format("; did you mean \"{}\"?", *near)
                 : ": \"UTC\", or a name as \"Europe/Berlin\" from /usr/share/zoneinfo (package "
                   "tzdata)");
    }
    congestion_control();
    if (!written("model.from") && runtime::check(file_.model.config) && check_tuning(text_))
      check_memory(text_);
  }

  // What it does not know may still be a module of the gateway's machine (site_doubts.h), but not
  // what is only a slip away from one that Linux has.
  void congestion_control() {
    static constexpr std::array<std::string_view, 20> kOfLinux = {
        "bbr",  "cubic",    "reno",     "bic",  "cdg",  "dctcp",    "highspeed",
        "htcp", "hybla",    "illinois", "lp",   "nv",   "scalable", "vegas",
        "veno", "westwood", "yeah",     "bbr2", "bbr3", "system"};
    constexpr std::size_t kLengthMax = 15;  // TCP_CA_NAME_MAX
    const auto& wanted = file_.gateway.congestion_control;
    if (std::ranges::find(kOfLinux, wanted) != kOfLinux.end() ||
        std::ranges::find(machine_.congestion_controls, wanted) !=
            machine_.congestion_controls.end())
      return;
    if (const auto near = nearest_name(wanted, kOfLinux))
      fault("gateway.congestion_control",
            "gateway.congestion_control = \"{}\" is none that Linux or this machine has; did you "
            "mean \"{}\"?",
            wanted, *near);
    else if (wanted.size() > kLengthMax || wanted.find_first_of(" \t,") != std::string::npos)
      fault("gateway.congestion_control",
            "gateway.congestion_control = \"{}\" can be no name of one: one word of at most {} "
            "letters, as in net.ipv4.tcp_available_congestion_control, or \"system\"",
            wanted, kLengthMax);
  }

  SiteText& text_;
  const SiteFile& file_;
  const Machine& machine_;
};

std::vector<std::string> congestion_controls() {
  std::ifstream in("/proc/sys/net/ipv4/tcp_available_congestion_control");
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace

Machine this_machine() {
  return {.cpus = available_cpus(),
          .unix_time = make_system_clock()->unix_time(),
          .memory_bytes = static_cast<double>(machine_memory_bytes()),
          .congestion_controls = congestion_controls(),
          .is_here = is_host_here};
}

void check_values(SiteText& text, const Machine& machine) { ValueCheck(text, machine).run(); }

namespace {

void check_against_roster(SiteText& text, const security::Roster& roster) {
  const auto& file = text.file;
  const auto* self = roster.find(file.site.name);
  if (file.site.name.empty()) {
    // A fault of its own.
  } else if (self == nullptr) {
    std::vector<std::string_view> names;
    for (const auto& site : roster.sites) names.push_back(site.name);
    text.faults.add(text.region("site.name"),
                    fmt::format("site.name = \"{}\" is not in the roster; it lists {}",
                                file.site.name, fmt::join(names, ", ")));
  } else {
    const bool has_address = std::any_of(
        self->gateways.begin(), self->gateways.end(),
        [](const security::RosterGateway& gateway) { return !gateway.address.empty(); });
    if (has_address && !text.written("gateway.listen"))
      text.faults.add(text.region("gateway.listen"),
                      fmt::format("the roster says that others reach {} at {}, but gateway.listen "
                                  "is left out",
                                  self->name, self->gateways.front().address));
    if (!has_address && !file.gateway.listen.empty())
      text.faults.add(text.region("gateway.listen"),
                      fmt::format("gateway.listen = \"{}\", but the roster gives {} no address, so "
                                  "nobody would come; leave one of them out or add the other",
                                  file.gateway.listen, self->name));
  }
  if (file.sync.min_sites > static_cast<std::int64_t>(roster.sites.size()))
    text.faults.add(text.region("sync.min_sites"),
                    fmt::format("sync.min_sites = {} can never be reached: the roster has {}",
                                file.sync.min_sites, counted(roster.sites.size(), "site")));
  const auto dialling_only = static_cast<std::size_t>(
      std::count_if(roster.sites.begin(), roster.sites.end(), [](const security::RosterSite& site) {
        return std::all_of(site.gateways.begin(), site.gateways.end(),
                           [](const auto& gateway) { return gateway.address.empty(); });
      }));
  if (roster.sites.size() > 1 && dialling_only == roster.sites.size())
    text.faults.add(text.region("site.roster"),
                    "no site of the roster has an address: nobody could reach anybody");
}

// What only holds between a site and a roster that has no faults itself.
void check_roster_fits(SiteText& text, const security::Roster& roster, const Disk& disk,
                       const Machine& machine) {
  const auto fault = [&text](std::string_view key, const std::string& what) {
    text.faults.add(text.region(key), fmt::format("{}: {}", key, what));
  };
  if (security::validity(roster, machine.unix_time) == security::RosterValidity::expired)
    fault("site.roster", fmt::format("the roster expired on {}; the operator must sign a newer one",
                                     calendar_text(roster.expires)));
  check_against_roster(text, roster);
  const auto& run_dir = text.file.site.run_dir;
  if (run_dir.empty()) return;
  const auto seen = security::newest_seen_roster(disk, run_dir);
  if (!seen)
    fault("site.run_dir", seen.error().text());
  else if (*seen)
    if (const auto follows =
            security::check_follows(**seen, {.epoch = roster.epoch, .digest = roster.digest});
        !follows)
      fault("site.roster", follows.error().text());
}

}  // namespace

void check_trust(CheckedSite& checked, const Disk& disk, const Machine& machine) {
  auto& text = checked.text;
  const auto& site = text.file.site;
  const auto fault = [&text](std::string_view key, const std::string& what) {
    text.faults.add(text.region(key), fmt::format("{}: {}", key, what));
  };
  std::optional<security::PublicKey> operator_key;
  std::optional<security::PublicIdentity> own;
  if (!site.operator_key.empty()) {
    if (const auto key = read_operator_key(disk, site.operator_key))
      operator_key = *key;
    else
      fault("site.operator_key", key.error().text());
  }
  if (!site.identity.empty()) {
    if (const auto identity = security::Identity::load(site.identity))
      own = identity->public_part();
    else
      fault("site.identity",
            identity.error().text() + (identity.error().code == ErrorCode::not_found
                                           ? "; `isthmus keys generate` makes one"
                                           : ""));
  }
  if (!operator_key) {
    if (const auto there = disk.exists(site.roster); there && !*there)
      fault("site.roster", fmt::format("{} is not there", site.roster));
    return;
  }
  // What the operator has not signed is not parsed.
  const auto file = security::read_signed_roster(disk, site.roster, *operator_key);
  if (!file) return fault("site.roster", file.error().text());
  auto roster = parse_roster_text(site.roster, std::string(text_of(file->bytes)));
  if (!roster.faults.empty()) {
    checked.roster_faults = roster.faults.text(roster.path, roster.source);
    return;
  }
  check_roster_fits(text, roster.roster, disk, machine);
  const auto* self = roster.roster.find(site.name);
  if (self != nullptr && own && own->identity != self->identity)
    fault("site.identity",
          fmt::format("{} holds another key than the roster has for {}: {} against {}",
                      site.identity, self->name, own->identity.hex(), self->identity.hex()));
  else if (self != nullptr && own &&
           std::none_of(self->gateways.begin(), self->gateways.end(),
                        [&](const auto& gateway) { return gateway.curve_key == own->curve_key; }))
    fault(
        "site.identity",
        fmt::format("{} holds another CURVE key than the roster has for {}: the operator must put "
                    "that of {}.pub there, or site.identity must name the file with the other",
                    site.identity, self->name, site.identity));
  checked.roster = std::move(roster.roster);
}

namespace {

SiteMemory memory_of(const CheckedSite& checked) {
  return memory_of(checked.file(), checked.roster ? checked.roster->sites.size() : 1);
}

// What all processes of a site together need; 0 of a model that does not check, or sequences longer
// than it knows.
double memory_needed(const CheckedSite& checked) {
  const auto& file = checked.file();
  if (!runtime::check(file.model.config) || file.train.sequence > file.model.config.sequence_max)
    return 0;
  const auto memory = memory_of(checked);
  return static_cast<double>(file.mesh.ranks()) * memory.rank() + memory.gateway();
}

std::string more_than_there_is(double needed, const Machine& machine) {
  return fmt::format("about {} of memory, and this machine has {}", about_bytes(needed),
                     about_bytes(machine.memory_bytes));
}

void check_machine_memory(CheckedSite& checked, const Machine& machine) {
  const auto needed = memory_needed(checked);
  if (machine.memory_bytes == 0 || needed <= machine.memory_bytes) return;
  auto& text = checked.text;
  const auto& file = text.file;
  text.faults.add(
      text.region("model"),
      fmt::format(
          "training this model of {} parameters needs {}: use a smaller model, "
          "train.micro_batch or train.sequence{}{}",
          about_count(static_cast<double>(runtime::parameter_count(file.model.config))),
          more_than_there_is(needed, machine), file.mesh.ranks() > 1 ? ", or fewer ranks" : "",
          memory_of(checked).gateway_records > needed / 10 ? ", or fewer outer steps" : ""));
}

}  // namespace

CheckedSite check_site(SiteText text, Disk& disk, const Machine& machine) {
  CheckedSite checked{std::move(text)};
  if (!checked.text.is_toml) return checked;
  check_values(checked.text, machine);
  check_files(checked.text, disk);
  if (!checked.file().alone()) check_trust(checked, disk, machine);
  check_machine_memory(checked, machine);
  return checked;
}

Result<SiteFile> load_site(const std::string& path, std::span<const std::string> overrides) {
  ISTHMUS_TRY(auto text, read_site_file(path, overrides));
  if (text.is_toml) check_values(text, this_machine());
  if (!text.faults.empty()) return Error{ErrorCode::invalid_argument, text.fault_text()};
  return std::move(text.file);
}

Result<std::vector<CheckedSite>> load_checked_sites(std::span<const std::string> paths,
                                                    std::span<const std::string> overrides) {
  const auto disk = make_system_disk();
  const auto machine = this_machine();
  std::vector<CheckedSite> sites;
  std::set<std::string> named;
  for (const auto& path : paths) {
    if (!named.insert(resolved_path(path)).second)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} is named twice: each site has a file of its own", path)};
    ISTHMUS_TRY(auto text, read_site_file(path, overrides));
    sites.push_back(check_site(std::move(text), *disk, machine));
  }
  check_together(sites);
  std::string faults;
  std::set<std::string> of_rosters;  // sites may share one
  for (const auto& site : sites) {
    faults += site.text.fault_text();
    if (of_rosters.insert(site.roster_faults).second) faults += site.roster_faults;
  }
  if (!faults.empty()) return Error{ErrorCode::invalid_argument, faults};
  double needed = 0;
  for (const auto& site : sites) needed += memory_needed(site);
  if (sites.size() > 1 && needed > machine.memory_bytes)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("these {} sites together need {}", sites.size(),
                             more_than_there_is(needed, machine))};
  return sites;
}

}  // namespace isthmus::launcher
