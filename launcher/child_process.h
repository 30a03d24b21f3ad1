// A process that `launch` starts: in a process group of its own, so that Ctrl-C on the terminal
// reaches `launch` alone, which decides what to do; and never outliving `launch`, however that
// ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/restart_policy.h"

namespace isthmus::launcher {

struct ChildCommand {
  std::vector<std::string> arguments;         // the program's path first
  std::vector<std::string> environment = {};  // NAME=value, added to ours
  std::string log_path = {};                  // takes its output, at the end; "": ours
};

// The id of the process, which is also that of its group. It gets SIGTERM when the calling thread
// ends. Errors: not_found, permission, io.
Result<int> start_child(const ChildCommand& command);

// To all of its group; nothing when it is gone.
void signal_child(int pid, int signal);

struct EndedChild {
  int pid = 0;
  ProcessEnd end;
};
// The children that have ended since the last call, without waiting.
std::vector<EndedChild> reap_children();

// The last lines of a log from a byte on, for a message; "" when there is none. Sentences of events
// (base/event_log.h) are left out: whoever watches the event log has said them.
std::string last_lines(const std::string& path, int count, std::uint64_t from = 0);
// Why a process of isthmus ended by itself, as far as its log from a byte on tells: its own
// sentence (launcher/command.h, fail), behind which mpirun tells at length that somebody ended; of
// a list of faults (launcher/fault.h), which ends with their count, the first one; else the last
// line that says something.
std::string last_words(const std::string& path, std::uint64_t from = 0);

}  // namespace isthmus::launcher
