// StatusSource: where a site stands, asked of its gateway; or, for a site that trains alone, read
// from what its ranks write down.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "inter/status.h"
#include "launcher/monitor.h"
#include "launcher/site_file.h"

namespace isthmus::launcher {

class StatusSource {
 public:
  virtual ~StatusSource() = default;
  // Blocks for a moment at most. Errors: unavailable (nothing runs there), timeout, permission,
  // bad_frame.
  virtual Result<inter::GatewayStatus> poll() = 0;
  // The outer steps of a run that is complete, and that nothing runs any more; nothing where this
  // site lacks the last state. As of the last poll().
  virtual std::optional<std::uint64_t> complete_at() const = 0;
};

std::unique_ptr<StatusSource> make_status_source(const SiteFile& file);

// Adds what it says, or why it says nothing, to the history.
void poll_into(SiteHistory& history, StatusSource& source);

}  // namespace isthmus::launcher
