#include "launcher/stop_request.h"

#include <signal.h>

namespace isthmus::launcher {
namespace {

std::atomic<bool> stop_wished{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a handler may set it");

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};

}  // namespace

const std::atomic<bool>& catch_stop() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_wished = true; };
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) ::sigaction(number, &action, nullptr);
  return stop_wished;
}

}  // namespace isthmus::launcher
