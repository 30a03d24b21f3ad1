// What `isthmus top` shows, as a pure function: the recent status of some gateways and a size in,
// lines of styled text out. Drawing them is launcher/terminal.h.
//
//   alpha  exchanging  outer step 12/24 ██████████░░░░░░░░░░  1.55 min
//     link    state       rtt up Mbit/s  down up trend codec    sent waits for
//     beta    up        41 ms 18.3/20.0  12.0 ▁▂▃▄▅▆█▇  4.1x 18.3 MB acknowledgement
//     rank         step     loss  tokens/s   state
//     0             120   2.8134    12.3 k   computing
//     computing 61 %  transfer 20 %  other sites 12 %  applying 5 %  agreement 2 %
//     deadline in 1.5 s: beta, at most 2.0 s after the first contribution: its own usually com...
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inter/status.h"

namespace isthmus::launcher {

enum class Style : std::uint8_t { plain, dim, title, heading, good, warning, bad };

struct StyledText {
  std::string text;
  Style style = Style::plain;
};
// From the left edge; at most as wide as asked for.
using StyledLine = std::vector<StyledText>;

// ascii: for terminals that do not speak UTF-8.
enum class Glyphs : std::uint8_t { unicode, ascii };

// One site's gateway as last heard of, with as much past as a sparkline shows.
class SiteHistory {
 public:
  static constexpr std::size_t kSamples = 240;

  explicit SiteHistory(std::string name) : name_(std::move(name)) {}

  void add(inter::GatewayStatus status);
  void add_trouble(std::string why);  // the gateway did not answer

  const std::string& name() const { return name_; }
  const std::optional<inter::GatewayStatus>& latest() const { return latest_; }
  const std::string& trouble() const { return trouble_; }         // "": it answered
  const std::deque<double>& sent(const std::string& peer) const;  // Mbit/s, oldest first

 private:
  std::string name_;
  std::optional<inter::GatewayStatus> latest_;
  std::string trouble_;
  std::map<std::string, std::deque<double>, std::less<>> sent_;
};

// At most `height` lines of at most `width` columns; what does not fit is left out from the least
// important on, and says so. Any size is fine. `notes`: the latest events, for the lines that are
// free. `footer`: what keys do, on the last line.
std::vector<StyledLine> render_monitor(const std::vector<SiteHistory>& sites,
                                       const std::vector<std::string>& notes,
                                       std::string_view footer, int width, int height,
                                       Glyphs glyphs);

// The last `width` samples, scaled to `full` (0: the largest of them).
std::string sparkline(const std::deque<double>& samples, std::size_t width, double full,
                      Glyphs glyphs);

// The same numbers as text, for `isthmus status`: without styles, in 80 columns; and what a monitor
// has no room for.
std::string status_text(const inter::GatewayStatus& status);

std::string plain_text(const StyledLine& line);
// Columns on a terminal: characters, since nothing here is wide.
std::size_t columns(std::string_view utf8);

}  // namespace isthmus::launcher
