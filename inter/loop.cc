#include "inter/loop.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <exception>

#include "base/assert.h"

namespace isthmus::inter {

namespace asio = boost::asio;

// Asio keeps `shutdown` for derived contexts: it destroys what is pending while the services, and
// so our timers, stay usable.
class Loop::Context : public asio::io_context {
 public:
  Context() : asio::io_context(1) {}
  void destroy_pending() { asio::execution_context::shutdown(); }
};

Loop::Loop(const Clock& clock)
    : clock_(clock), context_(std::make_unique<Context>()), io_(context_.get()) {}

Loop::~Loop() { abandon(); }

void Loop::abandon() {
  timers_.clear();
  when_of_.clear();
  context_->destroy_pending();
}

void Loop::spawn(Task<void> task) {
  asio::co_spawn(*io_, std::move(task), [](std::exception_ptr failure) {
    if (!failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "isthmus: a coroutine ended with: %s\n", e.what());
    }
    ISTHMUS_ASSERT(!"an exception left a coroutine");
  });
}

void Loop::post(std::function<void()> function) { asio::post(*io_, std::move(function)); }

Loop::TimerId Loop::call_at(Nanoseconds when, std::function<void()> function) {
  const TimerId id = ++last_timer_;
  timers_.emplace(std::pair(when, id), std::move(function));
  when_of_.emplace(id, when);
  return id;
}

void Loop::cancel(TimerId id) {
  const auto found = when_of_.find(id);
  if (found == when_of_.end()) return;
  timers_.erase({found->second, id});
  when_of_.erase(found);
}

Task<void> Loop::sleep_until(Nanoseconds when) {
  Signal signal(*this);
  co_await signal.wait_until(when);
}

bool Loop::run_due_timers() {
  bool any = false;
  while (!timers_.empty() && timers_.begin()->first.first <= now() && !stopped_) {
    auto node = timers_.extract(timers_.begin());
    when_of_.erase(node.key().second);
    node.mapped()();
    any = true;
  }
  return any;
}

bool Loop::run_ready() {
  bool any = false;
  do {
    any |= run_due_timers();
    io_->restart();
    any |= io_->poll() > 0;  // until nothing is ready, with one system call
  } while (!stopped_ && !timers_.empty() && timers_.begin()->first.first <= now());
  return any;
}

std::optional<Nanoseconds> Loop::next_timer() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first.first;
}

void Loop::run() {
  auto guard = asio::make_work_guard(*io_);
  while (!stopped_) {
    run_due_timers();
    if (stopped_) break;
    io_->restart();
    if (io_->poll() > 0) continue;
    const auto next = next_timer();
    const auto wait = next ? std::max<Nanoseconds>(*next - now(), 0) : 3600 * kSecond;
    io_->run_one_for(std::chrono::nanoseconds(wait));
  }
}

void Loop::stop() {
  stopped_ = true;
  io_->stop();
}

Signal::Signal(Loop& loop)
    : loop_(loop), timer_(loop.io(), asio::steady_timer::time_point::max()) {}

void Signal::notify() { timer_.cancel(); }

Task<void> Signal::wait() {
  boost::system::error_code ignored;
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

Task<bool> Signal::wait_until(Nanoseconds deadline) {
  bool expired = false;
  const auto id = loop_.call_at(deadline, [this, &expired] {
    expired = true;
    notify();
  });
  boost::system::error_code ignored;
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  loop_.cancel(id);
  co_return !expired;
}

Task<void> run_on(Workers& workers, Loop& loop, std::function<void()> job, std::uint64_t cost_bytes,
                  Urgency urgency) {
  Signal done(loop);
  bool finished = false;
  workers.submit(
      std::move(job),
      [&] {
        finished = true;
        done.notify();
      },
      cost_bytes, urgency);
  while (!finished) co_await done.wait();
}

Task<Result<void>> run_all(Workers& workers, Loop& loop, std::uint32_t jobs,
                           std::uint64_t cost_bytes_each,
                           std::function<Result<void>(std::uint32_t)> job,
                           std::function<void(std::uint32_t)> done, Urgency urgency) {
  struct Shared {
    std::function<Result<void>(std::uint32_t)> job;
    std::function<void(std::uint32_t)> done;
    std::uint32_t left = 0;
    std::optional<Error> failure;
  };
  // With the jobs, should this coroutine be destroyed before them.
  auto shared = std::make_shared<Shared>();
  shared->job = std::move(job);
  shared->done = std::move(done);
  shared->left = jobs;
  Signal ended(loop);
  for (std::uint32_t i = 0; i < jobs; ++i) {
    auto result = std::make_shared<Result<void>>();
    auto run = [shared, result, i] { *result = shared->job(i); };
    auto after = [shared, result, i, &ended] {
      if (!*result && !shared->failure) shared->failure = result->error();
      if (!shared->failure && shared->done) shared->done(i);
      --shared->left;
      ended.notify();
    };
    workers.submit(std::move(run), std::move(after), cost_bytes_each, urgency);
  }
  while (shared->left > 0) co_await ended.wait();
  if (shared->failure) co_return *shared->failure;
  co_return Result<void>();
}

}  // namespace isthmus::inter
