// The command line of a benchmark: every option tells its default and its bounds, and --json is
// always there. Ends the process when there is nothing to run (--help, a wrong argument).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace isthmus::bench {

// Says what is wrong with the command line on the standard error, and ends the process with 2, as
// isthmus itself does.
[[noreturn]] void bad_usage(std::string_view why);

class CommandLine {
 public:
  CommandLine(const std::string& purpose, bool& json);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Below the options: what the exit status says.
  void ends(const std::string& statuses);

  // Of int, unsigned, std::int64_t, std::uint64_t and double.
  template <class T>
  void number(const std::string& name, T& value, std::type_identity_t<T> least,
              std::type_identity_t<T> most, const std::string& meaning);
  void flag(const std::string& name, bool& value, const std::string& meaning);
  void choice(const std::string& name, std::string& value, std::vector<std::string> choices,
              const std::string& meaning);
  void text(const std::string& name, std::string& value, const std::string& meaning);
  // One in which files can be made.
  void folder(const std::string& name, std::string& value, const std::string& meaning);

  void parse(int argc, char** argv);

 private:
  const std::unique_ptr<CLI::App> app_;
};

}  // namespace isthmus::bench
