#include "inter/owned_tasks.h"

namespace isthmus::inter {

void OwnedTasks::post(std::function<void()> function) { loop_.post(guarded(std::move(function))); }

void OwnedTasks::start_timer(Nanoseconds delay, std::function<void()> function) {
  stop_timer();
  timer_ = loop_.call_after(delay, [this, function = std::move(function)] {
    timer_ = 0;
    function();
  });
}

void OwnedTasks::stop_timer() {
  if (timer_ != 0) loop_.cancel(std::exchange(timer_, 0));
}

}  // namespace isthmus::inter
