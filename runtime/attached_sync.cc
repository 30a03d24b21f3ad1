#include <fmt/format.h>

#include <cmath>

#include "inter/attach_client.h"
#include "runtime/outer_sync.h"

namespace isthmus::runtime {
namespace {

constexpr Nanoseconds kProgressPeriod = 250 * kMillisecond;

// One rank holds all of the model: a box per whole tensor.
inter::AttachRequest request_for(std::span<const CanonicalTensor> tensors,
                                 const std::string& model_settings) {
  inter::AttachRequest request;
  request.model_settings = model_settings;
  for (const auto& tensor : tensors) {
    const auto index = static_cast<std::uint32_t>(request.tensors.size());
    const std::vector<std::int64_t> origin(tensor.shape.rank(), 0);
    request.boxes.push_back(
        {.tensor = index, .first = Shape(std::span(origin)), .count = tensor.shape});
    request.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  return request;
}

OuterState::From from_of(inter::MergeFrom from) {
  switch (from) {
    case inter::MergeFrom::nothing:
      return OuterState::From::nothing;
    case inter::MergeFrom::base:
      return OuterState::From::base;
    case inter::MergeFrom::contribution:
      return OuterState::From::contribution;
  }
  return OuterState::From::nothing;
}

// A gateway that is away (closed), or not yet there (timeout), comes back; it never ends training.
class AttachedSync final : public OuterSync {
 public:
  AttachedSync(std::string path, std::string model_settings, EventLog& log)
      : path_(std::move(path)),
        model_settings_(std::move(model_settings)),
        log_(log),
        clock_(make_system_clock()) {}

  void attach(std::span<const CanonicalTensor> tensors, std::span<const float> initial) override {
    request_ = request_for(tensors, model_settings_);
    initial_.emplace(initial.begin(), initial.end());
  }

  Result<void> contribute(std::uint64_t step, std::span<const float> parameters,
                          std::uint64_t tokens) override {
    auto status = client_->contribute(step, parameters, tokens);
    if (status || status.error().code != ErrorCode::closed) return status;
    note_away();  // the client has its copy, and hands it over when the gateway is back
    return {};
  }

  Result<std::optional<OuterState>> next_state(Nanoseconds timeout) override {
    if (away_) {
      ISTHMUS_TRY(const bool back, come_back(timeout));
      if (!back) return std::optional<OuterState>();
    }
    const auto state = client_->wait_state(timeout);
    if (!state && state.error().code == ErrorCode::closed) {
      note_away();
      return std::optional<OuterState>();
    }
    if (!state) return state.error();
    if (!*state) return std::optional<OuterState>();
    const inter::AgreedState& agreed = **state;
    OuterState taken{.step = agreed.step,
                     .record = agreed.record.hex(),
                     .run = agreed.run.hex(),
                     .from = from_of(agreed.from),
                     .final_step = agreed.final_step,
                     .contribution_open = agreed.contribution_open,
                     .contributed = agreed.contributed,
                     .parameters = {agreed.parameters.begin(), agreed.parameters.end()}};
    if (const auto status = client_->took(); !status) {
      if (status.error().code != ErrorCode::closed) return status.error();
      note_away();
    }
    return std::optional(std::move(taken));
  }

  void progress(const TrainStatus& status) override {
    const Nanoseconds now = clock_->now();
    if (client_ == nullptr || away_ || now - last_progress_ < kProgressPeriod) return;
    last_progress_ = now;
    // One that is lost is followed by the next; a gateway that is gone shows in next_state().
    (void)client_->progress({.inner_step = static_cast<std::uint64_t>(status.inner_step),
                             .loss = std::isfinite(status.loss) ? status.loss : 0,
                             .tokens_per_second = status.tokens_per_second,
                             .state = status.waiting ? "waiting for the outer step" : "computing"});
  }

  void leave() override {
    if (client_ != nullptr && !away_) (void)client_->leaving();
  }

 private:
  Result<bool> come_back(Nanoseconds timeout) {
    if (client_ == nullptr) {
      ISTHMUS_TRY(client_, inter::AttachClient::create(path_, std::move(request_)));
    }
    auto status = client_->reattach(timeout);
    if (status && was_there_) log_.info("gateway_back", {});
    if (status && initial_) {
      status = client_->initial(*initial_);
      initial_.reset();  // from now on the client sees to it that they arrive
    }
    if (status) {
      away_ = false;
      was_there_ = true;
      return true;
    }
    const auto code = status.error().code;
    if (code == ErrorCode::closed || code == ErrorCode::timeout) return false;
    return status.error();
  }

  void note_away() {
    if (!away_) log_.warning("gateway_away", {}, {{"then", "waiting until it is started again"}});
    away_ = true;
  }

  std::string path_, model_settings_;
  EventLog& log_;
  std::unique_ptr<Clock> clock_;
  inter::AttachRequest request_;
  std::optional<std::vector<float>> initial_;  // until attached
  std::unique_ptr<inter::AttachClient> client_;
  bool away_ = true;        // not connected
  bool was_there_ = false;  // has ever been
  Nanoseconds last_progress_ = 0;
};

}  // namespace

std::unique_ptr<OuterSync> make_attached_sync(const std::string& socket_path,
                                              const std::string& model_settings, EventLog& log) {
  return std::make_unique<AttachedSync>(socket_path, model_settings, log);
}

}  // namespace isthmus::runtime
