#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <span>

#include "base/byte_stream.h"
#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/site_document.h"
#include "security/identity.h"
#include "security/roster.h"

namespace isthmus::launcher {
namespace {

// Another one at each site, so that sites with the same text do not train on the same batches.
std::uint32_t seed_of(const security::Identity& identity) {
  const auto& bytes = identity.public_part().identity.bytes;
  return ByteReader(std::span(bytes).first(4)).get<std::uint32_t>();
}

ExitCode run(const std::string& name) {
  const auto disk = make_system_disk();
  const auto file = name + ".toml";
  const auto key = name + ".key";
  for (const auto& path : {file, key}) {
    const auto there = disk->exists(path);
    if (!there) return fail(there.error());
    if (*there)
      return fail(Error{ErrorCode::already_exists,
                        fmt::format("{} is there already and stays as it is", path)});
  }
  const auto identity = security::Identity::generate();
  if (auto saved = identity.save(*disk, key); !saved) return fail(saved.error());
  const auto text = starting_site_file({{"site.name", fmt::format("\"{}\"", name)},
                                        {"site.run_dir", fmt::format("\"runs/{}\"", name)},
                                        {"site.identity", fmt::format("\"{}\"", key)},
                                        {"train.seed", fmt::format("{}", seed_of(identity))}});
  if (auto written = replace_file(*disk, file, std::as_bytes(std::span(text))); !written)
    return fail(written.error());
  fmt::print(
      "{0}.toml       the site's file: say there what to train on, and where\n"
      "{0}.key        its secret keys; they stay on this machine\n"
      "{0}.key.pub    its public part, for the operator\n\n"
      "The operator of the federation, once:\n"
      "  isthmus keys generate --operator operator.key\n"
      "and for each site, with its public part and the address others reach it at:\n"
      "  isthmus roster add roster.toml --name {0} --public {0}.key.pub --address HOST:7700\n"
      "  isthmus roster sign roster.toml --key operator.key\n"
      "then gives every site operator.key.pub, roster.toml and roster.toml.sig, and here:\n"
      "  isthmus check {0}.toml\n"
      "  isthmus launch {0}.toml\n",
      name);
  return ExitCode::done;
}

}  // namespace

void add_init(Command program) {
  const auto command =
      program.subcommand("init", "Write a commented site file and an identity to start from");
  const auto name = std::make_shared<std::string>();
  command.option("NAME", *name, "What the site is called; also the name of the files")
      .required()
      .check([](const std::string& text) -> std::string {
        // Files have it, too.
        const bool fits =
            security::is_site_name(text) && text.front() != '-' && text.front() != '.';
        return fits ? ""
                    : "a site's name is 1 to 64 letters (a-z, A-Z), digits, '.', '_' or '-', and "
                      "begins with neither '.' nor '-'";
      });
  command.footer("Example:\n  isthmus init alpha");
  command.runs([name] { return run(*name); });
}

}  // namespace isthmus::launcher
