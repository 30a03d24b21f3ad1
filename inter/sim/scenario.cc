#include "inter/sim/scenario.h"

namespace isthmus::inter::sim {

std::vector<Scenario> standard_scenarios() {
  std::vector<Scenario> all;
  const auto add = [&](std::string name, const auto& change) {
    Scenario s;
    s.name = std::move(name);
    change(s);
    all.push_back(std::move(s));
  };
  add("calm", [](Scenario&) {});
  add("pair", [](Scenario& s) {
    s.sites = 2;
    s.min_sites = 2;
    s.crashes = 2;
    s.broken_connections = 2;
    s.network.loss = 0.02;
  });
  add("lossy", [](Scenario& s) {
    s.sites = 4;
    s.network.loss = 0.1;
    s.network.duplicate = 0.05;
    s.network.reorder = 0.1;
  });
  add("partitions", [](Scenario& s) {
    s.sites = 5;
    s.partitions = 4;
    s.network.loss = 0.01;
  });
  add("crashes", [](Scenario& s) {
    s.sites = 3;
    s.crashes = 3;
    s.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
  });
  add("disks", [](Scenario& s) {
    s.sites = 3;
    s.crashes = 2;
    s.disk_full = 1.5;
  });
  add("lost-votes", [](Scenario& s) {
    s.sites = 5;
    s.crashes = 1;
    s.votes_lost = 0.5;
  });
  add("slow-site", [](Scenario& s) {
    s.sites = 4;
    s.slow_sites = 0.4;
    s.compute = 2 * kSecond;
    s.partitions = 1;
    s.codec = compress::CodecId::none;
  });
  add("leaves-for-good", [](Scenario& s) {
    s.sites = 3;
    s.one_leaves_for_good = true;
    s.crashes = 0.5;
  });
  add("broken-memory", [](Scenario& s) {
    s.sites = 3;
    s.memory_errors = 0.15;
    s.crashes = 0.5;
    s.network.loss = 0.01;
  });
  add("broken-memory-pair", [](Scenario& s) {
    s.sites = 2;
    s.min_sites = 2;
    s.memory_errors = 0.15;
    s.crashes = 0.5;
  });
  add("newer-roster", [](Scenario& s) {
    s.sites = 5;
    s.voters = 3;
    s.outer_steps = 8;
    s.roster_changes = true;
    s.crashes = 0.3;
  });
  add("majority-lost", [](Scenario& s) {
    s.sites = 5;
    s.majority_lost = true;
    s.crashes = 0.3;
    s.partitions = 0.5;
  });
  add("blind-pair", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.blind_pair = true;
    s.crashes = 0.5;
  });
  add("late-members", [](Scenario& s) {
    s.sites = 6;
    s.voters = 3;
    s.absent_start = 0.7;
    s.outer_steps = 10;
    s.partitions = 0.5;
  });
  add("outages", [](Scenario& s) {
    s.sites = 3;
    s.outages = 2;
  });
  add("outage-late-return", [](Scenario& s) {
    s.sites = 3;
    s.outages = 2;
    s.outage_return = OutageReturn::one_late;
    s.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
  });
  add("outage-no-return", [](Scenario& s) {
    s.sites = 3;
    s.outages = 1.5;
    s.outage_return = OutageReturn::one_never;
  });
  add("outage-of-some", [](Scenario& s) {
    s.sites = 5;
    s.outages = 2;
    s.outage_sites = 3;
    s.crashes = 0.3;
    s.network.loss = 0.01;
  });
  add("feedback", [](Scenario& s) {
    s.sites = 3;
    s.crashes = 3;
    s.killed_again = 0.7;
    s.partitions = 1;
    s.outer_steps = 8;
  });
  add("wiped-voters", [](Scenario& s) {
    s.sites = 3;
    s.wipes = 0.6;
    s.wiped_again = 0.5;
    s.outer_steps = 12;
    s.partitions = 0.5;
  });
  add("wiped-members", [](Scenario& s) {
    s.sites = 5;
    s.voters = 3;
    s.wipes = 0.6;
    s.wiped_again = 0.3;
    s.crashes = 0.3;
    s.outer_steps = 12;
  });
  add("wiped-after-newer-roster", [](Scenario& s) {
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
  add("wiped-after-recovery", [](Scenario& s) {
    s.sites = 7;
    s.majority_lost = true;
    s.wipes = 0.6;
    s.wiped_again = 0.5;
    s.outer_steps = 12;
    s.trouble_ends = 120 * kSecond;
  });
  add("dead-ranks", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.outer_steps = 16;
    s.dead_ranks = 10'000 * kSecond;
  });
  add("dead-ranks-voter", [](Scenario& s) {
    s.sites = 3;
    s.outer_steps = 16;
    s.dead_ranks = 10'000 * kSecond;
  });
  add("dead-ranks-return", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.outer_steps = 24;
    s.dead_ranks = 90 * kSecond;
  });
  add("other-settings", [](Scenario& s) {
    s.sites = 3;
    s.other_settings = true;
    s.crashes = 0.5;
  });
  add("narrow-member", [](Scenario& s) {
    s.sites = 4;
    s.voters = 3;
    s.narrow_site = true;
    s.outer_steps = 12;
    s.network.loss = 0.01;
  });
  add("narrow-voter", [](Scenario& s) {
    s.sites = 5;
    s.narrow_site = true;
    s.narrow_vote_lost = true;
    s.outer_steps = 12;
    s.network.loss = 0.01;
  });
  add("roster-drops", [](Scenario& s) {
    s.sites = 5;
    s.voters = 3;
    s.roster_changes = true;
    s.roster_drops = true;
    s.crashes = 0.3;
    s.outer_steps = 10;
  });
  add("storm", [](Scenario& s) {
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
  add("sixteen", [](Scenario& s) {
    s.sites = 16;
    s.outer_steps = 3;
    s.crashes = 0.2;
    s.partitions = 0.3;
    s.trouble_ends = 40 * kSecond;
  });
  return all;
}

}  // namespace isthmus::inter::sim
