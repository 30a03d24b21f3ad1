// One run of a simulated federation: the sites and what is done to them (federation_faults.cc, what
// lasts in federation_conditions.cc, what happens once in federation_once.cc), the loop in which
// everything happens (federation.cc), and what must hold all the while (federation_checks.cc).
// federation.h is what others use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inter/sim/effects.h"
#include "inter/sim/federation.h"
#include "inter/sim/run_model.h"
#include "inter/sim/simulated_clock.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_process.h"
#include "inter/sim/simulation.h"
#include "inter/sim/synthetic_ranks.h"
#include "inter/sim/vote_watch.h"

namespace isthmus::inter::sim {

class FederationRun {
 public:
  FederationRun(const Scenario& scenario, std::uint64_t seed, bool keep_history,
                const PartOfRun& part);
  Outcome run();

 private:
  struct Site {
    SiteId id = 0;
    double bytes_per_second = 0;  // of its line
    std::uint32_t bulk_connections_max = 0;
    std::unique_ptr<SimulatedClock> clock;
    std::unique_ptr<SimulatedDisk> disk;
    std::unique_ptr<SyntheticRanks> ranks;
    std::unique_ptr<SimulatedProcess> process;  // null: down
    bool gone_for_good = false;
    bool dying = false;
    bool held_down = false;  // started again by nobody but whoever brought it down
    bool ranks_dead = false;
    bool knew_run = false;
    std::optional<Nanoseconds> has_run_since;  // in this life; 0: all of it
    std::map<SiteId, Nanoseconds> sees_since;  // others, in this life, until it has a run
    bool majority_disk = false;                // it was lost with those of a majority of the voters
    bool has_newer_roster = false;
    bool other_settings = false;
    bool refused_settings = false;

    // Its vote file was lost with this step the newest known: it has no vote until a later state.
    std::optional<std::uint64_t> vote_lost_at;
    std::uint64_t votes_lost = 0, wipes = 0;
    Nanoseconds disk_lost_at = 0;  // the last time
    std::uint64_t torn = 0;        // files, up to its last crash
    bool wipe_due = false;         // once it has its vote back

    std::uint64_t starts = 0;
    std::uint64_t announced_saved = 0;
    bool announced_any = false;
    std::uint64_t announced_in = 0;            // starts
    std::optional<std::uint64_t> worked_step;  // whose work was checked, in this life
    struct Held {
      std::uint64_t starts = 0, step = 0;
      View view;
      std::map<SiteId, Part> parts;
      bool operator==(const Held&) const = default;
    };
    std::optional<Held> held;  // that was checked last
    // The named point at which it crashes, and how.
    struct CrashAt {
      std::string_view point;
      std::uint32_t left = 0, done = 0;  // times
      bool vote_lost = false;
    };
    std::optional<CrashAt> crash_at;

    // Faults that last, each counted.
    int disk_full = 0, no_descriptors = 0;
    std::uint64_t lacked_descriptors = 0;  // as its gateway says
    Nanoseconds waited_for_disk = 0;       // in its earlier lives
    std::vector<double> disk_slow, access_slow, ranks_slow;
    bool paused = false;
    Effects::Number pause = 0, crash = 0;        // the last ones
    std::vector<std::function<void()>> held_up;  // what happens to it when it goes on
    bool leaving = false;
  };
  // Several sites that die together.
  struct Outage {
    const Fault& fault;
    std::uint64_t step = 0;  // in which each reaches the point
    std::set<std::uint32_t> waiting, down;
  };

  static constexpr std::string_view kNoDescriptors = "too many open files";

  // --- Life (federation.cc)
  Site& site_of(std::string_view name);
  void lay_lines();
  GatewayOptions options_of(std::uint32_t index);
  void start(std::uint32_t index);
  void start_after(std::uint32_t index, Nanoseconds delay);
  void start_soon(std::uint32_t index);
  void poll(int actor);
  void log_event(const Event& event);
  void collect(const Gateway& gateway);
  bool all_finished() const;
  bool trouble() const { return simulation_.now() < scenario_.trouble_ends; }
  std::uint64_t newest_step() const { return records_.empty() ? 0 : records_.rbegin()->first; }
  void violation(const std::string& what);
  void count(const std::string& name, std::uint64_t n = 1) { outcome_.counters[name] += n; }

  static GatewayId gateway_at(std::uint32_t place) { return {place + 1, 0}; }

  // --- Faults (federation_faults.cc, federation_conditions.cc, federation_once.cc)
  void choose_faults(const PartOfRun& part);
  void schedule_faults();
  void apply(std::uint32_t place);
  void apply(const Fault& fault);
  Effects::Number strike(const Fault& fault, std::string counter, std::function<bool()> hit = {});
  static std::function<bool()> more(std::function<std::uint64_t()> count);
  bool run_both(std::uint32_t a, std::uint32_t b) const;
  bool lacks_connection(std::uint32_t index) const;
  void crash_by(const Fault& fault);
  void break_connections(const Fault& fault);
  void note_lanes_back();
  void note_crash(std::uint32_t index);
  void jump(const Fault& fault);
  void leave(std::uint32_t index, Nanoseconds length);
  void set_disk(std::uint32_t index);
  void fill_disk(const Fault& fault);
  void exhaust_descriptors(const Fault& fault);
  void slow_disk(const Fault& fault);
  void slow_access(const Fault& fault);
  void slow_ranks(const Fault& fault);
  void partition(const Fault& fault);
  void worsen_network(const Fault& fault);
  void set_network();
  void pause(const Fault& fault);
  void resume(std::uint32_t index);
  void heal_all();
  void start_ended_again();
  void apply_standing_cuts();
  bool stands_cut(GatewayId a, GatewayId b) const;
  std::uint32_t seen_by_narrow_site() const;
  void kill(std::uint32_t index);
  void end_on_disk(std::uint32_t index);
  void crash(std::uint32_t index, bool vote_lost = false);  // and it comes back
  void at_point(std::uint32_t index, const char* point, std::uint64_t step);
  void disturb(std::uint32_t index, std::uint64_t step, std::span<float> agreed);
  bool may_lose_vote(std::uint32_t index) const;
  bool majority_without(std::uint32_t index) const;
  bool may_lose_site(std::uint32_t index) const;
  void note_lost_vote(Site& site);
  void lose_vote(std::uint32_t index);
  void lose_disk(Site& site);
  void wipe(std::uint32_t index, bool again);
  void wipe_again(std::uint32_t index);
  void begin_outage(const Fault& fault);
  void fell(std::uint32_t index);
  void end_outage();
  void at_a_third();
  void change_roster(const Fault& fault);
  void read_newer_roster(std::uint32_t index);
  void switch_off_first();
  void lose_majority(const Fault& fault);
  void recover();
  void start_with_other_settings();
  void start_with_right_settings();
  void kill_ranks(const Fault& fault);
  View newest_view() const;

  // --- Invariants (federation_checks.cc)
  void check(std::uint32_t index);
  bool check_run(std::uint32_t index);
  bool has_vote_back(const Site& site) const;
  void check_failure(std::uint32_t index);
  void check_held(Site& site);
  void check_records(std::uint32_t index);
  void check_state(std::uint32_t index);
  void note_taken_back(Site& site);
  void check_chunks(const Site& site);
  void note_credit(const Site& site);
  void check_at_end();
  void check_work(Site& site);
  void check_dead_ranks();
  void check_narrow_site();
  void note_return(const Site& site);
  void check_return();
  std::string where_all_are() const;

  Scenario scenario_;
  Random random_;
  Random chance_;                      // what a fault leaves open: who restarts when
  std::vector<std::uint32_t> places_;  // in Outcome::faults, of those that are to happen
  Simulation simulation_;
  SimulatedNetwork network_;
  ModelLayout layout_;
  security::Roster roster_, newer_roster_;
  std::vector<Site> sites_;
  bool keep_history_;
  Outcome outcome_;
  security::Hasher log_hash_;

  // What all must agree on.
  std::map<std::uint64_t, security::Digest> root_of_, record_of_;
  std::map<std::uint64_t, Record> records_;
  std::map<std::uint64_t, Nanoseconds> decided_at_;  // as the first site knew it
  std::optional<security::Digest> run_;
  std::optional<security::Recovery> recovery_;
  RunModel model_;
  const bool memory_fails_;
  VoteWatch votes_;

  std::uint64_t most_unsettled_ = 0;  // chunks at one site of one peer
  Effects effects_{outcome_.counters};
  struct Broken {
    GatewayId a, b;
    Nanoseconds when = 0;
    Effects::Number number = 0;
  };
  std::vector<Broken> broken_;  // connections, until there are others
  std::optional<Outage> outage_;
  bool one_never_returned_ = false;
  bool settings_tried_ = false;
  std::uint32_t other_setting_ = 0;  // which one
  std::uint64_t ranks_died_at_ = 0;  // newest step then
  std::optional<Nanoseconds> away_until_;
  std::optional<std::uint64_t> returned_at_;  // newest step then
  // Left, by site and step.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> memory_errors_;
  std::map<std::pair<GatewayId, GatewayId>, int> cuts_;
  std::vector<double> bursts_;  // that the network is in
};

}  // namespace isthmus::inter::sim
