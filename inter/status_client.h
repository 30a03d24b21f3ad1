// Asks a running gateway for its status, or for a link test, over its attach socket
// (inter/ATTACH.md, "Status", "Link test").
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "inter/attach_messages.h"
#include "inter/status.h"

namespace isthmus::inter {

// The JSON text of to_json(GatewayStatus). Errors: unavailable (no gateway listens there), timeout,
// permission, closed, bad_frame.
Result<std::string> fetch_status_json(const std::string& path, Nanoseconds timeout);

// The same, parsed.
Result<GatewayStatus> fetch_status(const std::string& path, Nanoseconds timeout);

// Begins a test, or asks after it; the JSON of LinkTester::ask. Errors: as above, and those of the
// gateway that has none to tell.
Result<std::string> fetch_link_test_json(const std::string& path, const attach::LinkTest& wish,
                                         Nanoseconds timeout);

}  // namespace isthmus::inter
