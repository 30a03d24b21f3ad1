#include "launcher/status_source.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "inter/status_client.h"
#include "launcher/event_tail.h"
#include "launcher/run_folder.h"

namespace isthmus::launcher {
namespace {

constexpr Nanoseconds kPatience = 500 * kMillisecond;

class GatewaySource final : public StatusSource {
 public:
  explicit GatewaySource(std::string path) : path_(std::move(path)) {}
  Result<inter::GatewayStatus> poll() override { return inter::fetch_status(path_, kPatience); }

 private:
  std::string path_;
};

class AloneSource final : public StatusSource {
 public:
  explicit AloneSource(const SiteFile& file)
      : tail_(RunFolder(file.site.run_dir).metrics(), EventTail::From::beginning),
        inner_steps_(static_cast<std::uint64_t>(file.sync.inner_steps)) {
    status_.site = file.site.name;
    status_.phase = "training alone";
    status_.outer_steps = static_cast<std::uint64_t>(file.sync.outer_steps);
  }

  Result<inter::GatewayStatus> poll() override {
    for (const auto& line : tail_.poll()) {
      if (line.id != "inner_step") continue;
      if (first_time_ == 0) first_time_ = line.time;
      inter::RankStatus rank;
      rank.inner_step = std::strtoull(line.field("inner_step").c_str(), nullptr, 10);
      rank.loss = std::strtod(line.field("loss").c_str(), nullptr);
      rank.tokens_per_second = std::strtod(line.field("tokens_per_second").c_str(), nullptr);
      rank.state = "computing";
      status_.outer_step = rank.inner_step / inner_steps_;
      status_.uptime_s = line.time - first_time_;
      status_.ranks = {rank};
    }
    if (status_.ranks.empty()) return Error{ErrorCode::unavailable, "it has not trained yet"};
    return status_;
  }

 private:
  EventTail tail_;
  std::uint64_t inner_steps_;
  double first_time_ = 0;
  inter::GatewayStatus status_;
};

}  // namespace

std::unique_ptr<StatusSource> make_status_source(const SiteFile& file) {
  if (file.alone()) return std::make_unique<AloneSource>(file);
  return std::make_unique<GatewaySource>(RunFolder(file.site.run_dir).socket());
}

void poll_into(SiteHistory& history, StatusSource& source) {
  auto status = source.poll();
  if (status)
    history.add(std::move(*status));
  else
    history.add_trouble(status.error().text());
}

}  // namespace isthmus::launcher
