#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/roster_file.h"
#include "security/identity.h"
#include "security/operator_key.h"

namespace isthmus::launcher {
namespace {

struct Options {
  std::string path;
  bool operator_key = false;
};

ExitCode generate(const Options& options) {
  const auto disk = make_system_disk();
  const auto saved =
      options.operator_key
          ? security::save_operator_key(*disk, security::SigningKey::generate(), options.path)
          : security::Identity::generate().save(*disk, options.path);
  if (!saved) return fail(saved.error());
  fmt::print("{0}        secret, mode 0600: {1}\n{0}.pub    public: {2}\n", options.path,
             options.operator_key ? "signs rosters; keep it off the sites" : "stays at its site",
             options.operator_key
                 ? "what each site's operator_key names"
                 : fmt::format("for the operator, who adds the site with\n"
                               "  isthmus roster add roster.toml --name NAME --public {}.pub",
                               options.path));
  return ExitCode::done;
}

// What is public already, and may be read by everybody.
Result<std::string> public_text(const Options& options) {
  const auto disk = make_system_disk();
  if (options.operator_key) {
    ISTHMUS_TRY(const auto key, read_operator_key(*disk, options.path));
    return fmt::format("operator_key = \"{}\"\n", key.hex());
  }
  ISTHMUS_TRY(const auto identity, read_public_identity(*disk, options.path));
  return security::to_text(identity);
}

ExitCode show(const Options& options) {
  if (options.path.ends_with(".pub")) {
    const auto text = public_text(options);
    if (!text) return fail(text.error());
    fmt::print("{}", *text);
    return ExitCode::done;
  }
  if (options.operator_key) {
    const auto key = security::load_operator_key(options.path);
    if (!key) return fail(key.error());
    fmt::print("operator_key = \"{}\"\n", key->public_key().hex());
    return ExitCode::done;
  }
  const auto identity = security::Identity::load(options.path);
  if (!identity) return fail(identity.error());
  fmt::print("{}", security::to_text(identity->public_part()));
  return ExitCode::done;
}

}  // namespace

void add_keys(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand("keys", "Make or show the keys of a site or the operator");
  command->require_subcommand(1);
  command->footer(
      "Example:\n  isthmus keys generate alpha.key\n  isthmus keys generate --operator "
      "operator.key");
  const auto add = [&](const char* name, const char* meaning, const char* example,
                       ExitCode (*run)(const Options&)) {
    auto* one = command->add_subcommand(name, meaning);
    const auto options = std::make_shared<Options>();
    one->add_option("PATH", options->path, "File of the secret; the public part is PATH.pub")
        ->required();
    one->add_flag("--operator", options->operator_key,
                  "The operator's key, which signs rosters, not a site's identity");
    one->footer(fmt::format("Example:\n  {}", example));
    one->callback([options, run, &action] { action = [options, run] { return run(*options); }; });
  };
  add("generate", "Make new keys; never overwrites any", "isthmus keys generate alpha.key",
      generate);
  add("show", "Print the public part of keys, of PATH or of PATH.pub",
      "isthmus keys show alpha.key", show);
}

}  // namespace isthmus::launcher
