#include "inter/sim/scenario.h"

namespace isthmus::inter::sim {

std::vector<Scenario> standard_scenarios() {
  std::vector<Scenario> all;
  const auto add = [&](std::string name, std::string about, const auto& change) {
    Scenario s;
    s.name = std::move(name);
    s.about = std::move(about);
    change(s);
    all.push_back(std::move(s));
  };
  add("calm", "three sites, nothing happens", [](Scenario&) {});
  add("pair", "two sites that need each other, killed and cut off from each other",
      [](Scenario& s) {
        s.sites = 2;
        s.min_sites = 2;
        s.crashes = 2;
        s.broken_connections = 2;
        s.network.loss = 0.02;
      });
  add("lossy", "messages are lost, repeated and reordered", [](Scenario& s) {
    s.sites = 4;
    s.network.loss = 0.1;
    s.network.duplicate = 0.05;
    s.network.reorder = 0.1;
  });
  add("partitions", "pairs of sites are cut, also in one direction only", [](Scenario& s) {
    s.sites = 5;
    s.partitions = 4;
    s.network.loss = 0.01;
  });
  add("crashes", "sites are killed, at any moment and at named points of a step; with momentum",
      [](Scenario& s) {
        s.sites = 3;
        s.crashes = 3;
        s.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
      });
  add("disks", "sites are killed, and disks are full for a while", [](Scenario& s) {
    s.sites = 3;
    s.crashes = 2;
    s.disk_full = 1.5;
  });
  add("lost-votes", "killed voters come back without their vote file", [](Scenario& s) {
    s.sites = 5;
    s.crashes = 1;
    s.votes_lost = 0.5;
  });
  add("slow-site", "some sites compute ten times as long; values are not coded", [](Scenario& s) {
    s.sites = 4;
    s.slow_sites = 0.4;
    s.compute = 2 * kSecond;
    s.partitions = 1;
    s.codec = compress::CodecId::none;
  });
  add("leaves-for-good", "one site never comes back", [](Scenario& s) {
    s.sites = 3;
    s.one_leaves_for_good = true;
    s.crashes = 0.5;
  });
  add("broken-memory", "sites compute a step wrongly now and then", [](Scenario& s) {
    s.sites = 3;
    s.memory_errors = 0.15;
    s.crashes = 0.5;
    s.network.loss = 0.01;
  });
  add("broken-memory-pair", "the same with two sites, where no majority tells who is right",
      [](Scenario& s) {
        s.sites = 2;
        s.min_sites = 2;
        s.memory_errors = 0.15;
        s.crashes = 0.5;
      });
  add("newer-roster", "voters change with a newer roster, which sites read one after the other",
      [](Scenario& s) {
        s.sites = 5;
        s.voters = 3;
        s.outer_steps = 8;
        s.roster_changes = true;
        s.crashes = 0.3;
      });
  add("majority-lost", "most voters are lost for good, and the operator says where to go on",
      [](Scenario& s) {
        s.sites = 5;
        s.majority_lost = true;
        s.crashes = 0.3;
        s.partitions = 0.5;
      });
  add("only-voter", "the same of the only voter, as often of its disk alone", [](Scenario& s) {
    s.voters = 1;
    s.majority_lost = true;
    s.crashes = 0.3;
    s.partitions = 0.5;
  });
  add("blind-pair", "two voters never see each other: others pass on", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.blind_pair = true;
    s.crashes = 0.5;
  });
  add("comebacks",
      "a step needs two contributions; sites are away until they are dropped, one for good",
      [](Scenario& s) {
        s.sites = 4;
        s.min_sites = 2;
        s.absent_steps = 1;
        s.one_leaves_for_good = true;
        s.partitions = 3;
        s.crashes = 0.5;
        s.outer_steps = 12;
      });
  add("few-voters", "a step needs more contributions than there are voters", [](Scenario& s) {
    s.sites = 4;
    s.voters = 2;
    s.min_sites = 3;
    s.absent_start = 0.5;
    s.crashes = 0.5;
    s.network.loss = 0.01;
  });
  add("late-members", "sites without a vote join a run that has begun", [](Scenario& s) {
    s.sites = 6;
    s.voters = 3;
    s.absent_start = 0.7;
    s.outer_steps = 10;
    s.partitions = 0.5;
  });
  add("outages",
      "power fails at all sites at once, or at one named point of a step; they come back in any "
      "way",
      [](Scenario& s) {
        s.sites = 3;
        s.outages = 2;
      });
  add("outage-late-return",
      "the same, and the last site comes back a quarter of a minute after the others; with "
      "momentum",
      [](Scenario& s) {
        s.sites = 3;
        s.outages = 2;
        s.outage_return = OutageReturn::one_late;
        s.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
      });
  add("outage-no-return", "the same, and one site of three never comes back", [](Scenario& s) {
    s.sites = 3;
    s.outages = 1.5;
    s.outage_return = OutageReturn::one_never;
  });
  add("outage-of-some", "power fails at most voters, while the others go on and are killed singly",
      [](Scenario& s) {
        s.sites = 5;
        s.outages = 2;
        s.outage_sites = 3;
        s.crashes = 0.3;
        s.network.loss = 0.01;
      });
  add("feedback",
      "sites are killed at the same named point again and again, while others go on without them",
      [](Scenario& s) {
        s.sites = 3;
        s.crashes = 3;
        s.killed_again = 0.7;
        s.partitions = 1;
        s.outer_steps = 8;
      });
  add("wiped-voters",
      "voters lose their whole folder, also twice, also as soon as they have their vote back",
      [](Scenario& s) {
        s.sites = 3;
        s.wipes = 0.6;
        s.wiped_again = 0.5;
        s.outer_steps = 12;
        s.partitions = 0.5;
      });
  add("wiped-members", "the same for members without a vote, while voters are wiped too",
      [](Scenario& s) {
        s.sites = 5;
        s.voters = 3;
        s.wipes = 0.6;
        s.wiped_again = 0.3;
        s.crashes = 0.3;
        s.outer_steps = 12;
      });
  add("wiped-after-newer-roster", "the same for voters that a newer roster made", [](Scenario& s) {
    s.sites = 5;
    s.voters = 3;
    s.roster_changes = true;
    s.votes_lost = 0.3;
    s.crashes = 0.3;
    s.wipes = 0.5;
    s.wiped_again = 0.5;
    s.outer_steps = 14;
    s.trouble_ends = 120 * kSecond;
  });
  add("wiped-after-recovery", "the same after the operator said where to go on", [](Scenario& s) {
    s.sites = 7;
    s.majority_lost = true;
    s.wipes = 0.6;
    s.wiped_again = 0.5;
    s.outer_steps = 12;
    s.trouble_ends = 120 * kSecond;
  });
  add("dead-ranks",
      "the ranks of a member without a vote die or hang for good, its gateway lives on",
      [](Scenario& s) {
        s.sites = 4;
        s.voters = 3;
        s.outer_steps = 16;
        s.dead_ranks = 10'000 * kSecond;
      });
  add("dead-ranks-voter", "the same at a voter", [](Scenario& s) {
    s.sites = 3;
    s.outer_steps = 16;
    s.dead_ranks = 10'000 * kSecond;
  });
  add("dead-ranks-return", "the same, and they come back", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.outer_steps = 30;
    s.dead_ranks = 50 * kSecond;
  });
  add("other-settings",
      "all sites are started with other settings of [sync] once: refused, and the run goes on with "
      "the right ones",
      [](Scenario& s) {
        s.sites = 3;
        s.other_settings = true;
        s.crashes = 0.5;
      });
  add("narrow-member", "a member sees one voter of three and nobody else", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.narrow_site = true;
    s.outer_steps = 12;
    s.network.loss = 0.01;
  });
  add("narrow-voter", "a voter that sees one other voter of four loses its vote file",
      [](Scenario& s) {
        s.sites = 5;
        s.narrow_site = true;
        s.narrow_vote_lost = true;
        s.outer_steps = 20;
        s.compute = 6 * kSecond;  // to catch up takes longer than a step of three
        s.network.loss = 0.01;
      });
  add("roster-drops", "a newer roster has one of the first voters as a site no longer",
      [](Scenario& s) {
        s.sites = 5;
        s.voters = 3;
        s.roster_changes = true;
        s.roster_drops = true;
        s.crashes = 0.3;
        s.outer_steps = 10;
      });
  add("short-steps",
      "a site is away, and steps take much less time than its return: a state to fetch, and the "
      "steps since to replay",
      [](Scenario& s) {
        s.sites = 3;
        s.outer_steps = 90;
        s.compute = 50 * kMillisecond;
        s.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
        s.network.bytes_per_second = 62.5e3;
        s.network.loss = 0.002;
        s.away = 12 * kSecond;
        s.back_within = 30;
        s.trouble_ends = 400 * kSecond;
      });
  add("storm", "crashes, partitions, full disks and a bad network, all at once", [](Scenario& s) {
    s.sites = 5;
    s.voters = 4;
    s.crashes = 1.5;
    s.partitions = 2;
    s.broken_connections = 2;
    s.disk_full = 0.5;
    s.votes_lost = 0.1;
    s.slow_sites = 0.2;
    s.network.loss = 0.03;
    s.network.duplicate = 0.02;
    s.network.reorder = 0.05;
  });
  add("sixteen", "sixteen sites, few of which fail", [](Scenario& s) {
    s.sites = 16;
    s.outer_steps = 3;
    s.crashes = 0.2;
    s.partitions = 0.3;
    s.trouble_ends = 40 * kSecond;
  });
  return all;
}

std::uint32_t least_sites(const Scenario& s) {
  if (s.blind_pair || s.narrow_site) return s.sites;  // who is missing may be whom others need
  const auto suffice = [&s](std::uint32_t sites) {
    const auto voters = std::min(s.voters, sites), needed = std::min(s.min_sites, sites);
    if (s.roster_drops && (voters < 3 || needed == sites)) return false;
    if (s.one_leaves_for_good && needed == sites) return false;
    if ((s.roster_changes || s.one_leaves_for_good) && sites < 3) return false;
    return !s.majority_lost || sites >= voters / 2 + 1 + needed;
  };
  for (std::uint32_t sites = 2; sites < s.sites; ++sites)
    if (suffice(sites)) return sites;
  return s.sites;
}

}  // namespace isthmus::inter::sim
