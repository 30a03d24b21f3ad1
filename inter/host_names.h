// HostNames: the numeric addresses of hosts, for all that a gateway dials. The C library's look-up
// cannot be given up, and takes many seconds where no server of names answers. So each name has a
// thread of its own while it is looked up, and no name holds up another; whoever asks meanwhile
// waits for the same answer. What a name had is remembered: where servers of names are silent, as
// in an outage of the line, those are dialed again that were reached before.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "inter/loop.h"
#include "inter/loop_mailbox.h"
#include "inter/owned_tasks.h"

namespace isthmus::inter {

using NumericHosts = std::vector<std::string>;  // "192.0.2.7", "2001:db8::7"; one at least

// Blocks for as long as it takes. Errors: unavailable (no such name, no answer).
Result<NumericHosts> look_up_host(const std::string& name);

// On the loop.
class HostNames {
 public:
  using LookUp = std::function<Result<NumericHosts>(const std::string& name)>;
  using Found = std::function<void(const Result<NumericHosts>&)>;

  // `look_up` is called on other threads, and may still be under way when this is gone. The mailbox
  // outlives this.
  HostNames(Loop& loop, LoopMailbox& mailbox, LookUp look_up);
  ~HostNames();
  HostNames(const HostNames&) = delete;
  HostNames& operator=(const HostNames&) = delete;

  // Calls `found` once: with what a look-up from now on says, or with what the last one said where
  // this one fails or takes longer than half a second; at once where the last one did.
  // Errors: unavailable.
  void ask(const std::string& name, Found found);

 private:
  static constexpr Nanoseconds kPatience = 500 * kMillisecond;

  struct Name {
    explicit Name(Loop& loop) : patience(loop) {}
    std::optional<Nanoseconds> began;  // the look-up that is under way
    bool in_time = true;               // the last one answered, and soon
    NumericHosts remembered;
    std::vector<Found> waiting;
    OwnedTasks patience;  // its timer: until those who wait take what is remembered
  };
  struct Threads;

  void begin(const std::string& name);
  void ended(Name& name, Result<NumericHosts> hosts);

  Loop& loop_;
  LookUp look_up_;
  std::map<std::string, Name> names_;
  std::shared_ptr<Threads> threads_;
};

}  // namespace isthmus::inter
