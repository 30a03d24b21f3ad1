// Loop: the one thread that owns all state of a gateway, and its time. Coroutines run here; timers
// follow the Clock it was given, so that a simulator can move time itself (inter/sim). Nothing here
// is thread-safe but post().
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "base/workers.h"
#include "inter/task.h"

namespace boost::asio {
class io_context;
}

namespace isthmus::inter {

// When work that comes back every `period` comes next: at multiples of it, and not a period after
// it came last. So a process that waits wakes up once for all of it, its links' heartbeats too.
constexpr Nanoseconds next_beat(Nanoseconds now, Nanoseconds period) {
  return (now / period + 1) * period;
}

class Loop {
 public:
  explicit Loop(const Clock& clock);
  ~Loop();  // destroys suspended coroutines; whatever they refer to must still be alive, so call
            // abandon() first where it is not
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  const Clock& clock() const { return clock_; }
  Nanoseconds now() const { return clock_.now(); }

  // Starts a coroutine. An exception that leaves it is a bug and ends the process.
  void spawn(Task<void> task);
  // Runs the function on the loop's thread, later. From any thread.
  void post(std::function<void()> function);

  using TimerId = std::uint64_t;
  // Calls once, not before `when`; equal times in the order of arming. The id may be cancelled
  // until it has run.
  TimerId call_at(Nanoseconds when, std::function<void()> function);
  TimerId call_after(Nanoseconds delay, std::function<void()> function) {
    return call_at(now() + delay, std::move(function));
  }
  void cancel(TimerId id);
  Task<void> sleep_until(Nanoseconds when);
  Task<void> sleep(Nanoseconds delay) { return sleep_until(now() + delay); }

  // With the system's clock: runs until stop().
  void run();
  void stop();

  // For who moves time: runs due timers and ready work until nothing is left to do at this instant;
  // true if anything ran.
  bool run_ready();
  // When the next timer is due, if any.
  std::optional<Nanoseconds> next_timer() const;
  // Destroys all suspended coroutines and pending work, without running them: a crash of the
  // process, in the simulator.
  void abandon();

  // For who waits for sockets and signals, on this loop's thread.
  boost::asio::io_context& io();

 private:
  class Context;
  class Spawned;
  bool run_due_timers();
  bool run_handlers();

  const Clock& clock_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Spawned> spawned_;
  std::map<std::pair<Nanoseconds, TimerId>, std::function<void()>> timers_;
  std::map<TimerId, Nanoseconds> when_of_;
  TimerId last_timer_ = 0;
  bool stopped_ = false;
};

// What coroutines wait on: notify() wakes all that wait now. Check the condition again after
// waking.
class Signal {
 public:
  explicit Signal(Loop& loop) : loop_(loop) {}
  ~Signal() { notify(); }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  void notify();
  auto wait() { return Wait(*this); }
  // False when the time came first.
  Task<bool> wait_until(Nanoseconds deadline);

 private:
  // Lies in the frame of the coroutine that waits, and leaves the list with it.
  class Wait {
   public:
    explicit Wait(Signal& signal) : signal_(signal) {}
    ~Wait() { leave(); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiting);
    void await_resume() const noexcept {}

   private:
    friend Signal;
    void leave();

    Signal& signal_;
    std::coroutine_handle<> waiting_;
    bool listed_ = false;
    Wait *before_ = nullptr, *after_ = nullptr;
  };

  Loop& loop_;
  Wait *first_ = nullptr, *last_ = nullptr;
};

// Runs a job on a worker and resumes on the loop.
Task<void> run_on(Workers& workers, Loop& loop, std::function<void()> job, std::uint64_t cost_bytes,
                  Urgency urgency = Urgency::normal);

// Runs `job` for 0, 1, … jobs − 1 on workers, and for each that succeeded before another failed
// `done` on the loop, which may fail as well. After a failure no more of them are begun. Returns
// when those that were have ended: the first failure. At most `at_once` of them are with the
// workers, so that jobs of others have their turn in between.
Task<Result<void>> run_all(Workers& workers, Loop& loop, std::uint32_t jobs,
                           std::uint64_t cost_bytes_each,
                           std::function<Result<void>(std::uint32_t)> job,
                           std::function<Result<void>(std::uint32_t)> done = {},
                           std::uint32_t at_once = std::numeric_limits<std::uint32_t>::max());

}  // namespace isthmus::inter
