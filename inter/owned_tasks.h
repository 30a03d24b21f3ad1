// OwnedTasks: posts to a loop, and one timer, that end with their owner.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "inter/loop.h"

namespace isthmus::inter {

class OwnedTasks {
 public:
  explicit OwnedTasks(Loop& loop) : loop_(loop), alive_(std::make_shared<char>()) {}
  ~OwnedTasks() { stop_timer(); }
  OwnedTasks(const OwnedTasks&) = delete;
  OwnedTasks& operator=(const OwnedTasks&) = delete;

  void post(std::function<void()> function);
  // Replaces the timer that is armed.
  void start_timer(Nanoseconds delay, std::function<void()> function);
  void stop_timer();
  // Wraps a handler for somebody else's queue: does nothing once the owner is gone.
  template <class Function>
  auto guarded(Function function) {
    return [alive = std::weak_ptr<char>(alive_), function = std::move(function)](auto&&... args) {
      if (alive.lock()) function(std::forward<decltype(args)>(args)...);
    };
  }

 private:
  Loop& loop_;
  std::shared_ptr<char> alive_;  // handlers hold it weakly
  Loop::TimerId timer_ = 0;      // 0: none
};

}  // namespace isthmus::inter
