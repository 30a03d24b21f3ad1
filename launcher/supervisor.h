// Supervisor: keeps the gateways and ranks of one or more sites running on this machine until the
// run is complete, starting again what died. A stop lets ranks write a checkpoint first, then ends
// the gateways, so that a gateway never goes before its ranks have handed over.
//
//   running ──stop──► stopping ranks ──all gone──► stopping gateways ──all gone──► over
//      │                    └─────── stop again, or patience ends: all are killed ──────┘
//      ├── all finished ──────────────────────────────────────────────────────────► over
//      └── one gives up ── as stop, but over with its exit code; where the other sites can do
//                          without its site, only that one is stopped
//
// On one thread, the io_context's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launcher/child_process.h"
#include "launcher/exit_code.h"
#include "launcher/restart_policy.h"

namespace isthmus::launcher {

struct SupervisedProcess {
  std::string name;  // "alpha gateway"
  ChildCommand command;
  bool is_gateway = false;
  int site = 0;          // which processes belong together
  int stop_signal = 15;  // SIGTERM; what reaches ranks behind mpirun
  // What its site has achieved for good so far, as RestartPolicy wants it.
  std::function<std::int64_t()> progress = [] { return std::int64_t{0}; };
};

// Something that a person should know.
struct Happening {
  std::string text;          // a sentence
  std::string id = {};       // of an event: "process_restarted", "process_given_up"; "": none
  std::string process = {};  // its name
  int site = -1;             // -1: all
  std::string why = {};      // the whole will not end well: "alpha ranks found no room on the disk"
};

struct SupervisorOptions {
  RestartOptions restart;
  Nanoseconds patience = 60 * kSecond;     // for ranks to write a checkpoint, then for gateways
  Nanoseconds serve_again = 30 * kSecond;  // after which ranks get back a gateway that had finished
  // So soon after a stop that was obeyed, another is the same wish: a key that repeats, a sender
  // that signals both the process and its group (timeout).
  Nanoseconds same_wish = kSecond / 2;
  // Whether the other sites can do without this one, which has given up for good.
  std::function<bool(int site)> go_on_without = [](int) { return false; };
};

class Supervisor {
 public:
  // `tell` gets each thing that happened. `over` is called once, with what the
  // whole ends with.
  Supervisor(boost::asio::io_context& io, const Clock& clock,
             std::vector<SupervisedProcess> processes, SupervisorOptions options,
             std::function<void(const Happening&)> tell, std::function<void(ExitCode)> over);
  ~Supervisor();  // kills what still runs
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all. A process that cannot be started at all counts as given up.
  void start();
  // Clean at the first wish; the second kills.
  void stop();
  // All of it, whoever wished it.
  bool stopping() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace isthmus::launcher
