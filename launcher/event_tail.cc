#include "launcher/event_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "runtime/shallow_json.h"

namespace isthmus::launcher {

std::string LoggedEvent::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found != fields.end() ? found->second : std::string();
}

std::optional<LoggedEvent> parse_event(const std::string& line) {
  const auto json = runtime::parse_shallow_json(line);
  if (!json.is_object()) return std::nullopt;
  LoggedEvent event;
  for (const auto& [name, value] : json.items()) {
    const auto text = value.is_string()         ? value.get<std::string>()
                      : value.is_number_float() ? fmt::format("{:.4g}", value.get<double>())
                                                : value.dump();
    if (name == "time")
      event.time = value.is_number() ? value.get<double>() : 0;
    else if (name == "severity")
      event.severity = text;
    else if (name == "event" || name == "kind")
      event.id = text;
    else if (name == "site")
      event.site = text;
    else if (name == "peer")
      event.peer = text;
    else if (name == "outer_step")
      event.outer_step = value.is_number_integer() ? value.get<std::int64_t>() : -1;
    else
      event.fields.emplace(name, text);
  }
  if (event.id.empty()) return std::nullopt;
  return event;
}

EventTail::EventTail(std::string path, From from) : path_(std::move(path)) {
  if (from == From::beginning) return;
  std::ifstream in(path_, std::ios::binary | std::ios::ate);
  if (in) position_ = static_cast<std::uint64_t>(std::max<std::streamoff>(in.tellg(), 0));
  if (from == From::end) return;
  skip_line_ = position_ > kPollBytesMax;
  position_ -= std::min<std::uint64_t>(position_, kPollBytesMax);
}

std::vector<LoggedEvent> EventTail::poll(std::size_t bytes_max) {
  std::vector<LoggedEvent> events;
  std::ifstream in(path_, std::ios::binary | std::ios::ate);
  if (!in) return events;
  const auto size = static_cast<std::uint64_t>(std::max<std::streamoff>(in.tellg(), 0));
  if (size < position_) position_ = 0;  // started anew
  if (size == position_) return events;
  std::string text(std::min<std::uint64_t>(size - position_, bytes_max), '\0');
  in.seekg(static_cast<std::streamoff>(position_));
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  const auto end = text.rfind('\n');
  if (end == std::string::npos) {
    if (text.size() < bytes_max) return events;  // the rest of the line comes later
    position_ += text.size();
    skip_line_ = true;
    return events;
  }
  position_ += end + 1;
  for (std::size_t first = 0; first <= end;) {
    const auto next = text.find('\n', first);
    if (!std::exchange(skip_line_, false))
      if (auto event = parse_event(text.substr(first, next - first)))
        events.push_back(std::move(*event));
    first = next + 1;
  }
  return events;
}

}  // namespace isthmus::launcher
