#include "tests/bench/command_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace isthmus::bench {

namespace {

constexpr int kBadUsage = 2;

std::string with_program(std::string_view why) {
  return fmt::format("{}: {}", ::program_invocation_short_name, why);
}

}  // namespace

void bad_usage(std::string_view why) {
  fmt::print(stderr, "{}\n", with_program(why));
  std::exit(kBadUsage);
}

CommandLine::CommandLine(const std::string& purpose, bool& json)
    : app_(std::make_unique<CLI::App>(purpose)) {
  app_->add_flag("--json", json, "one object a line: name, value, unit");
  app_->failure_message([](const CLI::App* app, const CLI::Error& error) {
    return with_program(CLI::FailureMessage::simple(app, error));
  });
}

CommandLine::~CommandLine() = default;

void CommandLine::ends(const std::string& statuses) { app_->footer(statuses); }

template <class T>
void CommandLine::number(const std::string& name, T& value, std::type_identity_t<T> least,
                         std::type_identity_t<T> most, const std::string& meaning) {
  auto* option = app_->add_option(name, value, meaning)->check(CLI::Range(least, most));
  // Nothing is less than "nan", nor more.
  if constexpr (std::is_floating_point_v<T>)
    option->check([](const std::string& text) {
      T number = 0;
      const bool is_one = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
      return is_one ? std::string() : text + " is no number";
    });
  option->capture_default_str();
}
template void CommandLine::number(const std::string&, int&, int, int, const std::string&);
template void CommandLine::number(const std::string&, unsigned&, unsigned, unsigned,
                                  const std::string&);
template void CommandLine::number(const std::string&, std::int64_t&, std::int64_t, std::int64_t,
                                  const std::string&);
template void CommandLine::number(const std::string&, std::uint64_t&, std::uint64_t, std::uint64_t,
                                  const std::string&);
template void CommandLine::number(const std::string&, double&, double, double, const std::string&);

void CommandLine::flag(const std::string& name, bool& value, const std::string& meaning) {
  app_->add_flag(name, value, meaning);
}

void CommandLine::choice(const std::string& name, std::string& value,
                         std::vector<std::string> choices, const std::string& meaning) {
  app_->add_option(name, value, meaning)
      ->check(CLI::IsMember(std::move(choices)))
      ->capture_default_str();
}

void CommandLine::text(const std::string& name, std::string& value, const std::string& meaning) {
  app_->add_option(name, value, meaning)->check([](const std::string& text) {
    return text.empty() ? std::string("it says nothing; leave it out instead") : std::string();
  });
}

void CommandLine::folder(const std::string& name, std::string& value, const std::string& meaning) {
  text(name, value, meaning);
  app_->get_option(name)->check([](const std::string& path) {
    // Tried: root may write everywhere, and yet /proc takes nothing.
    auto made = path + "/isthmus-bench.XXXXXX";
    if (::mkdtemp(made.data()) != nullptr && ::rmdir(made.c_str()) == 0) return std::string();
    return fmt::format("{}: {}; name a folder in which files can be made", path,
                       std::strerror(errno));
  });
}

void CommandLine::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& end) {
    std::exit(app_->exit(end) == 0 ? 0 : kBadUsage);
  }
}

}  // namespace isthmus::bench
