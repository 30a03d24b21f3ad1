#include "inter/sim/storm.h"

#include <array>
#include <cmath>

namespace isthmus::inter::sim {
namespace {

constexpr double kLeastRateForEach = 5000;  // bytes a second and site

// Between the two, each order of magnitude as likely as another.
double between(Random& draws, double low, double high) {
  return low * std::pow(high / low, draws.uniform());
}

Nanoseconds time_between(Random& draws, double low_s, double high_s) {
  return static_cast<Nanoseconds>(between(draws, low_s, high_s) * 1e9);
}

void draw_network(Random draws, Scenario& s) {
  auto& network = s.network;
  network.delay = time_between(draws, 0.001, 0.15);
  network.jitter = draws.uniform();
  network.up_share = between(draws, 0.2, 1);
  if (draws.chance(0.3)) s.slow_lines = 0.3;
  s.rate_limited = draws.chance(0.5);
  // What keeps a federation going without a step needs some rate for each peer.
  const double least = kLeastRateForEach * s.sites / network.up_share;
  network.bytes_per_second = between(draws, s.slow_lines > 0 ? 10 * least : least, 1e8);
  network.queue_bytes = static_cast<std::size_t>(between(draws, 1 << 14, 1 << 20));
  if (draws.chance(0.5)) network.packet_loss = between(draws, 1e-4, 0.03);
  s.delay_spread = draws.uniform();
  if (draws.chance(0.5)) network.loss = between(draws, 0.001, 0.05);
  if (draws.chance(0.3)) network.duplicate = between(draws, 0.001, 0.05);
  if (draws.chance(0.3)) network.reorder = between(draws, 0.001, 0.1);
  network.silent_deaths = draws.uniform();
  network.tcp =
      std::array{SimulatedTcp::unseen, SimulatedTcp::reno, SimulatedTcp::bbr}[draws.below(3)];
}

void draw_connections(Random draws, Scenario& s) {
  if (draws.chance(0.5)) s.few_connections = draws.uniform();
}

void draw_disk(Random draws, Scenario& s) {
  s.disk.sync = time_between(draws, 1e-4, 0.03);
  s.disk.bytes_per_second = between(draws, 5e6, 2e9);
}

// What happens once, of which some cannot happen in one run.
void draw_turn(Random draws, Scenario& s) {
  if (s.blind_pair || s.narrow_site) return;  // who is lost may be whom the others need
  switch (draws.below(8)) {
    case 0:
      s.roster_changes = s.sites > 2;
      // The voters that stay are a majority of those that were.
      s.roster_drops =
          s.roster_changes && s.voters > 2 && s.min_sites < s.sites && draws.chance(0.4);
      return;
    case 1:
      // The operator needs to know which state is right.
      s.majority_lost = s.sites > s.voters / 2 + s.min_sites && s.memory_errors == 0;
      return;
    case 2:
      s.one_leaves_for_good = s.sites > 2;
      return;
    default:
      return;
  }
}

}  // namespace

Scenario storm_scenario(std::uint64_t seed) {
  const Random random = Random(seed).split("storm");
  auto draws = random.split("federation");
  Scenario s;
  s.name = "--storm";
  s.about = "a federation of its own for each seed, under every kind of fault";
  s.sites = 2 + static_cast<std::uint32_t>(draws.below(6));
  s.voters = 1 + static_cast<std::uint32_t>(draws.below(s.sites));
  s.outer_steps = 4 + draws.below(9);
  if (draws.chance(0.5)) s.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
  using enum compress::CodecId;
  s.codec = std::array{none, bf16, int8, int8}[draws.below(4)];
  s.min_sites = 1 + static_cast<std::uint32_t>(draws.below(std::max(1U, s.sites - 1)));
  s.absent_steps = 1 + static_cast<std::uint32_t>(draws.below(3));
  s.compute = time_between(draws, 1, 6);
  if (draws.chance(0.2)) s.absent_start = 0.5;
  if (draws.chance(0.2)) s.blind_pair = s.sites > 3;
  if (draws.chance(0.2)) s.narrow_site = s.sites > 3 && !s.blind_pair;
  // Of a lone voter's mistake nobody can tell.
  s.memory_errors = draws.chance(0.1) && s.voters > 1 ? 0.05 : 0;
  s.clock_drift = between(draws, 1e-6, 5e-3);
  s.killed_again = 0.4 * draws.uniform();
  s.votes_lost = 0.3 * draws.uniform();
  s.wiped_again = 0.5 * draws.uniform();
  draw_network(random.split("network"), s);
  draw_connections(random.split("connections"), s);
  draw_disk(random.split("disk"), s);
  draw_turn(random.split("turn"), s);
  // An outer step in health is what the ranks compute, and a second or so.
  const double step_s = seconds_of(s.compute) + 1.5;
  s.any_fault_every = time_between(draws, step_s, 4 * step_s);
  s.trouble_ends = static_cast<Nanoseconds>(1e9 * step_s * static_cast<double>(s.outer_steps) * 3);
  s.limit = s.trouble_ends + 1800 * kSecond;
  return s;
}

}  // namespace isthmus::inter::sim
