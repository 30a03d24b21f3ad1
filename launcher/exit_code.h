// What a process of isthmus ends with; for people in docs/configuration.md.
#pragma once

namespace isthmus::launcher {

enum class ExitCode : int {
  done = 0,
  failed = 1,     // the message says what to do
  bad_usage = 2,  // command line, site file or roster: starting again cannot help
  stopped = 3,    // on request, with everything saved
  // The gateway or another site is not there, another process has what this one needs (the run, a
  // record of seeds), or a simulator was killed: starting again may help.
  unavailable = 4,
  broken = 5,  // a device or a collective; start again from the gateway's state
  // A damaged or missing file or a folder in its place, a port that is taken, numbers that
  // overflow: starting again cannot help.
  hopeless = 6,
  no_room = 7,  // on the disk: starting again helps once there is some
};

}  // namespace isthmus::launcher
