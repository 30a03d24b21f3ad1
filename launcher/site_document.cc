#include "launcher/site_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "launcher/site_schema.h"
#include "launcher/wrapped_text.h"

namespace isthmus::launcher {
namespace {

// "Default: 8." or what leaving the key out means.
std::string default_sentence(const SiteKey& key) {
  if (key.required) return "Required.";
  if (!key.absent.empty()) return fmt::format("Left out: {}.", key.absent);
  return fmt::format("Default: {}.", key.default_text());
}

std::string comment_of(const SiteKey& key) {
  std::string text{key.meaning};
  text += fmt::format(" Value: {}.", key.allowed());
  text += ' ';
  text += default_sentence(key);
  if (key.shared) text += " Shared by all sites.";
  return text;
}

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

// A file with `values`, and what `otherwise` gives for the other keys ("": left out).
template <class Otherwise>
std::string site_file_text(const SiteValues& values, const Otherwise& otherwise) {
  std::string out =
      "# A site of isthmus. `isthmus check FILE` checks it; docs/configuration.md has all keys.\n"
      "# Relative paths are relative to the folder of this file.\n";
  for (const auto& section : site_sections()) {
    std::string keys;
    for (const auto& key : site_keys()) {
      if (key.section != section.name) continue;
      const auto given = values.find(key.full_name());
      const auto line = given != values.end() ? fmt::format("{} = {}\n", key.name, given->second)
                                              : otherwise(key);
      if (!line.empty()) keys += wrapped(comment_of(key), "# ", 100) + line;
    }
    if (!keys.empty())
      out += fmt::format("\n{}[{}]\n{}", wrapped(section.meaning, "# ", 100), section.name, keys);
  }
  return out;
}

constexpr std::string_view kDocumentHead = R"(# Configuration

<!-- Written by `isthmus check --document` from launcher/site_keys*.cc; a test compares them. -->

A site is described by one TOML file. `isthmus init NAME` writes one to start from, `isthmus check FILE` tells every
fault at once with its place, what is allowed and the nearest name for a typo, and says what the file means: steps,
memory, traffic, and what happens when a site is lost. What this machine cannot know, since the
site may be another one (the address to listen at, for example), is a note and no fault.

- Relative paths are relative to the folder of the file.
- Sizes, rates and durations are text with a unit: `"64 MiB"` (B, kB, MB, GB, KiB, MiB, GiB), `"20 Mbit/s"` (bit/s,
  kbit/s, Mbit/s, Gbit/s, or Mb/s and Mbps for the same, kB/s, MB/s, KiB/s, MiB/s, or `"unlimited"`), `"60 s"` (ns, us,
  ms, s, min, h, d; `"1 h 30 min"`).
- *Shared* keys must be equal at all sites of a run: they are part of the fingerprint that gateways compare before they
  exchange anything. A site that differs is refused, and both ends name the key; of [model] they name the first tensor
  whose shape differs, as each site has it.
- Any key can be replaced for one command: `isthmus launch alpha.toml --set sync.outer_steps=8`.

)";

constexpr std::string_view kDocumentTail =
    R"(## What the sites of a run agree on, and when a site is lost

A step is committed when a majority of **all voters** accepts it, reachable or not. `min_sites` says something else: how
many contributions make a step worth committing. With two voters, neither goes on without the other; `voter = false` at
one of them (in the roster) lets the other go on alone, if `min_sites` is 1. With three voters any one may be lost. A
site without a majority trains on for `max_lead` x `inner_steps` past the last agreed state and then waits; its work is
used when it returns. `isthmus check` says which of these a file and its roster mean.

A run begins when all voters are here: at once if all listed sites are, else after 20 s in which one that is missing may
come and say that it has the run already. While a site says so no second one is founded: a voter whose `run_dir` is lost,
also the only one, joins the run of the others. A site that says so and does not show how its run began is believed for
two minutes in sessions and for two in its absence; one that is here and has no session, as settings or rosters differ,
until that is mended, its `run_dir` is moved away, or the roster lists it no more. So is one that shows a run of other
voters than the roster's, if one of those is listed and is not that site itself: it is joined once the roster names it.
With `run = "…"` in the roster none is founded, whoever is away.

## The roster while a run lasts

A gateway reads its roster when it starts. To change it, edit the file, count up `epoch`, sign it, give both files to every
site, and start the sites again one after the other: they go on from what they have. A site that joins is added with
`isthmus roster add`; with `run = "…"` (as `isthmus status` shows it) in the roster it takes only that run for its own, and
needs it when the voters are no longer those that the run began with. Who votes changes with the next record once every
voter that can be reached has the newer roster, and the new voters have been here (half a minute after the voters have it a
majority of them is enough). A site that is to take part no more, or whose key was stolen, is taken out with `isthmus roster
remove`: nobody lets it in any longer, and as a `[[former]]` site it stays known to those who check what it signed before.
If it was one of the first voters, name the run too (`--run RUN`), so that others can still join.
For another CURVE key, the one of its control connections, a site that stays who it is runs `isthmus keys rotate alpha.key alpha-2.key`:
`curve_key` and `curve_signature` of `alpha-2.key.pub` go into the roster, and `site.identity` names the new file.

When a majority of the voters, or of their disks, is lost for good, nothing commits any more. Then the operator says where
to go on:

    isthmus roster recover roster.toml --key operator.key --run RUN --step 41 --root ROOT --voter beta --voter gamma

`RUN`, step (`saved_step`) and `ROOT` are those of the newest state that a site that is left has saved, as
`isthmus status --json` shows them. Name voters that still have their `run_dir`; all others are sites without a vote from
then on, which may take part again, also with a lost disk. For one to vote again, a newer roster has `voter = true` at it.
What was decided later is given up; a site that has a later state refuses and says which one it has: if no site has gone on
from the state that was named, name the right one with `--replace`. Start the ranks of all sites anew, too: they may have been
told a later state that nobody has saved, and would wait for it.

Which settings may change with a restart of all sites: `inner_steps`, `outer_steps` (until the run is complete: its last
record is final, and a larger number adds nothing to it), `min_sites`, `absent_steps`,
`max_lead`, and all that is a site's own. The model, `outer`, its rate and momentum, and `codec` stay for a whole run; a
gateway that is started with others refuses and names the one that differs.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed; the message says what to do |
| 2 | the command line, a site file or a roster has a fault; starting again cannot help |
| 3 | stopped on request (Ctrl-C, SIGTERM) with everything saved; starting again continues |
| 4 | the gateway or another site is not there, another process has the run (or the record of seeds), or a simulator was killed; starting again may help |
| 5 | a device or a collective broke; `launch` starts the ranks again from the gateway's state |
| 6 | a file is missing or damaged, or a folder is in its place, a port is taken, something exceeds a limit of memory, or the numbers of the training are no longer finite; starting again cannot help |
| 7 | there is no room on the disk; starting again helps once there is |

`launch` starts again what ends with 1, 4, 5 or 7 or by a signal, after a delay that doubles up to half a minute; with 7 up
to five seconds, for as long as it takes. Else it gives up, stops the rest and ends with the code of what failed after 5
failures in a row within 10 s of a start, or after 12 without a new checkpoint or outer step in between. Where it launched
several sites, and those that are left hold a majority of the voters of a run that has begun, it stops only the site that
failed. Once it was asked to stop it ends with 3, or with 1 when not everything was saved first, whatever kept it from
that: a full disk too, also one that had room for the checkpoint but not for what merges it into a newer outer step.
)";

}  // namespace

std::string configuration_document() {
  std::string out{kDocumentHead};
  for (const auto& section : site_sections()) {
    out += fmt::format("## [{}]\n\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                       section.name, section.meaning);
    for (const auto& key : site_keys()) {
      if (key.section != section.name) continue;
      const std::string otherwise = key.required          ? "required"
                                    : !key.absent.empty() ? std::string(key.absent)
                                                          : fmt::format("`{}`", key.default_text());
      out += fmt::format("| `{}` | {} | {} | {}{} |\n", key.name, markdown_cell(key.allowed()),
                         markdown_cell(otherwise), markdown_cell(key.meaning),
                         key.shared ? " *Shared.*" : "");
    }
    out += '\n';
  }
  return out += kDocumentTail;
}

std::string starting_site_file(const SiteValues& values) {
  return site_file_text(values, [](const SiteKey& key) {
    if (!key.example.empty()) return fmt::format("{} = {}\n", key.name, key.example);
    const auto otherwise = key.default_text();
    return fmt::format("# {} = {}\n", key.name, otherwise.empty() ? "…" : otherwise);
  });
}

std::string explained_site_file(const SiteValues& values) {
  return site_file_text(values, [](const SiteKey&) { return std::string(); });
}

}  // namespace isthmus::launcher
