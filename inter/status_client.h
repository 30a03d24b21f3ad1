// Asks a running gateway for its status, over its attach socket (inter/ATTACH.md, "Status").
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "inter/status.h"

namespace isthmus::inter {

// The JSON text of to_json(GatewayStatus). Errors: unavailable (no gateway listens there), timeout,
// permission, closed, bad_frame.
Result<std::string> fetch_status_json(const std::string& path, Nanoseconds timeout);

// The same, parsed.
Result<GatewayStatus> fetch_status(const std::string& path, Nanoseconds timeout);

}  // namespace isthmus::inter
