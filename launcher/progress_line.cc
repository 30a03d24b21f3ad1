#include "launcher/progress_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

constexpr int kBarWidth = 24, kBarWidthMin = 4;
constexpr int kAroundBar = 3;  // "[] "
constexpr Nanoseconds kRedraw = 200 * kMillisecond, kLineEvery = 30 * kSecond;

std::string bar(const Progress& p, int width) {
  const auto full =
      p.total == 0 ? width
                   : static_cast<int>(static_cast<double>(width) * static_cast<double>(p.done) /
                                      static_cast<double>(p.total));
  return fmt::format("[{:#>{}}{:->{}}] ", "", full, "", width - full);
}

// A line as wide as the terminal would go on below it.
std::size_t columns_of(std::FILE* terminal) {
  constexpr std::size_t kUnknown = 80;
  winsize size{};
  const bool known = ::ioctl(::fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (known ? size.ws_col : kUnknown) - 1;
}

}  // namespace

std::string progress_text(const Progress& p, int bar_width, std::size_t columns_max) {
  const auto many = [&p](std::uint64_t n) {
    return p.amount != nullptr ? p.amount(static_cast<double>(n)) : fmt::format("{}", n);
  };
  const auto done = fmt::format("{} of {}{}{}", many(p.done), many(p.total),
                                p.things.empty() ? "" : " ", p.things);
  const auto failed = p.failed > 0 ? fmt::format(", {} failed", p.failed) : std::string();
  std::string speed, left;
  const auto now = p.done - std::min(p.done, p.done_before);
  if (now > 0 && p.seconds > 0) {
    const double pace = static_cast<double>(now) / p.seconds;
    speed = p.amount != nullptr ? fmt::format(", {}/s", p.amount(pace))
                                : fmt::format(", {:.1f}/s", pace);
    if (p.done < p.total)
      left = fmt::format(", {} left", about_duration(static_cast<double>(p.total - p.done) / pace));
  }
  const auto size = [&] { return done.size() + speed.size() + left.size() + failed.size(); };
  if (size() > columns_max) speed.clear();
  if (size() > columns_max) left.clear();
  const auto room = columns_max - std::min(columns_max, size());
  bar_width = std::min(bar_width, static_cast<int>(room) - kAroundBar);
  std::string text;
  if (bar_width >= kBarWidthMin) text = bar(p, bar_width);
  return (text + done + speed + left + failed).substr(0, columns_max);
}

ProgressLine::ProgressLine(std::FILE* out, const Clock& clock)
    : out_(out),
      clock_(clock),
      terminal_(::isatty(::fileno(out)) != 0),
      next_(clock.now() + (terminal_ ? kRedraw : kLineEvery)) {}

void ProgressLine::show(const Progress& progress) {
  const auto now = clock_.now();
  if (now < next_) return;
  next_ = now + (terminal_ ? kRedraw : kLineEvery);
  if (terminal_)
    fmt::print(out_, "\r{}\x1b[K", progress_text(progress, kBarWidth, columns_of(out_)));
  else
    fmt::print(out_, "{}\n", progress_text(progress, 0));
  std::fflush(out_);
  drawn_ = terminal_;
}

void ProgressLine::clear() {
  if (!drawn_) return;
  fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace isthmus::launcher
