// Asks a running gateway for its status, or for a link test, over its attach socket
// (inter/ATTACH.md, "Status", "Link test").
#pragma once

#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "inter/attach_messages.h"
#include "inter/local_socket.h"
#include "inter/status.h"

namespace isthmus::inter {

// The JSON text of to_json(GatewayStatus). Errors: unavailable (no gateway listens there), timeout,
// permission, closed, bad_frame.
Result<std::string> fetch_status_json(const std::string& path, Nanoseconds timeout);

// The same, parsed.
Result<GatewayStatus> fetch_status(const std::string& path, Nanoseconds timeout);

// Who wants a link tested. The gateway ends the test when this is destroyed, or its process ends.
class LinkTestClient {
 public:
  // Errors: unavailable (no gateway listens there), permission.
  static Result<LinkTestClient> connect(const std::string& path);
  // Begins the test, or asks after it, at least every few seconds; the JSON of LinkTester::ask.
  // Errors: timeout, closed, bad_frame, and those of the gateway that has none to tell.
  Result<std::string> ask(const attach::LinkTest& wish, Nanoseconds timeout);

 private:
  LinkTestClient(std::string path, LocalStream stream)
      : path_(std::move(path)), stream_(std::move(stream)) {}
  std::string path_;
  LocalStream stream_;
};

}  // namespace isthmus::inter
