// The user's wish that this process ends: SIGTERM, SIGINT, and SIGUSR1, which mpirun passes on to
// its ranks where it would follow SIGTERM with SIGKILL within seconds. Noticed, not obeyed: whoever
// works looks at the flag. A second wish is left to the caller of this process, who can kill it.
#pragma once

#include <atomic>

namespace isthmus::launcher {

// From now on these signals set the flag, which it returns: the same at each call. Call it before
// other threads are started: they must not take the signals, nor is there a handler. oneDNN's
// kernels point the stack register into their buffers, where a handler's frame would destroy the
// heap; so a thread of its own waits for the signals.
const std::atomic<bool>& watch_for_stop();

// The same for a process that forks, in which a second thread might hold what the child then waits
// for: by handlers, where none of those kernels run.
const std::atomic<bool>& catch_stop();

}  // namespace isthmus::launcher
