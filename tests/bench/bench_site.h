// What benchmarks of gateways share: the model and the ranks that they pretend to have, and one
// site with a real gateway, wire, disk and workers, in the process that calls.
#pragma once

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/large_vector.h"
#include "base/result.h"
#include "inter/contributed_values.h"
#include "inter/gateway.h"
#include "inter/model_layout.h"
#include "inter/rank_values.h"
#include "inter/ranks.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"
#include "tests/inter/loopback_federation.h"

namespace isthmus::bench {

// Says why on the standard error, and ends the process.
[[noreturn]] void give_up(std::string_view why);

template <class T>
T value_of(Result<T> result) {
  if (!result) give_up(result.error().text());
  return std::move(*result);
}
inline void check(const Result<void>& result) {
  if (!result) give_up(result.error().text());
}

// As fork(), for a child that gets `signal` when this process ends, however it does: SIGKILL,
// unless the child has to clean up.
pid_t fork_child(int signal = SIGKILL);
// The same for this process, by who has started it.
void end_with_parent();
// SIGINT ends this process, also where a shell has started it in the background.
void end_on_interrupt();

// Of each child one T, in whatever order they say it; the descriptors are the only ends of their
// pipes but the children's own. Gives up when a child ends before it has said it, and with `late`
// after so many seconds.
template <class T>
std::vector<T> hear_all(std::span<const int> children, double patience, std::string_view late) {
  std::vector<T> said(children.size());
  std::vector<pollfd> silent;
  for (const int child : children) silent.push_back({child, POLLIN, 0});
  const double until = wall_seconds() + patience;
  for (auto left = children.size(); left > 0;) {
    const double seconds = std::clamp(until - wall_seconds(), 0.0, 1e6);
    if (::poll(silent.data(), silent.size(), static_cast<int>(1e3 * seconds)) == 0) give_up(late);
    for (std::size_t i = 0; i < silent.size(); ++i) {
      if (silent[i].fd < 0 || silent[i].revents == 0) continue;
      if (::read(silent[i].fd, &said[i], sizeof(T)) != sizeof(T))
        give_up(
            "a gateway did not finish: what it said is above; if its disk takes no more, free some "
            "or name another --folder");
      silent[i].fd = -1;  // which poll() leaves out
      --left;
    }
  }
  return said;
}

// Matrices of 1024 columns, as a model has them, and a vector of what is left.
inter::ModelLayout layout_of(std::uint64_t parameters);

// Of gateways and ranks of so many sites, at least. invalid_argument: this machine has less memory.
Result<void> check_memory(std::uint64_t parameters, std::uint64_t sites);

// How far inner steps went: normal, with a spread of its own for each row. A million values are
// drawn, and come again.
std::vector<float> inner_progress(std::uint64_t count, std::uint64_t seed);

// What a site's ranks share with their gateway: they find published parameters in it.
class RankMemory {
 public:
  explicit RankMemory(std::uint64_t elements);
  // As Ranks.
  std::shared_ptr<inter::StateDraft> draft();
  void publish(const inter::Published& state);
  std::span<const float> parameters() const { return state_; }

 private:
  LargeVector<float> state_;
  std::shared_ptr<const inter::RankPieces> areas_;  // shared with the drafts
  std::shared_ptr<inter::RankDraft> draft_;         // shared with who computes the next state
};

// Where ranks stand, read from the memory that they share with their gateway.
class ValuesInPlace final : public inter::ContributedValues {
 public:
  explicit ValuesInPlace(std::span<const float> values) : values_(values) {}
  std::uint64_t size() const override { return values_.size(); }
  std::span<const float> read(std::uint64_t first, std::span<float> out) const override {
    return values_.subspan(first, out.size());
  }

 private:
  const std::span<const float> values_;
};

// A new folder in `parent` ("": where the system keeps temporary files), removed with all in it:
// also when this process and those that it forks are killed. Before threads are.
class TemporaryPlace {
 public:
  TemporaryPlace(const std::string& parent, std::string_view name);
  ~TemporaryPlace();
  TemporaryPlace(const TemporaryPlace&) = delete;
  TemporaryPlace& operator=(const TemporaryPlace&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int life_ = -1;  // closed when the last process with it ends
  pid_t remover_ = 0;
};

// What the bytes of the gateways that are measured go through.
inline constexpr std::string_view kWhatIsOn =
    "TLS, BLAKE2s of each chunk, Ed25519 of each eight, zstd where it pays, XXH3-128 of each "
    "leaf;\n"
    "  contributions, feedback, votes, records and states written and synced";
// The same for programs.
void say_what_is_on(const Report& report);

struct BenchSite {
  const inter::LoopbackFederation& federation;
  std::size_t self = 0;  // place in the roster
  std::uint64_t parameters = 0;
  inter::GatewayOptions options;
  std::string congestion_control;
  std::vector<int> cpus;  // of the workers; the caller has pinned its own thread
};

// Pins the calling thread, and so all that it makes, to one CPU: another one for the next site.
BenchSite site_on_own_cpu(const inter::LoopbackFederation& federation, std::size_t self,
                          std::uint64_t parameters);

// The rules that the benchmarks choose from, by their names on the command line.
inter::SyncOptions sync_of(const std::string& codec, const std::string& outer,
                           std::uint64_t outer_steps, std::uint64_t sites);

// Runs the site's gateway until its run has ended. Ends this process when its disk takes no more,
// for which a gateway waits. `make_ranks` is called once; what it returns outlives the gateway.
// Returns the bytes that were sent to the other sites.
using MakeRanks =
    std::function<std::unique_ptr<inter::Ranks>(inter::Loop& loop, inter::Gateway& gateway)>;
std::uint64_t run_bench_site(BenchSite site, const MakeRanks& make_ranks);

}  // namespace isthmus::bench
