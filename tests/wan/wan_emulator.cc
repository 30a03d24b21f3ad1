// The wide-area network between N network namespaces, as one process: reads packets from a TUN
// device in each, and delivers them when and if the network would have (router.h).
// tests/wan/with_wan makes the namespaces; this program needs them, root, and /dev/net/tun. It ends
// with its parent.
//
// It answers on standard output, a line at a time, so that a script can wait for it: "ready";
// "reloaded" or "refused" after SIGHUP; after SIGUSR1, and at its end, statistics and "end".
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "tests/wan/network_settings.h"
#include "tests/wan/packets.h"
#include "tests/wan/real_time_allowance.h"
#include "tests/wan/router.h"
#include "tests/wan/tun_device.h"

namespace isthmus::wan {

namespace {

constexpr int kFailed = 1, kBadUsage = 2;

// Work on one side before the other has its turn.
constexpr int kDeliveriesAtOnce = 256;
constexpr int kPacketsAtOnce = 64;  // of a device

constexpr Nanoseconds kWaitMost = 100 * kMillisecond;

void say(std::string_view line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void complain(const Error& error) { fmt::print(stderr, "wan_emulator: {}\n", error.text()); }

Result<NetworkSettings> read_settings(const std::string& file, std::size_t sites) {
  std::ifstream in(file);
  if (!in) return error_of_errno(errno, fmt::format("cannot read {}", file));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto settings = parse_network_settings(text, sites);
  if (!settings) return Error{ErrorCode::invalid_argument, file, std::move(settings).error()};
  return settings;
}

Result<std::vector<TunDevice>> open_devices(const std::vector<std::string>& namespaces) {
  std::vector<TunDevice> devices;
  for (const auto& name : namespaces) {
    ISTHMUS_TRY(auto device, TunDevice::open(name));
    devices.push_back(std::move(device));
  }
  return devices;
}

// Signals arrive as bytes to read, between two packets, and never in the middle of anything.
Result<int> open_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals, number);
  const int descriptor = ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor < 0) return error_of_errno(errno, "cannot read signals");
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return descriptor;
}

Nanoseconds cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

// Where it is not allowed, the emulator is less punctual on a busy machine.
void set_real_time(bool on) {
  const sched_param parameters{on ? 1 : 0};
  (void)sched_setscheduler(0, on ? SCHED_RR : SCHED_OTHER, &parameters);
}

class Emulator {
 public:
  Emulator(std::string settings_file, const NetworkSettings& settings,
           std::vector<TunDevice> devices, int signals)
      : settings_file_(std::move(settings_file)), router_(settings), devices_(std::move(devices)) {
    for (const auto& device : devices_) polled_.push_back({device.descriptor(), POLLIN, 0});
    polled_.push_back({signals, POLLIN, 0});
  }
  ~Emulator() { ::close(polled_.back().fd); }
  Emulator(const Emulator&) = delete;
  Emulator& operator=(const Emulator&) = delete;

  void run() {
    prctl(PR_SET_TIMERSLACK, 1);  // nanoseconds; the default would make each packet 50 us late
    set_real_time(true);
    say("ready");
    while (!ending_) {
      deliver();
      if (wait()) take_in();
      keep_allowance();
    }
    print_statistics();
  }

 private:
  void deliver() {
    const auto now = clock_->now();
    for (int i = 0; i < kDeliveriesAtOnce; ++i) {
      const auto delivery = router_.receive(now);
      if (!delivery) return;
      if (polled_[delivery->to].fd >= 0) devices_[delivery->to].write(delivery->packet);
    }
  }

  bool wait() {
    auto time = kWaitMost;
    if (const auto due = router_.next_arrival())
      time = std::clamp<Nanoseconds>(*due - clock_->now(), 0, kWaitMost);
    const timespec timeout{0, time};
    return ::ppoll(polled_.data(), polled_.size(), &timeout, nullptr) > 0;
  }

  void take_in() {
    const auto now = clock_->now();
    for (std::size_t site = 0; site < devices_.size(); ++site) {
      if ((polled_[site].revents & POLLIN) != 0) take_in_from(site, now);
      if ((polled_[site].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) lose_device(site);
    }
    if ((polled_.back().revents & POLLIN) != 0) obey();
  }

  void take_in_from(std::size_t site, Nanoseconds now) {
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      const auto bytes = devices_[site].read(buffer_);
      if (!bytes) return;
      router_.send(site, std::span(buffer_).first(*bytes), now);
    }
  }

  // Its namespace was deleted. Polled on, it would report that without end.
  void lose_device(std::size_t site) {
    polled_[site].fd = -1;
    fmt::print(stderr, "wan_emulator: the device of site {} is gone\n", site);
  }

  void obey() {
    signalfd_siginfo signal{};
    while (::read(polled_.back().fd, &signal, sizeof signal) == sizeof signal) {
      if (signal.ssi_signo == SIGHUP)
        reload();
      else if (signal.ssi_signo == SIGUSR1)
        print_statistics();
      else
        ending_ = true;
    }
  }

  void reload() {
    const auto settings = read_settings(settings_file_, devices_.size());
    if (!settings) {
      complain(Error{ErrorCode::invalid_argument, "the settings stay as they were",
                     std::move(settings).error()});
      say("refused");
      return;
    }
    router_.change(*settings, clock_->now());
    say("reloaded");
  }

  void print_statistics() { say(router_.statistics() + "end"); }

  void keep_allowance() {
    const auto now = clock_->now();
    if (!allowance_.due(now)) return;
    if (const auto allowed = allowance_.judge(now, cpu_time())) set_real_time(*allowed);
  }

  const std::unique_ptr<Clock> clock_ = make_system_clock();
  const std::string settings_file_;
  Router router_;
  std::vector<TunDevice> devices_;
  std::vector<pollfd> polled_;  // the devices' and, last, that of signals
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(kPacketBytesMax);
  RealTimeAllowance allowance_{clock_->now(), cpu_time()};
  bool ending_ = false;
};

Result<void> emulate(const std::string& settings_file, const std::vector<std::string>& namespaces) {
  ISTHMUS_TRY(const auto settings, read_settings(settings_file, namespaces.size()));
  ISTHMUS_TRY(auto devices, open_devices(namespaces));
  ISTHMUS_TRY(const int signals, open_signals());
  Emulator(settings_file, settings, std::move(devices), signals).run();
  return {};
}

}  // namespace

}  // namespace isthmus::wan

int main(int argc, char** argv) {
  using namespace isthmus::wan;
  constexpr int kFirstNamespace = 2;
  const auto sites = static_cast<std::size_t>(std::max(argc - kFirstNamespace, 0));
  if (sites < 2 || sites > kSitesMax) {
    fmt::print(
        stderr,
        "usage: wan_emulator CONF NETNS NETNS...   (2 to {} namespaces; site i's device wan0 "
        "has the address 10.77.0.(i+1); tests/wan/with_wan does it all)\n",
        kSitesMax);
    return kBadUsage;
  }
  // Nobody else would end it if with_wan were killed.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const auto emulated = emulate(argv[1], {argv + kFirstNamespace, argv + argc});
  if (emulated) return 0;
  complain(emulated.error());
  return emulated.error().code == isthmus::ErrorCode::invalid_argument ? kBadUsage : kFailed;
}
