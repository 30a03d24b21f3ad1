// Terminal: the whole screen, drawn from lines of styled text, and the keys pressed. The only user
// of ncursesw.
//
// One at a time; one thread. However the process ends, the terminal is as it was before: also by a
// failed assertion or a signal that ends it.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "launcher/monitor.h"

namespace isthmus::launcher {

enum class Key : std::uint8_t { none, quit, other, resized };

class Terminal {
 public:
  // Errors: unsupported, when standard input or output is no terminal or TERM is unknown or dumb.
  static Result<std::unique_ptr<Terminal>> open();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int width() const;
  int height() const;
  Glyphs glyphs() const { return glyphs_; }

  void draw(const std::vector<StyledLine>& lines);
  // The next key, waiting for at most so long; none when the time is up.
  Key read_key(Nanoseconds timeout);

 private:
  Terminal(Glyphs glyphs, bool colour) : glyphs_(glyphs), colour_(colour) {}

  Glyphs glyphs_;
  bool colour_;
};

}  // namespace isthmus::launcher
