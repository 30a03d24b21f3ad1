// EventTail: what processes add to an event log (base/event_log.h), or to a site's metrics, while
// we watch, for people. The file may not be there yet, may be shared by several writers, and may
// hold anything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::launcher {

struct LoggedEvent {
  double time = 0;       // unix, seconds
  std::string severity;  // "info", …
  std::string id;        // "event" of the log, "kind" of metrics
  std::string site;
  std::string peer;
  std::int64_t outer_step = -1;
  std::map<std::string, std::string> fields;  // the others, as text

  // "" when there is no such field.
  std::string field(const std::string& name) const;
};

// A line of the log; nothing when it is none.
std::optional<LoggedEvent> parse_event(const std::string& line);

class EventTail {
 public:
  static constexpr std::size_t kPollBytesMax = std::size_t{1} << 20;
  // Near the end: what one poll() can read of it at once, whatever came before.
  enum class From : std::uint8_t { beginning, near_end, end };
  EventTail(std::string path, From from);

  // What has been added since the last call, at most so many bytes of it; whole lines only.
  std::vector<LoggedEvent> poll(std::size_t bytes_max = kPollBytesMax);

 private:
  std::string path_;
  std::uint64_t position_ = 0;
  bool skip_line_ = false;  // begun before we look, or longer than bytes_max: none of ours
};

}  // namespace isthmus::launcher
