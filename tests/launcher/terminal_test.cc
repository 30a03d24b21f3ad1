#include "launcher/terminal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

// A child on a pseudo-terminal of its own; the parent is the person in front of it.
class OnTerminal {
 public:
  OnTerminal(const char* kind, int columns, int rows, const std::function<int()>& child) {
    winsize size = {};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    pid_ = ::forkpty(&screen_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    ::setenv("TERM", kind, 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
    ::unsetenv("NO_COLOR");
    ::_exit(child());
  }
  ~OnTerminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(screen_);
  }

  // All that it showed, once `text` is among it, or it ended, or ten seconds have passed.
  const std::string& shown(const std::string& text) {
    pollfd wait = {screen_, POLLIN, 0};
    char buffer[4096];
    while (shown_.find(text) == std::string::npos && ::poll(&wait, 1, 10'000) == 1) {
      const auto n = ::read(screen_, buffer, sizeof buffer);
      if (n <= 0) break;
      shown_.append(buffer, static_cast<std::size_t>(n));
    }
    return shown_;
  }
  void type(const std::string& keys) {
    ASSERT_EQ(::write(screen_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void resize(int columns, int rows) {
    winsize size = {};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    ::ioctl(screen_, TIOCSWINSZ, &size);
  }
  void send(int signal) { ::kill(pid_, signal); }
  bool echoes() const {
    termios now = {};
    ::tcgetattr(screen_, &now);
    return (now.c_lflag & ECHO) != 0 && (now.c_lflag & ICANON) != 0;
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  int pid_ = 0;
  int screen_ = -1;
  std::string shown_;
};

constexpr const char* kLeave = "\x1b[?1049l";  // of xterm: back to the screen before

int show_until_quit() {
  auto terminal = Terminal::open();
  if (!terminal) return 1;
  for (;;) {
    (*terminal)->draw(
        {{{"size ", Style::title},
          {std::to_string((*terminal)->width()) + "x" + std::to_string((*terminal)->height()),
           Style::good},
          {" ▁▂▃ ready", Style::plain}}});
    if ((*terminal)->read_key(20 * kMillisecond) == Key::quit) return 0;
  }
}

TEST(Terminal, DrawsQuitsAndRestores) {
  OnTerminal person("xterm-256color", 80, 24, show_until_quit);
  EXPECT_THAT(person.shown("ready"), HasSubstr("80x24"));
  EXPECT_THAT(person.shown("ready"), HasSubstr("▁▂▃"));
  EXPECT_FALSE(person.echoes());
  person.type("xq");
  EXPECT_THAT(person.shown(kLeave), HasSubstr(kLeave));
  EXPECT_EQ(person.wait(), 0);
  EXPECT_TRUE(person.echoes());
}

TEST(Terminal, FollowsTheSize) {
  OnTerminal person("xterm-256color", 80, 24, show_until_quit);
  person.shown("ready");
  person.resize(40, 10);
  EXPECT_THAT(person.shown("40x10"), HasSubstr("40x10"));
  person.type("q");
  EXPECT_EQ(person.wait(), 0);
}

TEST(Terminal, IsRestoredWhenTheProcessAborts) {
  OnTerminal person("xterm-256color", 80, 24, show_until_quit);
  person.shown("ready");
  person.send(SIGABRT);
  EXPECT_THAT(person.shown(kLeave), HasSubstr(kLeave));
  const int status = person.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  EXPECT_TRUE(person.echoes());
}

TEST(Terminal, NeedsOne) {
  OnTerminal dumb("dumb", 80, 24, [] { return Terminal::open() ? 1 : 0; });
  EXPECT_EQ(dumb.wait(), 0);
  OnTerminal unknown("no-such-terminal", 80, 24, [] { return Terminal::open() ? 1 : 0; });
  EXPECT_EQ(unknown.wait(), 0);
}

}  // namespace
}  // namespace isthmus::launcher
