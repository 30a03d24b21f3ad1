// Result<T>: a value, or an Error that says what went wrong in the world and what to do about it.
// Bugs of ours are not errors: see base/assert.h. Exceptions of libraries become a Result where
// they enter.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace isthmus {

enum class ErrorCode {
  invalid_argument,  // a value that a user or a file gave is outside what is allowed
  not_found,
  already_exists,
  wrong_kind,  // a folder where a file has to be, or a file where a folder has to
  permission,  // of a file or socket: too open, or not ours
  io,          // the operating system refused, or a device failed
  disk_full,
  corrupt,          // a file of ours does not check
  bad_frame,        // a peer's bytes do not decode
  non_finite,       // NaN or infinity where a number must be
  mismatch,         // two sites disagree on something that must be equal
  unauthenticated,  // a key or signature does not check
  expired,
  timeout,
  unavailable,  // not now; trying again may help
  in_use,       // an address that another process has: trying again cannot help until it is free
  busy,         // a bounded queue is full; try again when it has drained
  closed,       // the other end, or this object, is gone
  cancelled,
  too_large,    // beyond a limit that protects memory
  unsupported,  // a clear "not in this version"
};

std::string_view to_string(ErrorCode code);

// One sentence a user can act on, with the error that caused it, if any.
struct Error {
  Error(ErrorCode error_code, std::string sentence)
      : code(error_code), message(std::move(sentence)) {}
  Error(ErrorCode error_code, std::string sentence, Error because)
      : code(error_code),
        message(std::move(sentence)),
        cause(std::make_shared<const Error>(std::move(because))) {}

  // The sentence and its causes, outermost first, joined by ": ".
  std::string text() const;

  ErrorCode code;
  std::string message;
  std::shared_ptr<const Error> cause;  // shared: errors are copied into logs and results
};

template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
  Result(Error error)  // NOLINT: `return Error{…}` is how every function fails
      : tl::expected<T, Error>(tl::unexpect, std::move(error)) {}
};

// The error of an errno value: disk_full, permission, not_found or io.
Error error_of_errno(int number, std::string sentence);

}  // namespace isthmus

// Unwraps into `target`, or returns the error from the enclosing function: ISTHMUS_TRY(auto size,
// file->size());
#define ISTHMUS_TRY(target, ...) \
  ISTHMUS_TRY_AT(target, ISTHMUS_JOIN(result_, __LINE__), return, __VA_ARGS__)
// The same inside a coroutine.
#define ISTHMUS_CO_TRY(target, ...) \
  ISTHMUS_TRY_AT(target, ISTHMUS_JOIN(result_, __LINE__), co_return, __VA_ARGS__)
// For Result<void>.
#define ISTHMUS_CHECK(...)                                                         \
  do {                                                                             \
    if (auto checked = (__VA_ARGS__); !checked) return std::move(checked).error(); \
  } while (false)
#define ISTHMUS_CO_CHECK(...)                                                         \
  do {                                                                                \
    if (auto checked = (__VA_ARGS__); !checked) co_return std::move(checked).error(); \
  } while (false)

#define ISTHMUS_JOIN_AGAIN(a, b) a##b
#define ISTHMUS_JOIN(a, b) ISTHMUS_JOIN_AGAIN(a, b)
#define ISTHMUS_TRY_AT(target, name, leave, ...) \
  auto name = __VA_ARGS__;                       \
  if (!name) leave std::move(name).error();      \
  target = std::move(*name)
