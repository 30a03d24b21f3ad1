// The command line: commands, and options that fill plain variables. A thin layer over CLI11 that
// offers what our commands use: its headers cost a compiler the better part of a minute in each
// file that includes them, so one file does for all.
//
// Command and Option are handles, good while their ArgumentParser lives; variables must be there
// until it has read. Nothing is done meanwhile: what is chosen comes back as an Action, which
// outlives the parser.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/exit_code.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace isthmus::launcher {

using Action = std::function<ExitCode()>;

// An option, and what else holds of it. Each function returns the same option again.
class Option {
 public:
  Option type_name(const std::string& name) const;  // in --help, where TEXT, INT, … says too little
  Option shows_default() const;                     // in --help: what the variable holds now
  Option required(bool is_required = true) const;
  Option needs(Option other) const;
  Option excludes(Option other) const;

  // Of a list, which else takes all values that follow.
  Option takes_one() const;   // a single value
  Option repeatable() const;  // one value each time that it is named

  // "" for a value that is fine, else what is wrong with it.
  Option check(std::function<std::string(const std::string& text)> wrong_with) const;
  template <class T>  // int, std::uint64_t or double
  Option in_range(T least, T most) const;
  Option one_of(const std::vector<std::string>& choices) const;
  Option whole_number() const;  // of 0 or more; CLI11 alone takes -1 for the largest of all numbers

 private:
  friend class Command;
  explicit Option(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// A command, or the program itself: what is below it, and what --help says of it.
class Command {
 public:
  // Where there are any, one of them must be named.
  Command subcommand(const std::string& name, const std::string& meaning) const;

  Option flag(const std::string& name, bool& value, const std::string& meaning) const;
  // "--name", or "NAME" for what is known by its place. T: std::string, int, std::int64_t,
  // std::uint32_t, std::uint64_t, double or std::vector<std::string>.
  template <class T>
  Option option(const std::string& name, T& value, const std::string& meaning) const;

  void footer(const std::string& text) const;  // the end of --help

  // What is to be done when it is chosen. `wrong`, asked when each option is fine by itself: what
  // is wrong with them together, "" for nothing.
  void runs(Action action, std::function<std::string()> wrong = {}) const;

  std::string name() const;
  std::vector<Command> subcommands() const;

 private:
  friend class ArgumentParser;
  Command(CLI::App* app, Action* chosen) : app_(app), chosen_(chosen) {}

  CLI::App* app_;
  Action* chosen_;
};

class ArgumentParser {
 public:
  ArgumentParser(const std::string& name, const std::string& meaning, const std::string& version);
  ~ArgumentParser();

  Command program() const;

  // Reads the words after the program's name. For --help and --version the action prints what they
  // ask for. Error: invalid_argument, with whole lines for people, which say who speaks.
  Result<Action> parse(const std::vector<std::string>& words);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isthmus::launcher
