#include "launcher/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

// Last: it defines macros with common names.
#define NCURSES_NOMACROS 1
#include <ncurses.h>

namespace isthmus::launcher {
namespace {

constexpr std::array kEnds = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGQUIT};

// What the emergency exit needs, ready before it is needed: handlers may not allocate.
struct Rescue {
  termios before = {};
  char leave[128] = {};
  std::size_t leave_bytes = 0;
  std::array<struct sigaction, kEnds.size()> handlers = {};
};
Rescue rescue;  // a handler reaches nothing else; there is one terminal

void add_to_rescue(const char* capability) {
  const char* text = ::tigetstr(capability);
  if (text == nullptr || text == reinterpret_cast<const char*>(-1)) return;
  const std::string_view bytes(text);
  if (rescue.leave_bytes + bytes.size() > sizeof rescue.leave) return;
  std::copy(bytes.begin(), bytes.end(), rescue.leave + rescue.leave_bytes);
  rescue.leave_bytes += bytes.size();
}

// Only what signal-safety(7) allows; then the signal does what it would have done.
void restore_and_end(int number) {
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, rescue.leave, rescue.leave_bytes);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &rescue.before);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

int pair_of(Style style) {
  switch (style) {
    case Style::good:
      return 1;
    case Style::warning:
      return 2;
    case Style::bad:
      return 3;
    case Style::heading:
      return 4;
    default:
      return 0;
  }
}

attr_t attributes_of(Style style) {
  if (style == Style::title || style == Style::bad) return A_BOLD;
  if (style == Style::dim) return A_DIM;
  return A_NORMAL;
}

}  // namespace

Result<std::unique_ptr<Terminal>> Terminal::open() {
  const char* kind = std::getenv("TERM");
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
    return Error{ErrorCode::unsupported, "standard input or output is no terminal"};
  if (kind == nullptr || std::string_view(kind).empty() || std::string_view(kind) == "dumb")
    return Error{ErrorCode::unsupported, "TERM names no terminal on which a screen can be drawn"};
  ::tcgetattr(STDIN_FILENO, &rescue.before);
  ::setlocale(LC_CTYPE, "");
  const bool utf8 = std::string_view(::nl_langinfo(CODESET)) == "UTF-8";
  if (::newterm(nullptr, stdout, stdin) == nullptr)
    return Error{ErrorCode::unsupported, std::string("the terminal \"") + kind + "\" is unknown"};
  rescue.leave_bytes = 0;
  for (const char* capability : {"sgr0", "rmcup", "cnorm"}) add_to_rescue(capability);
  struct sigaction action = {};
  action.sa_handler = restore_and_end;
  for (std::size_t i = 0; i < kEnds.size(); ++i)
    ::sigaction(kEnds[i], &action, &rescue.handlers[i]);

  ::cbreak();
  ::noecho();
  ::curs_set(0);
  ::keypad(stdscr, TRUE);
  const bool colour = ::has_colors() && std::getenv("NO_COLOR") == nullptr;
  if (colour) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(1, COLOR_GREEN, -1);
    ::init_pair(2, COLOR_YELLOW, -1);
    ::init_pair(3, COLOR_RED, -1);
    ::init_pair(4, COLOR_CYAN, -1);
  }
  return std::unique_ptr<Terminal>(new Terminal(utf8 ? Glyphs::unicode : Glyphs::ascii, colour));
}

Terminal::~Terminal() {
  ::endwin();
  for (std::size_t i = 0; i < kEnds.size(); ++i)
    ::sigaction(kEnds[i], &rescue.handlers[i], nullptr);
}

int Terminal::width() const { return ::getmaxx(stdscr); }
int Terminal::height() const { return ::getmaxy(stdscr); }

void Terminal::draw(const std::vector<StyledLine>& lines) {
  ::werase(stdscr);
  for (std::size_t y = 0; y < lines.size() && static_cast<int>(y) < height(); ++y) {
    ::wmove(stdscr, static_cast<int>(y), 0);
    for (const auto& part : lines[y]) {
      const auto attributes =
          attributes_of(part.style) |
          (colour_ ? static_cast<attr_t>(COLOR_PAIR(pair_of(part.style))) : A_NORMAL);
      ::wattrset(stdscr, static_cast<int>(attributes));
      ::waddnstr(stdscr, part.text.c_str(), static_cast<int>(part.text.size()));
    }
  }
  ::wattrset(stdscr, A_NORMAL);
  ::wrefresh(stdscr);
}

Key Terminal::read_key(Nanoseconds timeout) {
  ::wtimeout(stdscr, static_cast<int>(std::max<Nanoseconds>(timeout / kMillisecond, 0)));
  const int key = ::wgetch(stdscr);
  if (key == ERR) return Key::none;
  if (key == KEY_RESIZE) {
    ::clearok(stdscr, TRUE);  // the terminal may have reflowed what was there
    return Key::resized;
  }
  return key == 'q' || key == 'Q' ? Key::quit : Key::other;
}

}  // namespace isthmus::launcher
