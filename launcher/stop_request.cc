#include "launcher/stop_request.h"

#include <signal.h>

#include <thread>

namespace isthmus::launcher {
namespace {

std::atomic<bool> stop_wished{false};  // outlives the thread that sets it
static_assert(std::atomic<bool>::is_always_lock_free, "a handler may set it");

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};

}  // namespace

const std::atomic<bool>& watch_for_stop() {
  static const bool watching = [] {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : kSignals) ::sigaddset(&signals, number);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread([signals] {
      for (int number = 0;;)
        if (::sigwait(&signals, &number) == 0) stop_wished = true;
    }).detach();
    return true;
  }();
  static_cast<void>(watching);
  return stop_wished;
}

const std::atomic<bool>& catch_stop() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_wished = true; };
  action.sa_flags = SA_RESTART;
  for (const int number : kSignals) ::sigaction(number, &action, nullptr);
  return stop_wished;
}

}  // namespace isthmus::launcher
