#include "base/result.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace isthmus {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::already_exists:
      return "already_exists";
    case ErrorCode::wrong_kind:
      return "wrong_kind";
    case ErrorCode::permission:
      return "permission";
    case ErrorCode::io:
      return "io";
    case ErrorCode::disk_full:
      return "disk_full";
    case ErrorCode::corrupt:
      return "corrupt";
    case ErrorCode::bad_frame:
      return "bad_frame";
    case ErrorCode::non_finite:
      return "non_finite";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::unauthenticated:
      return "unauthenticated";
    case ErrorCode::expired:
      return "expired";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::in_use:
      return "in_use";
    case ErrorCode::busy:
      return "busy";
    case ErrorCode::closed:
      return "closed";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::too_large:
      return "too_large";
    case ErrorCode::unsupported:
      return "unsupported";
  }
  return "unknown";
}

std::string Error::text() const {
  std::string all = message;
  for (const Error* e = cause.get(); e != nullptr; e = e->cause.get()) all += ": " + e->message;
  return all;
}

Error error_of_errno(int number, std::string sentence) {
  ErrorCode code = ErrorCode::io;
  if (number == ENOSPC || number == EDQUOT) code = ErrorCode::disk_full;
  if (number == EACCES || number == EPERM) code = ErrorCode::permission;
  if (number == ENOENT) code = ErrorCode::not_found;
  if (number == EEXIST) code = ErrorCode::already_exists;
  if (number == EISDIR || number == ENOTDIR) code = ErrorCode::wrong_kind;
  return Error{code,
               fmt::format("{}: {}", std::move(sentence), std::generic_category().message(number))};
}

}  // namespace isthmus
