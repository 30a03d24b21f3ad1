// One run of a simulated federation: the sites and what is done to them (federation_faults.cc), the
// loop in which everything happens (federation.cc), and what must hold all the while
// (federation_checks.cc). federation.h is what others use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inter/sim/federation.h"
#include "inter/sim/run_model.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_process.h"
#include "inter/sim/simulation.h"
#include "inter/sim/synthetic_ranks.h"
#include "inter/sim/vote_watch.h"

namespace isthmus::inter::sim {

class FederationRun {
 public:
  FederationRun(const Scenario& scenario, std::uint64_t seed, bool keep_log);
  Outcome run();

 private:
  struct Site {
    SiteId id = 0;
    std::unique_ptr<SimulatedDisk> disk;
    std::unique_ptr<SyntheticRanks> ranks;
    std::unique_ptr<SimulatedProcess> process;  // null: down
    bool gone_for_good = false;
    bool dying = false;
    bool held_down = false;  // started again by nobody but whoever brought it down
    bool ranks_dead = false;
    bool has_newer_roster = false;
    bool other_settings = false;
    bool refused_settings = false;

    // Its vote file was lost with this step the newest known: it has no vote until a later state.
    std::optional<std::uint64_t> vote_lost_at;
    std::uint64_t votes_lost = 0, wipes = 0;
    bool wipe_due = false;  // once it has its vote back

    std::uint64_t starts = 0;
    std::uint64_t announced_saved = 0;
    bool announced_any = false;
    std::optional<std::uint64_t> worked_step;  // whose work was checked, in this life
    struct Held {
      std::uint64_t starts = 0, step = 0;
      View view;
      std::map<SiteId, Part> parts;
      bool operator==(const Held&) const = default;
    };
    std::optional<Held> held;    // that was checked last
    std::string crash_at;        // a named point
    bool crashes_again = false;  // at it
  };
  // Several sites that die together.
  struct Outage {
    std::string point;       // empty: at once
    std::uint64_t step = 0;  // in which each reaches the point
    std::set<std::uint32_t> waiting, down;
  };

  // --- Life (federation.cc)
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

  // --- Faults (federation_faults.cc)
  void plan_faults();
  std::vector<Nanoseconds> times(double rate_per_minute);
  void plan_partitions(std::uint32_t index);
  void apply_standing_cuts();
  bool stands_cut(GatewayId a, GatewayId b) const;
  void kill(std::uint32_t index);
  void crash(std::uint32_t index);  // and it comes back
  void at_point(std::uint32_t index, const char* point, std::uint64_t step);
  void disturb(std::uint32_t index, std::uint64_t step, std::span<float> agreed);
  bool may_lose_vote(std::uint32_t index) const;
  void note_lost_vote(Site& site);
  void lose_vote(std::uint32_t index);
  void wipe(std::uint32_t index);
  void wipe_again(std::uint32_t index);
  void begin_outage();
  void fell(std::uint32_t index);
  void end_outage();
  void at_a_third();
  void change_roster();
  void lose_majority();
  void recover();
  void start_with_other_settings();
  void start_with_right_settings();
  void kill_ranks();
  View newest_view() const;

  // --- Invariants (federation_checks.cc)
  void check(std::uint32_t index);
  bool has_vote_back(const Site& site) const;
  void check_failure(std::uint32_t index);
  void check_held(Site& site);
  void check_records(std::uint32_t index);
  void check_state(std::uint32_t index);
  void check_chunks(const Site& site);
  void check_at_end();
  void check_work(Site& site);
  void check_dead_ranks();
  void check_narrow_site();
  std::string where_all_are() const;

  Scenario scenario_;
  Random random_, faults_;
  Simulation simulation_;
  SimulatedNetwork network_;
  ModelLayout layout_;
  security::Roster roster_, newer_roster_;
  std::vector<Site> sites_;
  bool keep_log_;
  Outcome outcome_;
  security::Hasher log_hash_;

  // What all must agree on.
  std::map<std::uint64_t, security::Digest> root_of_, record_of_;
  std::map<std::uint64_t, Record> records_;
  std::map<std::uint64_t, Nanoseconds> decided_at_;  // as the first site knew it
  bool run_exists_ = false;
  std::optional<security::Recovery> recovery_;
  RunModel model_;
  VoteWatch votes_;

  std::optional<Outage> outage_;
  bool one_never_returned_ = false;
  bool settings_tried_ = false;
  std::uint32_t other_setting_ = 0;  // which one
  std::uint64_t ranks_died_at_ = 0;  // newest step then
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t>
      memory_errors_;  // by site and step
};

}  // namespace isthmus::inter::sim
