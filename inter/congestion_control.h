// CongestionControl: how TCP is to react to loss, asked of each socket of a wire; the log says once
// of each that is in force that it is, and why.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "base/event_log.h"

namespace isthmus::inter {

// The command with which root has a machine allow it.
std::string command_to_allow(const std::string& congestion_control);

// Any thread.
class CongestionControl {
 public:
  // `wanted`: as in tcp_congestion_control; "": the system's choice.
  CongestionControl(EventLog& log, std::string wanted) : log_(log), wanted_(std::move(wanted)) {}

  // Before a socket connects or listens, whose connections then have it; later does it too.
  void ask(int descriptor);
  // Of a connected socket: what it really has.
  void note(int descriptor);
  // Why a connection has the one that it has.
  std::string why(const std::string& in_force) const;

 private:
  EventLog& log_;
  const std::string wanted_;
  std::atomic<bool> said_refused_ = false;
  std::mutex mutex_;
  std::set<std::string> said_in_force_;
};

}  // namespace isthmus::inter
