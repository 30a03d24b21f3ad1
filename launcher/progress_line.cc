#include "launcher/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

constexpr int kBarWidth = 24;
constexpr Nanoseconds kRedraw = 200 * kMillisecond, kLineEvery = 30 * kSecond;

}  // namespace

std::string progress_text(const Progress& p, int bar_width) {
  std::string text;
  if (bar_width > 0) {
    const auto full =
        p.total == 0 ? bar_width
                     : static_cast<int>(static_cast<double>(bar_width) *
                                        static_cast<double>(p.done) / static_cast<double>(p.total));
    text = fmt::format("[{:#>{}}{:->{}}] ", "", full, "", bar_width - full);
  }
  text += fmt::format("{} of {} seeds", p.done, p.total);
  const auto now = p.done - std::min(p.done, p.done_before);
  if (now > 0 && p.seconds > 0) {
    const double pace = static_cast<double>(now) / p.seconds;
    text += fmt::format(", {:.1f}/s", pace);
    if (p.done < p.total)
      text +=
          fmt::format(", {} left", about_duration(static_cast<double>(p.total - p.done) / pace));
  }
  if (p.failed > 0) text += fmt::format(", {} failed", p.failed);
  return text;
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
    fmt::print(out_, "\r{}\x1b[K", progress_text(progress, kBarWidth));
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
