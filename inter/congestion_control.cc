#include "inter/congestion_control.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace isthmus::inter {

namespace {

std::string in_force(int descriptor) {
  char name[32] = "";
  socklen_t size = sizeof name - 1;
  ::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

}  // namespace

std::string command_to_allow(const std::string& congestion_control) {
  return fmt::format(
      "modprobe tcp_{0}; sysctl -w net.ipv4.tcp_allowed_congestion_control="
      "\"$(sysctl -n net.ipv4.tcp_allowed_congestion_control) {0}\"",
      congestion_control);
}

void CongestionControl::ask(int descriptor) {
  if (wanted_.empty() || ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, wanted_.data(),
                                      static_cast<socklen_t>(wanted_.size())) == 0)
    return;
  const int why = errno;
  if (said_refused_.exchange(true)) return;
  log_.info("wire_no_congestion_control", {},
            {{"wanted", wanted_},
             {"in_force", in_force(descriptor)},
             {"why", ::strerrordesc_np(why)},
             {"what_to_do", command_to_allow(wanted_)}});
}

void CongestionControl::note(int descriptor) {
  const auto name = in_force(descriptor);
  {
    const std::lock_guard lock(mutex_);
    if (!said_in_force_.insert(name).second) return;
  }
  log_.info("wire_congestion_control", {}, {{"in_force", name}, {"why", why(name)}});
}

std::string CongestionControl::why(const std::string& in_force) const {
  if (wanted_.empty()) return "nothing else was asked for";
  if (in_force == wanted_) return "as asked for";
  if (said_refused_) return "the system refused " + wanted_;
  return "a route of this machine has its own, in place of " + wanted_;  // ip route … congctl
}

}  // namespace isthmus::inter
