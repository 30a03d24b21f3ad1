#include "launcher/status_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/counted.h"
#include "base/disk.h"
#include "inter/outer_store.h"
#include "inter/status_client.h"
#include "launcher/event_tail.h"
#include "launcher/run_folder.h"

namespace isthmus::launcher {
namespace {

constexpr Nanoseconds kPatience = 500 * kMillisecond;

// How far a run has come that nobody runs now.
Error not_running(std::uint64_t steps, std::int64_t planned, bool complete) {
  // More than are planned, where sync.outer_steps has been lowered since.
  const auto of = static_cast<std::int64_t>(steps) > planned
                      ? counted(steps, "outer step")
                      : fmt::format("{} of {}", steps, counted(planned, "outer step"));
  return Error{ErrorCode::unavailable,
               complete     ? fmt::format("its run is complete: {}", counted(steps, "outer step"))
               : steps == 0 ? "it does not run, and no outer step is done yet"
                            : fmt::format("it does not run; {} are done", of)};
}

class GatewaySource final : public StatusSource {
 public:
  explicit GatewaySource(const SiteFile& file)
      : folder_(file.site.run_dir), planned_(file.sync.outer_steps), disk_(make_system_disk()) {}

  Result<inter::GatewayStatus> poll() override {
    complete_at_.reset();
    auto status = inter::fetch_status(folder_.socket(), kPatience);
    if (status || somebody_runs(folder_)) return status;
    if (status.error().code == ErrorCode::permission) return status;  // so it may run
    const auto records = inter::OuterStore::read_records(*disk_, folder_.outer());
    if (!records) return status;
    std::uint64_t steps = records->size(), saved = 0;
    if (const auto state = inter::OuterStore::newest_state(*disk_, folder_.outer());
        state && *state)
      saved = (*state)->step;
    const bool complete = !records->empty() && records->back().record.final_step;
    if (complete && saved < steps)
      return Error{
          ErrorCode::unavailable,
          fmt::format("its run is complete: {}; this site has not saved the last one: start it "
                      "again, and it fetches that from a site that has it",
                      counted(steps, "outer step"))};
    steps = std::max(steps, saved);  // where records are damaged
    if (complete) complete_at_ = steps;
    return not_running(steps, planned_, complete);
  }

  std::optional<std::uint64_t> complete_at() const override { return complete_at_; }

 private:
  std::optional<std::uint64_t> complete_at_;
  RunFolder folder_;
  std::int64_t planned_;
  std::unique_ptr<Disk> disk_;
};

class AloneSource final : public StatusSource {
 public:
  explicit AloneSource(const SiteFile& file)
      : folder_(file.site.run_dir),
        tail_(folder_.metrics(), EventTail::From::near_end),
        inner_steps_(static_cast<std::uint64_t>(file.sync.inner_steps)) {
    status_.site = file.site.name;
    status_.phase = "training alone";
    status_.outer_steps = static_cast<std::uint64_t>(file.sync.outer_steps);
  }

  Result<inter::GatewayStatus> poll() override {
    for (auto lines = tail_.poll(); !lines.empty(); lines = tail_.poll())
      for (const auto& line : lines) take(line);
    complete_at_.reset();
    if (!somebody_runs(folder_)) {
      const bool complete = status_.outer_step >= status_.outer_steps;
      if (complete) complete_at_ = status_.outer_step;
      return not_running(status_.outer_step, static_cast<std::int64_t>(status_.outer_steps),
                         complete);
    }
    if (status_.ranks.empty()) return Error{ErrorCode::unavailable, "it has not trained yet"};
    return status_;
  }

  std::optional<std::uint64_t> complete_at() const override { return complete_at_; }

 private:
  std::optional<std::uint64_t> complete_at_;

  void take(const LoggedEvent& line) {
    if (line.id == "resumed") first_time_ = line.time;
    if (line.id != "inner_step") return;
    if (first_time_ == 0) first_time_ = begin_of_file();
    inter::RankStatus rank;
    rank.inner_step = std::strtoull(line.field("inner_step").c_str(), nullptr, 10);
    rank.loss = std::strtod(line.field("loss").c_str(), nullptr);
    rank.tokens_per_second = std::strtod(line.field("tokens_per_second").c_str(), nullptr);
    rank.state = "computing";
    status_.outer_step = rank.inner_step / inner_steps_;
    status_.uptime_s = line.time - first_time_;
    status_.ranks = {rank};
  }

  // Where this process began is further back than we look: what the file began with must do.
  double begin_of_file() const {
    constexpr std::size_t kFirstLine = 4096;
    const auto lines = EventTail(folder_.metrics(), EventTail::From::beginning).poll(kFirstLine);
    return lines.empty() ? 0 : lines.front().time;
  }

  RunFolder folder_;
  EventTail tail_;
  std::uint64_t inner_steps_;
  double first_time_ = 0;
  inter::GatewayStatus status_;
};

}  // namespace

std::unique_ptr<StatusSource> make_status_source(const SiteFile& file) {
  if (file.alone()) return std::make_unique<AloneSource>(file);
  return std::make_unique<GatewaySource>(file);
}

void poll_into(SiteHistory& history, StatusSource& source) {
  auto status = source.poll();
  if (status)
    history.add(std::move(*status));
  else
    history.add_trouble(status.error().text());
}

}  // namespace isthmus::launcher
