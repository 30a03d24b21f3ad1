// The user's wish that this process ends: SIGTERM, SIGINT, and SIGUSR1, which mpirun passes on to
// its ranks where it would follow SIGTERM with SIGKILL within seconds. Noticed, not obeyed: whoever
// works looks at the flag. A second wish is left to the caller of this process, who can kill it.
#pragma once

#include <atomic>

namespace isthmus::launcher {

// From now on handlers of these signals set the flag, which it returns: the same at each call. They
// hold in children that are forked, too.
const std::atomic<bool>& catch_stop();

}  // namespace isthmus::launcher
