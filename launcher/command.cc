#include "launcher/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "base/printable.h"
#include "security/secret.h"

namespace isthmus::launcher {

void add_commands(CLI::App& program, Action& action) {
  for (const auto add : {add_init, add_check, add_launch, add_status, add_top, add_link, add_report,
                         add_eval, add_export, add_generate, add_data, add_keys, add_roster,
                         add_gateway, add_train, add_simulate})
    add(program, action);
}

void add_site_arguments(CLI::App& command, SiteArguments& arguments, HowManySites how_many) {
  const bool in_folder = how_many == HowManySites::any_in_folder;
  auto* paths = command.add_option("FILE", arguments.paths,
                                   in_folder ? "Site files (default: all in this folder)"
                                             : "Site file (isthmus init writes one)");
  paths->required(!in_folder);
  if (how_many == HowManySites::one) paths->expected(1);
  add_set(command, arguments, "sync.outer_steps=8");
}

void add_set(CLI::App& command, SiteArguments& arguments, std::string_view example) {
  command
      .add_option("--set", arguments.overrides,
                  fmt::format("Replace a key of the file for this command: --set {}", example))
      ->type_name("SECTION.KEY=VALUE")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);  // else a file that need not be named is taken for one more
}

void guard_secrets() {
  for (const auto& refused : security::harden_process())
    fmt::print(stderr, "isthmus: warning: {}\n", refused.text());
}

std::string whole_number(const std::string& text) {
  std::int64_t number = 0;
  const auto* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc{} && read.ptr == end && number >= 0) return {};
  return fmt::format("\"{}\" is no whole number from 0 to {}", text,
                     std::numeric_limits<std::int64_t>::max());
}

ExitCode fail(const Error& error) {
  auto text = printable_lines(error.text());  // a peer may have written a part of it
  // Else it is a list of faults, each with its place.
  if (!text.ends_with('\n')) text = fmt::format("isthmus: {}\n", text);
  std::fputs(text.c_str(), stderr);  // where the disk is full, the exit code still says it
  switch (error.code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
    case ErrorCode::mismatch:         // with the run, another site or the roster
    case ErrorCode::unauthenticated:  // a key or signature
    case ErrorCode::permission:       // of a file
    case ErrorCode::expired:          // the roster
      return ExitCode::bad_usage;
    case ErrorCode::cancelled:
      return ExitCode::stopped;
    case ErrorCode::unavailable:
    case ErrorCode::timeout:
    case ErrorCode::busy:  // another process has the run
      return ExitCode::unavailable;
    case ErrorCode::corrupt:
    case ErrorCode::non_finite:
    case ErrorCode::too_large:
    case ErrorCode::not_found:
    case ErrorCode::wrong_kind:  // a folder in the place of a file
    case ErrorCode::in_use:      // a port
      return ExitCode::hopeless;
    case ErrorCode::disk_full:
      return ExitCode::no_room;
    default:
      return ExitCode::failed;
  }
}

}  // namespace isthmus::launcher
