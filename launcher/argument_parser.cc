#include "launcher/argument_parser.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "launcher/nearest_name.h"
#include "launcher/wrapped_text.h"

namespace isthmus::launcher {
namespace {

// --help in lines that a terminal of 80 columns shows whole.
class HelpText final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    return entry(make_option_name(option, positional) + make_option_opts(option),
                 make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }

 private:
  static std::string entry(const std::string& name, const std::string& meaning) {
    constexpr std::size_t kWidth = 80;
    constexpr std::size_t kColumn = 24;  // of what names mean
    return entry_of(name, meaning, kColumn, kWidth);
  }
};

std::string wrong_with_whole_number(const std::string& text) {
  std::int64_t number = 0;
  const auto* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc{} && read.ptr == end && number >= 0) return {};
  return fmt::format("\"{}\" is no whole number from 0 to {}", text,
                     std::numeric_limits<std::int64_t>::max());
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// A wrong word where a command belongs is most often a typo.
std::optional<std::string> unknown_command(const CLI::App& program,
                                           const std::vector<std::string>& words) {
  const CLI::App* app = &program;
  std::string called = program.get_name();
  for (const auto& word : words) {
    const auto commands = commands_of(*app);
    if (commands.empty() || word == "-h" || word == "--help" || word == "--version") break;
    std::vector<std::string_view> names;
    const CLI::App* chosen = nullptr;
    for (const auto* command : commands) {
      names.push_back(command->get_name());
      if (command->get_name() == word) chosen = command;
    }
    if (chosen == nullptr) {
      const auto near = nearest_name(word, names);
      return fmt::format("{}: there is no {} \"{}\"; {}\n", called,
                         word.starts_with('-') ? "option" : "command", word,
                         near ? fmt::format("did you mean \"{}\"?", *near)
                              : fmt::format("{} --help lists what there is", called));
    }
    app = chosen;
    called += " " + word;
  }
  return std::nullopt;
}

// "isthmus roster recover": as far as commands were recognised.
std::string called_so_far(const CLI::App& program) {
  auto called = program.get_name();
  for (auto chosen = program.get_subcommands(); !chosen.empty();
       chosen = chosen.front()->get_subcommands())
    called += " " + chosen.front()->get_name();
  return called;
}

}  // namespace

Option Option::type_name(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

Option Option::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Option Option::required(bool is_required) const {
  option_->required(is_required);
  return *this;
}

Option Option::needs(Option other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Option::takes_one() const {
  option_->expected(1);
  return *this;
}

Option Option::repeatable() const {
  // Without the last, a word that need not be there is taken for one more value.
  option_->take_all()->expected(1)->allow_extra_args(false);
  return *this;
}

Option Option::check(std::function<std::string(const std::string& text)> wrong_with) const {
  option_->check(std::move(wrong_with));
  return *this;
}

template <class T>
Option Option::in_range(T least, T most) const {
  option_->check(CLI::Range(least, most));
  return *this;
}
template Option Option::in_range(int, int) const;
template Option Option::in_range(std::uint64_t, std::uint64_t) const;
template Option Option::in_range(double, double) const;

Option Option::one_of(const std::vector<std::string>& choices) const {
  option_->check(CLI::IsMember(choices));
  return *this;
}

Option Option::whole_number() const { return check(wrong_with_whole_number); }

Command Command::subcommand(const std::string& name, const std::string& meaning) const {
  app_->require_subcommand(1);
  return {app_->add_subcommand(name, meaning), chosen_};
}

Option Command::flag(const std::string& name, bool& value, const std::string& meaning) const {
  return Option(app_->add_flag(name, value, meaning));
}

template <class T>
Option Command::option(const std::string& name, T& value, const std::string& meaning) const {
  return Option(app_->add_option(name, value, meaning));
}
template Option Command::option(const std::string&, std::string&, const std::string&) const;
template Option Command::option(const std::string&, int&, const std::string&) const;
template Option Command::option(const std::string&, std::int64_t&, const std::string&) const;
template Option Command::option(const std::string&, std::uint32_t&, const std::string&) const;
template Option Command::option(const std::string&, std::uint64_t&, const std::string&) const;
template Option Command::option(const std::string&, double&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<std::string>&,
                                const std::string&) const;

void Command::footer(const std::string& text) const { app_->footer(text); }

void Command::runs(Action action, std::function<std::string()> wrong) const {
  app_->callback([chosen = chosen_, action = std::move(action), wrong = std::move(wrong)] {
    if (auto text = wrong ? wrong() : std::string(); !text.empty())
      throw CLI::ValidationError(std::move(text), CLI::ExitCodes::ValidationError);
    *chosen = action;
  });
}

std::string Command::name() const { return app_->get_name(); }

std::vector<Command> Command::subcommands() const {
  std::vector<Command> all;
  for (auto* app : app_->get_subcommands([](CLI::App*) { return true; }))
    all.push_back({app, chosen_});
  return all;
}

struct ArgumentParser::State {
  CLI::App program;
  Action chosen;
};

ArgumentParser::ArgumentParser(const std::string& name, const std::string& meaning,
                               const std::string& version)
    : state_(new State{.program = CLI::App(meaning, name), .chosen = {}}) {
  auto& program = state_->program;
  program.formatter(std::make_shared<HelpText>());  // commands take it over
  program.set_version_flag("--version", fmt::format("{} {}", name, version), "Print the version");
  program.set_help_flag("-h,--help", "Print this help");
}

ArgumentParser::~ArgumentParser() = default;

Command ArgumentParser::program() const { return {&state_->program, &state_->chosen}; }

Result<Action> ArgumentParser::parse(const std::vector<std::string>& words) {
  auto& program = state_->program;
  if (auto unknown = unknown_command(program, words))
    return Error{ErrorCode::invalid_argument, std::move(*unknown)};
  try {
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 wants it so
    return std::exchange(state_->chosen, {});
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    program.exit(asked, text);
    return [text = text.str()] {
      std::fputs(text.c_str(), stdout);
      return ExitCode::done;
    };
  } catch (const CLI::ParseError& error) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: {}\n{} --help says how\n", program.get_name(), error.what(),
                             called_so_far(program))};
  }
}

}  // namespace isthmus::launcher
