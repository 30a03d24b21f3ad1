// The trainer of one site at a real attach server, behind which a gateway of the test decides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "base/copy_to.h"
#include "inter/attach_server.h"
#include "inter/loop.h"
#include "runtime/trainer.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using std::chrono::milliseconds;

// Agrees on whatever the site contributes, minus a little, until the final step.
class AgreeingGateway final : public inter::OuterSteps {
 public:
  Result<void> attached(const inter::ModelLayout& layout) override {
    model_line = layout.settings();
    if (refusal) return *refusal;
    if (state) publish();
    return {};
  }
  void offer_initial(LargeVector<float> parameters) override {
    if (state) return;
    state.emplace(parameters.begin(), parameters.end());
    publish();
  }
  Result<void> contribute(std::uint64_t number,
                          std::shared_ptr<const inter::ContributedValues> values,
                          std::uint64_t tokens) override {
    if (number != step + 1) return Error{ErrorCode::mismatch, "another step is due"};
    token_counts.push_back(tokens);
    open.emplace(values->size());
    if (const auto found = values->read(0, *open); found.data() != open->data())
      copy_to(found, open->begin());
    if (!holds) decide();
    return {};
  }
  void detached() override {}
  void progressing() override { ++progress_count; }
  void leaving() override { ++leaving_count; }

  void decide() {
    for (auto& x : *open) x -= 0.001F;
    state = std::move(*open);
    open.reset();
    ++step;
    publish();
  }
  void publish() {
    inter::Published published;
    published.step = step;
    published.record.bytes[0] = static_cast<std::byte>(step);
    published.parameters = *state;
    published.final_step = step == 4;
    published.contribution_open = open.has_value();
    published.contributed = open ? step + 1 : step;
    ranks->publish(published);
  }

  inter::Ranks* ranks = nullptr;
  std::string model_line;
  std::optional<Error> refusal;
  std::optional<std::vector<float>> state, open;
  std::uint64_t step = 0;
  bool holds = false;  // until decide()
  std::vector<std::uint64_t> token_counts;
  int progress_count = 0, leaving_count = 0;
};

class AttachedSyncTest : public testing::Test {
 protected:
  AttachedSyncTest() {
    write_contents(folder_ / "text", sample_text(3000, 1));
    log_.add(make_callback_sink([this](const Event& event) {
      const std::lock_guard lock(events_mutex_);
      events_.emplace_back(event.id);
    }));
    loop_thread_ = std::thread([this] { loop_.run(); });
  }
  ~AttachedSyncTest() override {
    stop_server();
    loop_.post([this] { loop_.stop(); });
    loop_thread_.join();
  }

  void on_loop(const std::function<void()>& function) {
    std::promise<void> done;
    loop_.post([&] {
      function();
      done.set_value();
    });
    done.get_future().get();
  }
  void start_server() {
    on_loop([this] {
      server_ = std::make_unique<inter::AttachServer>(
          loop_, log_, folder_ / "gateway.sock", gateway_, [] { return inter::GatewayStatus{}; });
      gateway_.ranks = server_.get();
      EXPECT_TRUE(server_->listen());
    });
  }
  void stop_server() {
    on_loop([this] { server_.reset(); });
  }
  bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000; ++i) {
      bool holds = false;
      on_loop([&] { holds = condition(); });
      if (holds) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }
  bool logged(std::string_view id) {
    const std::lock_guard lock(events_mutex_);
    return std::find(events_.begin(), events_.end(), id) != events_.end();
  }

  std::future<Result<TrainOutcome>> train_in_background() {
    return std::async(std::launch::async, [this] {
      ThreadPool pool({-1});
      auto model = make_small_model(pool);
      auto data = TextDataset::open(*disk_, {{folder_ / "text"}}, 24, 1);
      const auto world = intra::make_alone_communicator();
      const auto sync = make_attached_sync(folder_ / "gateway.sock", "a small model", log_);
      TrainOptions options;
      options.federated = true;
      options.inner_steps = 3;
      options.checkpoint_folder = folder_ / "checkpoints";
      options.metrics_path = folder_ / "metrics.jsonl";
      auto outcome = train({.model = *model,
                            .data = *data,
                            .world = *world,
                            .disk = *disk_,
                            .clock = *clock_,
                            .log = log_,
                            .outer = sync.get(),
                            .stop = &stop_},
                           options);
      for (std::size_t i = 0; i < model->tensors().size(); ++i)
        final_parameters_.insert(final_parameters_.end(), model->parameters(i).begin(),
                                 model->parameters(i).end());
      return outcome;
    });
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  std::unique_ptr<Clock> clock_ = make_system_clock();
  EventLog log_{*clock_, "alpha"};
  std::mutex events_mutex_;
  std::vector<std::string> events_;
  inter::Loop loop_{*clock_};
  AgreeingGateway gateway_;
  std::unique_ptr<inter::AttachServer> server_;
  std::thread loop_thread_;
  std::atomic<bool> stop_{false};
  std::vector<float> final_parameters_;
};

TEST_F(AttachedSyncTest, TrainsToTheFinalStep) {
  start_server();
  const auto outcome = train_in_background().get();
  ASSERT_TRUE(outcome) << outcome.error().text();
  EXPECT_TRUE(outcome->finished);
  EXPECT_EQ(outcome->outer_step, 4U);
  EXPECT_EQ(outcome->inner_step, 12);
  on_loop([&] {
    EXPECT_EQ(gateway_.model_line, "a small model");
    EXPECT_EQ(gateway_.token_counts, (std::vector<std::uint64_t>{144, 144, 144, 144}));
    EXPECT_EQ(final_parameters_, *gateway_.state);
    EXPECT_EQ(gateway_.leaving_count, 0);
  });
}

TEST_F(AttachedSyncTest, OutlivesItsGateway) {
  auto training = train_in_background();  // no gateway yet
  std::this_thread::sleep_for(milliseconds(250));
  gateway_.holds = true;
  start_server();
  for (std::uint64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(eventually([&] { return gateway_.open.has_value(); })) << step;
    stop_server();
    std::this_thread::sleep_for(milliseconds(150));
    // An even step's contribution is lost with the gateway, and handed over again.
    if (step % 2 == 0) on_loop([&] { gateway_.open.reset(); });
    start_server();
    ASSERT_TRUE(eventually([&] { return gateway_.open.has_value(); })) << step;
    on_loop([&] { gateway_.decide(); });
  }
  const auto outcome = training.get();
  ASSERT_TRUE(outcome) << outcome.error().text();
  EXPECT_TRUE(outcome->finished);
  EXPECT_EQ(outcome->inner_step, 12);
  on_loop([&] { EXPECT_EQ(final_parameters_, *gateway_.state); });
  EXPECT_TRUE(logged("gateway_away"));
  EXPECT_TRUE(logged("gateway_back"));
}

TEST_F(AttachedSyncTest, AStopIsNoticedWhileWaitingAndTold) {
  gateway_.holds = true;
  start_server();
  auto training = train_in_background();
  ASSERT_TRUE(eventually([&] { return gateway_.open.has_value(); }));
  stop_ = true;
  const auto outcome = training.get();
  ASSERT_TRUE(outcome) << outcome.error().text();
  EXPECT_FALSE(outcome->finished);
  EXPECT_EQ(outcome->inner_step, 3);
  EXPECT_TRUE(eventually([&] { return gateway_.leaving_count == 1; }));
}

TEST_F(AttachedSyncTest, ARefusalEndsTrainingWithItsReason) {
  gateway_.refusal = Error{ErrorCode::mismatch, "the model differs: hidden is 32, not 64"};
  start_server();
  const auto outcome = train_in_background().get();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::mismatch);
  EXPECT_THAT(outcome.error().text(), testing::HasSubstr("hidden is 32, not 64"));
}

}  // namespace
}  // namespace isthmus::runtime
