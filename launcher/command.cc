#include "launcher/command.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "security/secret.h"

namespace isthmus::launcher {

void add_commands(Command program) {
  for (const auto add : {add_init, add_check, add_plan, add_launch, add_status, add_top, add_link,
                         add_report, add_eval, add_export, add_generate, add_data, add_keys,
                         add_roster, add_gateway, add_train, add_simulate})
    add(program);
}

Option add_site_arguments(Command command, SiteArguments& arguments, HowManySites how_many) {
  const bool in_folder = how_many == HowManySites::any_in_folder;
  const auto paths = command.option("FILE", arguments.paths,
                                    in_folder ? "Site files (default: all in this folder)"
                                              : "Site file (isthmus init writes one)");
  paths.required(!in_folder);
  if (how_many == HowManySites::one) paths.takes_one();
  add_set(command, arguments, "sync.outer_steps=8");
  return paths;
}

std::array<Option, 2> add_model_arguments(Command command, ModelArguments& arguments) {
  const auto checkpoint =
      command.option("--checkpoint", arguments.checkpoint,
                     "A checkpoint or any Hugging Face directory (default: the site's newest)");
  const auto best = command.flag("--best", arguments.best,
                                 "The checkpoint with the lowest held-out loss "
                                 "(train.evaluate_every)");
  return {checkpoint, best.excludes(checkpoint)};
}

void add_set(Command command, SiteArguments& arguments, std::string_view example) {
  command
      .option("--set", arguments.overrides,
              fmt::format("Replace a key of the file for this command: --set {}", example))
      .type_name("SECTION.KEY=VALUE")
      .repeatable();
}

void guard_secrets() {
  for (const auto& refused : security::harden_process())
    fmt::print(stderr, "isthmus: warning: {}\n", refused.text());
}

std::string error_json(const std::string& of, const std::string& name, const Error& error) {
  const nlohmann::ordered_json json = {
      {of, name}, {"error", {{"code", to_string(error.code)}, {"message", error.text()}}}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
