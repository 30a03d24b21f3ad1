#include "launcher/monitor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "launcher/units.h"
#include "launcher/wrapped_text.h"

namespace isthmus::launcher {
namespace {

constexpr int kStatusTextWidth = 80;
constexpr std::size_t kStateWidth = 8;  // at least
constexpr std::size_t kWaitWidth = 15;
constexpr std::size_t kIndent = 2;
constexpr std::size_t kGap = 1;
constexpr std::string_view kTrend = "up trend";

// Text of peers and gateways: nothing that moves the cursor, nothing that is not one column wide.
std::string narrow(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) continue;  // the rest of a character that became '?'
    out += byte >= 0x20 && byte < 0x7f ? c : '?';
  }
  return out;
}

std::string cut(std::string text, std::size_t width) {
  if (columns(text) <= width) return text;
  std::size_t i = 0, seen = 0;
  for (; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && seen++ == width) break;
  text.resize(i);
  return text;
}

enum class Align : std::uint8_t { left, right };

struct Cell {
  std::string text;
  Style style = Style::plain;
};

struct Column {
  std::string title;
  Align align = Align::left;
  std::size_t width = 0;
  std::size_t width_max = 0;  // what is left over is shared
  int rank = 0;               // higher ranks go first when the line is too narrow
  std::size_t index = 0;      // of the cell in a row
};

// Drops columns until the rest fits, then widens.
std::vector<Column> fit(std::vector<Column> table, std::size_t width) {
  for (std::size_t i = 0; i < table.size(); ++i) table[i].index = i;
  const auto total = [&table] {
    std::size_t sum = kIndent;
    for (const auto& column : table) sum += column.width + kGap;
    return sum - kGap;
  };
  while (table.size() > 1 && total() > width) {
    const auto least =
        std::max_element(table.begin(), table.end(),
                         [](const Column& a, const Column& b) { return a.rank < b.rank; });
    table.erase(least);
  }
  std::size_t spare = width > total() ? width - total() : 0;
  for (bool grew = true; grew && spare > 0;) {
    grew = false;
    for (auto& column : table) {
      if (spare == 0 || column.width >= column.width_max) continue;
      ++column.width;
      --spare;
      grew = true;
    }
  }
  return table;
}

StyledLine row_line(const std::vector<Column>& table, const std::vector<Cell>& cells) {
  StyledLine line{{std::string(kIndent, ' ')}};
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& column = table[i];
    const auto& cell = cells[column.index];
    const auto text = cut(cell.text, column.width);
    const std::string padding(column.width - columns(text), ' ');
    const std::string gap = i + 1 < table.size() ? std::string(kGap, ' ') : "";
    line.push_back(
        {column.align == Align::left ? text + padding + gap : padding + text + gap, cell.style});
  }
  return line;
}

StyledLine heading_line(const std::vector<Column>& table) {
  std::vector<Cell> cells;
  for (const auto& column : table) {
    cells.resize(std::max(cells.size(), column.index + 1));
    cells[column.index] = {column.title, Style::heading};
  }
  return row_line(table, cells);
}

std::string megabits(double value) {
  if (!std::isfinite(value) || value < 0) return "?";
  return value >= 99.95                  ? fmt::format("{:.0f}", value)
         : value >= 0.0995 || value == 0 ? fmt::format("{:.1f}", value)
                                         : fmt::format("{:.2f}", value);
}

std::string milliseconds(double value) {
  if (!(value > 0)) return "-";
  return value < 9.95    ? fmt::format("{:.1f} ms", value)
         : value < 999.5 ? fmt::format("{:.0f} ms", value)
                         : about_duration(value / 1e3);
}

std::string ratio(std::uint64_t whole, std::uint64_t part) {
  if (part == 0 || whole == 0) return "-";
  return fmt::format("{:.1f}x", static_cast<double>(whole) / static_cast<double>(part));
}

Style style_of_state(std::string_view state) {
  if (state == "up") return Style::good;
  return state.starts_with("refused") ? Style::bad : Style::warning;
}

std::vector<Column> link_columns(std::size_t width) {
  return fit({{.title = "link", .width = 7, .width_max = 20, .rank = 0},
              {.title = "state", .width = kStateWidth, .width_max = 30, .rank = 1},
              {.title = "rtt", .align = Align::right, .width = 6, .width_max = 7, .rank = 3},
              {.title = "up Mbit/s", .align = Align::right, .width = 9, .width_max = 13, .rank = 2},
              {.title = "down", .align = Align::right, .width = 5, .width_max = 7, .rank = 4},
              {.title = std::string(kTrend), .width = 8, .width_max = 40, .rank = 7},
              {.title = "codec", .align = Align::right, .width = 5, .width_max = 6, .rank = 6},
              {.title = "sent", .align = Align::right, .width = 7, .width_max = 8, .rank = 5},
              {.title = "waits for", .width = kWaitWidth, .width_max = 40, .rank = 8}},
             width);
}

// As it fits the narrowest table.
std::string state_text(const inter::LinkStatus& link) {
  if (link.state == "connecting") return "no link";
  if (link.state == "no address") return "no addr";
  return narrow(link.state);
}

std::vector<Cell> link_cells(const inter::LinkStatus& link, const std::deque<double>& sent,
                             std::size_t spark_width, Glyphs glyphs) {
  const auto cap = link.cap_mbit_s ? megabits(*link.cap_mbit_s)
                                   : std::string(glyphs == Glyphs::unicode ? "∞" : "-");
  return {{narrow(link.peer)},
          {state_text(link), style_of_state(link.state)},
          {milliseconds(link.round_trip_ms)},
          {fmt::format("{}/{}", megabits(link.sent_mbit_s), cap)},
          {megabits(link.received_mbit_s)},
          {sparkline(sent, spark_width, link.cap_mbit_s.value_or(0), glyphs), Style::good},
          {ratio(link.parameter_bytes, link.zstd_bytes)},
          {about_bytes(static_cast<double>(link.wire_sent_bytes))},
          {narrow(link.waiting_for), Style::dim}};
}

std::vector<Column> rank_columns(std::size_t width) {
  return fit({{.title = "rank", .width = 8, .width_max = 8, .rank = 0},
              {.title = "step", .align = Align::right, .width = 8, .width_max = 8, .rank = 1},
              {.title = "loss", .align = Align::right, .width = 8, .width_max = 8, .rank = 2},
              {.title = "tokens/s", .align = Align::right, .width = 9, .width_max = 9, .rank = 3},
              {.title = "", .width = 1, .width_max = 1, .rank = 4},
              {.title = "state", .width = 16, .width_max = 60, .rank = 5}},
             width);
}

// Where one rank speaks for all, its row is that of all: they are in step, and the speed is that of
// the site.
std::vector<Cell> rank_cells(const inter::RankStatus& rank, std::size_t rows) {
  const bool for_all = rows == 1 && rank.world > 1;
  return {{for_all ? fmt::format("0-{}", rank.world - 1) : fmt::format("{}", rank.rank)},
          {fmt::format("{}", rank.inner_step)},
          {std::isfinite(rank.loss) && rank.loss > 0 ? fmt::format("{:.4f}", rank.loss) : "-"},
          {rank.tokens_per_second > 0 ? about_count(rank.tokens_per_second) : "-"},
          {""},
          {narrow(rank.state) +
               (for_all ? fmt::format(" (all {} ranks in step)", rank.world) : std::string()),
           Style::dim}};
}

Style style_of_phase(std::string_view phase) {
  if (phase == "training" || phase == "finished") return Style::good;
  return phase == "exchanging" ? Style::plain : Style::warning;
}

std::string bar(double share, std::size_t width, Glyphs glyphs) {
  const auto filled = static_cast<std::size_t>(
      std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)));
  std::string text;
  for (std::size_t i = 0; i < width; ++i)
    text += glyphs == Glyphs::unicode ? (i < filled ? "█" : "░") : (i < filled ? "#" : ".");
  return text;
}

// Cuts a line to the width; sentences end in "..." then, where that is not most of them.
StyledLine clipped(StyledLine line, std::size_t width) {
  constexpr std::string_view kMore = "...";
  std::size_t used = 0;
  StyledLine out;
  for (auto& part : line) {
    if (used >= width) break;
    const auto room = width - used;
    if (columns(part.text) > room)
      part.text = room > 4 * kMore.size()
                      ? cut(std::move(part.text), room - kMore.size()) + std::string(kMore)
                      : cut(std::move(part.text), room);
    used += columns(part.text);
    out.push_back(std::move(part));
  }
  return out;
}

// What a person should know of a site, most important first.
std::vector<std::string> alerts(const SiteHistory& site) {
  std::vector<std::string> all;
  if (site.latest() && !site.trouble().empty()) all.push_back(narrow(site.trouble()));
  if (site.latest())
    for (const auto& sentence : site.latest()->attention) all.push_back(narrow(sentence));
  return all;
}

StyledLine title_line(const SiteHistory& site, std::size_t width, Glyphs glyphs) {
  StyledLine line{{narrow(site.name()), Style::title}, {"  "}};
  const auto& status = site.latest();
  if (!status) {
    line.push_back({site.trouble().empty() ? "asking its gateway" : narrow(site.trouble()),
                    site.trouble().empty() ? Style::dim : Style::bad});
    return clipped(std::move(line), width);
  }
  auto phase = narrow(status->phase);
  if (status->catching_up_to > 0) phase += fmt::format(" to step {}", status->catching_up_to);
  line.push_back({phase, style_of_phase(status->phase)});
  const auto step = fmt::format("  outer step {}/{} ", status->outer_step, status->outer_steps);
  const auto uptime = fmt::format("  {}", about_duration(status->uptime_s));
  std::size_t used = columns(step) + columns(uptime);
  for (const auto& part : line) used += columns(part.text);
  line.push_back({step});
  if (used + 4 <= width)
    line.push_back({bar(status->outer_steps == 0 ? 0
                                                 : static_cast<double>(status->outer_step) /
                                                       static_cast<double>(status->outer_steps),
                        std::min<std::size_t>(width - used, 24), glyphs),
                    Style::good});
  if (used <= width) line.push_back({uptime, Style::dim});
  return clipped(std::move(line), width);
}

// "computing 61 %  transfer 20 %  …", largest first; "" before anything was measured.
std::string waits_text(const inter::WaitStatus& waits) {
  std::array<std::pair<std::string_view, double>, 5> parts = {{{"computing", waits.computing_s},
                                                               {"transfer", waits.transfer_s},
                                                               {"other sites", waits.straggler_s},
                                                               {"agreement", waits.agreement_s},
                                                               {"applying", waits.applying_s}}};
  double sum = 0;
  for (const auto& [name, seconds] : parts) sum += seconds;
  if (!(sum > 0)) return {};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, seconds] : parts)
    if (seconds / sum >= 0.005)
      text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : "  ", name, 100 * seconds / sum);
  return text;
}

// How long the step at hand still waits, for whom, and why so long; "": for nobody.
std::string deadline_text(const inter::GatewayStatus& status) {
  if (status.deadline.empty()) return {};
  return (status.deadline_s ? fmt::format("in {:.1f} s: ", *status.deadline_s) : std::string()) +
         narrow(status.deadline);
}

// One site's lines, most important first within their kind; at most `height`.
std::vector<StyledLine> site_lines(const SiteHistory& site, std::size_t width, std::size_t height,
                                   Glyphs glyphs) {
  std::vector<StyledLine> lines{title_line(site, width, glyphs)};
  const auto& status = site.latest();
  if (!status) return lines;
  const auto links = link_columns(width);
  const auto ranks = rank_columns(width);
  const auto spark = std::find_if(links.begin(), links.end(),
                                  [](const Column& column) { return column.title == kTrend; });
  const auto spark_width = spark == links.end() ? 0 : spark->width;

  // Headings and at least one row of each kind come first; then links, then ranks.
  std::size_t free = height > 1 ? height - 1 : 0;
  for (const auto& sentence : alerts(site)) {
    if (free == 0) break;
    lines.push_back(clipped({{"  " + sentence, Style::bad}}, width));
    --free;
  }
  const auto take = [&free](std::size_t rows, std::size_t keep) {
    if (rows == 0 || free < 2 + keep) return std::size_t{0};
    const auto shown = std::min(rows, free - 1 - keep);
    free -= shown + 1;
    return shown;
  };
  const std::size_t keep_for_ranks = status->ranks.empty() ? 0 : 2;
  const auto links_shown =
      take(status->links.size(), free >= 4 + keep_for_ranks ? keep_for_ranks : 0);
  const auto ranks_shown = take(status->ranks.size(), 0);

  const auto more = [width](std::size_t hidden, std::string_view what) {
    return clipped({{fmt::format("  and {} more {}", hidden, what), Style::dim}}, width);
  };
  if (links_shown > 0) {
    lines.push_back(clipped(heading_line(links), width));
    const bool cut_short = links_shown < status->links.size() && links_shown > 1;
    const auto rows = cut_short ? links_shown - 1 : links_shown;
    for (std::size_t i = 0; i < rows; ++i)
      lines.push_back(
          clipped(row_line(links, link_cells(status->links[i], site.sent(status->links[i].peer),
                                             spark_width, glyphs)),
                  width));
    if (cut_short) lines.push_back(more(status->links.size() - rows, "links"));
  }
  if (ranks_shown > 0) {
    lines.push_back(clipped(heading_line(ranks), width));
    const bool cut_short = ranks_shown < status->ranks.size() && ranks_shown > 1;
    const auto rows = cut_short ? ranks_shown - 1 : ranks_shown;
    for (std::size_t i = 0; i < rows; ++i)
      lines.push_back(
          clipped(row_line(ranks, rank_cells(status->ranks[i], status->ranks.size())), width));
    if (cut_short) lines.push_back(more(status->ranks.size() - rows, "ranks"));
  }
  if (free > 0 && (links_shown == 0 || ranks_shown == 0)) {
    std::vector<std::string> hidden;
    if (links_shown == 0 && !status->links.empty())
      hidden.push_back(counted(status->links.size(), "link"));
    if (ranks_shown == 0 && !status->ranks.empty())
      hidden.push_back(counted(status->ranks.size(), "rank"));
    if (!hidden.empty()) {
      lines.push_back(clipped(
          {{fmt::format("  in a higher window: {}", fmt::join(hidden, ", ")), Style::dim}}, width));
      --free;
    }
  }
  if (const auto waits = waits_text(status->waits); free > 0 && !waits.empty()) {
    lines.push_back(clipped({{"  " + waits}}, width));
    --free;
  }
  if (free > 0 && !status->rate_limit.empty()) {
    lines.push_back(clipped({{"  rate limit " + narrow(status->rate_limit), Style::dim}}, width));
    --free;
  }
  // Last, since it comes and goes in every step.
  if (const auto deadline = deadline_text(*status); free > 0 && !deadline.empty())
    lines.push_back(clipped({{"  deadline " + deadline, Style::dim}}, width));
  return lines;
}

}  // namespace

void SiteHistory::add(inter::GatewayStatus status) {
  trouble_.clear();
  for (const auto& link : status.links) {
    auto& samples = sent_[link.peer];
    samples.push_back(std::isfinite(link.sent_mbit_s) ? link.sent_mbit_s : 0);
    if (samples.size() > kSamples) samples.pop_front();
  }
  std::erase_if(sent_, [&status](const auto& entry) {
    return std::none_of(status.links.begin(), status.links.end(),
                        [&entry](const auto& link) { return link.peer == entry.first; });
  });
  latest_ = std::move(status);
}

void SiteHistory::add_trouble(std::string why) { trouble_ = std::move(why); }

const std::deque<double>& SiteHistory::sent(const std::string& peer) const {
  static const std::deque<double> none;
  const auto found = sent_.find(peer);
  return found != sent_.end() ? found->second : none;
}

std::vector<StyledLine> render_monitor(const std::vector<SiteHistory>& sites,
                                       const std::vector<std::string>& notes,
                                       std::string_view footer, int width, int height,
                                       Glyphs glyphs) {
  std::vector<StyledLine> lines;
  if (width <= 0 || height <= 0) return lines;
  const auto columns_max = static_cast<std::size_t>(width);
  const auto rows_max = static_cast<std::size_t>(height);
  const std::size_t footer_rows = rows_max > 2 ? 1 : 0;
  const std::size_t body = rows_max - footer_rows;
  const bool crowded = sites.size() > body && body > 1;
  const auto sites_shown = crowded ? body - 1 : sites.size();
  const auto room = crowded ? body - 1 : body;
  for (std::size_t i = 0; i < sites_shown && lines.size() < room; ++i) {
    // What the sites above left over goes to the ones below.
    const auto share = (room - lines.size()) / (sites_shown - i);
    const bool spaced = i > 0 && share > 6;
    if (spaced) lines.push_back({});
    for (auto& line : site_lines(sites[i], columns_max,
                                 std::max<std::size_t>(share - (spaced ? 1 : 0), 1), glyphs))
      if (lines.size() < room) lines.push_back(std::move(line));
  }
  if (crowded)
    lines.push_back(clipped({{fmt::format("and {} in a higher window",
                                          counted(sites.size() - sites_shown, "more site")),
                              Style::dim}},
                            columns_max));
  if (!notes.empty() && lines.size() + 2 < body) {
    lines.push_back({});
    const auto shown = std::min(notes.size(), body - lines.size());
    for (auto note = notes.end() - static_cast<std::ptrdiff_t>(shown); note != notes.end(); ++note)
      lines.push_back(clipped({{narrow(*note), Style::dim}}, columns_max));
  }
  if (footer_rows > 0) {
    lines.resize(body);
    lines.push_back(clipped({{std::string(footer), Style::dim}}, columns_max));
  }
  return lines;
}

std::string sparkline(const std::deque<double>& samples, std::size_t width, double full,
                      Glyphs glyphs) {
  static constexpr std::array<std::string_view, 9> kUnicode = {" ", "▁", "▂", "▃", "▄",
                                                               "▅", "▆", "▇", "█"};
  static constexpr std::array<std::string_view, 9> kAscii = {" ", ".", ":", "-", "=",
                                                             "+", "*", "%", "#"};
  const auto& steps = glyphs == Glyphs::unicode ? kUnicode : kAscii;
  const auto count = std::min(width, samples.size());
  const auto first = samples.end() - static_cast<std::ptrdiff_t>(count);
  if (!(full > 0)) full = count == 0 ? 0 : *std::max_element(first, samples.end());
  std::string text(width - count, ' ');
  for (auto sample = first; sample != samples.end(); ++sample) {
    const double share = full > 0 ? std::clamp(*sample / full, 0.0, 1.0) : 0;
    // Anything that moved is seen.
    const auto step = share <= 0 ? 0 : std::max(1L, std::lround(share * 8));
    text += steps[static_cast<std::size_t>(step)];
  }
  return text;
}

std::string status_text(const inter::GatewayStatus& status) {
  SiteHistory site(status.site);
  auto table = status;
  table.attention.clear();  // in full, below
  table.rate_limit.clear();
  table.deadline.clear();
  site.add(std::move(table));
  const auto height = 8 + status.links.size() + status.ranks.size();
  std::string out;
  for (const auto& line : site_lines(site, kStatusTextWidth, height, Glyphs::ascii)) {
    auto text = plain_text(line);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + '\n';
  }
  const auto fact = [&out](std::string_view name, const std::string& text) {
    const auto lines = wrapped(text, std::string(16, ' '), kStatusTextWidth);
    if (!lines.empty()) out += fmt::format("  {:<13} {}", name, std::string_view(lines).substr(16));
  };
  for (const auto& sentence : status.attention) fact("attention", narrow(sentence));
  if (!status.rate_limit.empty()) fact("rate limit", narrow(status.rate_limit));
  fact("deadline", deadline_text(status));
  fact("run", narrow(status.run));
  fact("state root", narrow(status.state_root));
  fact("saved step", fmt::format("{}", status.saved_step));
  fact("members", narrow(fmt::format("{}", fmt::join(status.members, ", "))));
  fact("voters", narrow(fmt::format("{}", fmt::join(status.voters, ", "))));
  fact("tokens", fmt::format("{} in decided steps, {} carried over", status.tokens_named,
                             status.tokens_carried));
  const auto bytes = [](std::uint64_t count) { return about_bytes(static_cast<double>(count)); };
  for (const auto& link : status.links) {
    std::string text;  // what the table cut off comes first
    if (link.state.size() > kStateWidth) text += narrow(link.state) + "; ";
    if (link.state == "no address")
      text +=
          "neither gateway has an address: their sites exchange through others, or not at all; ";
    if (link.state == "silent")
      text += "its gateway is there, and says nothing before it has ranks; ";
    if (link.state == "no ranks") text += "nothing is said to it before this site has ranks; ";
    if (link.waiting_for.size() > kWaitWidth)
      text += fmt::format("waits for {}; ", narrow(link.waiting_for));
    text += fmt::format("{} of parameters, {} after the codec, {} after zstd, {} on the wire; ",
                        bytes(link.parameter_bytes), bytes(link.codec_bytes),
                        bytes(link.zstd_bytes), bytes(link.wire_sent_bytes));
    if (link.polite_mbit_s)
      text += fmt::format("polite: at most {} Mbit/s now, its queue {} of {}; ",
                          megabits(*link.polite_mbit_s), milliseconds(link.queue_ms),
                          milliseconds(link.queue_target_ms));
    if (link.bulk_connections > 0)
      text +=
          fmt::format("{} for bulk ({}), {} ({}); ", counted(link.bulk_connections, "connection"),
                      narrow(link.bulk_connections_why), narrow(link.congestion_control),
                      narrow(link.congestion_control_why));
    if (!link.polite_mbit_s && link.queue_ms >= 1)
      text += fmt::format("{} in queues on the way; ", milliseconds(link.queue_ms));
    text += fmt::format("{} received; {}, {} sent again; {}", bytes(link.wire_received_bytes),
                        counted(link.chunks_sent, "chunk"), link.chunks_resent,
                        counted(link.reconnects, "reconnect"));
    if (link.link_test_sent_bytes + link.link_test_received_bytes > 0)
      text += fmt::format("; link tests besides: {} sent, {} received",
                          bytes(link.link_test_sent_bytes), bytes(link.link_test_received_bytes));
    fact(fmt::format("to {}", narrow(link.peer)), text);
  }
  return out;
}

std::string plain_text(const StyledLine& line) {
  std::string text;
  for (const auto& part : line) text += part.text;
  return text;
}

std::size_t columns(std::string_view utf8) {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace isthmus::launcher
