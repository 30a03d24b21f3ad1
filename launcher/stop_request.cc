#include "launcher/stop_request.h"

#include <signal.h>

namespace isthmus::launcher {
namespace {

std::atomic<bool> stop_wished{false};  // a signal handler reaches nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

void wish_stop(int) { stop_wished = true; }

}  // namespace

const std::atomic<bool>& watch_for_stop() {
  struct sigaction action = {};
  action.sa_handler = wish_stop;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(number, &action, nullptr);
  return stop_wished;
}

}  // namespace isthmus::launcher
