// EventLog: what happened, for programs and for people. An event has an id that one can search for,
// and fields; the log adds time and site. One JSON object a line in a file; one sentence a line on
// a terminal; or into a callback (monitor, simulator).
//
// Thread-safe. Never fails its caller: a log that cannot be written counts what it lost.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace isthmus {

enum class Severity : std::uint8_t { detail, info, warning, alarm };

std::string_view to_string(Severity severity);

struct Field {
  std::string_view name;
  std::variant<std::int64_t, std::uint64_t, double, bool, std::string, std::vector<std::uint64_t>>
      value;

  template <class T>
  static auto widen(T v) {
    if constexpr (std::is_same_v<T, bool>)
      return v;
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<double>(v);
    else if constexpr (std::is_signed_v<T>)
      return static_cast<std::int64_t>(v);
    else
      return static_cast<std::uint64_t>(v);
  }
  template <class T>
  requires std::is_arithmetic_v<T> Field(std::string_view field_name, T v)
      : name(field_name), value(widen(v)) {}
  Field(std::string_view field_name, std::string_view v)
      : name(field_name), value(std::string(v)) {}
  Field(std::string_view field_name, const std::string& v) : name(field_name), value(v) {}
  Field(std::string_view field_name, const std::vector<std::uint64_t>& v)
      : name(field_name), value(v) {}
  Field(std::string_view field_name, const char* v) : name(field_name), value(std::string(v)) {}
};

struct Event {
  Nanoseconds unix_time = 0;
  Severity severity = Severity::info;
  std::string_view id;  // snake_case, unique in the program: "step_decided"
  std::string_view site;
  std::string_view peer;         // "" when it concerns no peer
  std::int64_t outer_step = -1;  // -1 when it concerns no step
  std::span<const Field> fields;
};

// {"time":…,"severity":…,"event":…,"site":…,"peer":…,"outer_step":…,FIELDS}, without a newline.
std::string to_json(const Event& event);
// "12:00:03 alpha step_decided step 3 peer beta seconds=0.8"
std::string to_sentence(const Event& event);

// Text as a JSON string, quotes included; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// A field's value as JSON; a number that is not finite is null.
std::string json_value(const Field& field);

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void write(const Event& event) = 0;  // called under the log's lock
};

class EventLog {
 public:
  EventLog(const Clock& clock, std::string site);
  ~EventLog();

  void add(std::unique_ptr<EventSink> sink);

  struct About {
    std::string_view peer = {};
    std::int64_t outer_step = -1;
  };
  void write(Severity severity, std::string_view id, About about,
             std::initializer_list<Field> fields);
  void info(std::string_view id, About about, std::initializer_list<Field> fields = {}) {
    write(Severity::info, id, about, fields);
  }
  void detail(std::string_view id, About about, std::initializer_list<Field> fields = {}) {
    write(Severity::detail, id, about, fields);
  }
  void warning(std::string_view id, About about, std::initializer_list<Field> fields = {}) {
    write(Severity::warning, id, about, fields);
  }
  void alarm(std::string_view id, About about, std::initializer_list<Field> fields = {}) {
    write(Severity::alarm, id, about, fields);
  }
  const std::string& site() const { return site_; }

 private:
  struct Sinks;
  const Clock& clock_;
  std::string site_;
  std::unique_ptr<Sinks> sinks_;
};

// Appends JSON lines to a file that several processes may share (base/line_file.h).
Result<std::unique_ptr<EventSink>> make_file_sink(const std::string& path);
// Sentences of at least this severity to a descriptor, usually 2.
std::unique_ptr<EventSink> make_terminal_sink(int descriptor, Severity at_least);
std::unique_ptr<EventSink> make_callback_sink(std::function<void(const Event&)> callback);

}  // namespace isthmus
