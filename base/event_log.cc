#include "base/event_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <mutex>
#include <utility>

#include "base/line_file.h"
#include "base/printable.h"

namespace isthmus {
namespace {

std::string plain_value(const Field& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
  if (const auto* number = std::get_if<double>(&field.value)) return fmt::format("{:.4g}", *number);
  return json_value(field);
}

class FileSink final : public EventSink {
 public:
  explicit FileSink(LineFile file) : file_(std::move(file)) {}
  void write(const Event& event) override {
    std::string line = to_json(event);
    if (lost_ > 0) line.insert(line.size() - 1, fmt::format(",\"lines_lost_before\":{}", lost_));
    lost_ = file_.append(line) ? 0 : lost_ + 1;
  }

 private:
  LineFile file_;
  std::uint64_t lost_ = 0;
};

class TerminalSink final : public EventSink {
 public:
  TerminalSink(int descriptor, Severity at_least) : descriptor_(descriptor), at_least_(at_least) {}
  void write(const Event& event) override {
    if (event.severity < at_least_) return;
    put(begun_);
    if (!begun_.empty()) {
      ++left_out_;
      return;
    }
    std::string line = to_sentence(event) + '\n';
    if (left_out_ > 0)
      line = fmt::format("({} of these lines left out: nobody took them)\n{}", left_out_, line);
    const auto bytes = line.size();
    put(line);
    left_out_ = line.size() == bytes ? left_out_ + 1 : 0;
    if (line.size() < bytes) begun_ = std::move(line);
  }

 private:
  // Takes from the front what the descriptor takes at once. A terminal that was halted (Ctrl-S), or
  // a reader that stands still, halts nobody who logs; and poll() promises room for no more than
  // PIPE_BUF bytes.
  void put(std::string& text) const {
    while (!text.empty()) {
      pollfd room{descriptor_, POLLOUT, 0};
      if (::poll(&room, 1, 0) <= 0) return;
      const auto taken =
          ::write(descriptor_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
      if (taken == 0 || (taken < 0 && (errno == EAGAIN || errno == EINTR))) return;
      text.erase(0, taken < 0 ? text.size() : static_cast<std::size_t>(taken));  // or never will be
    }
  }

  int descriptor_;
  Severity at_least_;
  std::string begun_;  // what is missing of a line of which a part was taken: it goes before others
  std::uint64_t left_out_ = 0;
};

class CallbackSink final : public EventSink {
 public:
  explicit CallbackSink(std::function<void(const Event&)> callback)
      : callback_(std::move(callback)) {}
  void write(const Event& event) override { callback_(event); }

 private:
  std::function<void(const Event&)> callback_;
};

}  // namespace

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::detail:
      return "detail";
    case Severity::info:
      return "info";
    case Severity::warning:
      return "warning";
    case Severity::alarm:
      return "alarm";
  }
  return "unknown";
}

std::string json_value(const Field& field) {
  struct Visitor {
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(std::uint64_t v) const { return fmt::format("{}", v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(double v) const {
      return std::isfinite(v) ? fmt::format("{}", v) : "null";
    }
    std::string operator()(const std::string& v) const { return json_string(v); }
    std::string operator()(const std::vector<std::uint64_t>& v) const {
      return fmt::format("[{}]", fmt::join(v, ","));
    }
  };
  return std::visit(Visitor{}, field.value);
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const unsigned char c = static_cast<unsigned char>(text.front());
    const auto n = utf8_length(text);
    if (n == 0) {
      out += "\\ufffd";
      text.remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n);
  }
  return out += '"';
}

std::string to_json(const Event& event) {
  std::string line = fmt::format("{{\"time\":{:.6f},\"severity\":\"{}\",\"event\":{},\"site\":{}",
                                 seconds_of(event.unix_time), to_string(event.severity),
                                 json_string(event.id), json_string(event.site));
  if (!event.peer.empty()) line += fmt::format(",\"peer\":{}", json_string(event.peer));
  if (event.outer_step >= 0) line += fmt::format(",\"outer_step\":{}", event.outer_step);
  for (const auto& field : event.fields)
    line += fmt::format(",{}:{}", json_string(field.name), json_value(field));
  return line += '}';
}

std::string to_sentence(const Event& event) {
  const auto second = static_cast<std::time_t>(event.unix_time / kSecond);
  std::string line = fmt::format("{:%H:%M:%S} {} ", fmt::localtime(second), event.site);
  if (event.severity >= Severity::warning) line += fmt::format("{}: ", to_string(event.severity));
  line += event.id;
  if (event.outer_step >= 0) line += fmt::format(" step {}", event.outer_step);
  if (!event.peer.empty()) line += fmt::format(" peer {}", event.peer);
  for (const auto& field : event.fields)
    line += fmt::format(" {}={}", field.name, plain_value(field));
  return printable(line);
}

struct EventLog::Sinks {
  std::mutex mutex;
  std::vector<std::unique_ptr<EventSink>> all;
};

EventLog::EventLog(const Clock& clock, std::string site)
    : clock_(clock), site_(std::move(site)), sinks_(std::make_unique<Sinks>()) {}

EventLog::~EventLog() = default;

void EventLog::add(std::unique_ptr<EventSink> sink) {
  const std::lock_guard lock(sinks_->mutex);
  sinks_->all.push_back(std::move(sink));
}

void EventLog::write(Severity severity, std::string_view id, About about,
                     std::initializer_list<Field> fields) {
  const Event event{.unix_time = clock_.unix_time(),
                    .severity = severity,
                    .id = id,
                    .site = site_,
                    .peer = about.peer,
                    .outer_step = about.outer_step,
                    .fields = {fields.begin(), fields.size()}};
  const std::lock_guard lock(sinks_->mutex);
  for (const auto& sink : sinks_->all) sink->write(event);
}

Result<std::unique_ptr<EventSink>> make_file_sink(const std::string& path) {
  auto file = LineFile::open(path);
  if (!file) return Error{file.error().code, "there is no event log", file.error()};
  return std::unique_ptr<EventSink>(std::make_unique<FileSink>(std::move(*file)));
}

std::unique_ptr<EventSink> make_terminal_sink(int descriptor, Severity at_least) {
  return std::make_unique<TerminalSink>(descriptor, at_least);
}

std::unique_ptr<EventSink> make_callback_sink(std::function<void(const Event&)> callback) {
  return std::make_unique<CallbackSink>(std::move(callback));
}

}  // namespace isthmus
