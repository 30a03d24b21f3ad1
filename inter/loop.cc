#include "inter/loop.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
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

// Coroutines that nobody awaits, until they end.
class Loop::Spawned {
 public:
  std::coroutine_handle<> add(Task<void> task) {
    const auto number = ++last_;
    const auto frame = run(*this, number, std::move(task)).handle;
    frames_.emplace(number, frame);
    return frame;
  }
  void destroy_all() {
    while (!frames_.empty()) frames_.begin()->second.destroy();
  }

 private:
  struct Frame {
    struct promise_type {
      promise_type(Spawned& of, std::uint64_t own_number, const Task<void>&)
          : all(of), number(own_number) {}
      ~promise_type() { all.frames_.erase(number); }
      Frame get_return_object() {
        return {std::coroutine_handle<promise_type>::from_promise(*this)};
      }
      std::suspend_always initial_suspend() const noexcept { return {}; }
      std::suspend_never final_suspend() const noexcept { return {}; }
      void return_void() const {}
      void unhandled_exception() const;

      Spawned& all;
      const std::uint64_t number;
    };
    std::coroutine_handle<> handle;
  };
  static Frame run(Spawned&, std::uint64_t, Task<void> task) { co_await std::move(task); }

  std::map<std::uint64_t, std::coroutine_handle<>> frames_;
  std::uint64_t last_ = 0;
};

void Loop::Spawned::Frame::promise_type::unhandled_exception() const {
  try {
    throw;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "isthmus: a coroutine ended with: %s\n", e.what());
  }
  ISTHMUS_ASSERT(!"an exception left a coroutine");
}

Loop::Loop(const Clock& clock)
    : clock_(clock), context_(std::make_unique<Context>()), spawned_(std::make_unique<Spawned>()) {}

Loop::~Loop() { abandon(); }

void Loop::abandon() {
  spawned_->destroy_all();
  timers_.clear();
  when_of_.clear();
  context_->destroy_pending();
}

void Loop::spawn(Task<void> task) {
  asio::post(*context_, [frame = spawned_->add(std::move(task))] { frame.resume(); });
}

asio::io_context& Loop::io() { return *context_; }

void Loop::post(std::function<void()> function) { asio::post(*context_, std::move(function)); }

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
    context_->restart();
    any |= context_->poll() > 0;  // until nothing is ready, with one system call
  } while (!stopped_ && !timers_.empty() && timers_.begin()->first.first <= now());
  return any;
}

// Not until nothing is ready: where handlers make others ready without end, as a flood of messages
// does, timers would never have their turn.
bool Loop::run_handlers() {
  constexpr int kTurn = 16;
  for (int ran = 0; ran < kTurn && !stopped_; ++ran)
    if (context_->poll_one() == 0) return ran > 0;
  return true;
}

std::optional<Nanoseconds> Loop::next_timer() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first.first;
}

void Loop::run() {
  auto guard = asio::make_work_guard(*context_);
  while (!stopped_) {
    run_due_timers();
    if (stopped_) break;
    context_->restart();
    if (run_handlers()) continue;
    const auto next = next_timer();
    const auto wait = next ? std::max<Nanoseconds>(*next - now(), 0) : 3600 * kSecond;
    context_->run_one_for(std::chrono::nanoseconds(wait));
  }
}

void Loop::stop() {
  stopped_ = true;
  context_->stop();
}

void Signal::notify() {
  while (first_ != nullptr) {
    auto& woken = *first_;
    woken.leave();
    asio::post(loop_.io(), [waiting = woken.waiting_] { waiting.resume(); });
  }
}

Task<bool> Signal::wait_until(Nanoseconds deadline) {
  // In the frame, so that the timer ends with it: who waits may be destroyed before the deadline.
  struct Deadline {
    ~Deadline() { loop.cancel(timer); }
    Loop& loop;
    Loop::TimerId timer = 0;
    bool expired = false;
  } at{loop_};
  at.timer = loop_.call_at(deadline, [this, &at] {
    at.expired = true;
    notify();
  });
  co_await wait();
  co_return !at.expired;
}

void Signal::Wait::await_suspend(std::coroutine_handle<> waiting) {
  waiting_ = waiting;
  before_ = signal_.last_;
  (before_ != nullptr ? before_->after_ : signal_.first_) = this;
  signal_.last_ = this;
  listed_ = true;
}

void Signal::Wait::leave() {
  if (!std::exchange(listed_, false)) return;
  (before_ != nullptr ? before_->after_ : signal_.first_) = after_;
  (after_ != nullptr ? after_->before_ : signal_.last_) = before_;
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
                           std::function<Result<void>(std::uint32_t)> done, std::uint32_t at_once) {
  struct Shared {
    std::function<Result<void>(std::uint32_t)> job, done;
    std::function<void()> submit_next;
    std::uint32_t submitted = 0, running = 0;
    Result<void> result;
  };
  // With the jobs, should this coroutine be destroyed before them.
  auto shared = std::make_shared<Shared>();
  shared->job = std::move(job);
  shared->done = std::move(done);
  Signal ended(loop);
  shared->submit_next = [&workers, &ended, jobs, cost_bytes_each, weak = std::weak_ptr(shared)] {
    const auto all = weak.lock();
    if (all->submitted == jobs || !all->result) return;
    const auto i = all->submitted++;
    ++all->running;
    auto result = std::make_shared<Result<void>>();
    auto run = [all, result, i] { *result = all->job(i); };
    auto after = [all, result, i, &ended] {
      if (*result && all->result && all->done) *result = all->done(i);
      if (all->result) all->result = std::move(*result);
      --all->running;
      all->submit_next();
      ended.notify();
    };
    workers.submit(std::move(run), std::move(after), cost_bytes_each);
  };
  for (std::uint32_t i = 0; i < std::min(jobs, at_once); ++i) shared->submit_next();
  while (shared->running > 0) co_await ended.wait();
  co_return shared->result;
}

}  // namespace isthmus::inter
