// What a start reads may be in the system's cache alone: of a process that was killed before it had
// synced it, or whose sync failed. What the start says on account of that outlives a power failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inter/sim/simulation.h"
#include "tests/base/passing_disk.h"
#include "tests/inter/outer_store_fixture.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kOperation = kMillisecond;  // of the disk, each

// A simulated disk of which one sync of a file fails.
class OneSyncFails final : public PassingDisk {
 public:
  OneSyncFails(std::shared_ptr<sim::SimulatedDisk> disk, std::optional<int> which)
      : PassingDisk(disk), simulated_(std::move(disk)), left_(which) {}
  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    ISTHMUS_TRY(auto file, PassingDisk::open(path, how));
    return std::unique_ptr<File>(std::make_unique<Counted>(std::move(file), *this));
  }
  bool failed() const { return left_ && *left_ < 0; }

 private:
  class Counted final : public PassingFile {
   public:
    Counted(std::unique_ptr<File> file, OneSyncFails& disk)
        : PassingFile(std::move(file)), disk_(disk) {}
    Result<void> sync() override {
      const bool fails = disk_.left_ && (*disk_.left_)-- == 0;
      if (fails) disk_.simulated_->set_faults({.failing = 1});
      auto synced = PassingFile::sync();
      disk_.simulated_->set_faults({});
      return synced;
    }

   private:
    OneSyncFails& disk_;
  };

  const std::shared_ptr<sim::SimulatedDisk> simulated_;
  std::optional<int> left_;
};

// What a site has said, and must not forget.
struct SaidSoFar {
  std::uint64_t boot = 0, vote_step = 0, records = 0, state_step = 0;
  VoteFileId vote_file = kNoVoteFile;
  bool run = false;
};

// A site whose processes end one after the other.
class RestartedSite {
 public:
  explicit RestartedSite(std::uint64_t seed)
      : disk_(std::make_shared<sim::SimulatedDisk>(Random(seed), &simulation_)) {
    disk_->set_speed({.operation = kOperation, .sync = 0, .bytes_per_second = 1e12});
  }

  // A start, and two steps after what it finds; a disk that refuses something ends it. How long it
  // takes.
  Nanoseconds live(std::optional<int> failing_sync = {}) {
    OneSyncFails disk(disk_, failing_sync);
    OuterStore store(disk, "outer", 12);
    const auto began = simulation_.now();
    auto end = began;
    said_.clear();
    auto said = last_;
    const auto asked = [&](const std::function<Result<void>()>& what) {
      disk_->begin_job();
      const bool done = what().has_value();
      end = simulation_.now() + disk_->end_job();
      if (done) said_.emplace_back(end, said);
      return done;
    };
    const auto start = [&]() -> Result<void> {
      ISTHMUS_TRY(const auto loaded, store.load(100 + ++starts_));
      expect_kept(loaded);
      said = {.boot = loaded.boot,
              .vote_step = loaded.vote_step,
              .records = loaded.records.size(),
              .state_step = loaded.state ? loaded.state->step : 0,
              .vote_file = loaded.vote_file,
              .run = loaded.genesis.has_value()};
      return {};
    };
    const auto step = [&]() -> bool {
      return asked([&] { return write_vote(store, ++said.vote_step); }) &&
             asked([&] { return store.append_record(sample_certificate_of(++said.records)); }) &&
             (said.state_step == said.records ||
              asked([&] { return write_state(store, ++said.state_step); }));
    };
    const auto found = [&] {
      said.run = true;
      return store.begin_run(genesis_of(2), layout_, Fingerprint{});
    };
    static_cast<void>(asked(start) && (said.run || asked(found)) && step() && step());
    failed_ = disk.failed();
    return end - began;
  }
  // So long after it began.
  void kill(Nanoseconds after) {
    end_after(after);
    disk_->kill_process();
  }
  void lose_power(Nanoseconds after) {
    end_after(after);
    disk_->crash();
  }
  // Whether the last life came to the sync that was to fail.
  bool sync_failed() const { return failed_; }
  void expect_all_kept() { live(); }

 private:
  void end_after(Nanoseconds time) {
    simulation_.advance(simulation_.now() + time);
    for (const auto& [when, said] : said_)
      if (when <= simulation_.now()) last_ = said;
  }
  void expect_kept(const OuterStore::Loaded& loaded) const {
    EXPECT_GT(loaded.boot, last_.boot);
    EXPECT_GE(loaded.vote_step, last_.vote_step);
    EXPECT_EQ(loaded.vote.promised, loaded.vote_step);
    EXPECT_TRUE(last_.vote_file == kNoVoteFile || loaded.vote_file == last_.vote_file);
    EXPECT_TRUE(loaded.genesis || !last_.run);
    EXPECT_GE(loaded.records.size(), last_.records);
    EXPECT_GE(loaded.state ? loaded.state->step : 0, last_.state_step);
    EXPECT_TRUE(!loaded.state || loaded.state->step <= loaded.records.size())
        << "a state without its record";
  }
  static Certificate sample_certificate_of(std::uint64_t step) {
    Certificate certificate;
    certificate.record = sample_record(step, 2);
    return certificate;
  }
  static Result<void> write_vote(OuterStore& store, std::uint64_t step) {
    Vote vote;
    vote.promised = step;
    vote.accepted = Vote::Accepted{step, sample_record(step, 12)};  // of several blocks
    return store.write_vote(step, vote);
  }
  Result<void> write_state(OuterStore& store, std::uint64_t step) const {
    OuterState state{.step = step, .record = {}, .agreed = {}, .momentum = {}};
    state.agreed.assign(5, static_cast<float>(step));
    state.momentum.assign(5, static_cast<float>(10 * step));
    ISTHMUS_TRY(const auto file, store.begin_state(state, state_root(layout_, state)));
    for (bool more = true; more;) {
      ISTHMUS_TRY(more, file->write_slice());
    }
    return {};
  }

  sim::Simulation simulation_;
  std::shared_ptr<sim::SimulatedDisk> disk_;
  ModelLayout layout_ = *ModelLayout::make({{"a", Shape{5}, 0}});
  std::vector<std::pair<Nanoseconds, SaidSoFar>> said_;  // by this life, and when
  SaidSoFar last_;                                       // that anybody heard
  std::uint64_t starts_ = 0;
  bool failed_ = false;
};

// That its process was about to sync when it was killed.
TEST(UnsyncedFiles, TheFolderOfAllOfThemIsKeptByWhoFindsIt) {
  class SyncedFolders final : public PassingDisk {
   public:
    using PassingDisk::PassingDisk;
    Result<void> sync_folder(const std::string& path) override {
      folders.insert(path);
      return PassingDisk::sync_folder(path);
    }
    std::set<std::string> folders;
  };
  SyncedFolders disk(std::make_shared<sim::SimulatedDisk>(Random(1)));
  ASSERT_TRUE(OuterStore(disk, "run_dir/outer").load(7));
  EXPECT_TRUE(disk.folders.contains("run_dir"));
}

TEST(UnsyncedFiles, OfAKilledProcessAreKeptByWhoReadsThem) {
  Nanoseconds first = kOperation, second = kOperation;
  for (Nanoseconds killed = 0; killed <= first; killed += kOperation)
    for (Nanoseconds power_lost = 0; power_lost <= second; power_lost += kOperation)
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(testing::Message() << killed << " " << power_lost << " " << seed);
        RestartedSite site(seed);
        first = site.live();
        site.kill(killed);
        second = site.live();
        site.lose_power(power_lost);
        site.expect_all_kept();
        if (testing::Test::HasFailure()) return;
      }
  EXPECT_GT(std::min(first, second), 30 * kOperation);
}

TEST(UnsyncedFiles, WhoseSyncFailedAreKeptByWhoReadsThem) {
  int failing = 0;
  for (bool reached = true; reached; ++failing) {
    Nanoseconds second = kOperation;
    for (Nanoseconds power_lost = 0; power_lost <= second; power_lost += kOperation)
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(testing::Message() << failing << " " << power_lost << " " << seed);
        RestartedSite site(seed);
        const auto all_of_it = site.live(failing);
        reached = site.sync_failed();
        site.kill(all_of_it);
        second = site.live();
        site.lose_power(power_lost);
        site.expect_all_kept();
        if (testing::Test::HasFailure()) return;
      }
  }
  EXPECT_GT(failing, 10);
}

}  // namespace
}  // namespace isthmus::inter
