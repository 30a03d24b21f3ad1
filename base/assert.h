// ISTHMUS_ASSERT: what only a bug of ours can break. On in every build; ends the process with the
// place and the reason.
#pragma once

namespace isthmus {

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace isthmus

#define ISTHMUS_ASSERT(...) \
  ((__VA_ARGS__) ? (void)0 : ::isthmus::assertion_failed(#__VA_ARGS__, __FILE__, __LINE__))
