#include "launcher/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/counted.h"
#include "launcher/event_tail.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::array<std::pair<const char*, double>, 5> shares_of(const inter::WaitStatus& waits) {
  std::array<std::pair<const char*, double>, 5> parts = {{{"computing", waits.computing_s},
                                                          {"transfer", waits.transfer_s},
                                                          {"other_sites", waits.straggler_s},
                                                          {"agreement", waits.agreement_s},
                                                          {"applying", waits.applying_s}}};
  double sum = 0;
  for (const auto& [name, seconds] : parts) sum += seconds;
  for (auto& [name, seconds] : parts) seconds = sum > 0 ? seconds / sum : 0;
  return parts;
}

// Of the time the link was watched, by what it waited for; largest first.
std::vector<std::pair<std::string, double>> waiting_shares(const LinkTraffic& link) {
  std::vector<std::pair<std::string, double>> shares;
  for (const auto& [what, seconds] : link.waited_seconds)
    if (link.observed_seconds > 0) shares.emplace_back(what, seconds / link.observed_seconds);
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return shares;
}

// Of a file that may be damaged: what cannot be a count is none.
std::uint64_t count_of(double number) {
  constexpr double kMax = 9'007'199'254'740'992.0;  // 2^53: beyond it they are not exact
  return number >= 0 && number <= kMax ? static_cast<std::uint64_t>(number) : 0;
}

// "waiting 61 % of the time: vote 40 %, rate limit 21 %".
std::string waiting_text(const LinkTraffic& link) {
  double all = 0;
  std::string reasons;
  for (const auto& [what, share] : waiting_shares(link)) {
    all += share;
    if (share >= 0.005)
      reasons += fmt::format("{}{} {:.0f} %", reasons.empty() ? "" : ", ", what, 100 * share);
  }
  if (reasons.empty()) return "never waiting";
  return fmt::format("waiting {:.0f} % of the time: {}", 100 * all, reasons);
}

Json json_of(const SiteReport& site) {
  Json json;
  json["site"] = site.site;
  json["outer_steps"] = site.outer_steps;
  json["outer_steps_planned"] = site.outer_steps_planned;
  json["inner_steps"] = site.inner_steps;
  json["objective"] = to_string(site.objective);
  json["tokens"] = site.tokens;
  json["tokens_trained"] = site.tokens_trained;
  json["tokens_per_second"] = site.tokens_per_second;
  json["held_out"] = Json::object();
  for (const auto& text : site.held_out) {
    auto& to = json["held_out"][text.name];
    const std::string bits = text.per_token ? "bits_per_token" : "bits_per_byte";
    to[bits + "_before"] = text.before ? Json(*text.before) : Json();
    to[bits + "_after"] = text.after;
    if (!text.generated.empty()) {
      to["prompt"] = text.prompt;
      to["generated"] = text.generated;
    }
  }
  json["links"] = Json::object();
  for (const auto& [peer, link] : site.traffic.links) {
    auto& to = json["links"][peer];
    to = {{"parameter_bytes", link.parameter_bytes},
          {"codec_bytes", link.codec_bytes},
          {"zstd_bytes", link.zstd_bytes},
          {"wire_sent_bytes", link.wire_sent_bytes},
          {"wire_received_bytes", link.wire_received_bytes},
          {"link_test_sent_bytes", link.link_test_sent_bytes},
          {"link_test_received_bytes", link.link_test_received_bytes},
          {"achieved_mbit_s", link.achieved_mbit_s()},
          {"cap_mbit_s", link.cap_mbit_s > 0 ? Json(link.cap_mbit_s) : Json()},
          {"reconnects", link.reconnects}};
    to["waiting_shares"] = Json::object();
    for (const auto& [what, share] : waiting_shares(link)) to["waiting_shares"][what] = share;
  }
  json["time_shares"] = Json::object();
  for (const auto& [name, share] : shares_of(site.traffic.waits)) json["time_shares"][name] = share;
  if (site.state_step) json["state"] = {{"step", *site.state_step}, {"root", site.state_root}};
  json["checkpoints"] = site.checkpoints;
  json["events"] = site.events;
  json["metrics"] = site.metrics;
  return json;
}

// Control characters of a young model's text would spoil the table.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  return out;
}

const HeldOutReport* find(const SiteReport& site, const std::string& name) {
  for (const auto& text : site.held_out)
    if (text.name == name) return &text;
  return nullptr;
}

std::string loss_table(const Report& report) {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, const SiteReport*>> columns;
  for (const auto& site : report.sites) columns.emplace_back(site.site, &site);
  for (const auto& site : report.controls) columns.emplace_back(site.site + " alone", &site);
  for (const auto& [title, site] : columns)
    for (const auto& text : site->held_out)
      if (std::find(names.begin(), names.end(), text.name) == names.end())
        names.push_back(text.name);
  if (names.empty()) return {};
  const bool of_hidden = std::ranges::any_of(columns, [](const auto& column) {
    return column.second->objective == runtime::Objective::masked_tokens;
  });
  bool any_per_token = false;
  std::string out = fmt::format("{:<14}{:>10}", "bits per byte", "before");
  for (const auto& [title, site] : columns) out += fmt::format("  {:>12}", title);
  out += '\n';
  for (const auto& name : names) {
    const HeldOutReport* first = nullptr;
    bool per_token = false;
    for (const auto& [title, site] : columns) {
      const auto* text = find(*site, name);
      if (text == nullptr) continue;
      per_token |= text->per_token;
      if (first == nullptr && text->before) first = text;
    }
    any_per_token |= per_token;
    out += fmt::format("{:<14}{:>10}", per_token ? name + " (token)" : name,
                       first != nullptr ? fmt::format("{:.3f}", *first->before) : "-");
    for (const auto& [title, site] : columns) {
      const auto* text = find(*site, name);
      out +=
          text != nullptr ? fmt::format("  {:>12.3f}", text->after) : fmt::format("  {:>12}", "-");
    }
    out += '\n';
  }
  if (any_per_token)
    out += "(token): bits per token, as no tokenizer says what its tokens stand for\n";
  if (of_hidden) out += "of the bytes of hidden tokens\n";
  return out + '\n';
}

// What another site has said already is not said again: sites that agree generate alike.
std::string generated_text(const SiteReport& site, std::set<std::string>& said) {
  std::string out;
  for (const auto& text : site.held_out) {
    if (text.generated.empty()) continue;
    const auto line =
        fmt::format("{}: {} -> {}\n", text.name, one_line(text.prompt), one_line(text.generated));
    if (said.insert(line).second) out += line;
  }
  return out;
}

std::string of_trained(const SiteReport& site) {
  const auto trained = about_count(static_cast<double>(site.tokens_trained));
  if (site.tokens_trained > site.tokens && trained != about_count(static_cast<double>(site.tokens)))
    return fmt::format(" (of {} trained: the rest is in no outer step)", trained);
  // An earlier run_dir had the others' metrics, or they are damaged.
  if (site.tokens_trained < site.tokens)
    return fmt::format(" ({} of them in the metrics that are here)", trained);
  return "";
}

std::string site_text(const SiteReport& site) {
  const auto* const hidden = site.objective == runtime::Objective::masked_tokens ? "hidden " : "";
  const auto tokens = [](std::uint64_t count) { return about_count(static_cast<double>(count)); };
  std::string out =
      fmt::format("{}: {} of {}, {} {}tokens{}, {} {}tokens/s\n", site.site, site.outer_steps,
                  counted(site.outer_steps_planned, "outer step"), tokens(site.tokens), hidden,
                  of_trained(site), about_count(site.tokens_per_second), hidden);
  const auto bytes = [](std::uint64_t count) { return about_bytes(static_cast<double>(count)); };
  for (const auto& [peer, link] : site.traffic.links) {
    out +=
        fmt::format("  to {}: parameters {}, after the codec {}, after zstd {}, on the wire {}\n",
                    peer, bytes(link.parameter_bytes), bytes(link.codec_bytes),
                    bytes(link.zstd_bytes), bytes(link.wire_sent_bytes));
    out += fmt::format(
        "    {} while sending, {}; received {}\n", about_rate(1e6 * link.achieved_mbit_s()),
        link.cap_mbit_s > 0 ? fmt::format("capped to {}", about_rate(1e6 * link.cap_mbit_s))
                            : std::string("no cap"),
        bytes(link.wire_received_bytes));
    if (link.link_test_sent_bytes + link.link_test_received_bytes > 0)
      out += fmt::format("    link tests besides: {} sent, {} received\n",
                         bytes(link.link_test_sent_bytes), bytes(link.link_test_received_bytes));
    out += fmt::format("    {}\n", waiting_text(link));
  }
  std::string time;
  for (const auto& [name, share] : shares_of(site.traffic.waits)) {
    if (share < 0.005) continue;
    std::string what(name);
    std::replace(what.begin(), what.end(), '_', ' ');
    time += fmt::format("{}{} {:.0f} %", time.empty() ? "" : ", ", what, 100 * share);
  }
  if (!time.empty()) out += fmt::format("  time: {}\n", time);
  if (site.state_step)
    out += fmt::format("  state       of step {}, root {}\n", *site.state_step,
                       site.state_root.substr(0, 16));
  out += fmt::format("  checkpoints {}\n  events      {}\n  metrics     {}\n", site.checkpoints,
                     site.events, site.metrics);
  return out;
}

}  // namespace

std::string to_json(const Report& report) {
  Json json;
  json["sites"] = Json::array();
  for (const auto& site : report.sites) json["sites"].push_back(json_of(site));
  json["controls"] = Json::array();
  for (const auto& site : report.controls) json["controls"].push_back(json_of(site));
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string to_text(const Report& report) {
  std::string out = loss_table(report);
  for (const auto& site : report.sites) out += site_text(site);
  for (const auto& site : report.controls) out += site_text(site);
  std::string generated;
  std::set<std::string> said;
  for (const auto& site : report.sites) generated += generated_text(site, said);
  return generated.empty() ? out : out + "\nheld-out text, and how the model goes on\n" + generated;
}

void read_metrics(const std::string& path, std::int64_t inner_steps_per_outer, SiteReport& out) {
  EventTail tail(path, EventTail::From::beginning);
  double before = 0, seconds = 0;  // unix; 0: no step of this process yet
  double tokens = 0, tokens_trained = 0, tokens_in_seconds = 0;
  for (auto lines = tail.poll(); !lines.empty(); lines = tail.poll())
    for (const auto& line : lines) {
      const auto number = [&line](const char* name) {
        return std::strtod(line.field(name).c_str(), nullptr);
      };
      if (line.id == "initial_replaced") {
        out.initial_replaced = true;
        continue;
      }
      if (line.id == "resumed") {
        before = 0;
        tokens = number("tokens");
        continue;
      }
      const double new_tokens = line.id == "inner_step" ? number("tokens") - tokens : 0;
      if (before > 0) {
        seconds += std::max(0.0, line.time - before);
        tokens_in_seconds += new_tokens;
      }
      if (before > 0 || line.id == "inner_step") before = line.time;
      if (line.id == "merge") out.outer_steps = line.outer_step;
      if (line.id != "inner_step") continue;
      out.inner_steps = static_cast<std::int64_t>(count_of(number("inner_step")));
      tokens_trained += new_tokens;
      tokens += new_tokens;
    }
  if (out.outer_steps == 0 && inner_steps_per_outer > 0)
    out.outer_steps = out.inner_steps / inner_steps_per_outer;
  out.tokens = count_of(tokens);
  out.tokens_trained = count_of(tokens_trained);
  out.tokens_per_second = seconds > 0 ? tokens_in_seconds / seconds : 0;
}

void read_records(std::span<const inter::Certificate> records, std::uint32_t site,
                  SiteReport& out) {
  out.outer_steps = static_cast<std::int64_t>(records.size());
  // The number of steps may have been another for one launch.
  if (!records.empty() && records.back().record.final_step)
    out.outer_steps_planned = out.outer_steps;
  out.tokens = 0;
  for (const auto& certificate : records)
    if (const auto* part = certificate.record.part_of(site)) out.tokens += part->tokens;
}

}  // namespace isthmus::launcher
