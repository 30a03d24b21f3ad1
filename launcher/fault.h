// Faults: everything that is wrong with a file a user wrote, each with its place, so that all are
// told at once. What they say is for people: what is wrong, what is allowed, and the likely remedy.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::launcher {

// Where in a file: lines and columns count from 1, columns in characters. A region reaches over
// `length` characters of one line.
struct Region {
  std::size_t line = 1;
  std::size_t column = 1;
  std::size_t length = 1;
};

// Of what the command line says instead of the file (--set).
inline constexpr Region kNotInFile{.line = 0, .column = 0, .length = 0};

struct Fault {
  Region region;
  std::string message;
};

class Faults {
 public:
  void add(Region region, std::string message) { all_.push_back({region, std::move(message)}); }
  bool empty() const { return all_.empty(); }
  std::size_t size() const { return all_.size(); }
  bool has_override() const;  // one that is kNotInFile

  // In the order of the file.
  std::vector<Fault> sorted() const;

  // Each as "PATH:LINE:COLUMN: error: MESSAGE", the line itself and a mark under the place, then
  // the count. `source` is the file's text. Ends with a newline; bytes that would move a
  // terminal's cursor are shown as '?'.
  std::string text(std::string_view path, std::string_view source) const;

 private:
  std::vector<Fault> all_;
};

}  // namespace isthmus::launcher
