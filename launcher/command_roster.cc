#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/counted.h"
#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/roster_file.h"
#include "launcher/units.h"
#include "security/identity.h"
#include "security/operator_key.h"
#include "security/roster_signature.h"

namespace isthmus::launcher {
namespace {

struct RosterArguments {
  std::string path;
  std::string key;
  std::string operator_key;
  std::string name;
  std::string public_part;
  std::string address;
  std::string expires;
  bool replace = false;
  bool no_vote = false;
  std::string run;
  std::uint64_t step = 0;
  std::string root;
  std::vector<std::string> voters;
};

constexpr auto kRunOption =
    "The run that lasts, as `isthmus status` shows it: when its first voters are not those of the "
    "roster any more, sites join it only if the roster names it";
constexpr Nanoseconds kLifetime = 365LL * 86400 * kSecond;

// The file as written, signed or not.
Result<RosterText> read_text(const Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto bytes, read_file(disk, path, security::kRosterBytesMax));
  auto text = parse_roster_text(path, std::string(isthmus::text_of(bytes)));
  if (!text.faults.empty())
    return Error{ErrorCode::invalid_argument,
                 "the roster has faults:\n" + text.faults.text(text.path, text.source)};
  return text;
}

// A roster that has expired lets no session begin: a date that was mistaken, or left as it was.
Result<void> refuse_expired(const security::Roster& roster, std::string_view remedy) {
  if (security::validity(roster, make_system_clock()->unix_time()) ==
      security::RosterValidity::valid)
    return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("the roster would be valid until {}, which is past: {}",
                           calendar_text(roster.expires), remedy)};
}

// A value of an option in hexadecimal digits.
Result<security::Digest> digest_of(std::string_view option, const std::string& text,
                                   std::string_view meaning) {
  auto digest = security::parse_hex<security::Digest>(text);
  if (!digest)
    return Error{digest.error().code, fmt::format("{} must be {}", option, meaning),
                 digest.error()};
  return digest;
}

// The operator's secret key under the name that `isthmus init` gives it, here or beside the roster.
std::string likely_operator_key(const Disk& disk, const std::string& roster) {
  const auto beside = std::filesystem::path(roster).replace_filename("operator.key").string();
  for (const auto& path : {std::string("operator.key"), beside})
    if (const auto there = disk.exists(path); there && *there) return path;
  return {};
}

Result<void> sign(const RosterArguments& options) {
  guard_secrets();
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto text, read_text(*disk, options.path));
  ISTHMUS_CHECK(refuse_expired(
      text.roster, fmt::format("write a later date as expires in {}, and sign it", options.path)));
  ISTHMUS_TRY(const auto key, security::load_operator_key(options.key));
  ISTHMUS_TRY(const auto signature,
              security::sign_roster(std::as_bytes(std::span(text.source)), key));
  ISTHMUS_CHECK(replace_file(*disk, options.path + ".sig", std::as_bytes(std::span(signature))));
  fmt::print("{}.sig    epoch {}, until {}: give it to every site with {}\n", options.path,
             text.roster.epoch, calendar_text(text.roster.expires), options.path);
  return {};
}

Result<void> verify(const RosterArguments& options) {
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto key, read_operator_key(*disk, options.operator_key));
  ISTHMUS_TRY(const auto roster, read_roster(*disk, options.path, key));
  const bool expired = security::validity(roster, make_system_clock()->unix_time()) ==
                       security::RosterValidity::expired;
  fmt::print("{}: signed by {}\nepoch {}, {}, {} until {}\n", options.path, key.hex(), roster.epoch,
             counted(roster.sites.size(), "site"), expired ? "EXPIRED, was valid" : "valid",
             calendar_text(roster.expires));
  if (expired)
    return Error{ErrorCode::expired, "the roster has expired: the operator must sign a newer one"};
  return {};
}

Result<void> show(const RosterArguments& options) {
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto text, read_text(*disk, options.path));
  const auto& roster = text.roster;
  fmt::print("epoch {}, until {}, digest {}\n\n{:>5}  {:<20} {:<5} {:<28} {}\n", roster.epoch,
             calendar_text(roster.expires), roster.digest.hex(), "id", "name", "votes", "address",
             "identity");
  for (const auto& site : roster.sites)
    for (const auto& gateway : site.gateways)
      fmt::print("{:>5}  {:<20} {:<5} {:<28} {}\n", site.id, site.name, site.voter ? "yes" : "no",
                 gateway.address.empty() ? "only dials" : gateway.address, site.identity.hex());
  for (const auto& site : roster.former)
    fmt::print("{:>5}  {:<20} {:<5} {:<28} {}\n", site.id, site.name, "no", "a site no longer",
               site.identity.hex());
  if (roster.run) fmt::print("\nrun {}\n", roster.run->hex());
  for (const auto& given : roster.recoveries)
    fmt::print("{}recovery: the run goes on from step {} with root {}, voters {}\n",
               roster.run ? "" : "\n", given.step, given.root.hex(), fmt::join(given.voters, ", "));
  return {};
}

Result<const security::RosterSite*> site_named(const security::Roster& roster,
                                               std::string_view path, std::string_view option,
                                               const std::string& name) {
  if (const auto* site = roster.find(std::string_view(name))) return site;
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: {} lists no site {}; `isthmus roster show {}` names them", option,
                           path, name, path)};
}

// What a reader would find wrong with the changed roster, before it is written.
Result<std::string> text_of_good(const security::Roster& roster, const std::string& path) {
  auto text = roster_text(roster);
  const auto again = parse_roster_text(path, text);
  if (!again.faults.empty())
    return Error{ErrorCode::invalid_argument, again.faults.sorted().front().message};
  return text;
}

Result<void> write_unsigned(Disk& disk, const std::string& path, const security::Roster& roster) {
  ISTHMUS_TRY(const auto text, text_of_good(roster, path));
  ISTHMUS_CHECK(replace_file(disk, path, std::as_bytes(std::span(text))));
  const auto key = likely_operator_key(disk, path);
  fmt::print("{}    epoch {}, {}; sign it next{}:\n  isthmus roster sign {} --key {}\n", path,
             roster.epoch, counted(roster.sites.size(), "site"),
             key.empty() ? ", OPERATOR_KEY being the operator's secret key (isthmus keys generate "
                           "--operator operator.key makes one)"
                         : "",
             path, key.empty() ? "OPERATOR_KEY" : key);
  return {};
}

// Also where a site was deleted from the file by hand: next_id is above its id.
std::uint32_t id_never_given(const security::Roster& roster) {
  std::uint64_t id = std::max<std::uint64_t>(roster.next_id, 1);
  for (const auto& site : roster.sites) id = std::max(id, std::uint64_t{site.id} + 1);
  for (const auto& site : roster.former) id = std::max(id, std::uint64_t{site.id} + 1);
  return static_cast<std::uint32_t>(id);
}

Result<void> name_run(security::Roster& roster, const RosterArguments& options) {
  if (options.run.empty()) return {};
  ISTHMUS_TRY(roster.run, digest_of("--run", options.run, "the run as `isthmus status` shows it"));
  return {};
}

Result<void> add(const RosterArguments& options) {
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto identity, read_public_identity(*disk, options.public_part));
  security::Roster roster;
  ISTHMUS_TRY(const bool there, disk->exists(options.path));
  if (there) {
    ISTHMUS_TRY(const auto text, read_text(*disk, options.path));
    roster = text.roster;
  }
  ++roster.epoch;
  if (!options.expires.empty()) {
    const auto date = parse_calendar(options.expires);
    if (!date) return Error{date.error().code, "--expires", date.error()};
    roster.expires = *date;
  } else if (!there) {
    roster.expires = (make_system_clock()->unix_time() + kLifetime) / kSecond * kSecond;
  }
  ISTHMUS_CHECK(refuse_expired(roster, "give a later date with --expires"));
  const security::RosterGateway gateway{.address = options.address,
                                        .curve_key = identity.curve_key,
                                        .curve_signature = identity.curve_signature};
  const auto known =
      std::find_if(roster.sites.begin(), roster.sites.end(),
                   [&](const security::RosterSite& site) { return site.name == options.name; });
  if (known != roster.sites.end())
    return Error{ErrorCode::already_exists,
                 fmt::format("{} lists a site {} already; to change it, edit the file and sign it",
                             options.path, options.name)};
  ISTHMUS_CHECK(name_run(roster, options));
  const auto place = roster.sites.size();
  const auto id = id_never_given(roster);
  roster.next_id = std::uint64_t{id} + 1;
  roster.sites.push_back({.id = id,
                          .name = options.name,
                          .voter = !options.no_vote && security::voter_by_default(place),
                          .identity = identity.identity,
                          .gateways = {gateway}});
  ISTHMUS_CHECK(write_unsigned(*disk, options.path, roster));
  ISTHMUS_TRY(const bool in_use, disk->exists(options.path + ".sig"));
  if (roster.sites.back().voter && !roster.run && in_use)
    fmt::print(
        "{} has a vote, so the voters are no longer those of before. If a run has begun, the site "
        "joins it only if the roster names it: `run = \"…\"`, as `isthmus status` shows it "
        "(--run of add and remove)\n",
        options.name);
  return {};
}

// It stays listed as one that was a site: records of the run rest on its signatures.
Result<void> remove(const RosterArguments& options) {
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto text, read_text(*disk, options.path));
  auto roster = text.roster;
  ISTHMUS_TRY(const auto* site, site_named(roster, options.path, "--name", options.name));
  const auto id = site->id;
  const auto after =
      std::find_if(roster.former.begin(), roster.former.end(),
                   [id](const security::FormerSite& former) { return former.id > id; });
  roster.former.insert(after, {.id = id, .name = site->name, .identity = site->identity});
  roster.next_id = id_never_given(roster);
  std::erase_if(roster.sites, [id](const security::RosterSite& one) { return one.id == id; });
  ++roster.epoch;
  ISTHMUS_CHECK(name_run(roster, options));
  ISTHMUS_CHECK(write_unsigned(*disk, options.path, roster));
  return {};
}

// A majority of voters is lost for good: where the others go on, by the operator's word alone.
Result<void> recover(const RosterArguments& options) {
  guard_secrets();
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto text, read_text(*disk, options.path));
  ISTHMUS_TRY(const auto key, security::load_operator_key(options.key));
  auto roster = text.roster;
  ISTHMUS_CHECK(refuse_expired(
      roster, fmt::format("write a later date as expires in {} first", options.path)));
  security::Recovery recovery;
  ISTHMUS_TRY(recovery.run,
              digest_of("--run", options.run, "the run as `isthmus status` shows it"));
  ISTHMUS_TRY(recovery.root,
              digest_of("--root", options.root, "the state root as `isthmus status` shows it"));
  recovery.step = options.step;
  for (const auto& name : options.voters) {
    ISTHMUS_TRY(const auto* site, site_named(roster, options.path, "--voter", name));
    recovery.voters.push_back(site->id);
  }
  std::sort(recovery.voters.begin(), recovery.voters.end());
  if (std::adjacent_find(recovery.voters.begin(), recovery.voters.end()) != recovery.voters.end())
    return Error{ErrorCode::invalid_argument, "--voter names a site twice: once is enough"};
  std::vector<std::string> no_voters;
  for (auto& site : roster.sites) {
    const bool named = std::ranges::binary_search(recovery.voters, site.id);
    if (site.voter && !named) no_voters.push_back(site.name);
    site.voter = named;
  }
  ++roster.epoch;
  roster.run = recovery.run;
  std::erase_if(roster.recoveries, [&](const auto& earlier) {
    return earlier.run != recovery.run || earlier.step >= recovery.step;
  });
  if (options.replace && !roster.recoveries.empty()) roster.recoveries.pop_back();
  roster.recoveries.push_back(std::move(recovery));
  ISTHMUS_TRY(const auto written, text_of_good(roster, options.path));
  ISTHMUS_TRY(const auto signature, security::sign_roster(std::as_bytes(std::span(written)), key));
  ISTHMUS_CHECK(replace_file(*disk, options.path, std::as_bytes(std::span(written))));
  ISTHMUS_CHECK(replace_file(*disk, options.path + ".sig", std::as_bytes(std::span(signature))));
  fmt::print(
      "{}    epoch {}: the run goes on from step {} with {}; give it and {}.sig to\n"
      "every site that is left, and start them again. What was decided later is given up.\n",
      options.path, roster.epoch, options.step, counted(options.voters.size(), "voter"),
      options.path);
  if (!no_voters.empty())
    fmt::print(
        "Sites that vote no more: {}. Once one takes part again: voter = true at it, count up\n"
        "epoch, sign, give the roster to all, and start them again one after the other.\n",
        fmt::join(no_voters, ", "));
  return {};
}

}  // namespace

void add_roster(Command program) {
  const auto command =
      program.subcommand("roster", "Make, change, sign, verify or show the list of the sites");
  command.footer(
      "Example:\n"
      "  isthmus roster add roster.toml --name alpha --public alpha.key.pub --address "
      "alpha.example:7700\n"
      "  isthmus roster sign roster.toml --key operator.key\n"
      "  isthmus roster verify roster.toml --operator-key operator.key.pub");
  const auto start = [&](const char* name, const char* meaning, const std::string& example,
                         Result<void> (*run)(const RosterArguments&),
                         std::shared_ptr<RosterArguments>& options) {
    const auto one = command.subcommand(name, meaning);
    options = std::make_shared<RosterArguments>();
    one.option("ROSTER", options->path, "The roster file").required();
    one.footer(fmt::format("Example:\n  {}", example));
    one.runs([options, run] {
      const auto done = run(*options);
      return done ? ExitCode::done : fail(done.error());
    });
    return one;
  };
  std::shared_ptr<RosterArguments> options;
  auto one = start("add", "Add a site; makes the file when there is none, counts up the epoch",
                   "isthmus roster add roster.toml --name beta --public beta.key.pub --no-vote",
                   add, options);
  one.option("--name", options->name, "What the site is called").required();
  one.option("--public", options->public_part, "The public part of its identity (PATH.pub)")
      .required();
  one.option("--address", options->address,
             "host:port at which others reach it; left out: it only dials");
  one.option("--expires", options->expires,
             "Date from which no new session begins, not past (default: a year from now)");
  one.option("--run", options->run, kRunOption);
  one.flag("--no-vote", options->no_vote,
           "Its acceptance is not needed to commit a step (default: the first seven vote)");

  one = start("remove", "Let a site in no more; what it signed while it was one still counts",
              "isthmus roster remove roster.toml --name beta", remove, options);
  one.option("--name", options->name, "The site").required();
  one.option("--run", options->run, kRunOption);

  one = start("sign", "Sign the exact bytes of the file, into ROSTER.sig",
              "isthmus roster sign roster.toml --key operator.key", sign, options);
  one.option("--key", options->key, "The operator's secret key").required();

  one = start("verify", "Check signature, content and expiry",
              "isthmus roster verify roster.toml --operator-key operator.key.pub", verify, options);
  one.option("--operator-key", options->operator_key,
             "The operator's public key: 64 hexadecimal digits, or its file")
      .required();

  one = start(
      "recover",
      "When a majority of voters is lost for good: name the state that the others go on from, "
      "and sign",
      "isthmus roster recover roster.toml --key operator.key --run RUN --step 41 --root ROOT "
      "--voter beta --voter gamma",
      recover, options);
  one.option("--key", options->key, "The operator's secret key").required();
  one.option("--run", options->run, "The run, as `isthmus status` shows it").required();
  one.flag("--replace", options->replace,
           "In place of the last recovery of this run, that every site has refused");
  one.option("--step", options->step,
             "The newest outer step whose state some site that is left has saved")
      .required()
      .type_name("NUMBER")
      .whole_number();
  one.option("--root", options->root, "That state's root, as `isthmus status` shows it").required();
  one.option("--voter", options->voters, "A site that votes from then on; once for each")
      .required();

  start("show", "Print a roster, signed or not", "isthmus roster show roster.toml", show, options);
}

}  // namespace isthmus::launcher
