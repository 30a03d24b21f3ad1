#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/roster_file.h"
#include "security/identity.h"
#include "security/operator_key.h"

namespace isthmus::launcher {
namespace {

struct KeysArguments {
  std::string path;
  std::string to;
  bool operator_key = false;
};

ExitCode generate(const KeysArguments& options) {
  guard_secrets();
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
Result<std::string> public_text(const KeysArguments& options) {
  const auto disk = make_system_disk();
  if (options.operator_key) {
    ISTHMUS_TRY(const auto key, read_operator_key(*disk, options.path));
    return fmt::format("operator_key = \"{}\"\n", key.hex());
  }
  ISTHMUS_TRY(const auto identity, read_public_identity(*disk, options.path));
  return security::to_text(identity);
}

// Into a file of its own: the old key is what the others know until they have the new roster.
ExitCode rotate(const KeysArguments& options) {
  guard_secrets();
  const auto identity = security::Identity::load(options.path);
  if (!identity) return fail(identity.error());
  const auto disk = make_system_disk();
  const auto saved = identity->with_new_curve_key().save(*disk, options.to);
  if (!saved) return fail(saved.error());
  fmt::print(
      "{0}        secret, mode 0600: stays at its site, and takes the place of {1} as "
      "site.identity\n"
      "{0}.pub    public: the operator puts its curve_key and curve_signature in place of the "
      "site's\n"
      "            in the roster, counts up its epoch and signs it\n"
      "Every site needs the new roster, and its gateway a new start; delete {1} then.\n",
      options.to, options.path);
  return ExitCode::done;
}

ExitCode show(const KeysArguments& options) {
  if (options.path.ends_with(".pub")) {
    const auto text = public_text(options);
    if (!text) return fail(text.error());
    fmt::print("{}", *text);
    return ExitCode::done;
  }
  guard_secrets();
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

void add_keys(Command program) {
  const auto command =
      program.subcommand("keys", "Make or show the keys of a site or the operator");
  command.footer(
      "Example:\n  isthmus keys generate alpha.key\n  isthmus keys generate --operator "
      "operator.key");
  std::shared_ptr<KeysArguments> options;
  const auto add = [&](const char* name, const char* meaning, const char* example,
                       ExitCode (*run)(const KeysArguments&)) {
    const auto one = command.subcommand(name, meaning);
    options = std::make_shared<KeysArguments>();
    one.option("PATH", options->path, "File of the secret; the public part is PATH.pub").required();
    one.footer(fmt::format("Example:\n  {}", example));
    one.runs([options = options, run] { return run(*options); });
    return one;
  };
  const auto either = [&](Command one) {
    one.flag("--operator", options->operator_key,
             "The operator's key, which signs rosters, not a site's identity");
  };
  either(add("generate", "Make new keys; never overwrites any", "isthmus keys generate alpha.key",
             generate));
  either(add("show", "Print the public part of keys, of PATH or of PATH.pub",
             "isthmus keys show alpha.key", show));
  add("rotate", "Give a site a new CURVE key, that of its control connections; it stays who it is",
      "isthmus keys rotate alpha.key alpha-2.key", rotate)
      .option("NEW", options->to, "File that is made; never overwrites any")
      .required();
}

}  // namespace isthmus::launcher
