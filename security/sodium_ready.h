// Initialises libsodium (random source, fastest implementations) before its first use. Every
// function of this folder that calls libsodium's cryptography calls this first.
#pragma once

namespace isthmus::security {

// Any thread, any number of times; cheap after the first. Asserts that the system has a random
// source: nothing here may run without one.
void require_sodium();

}  // namespace isthmus::security
