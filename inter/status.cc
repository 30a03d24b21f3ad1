#include "inter/status.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "base/event_log.h"

namespace isthmus::inter {
namespace {

template <class T, class Plain>
concept Either = std::same_as<std::remove_const_t<T>, Plain>;  // to read or to write

// The fields of each struct, named once, for the writer and for the reader.
template <class Fields, Either<LinkStatus> Status>
void describe(Fields&& field, Status& s) {
  field("peer", s.peer);
  field("address", s.address);
  field("state", s.state);
  field("round_trip_ms", s.round_trip_ms);
  field("round_trip_longest_ms", s.round_trip_longest_ms);
  field("sent_mbit_s", s.sent_mbit_s);
  field("received_mbit_s", s.received_mbit_s);
  field("cap_mbit_s", s.cap_mbit_s);
  field("polite_mbit_s", s.polite_mbit_s);
  field("queue_ms", s.queue_ms);
  field("queue_target_ms", s.queue_target_ms);
  field("bulk_connections", s.bulk_connections);
  field("bulk_connections_why", s.bulk_connections_why);
  field("congestion_control", s.congestion_control);
  field("congestion_control_why", s.congestion_control_why);
  field("parameter_bytes", s.parameter_bytes);
  field("codec_bytes", s.codec_bytes);
  field("zstd_bytes", s.zstd_bytes);
  field("wire_sent_bytes", s.wire_sent_bytes);
  field("wire_received_bytes", s.wire_received_bytes);
  field("link_test_sent_bytes", s.link_test_sent_bytes);
  field("link_test_received_bytes", s.link_test_received_bytes);
  field("sending_s", s.sending_s);
  field("chunks_sent", s.chunks_sent);
  field("chunks_resent", s.chunks_resent);
  field("chunks_copied", s.chunks_copied);
  field("reconnects", s.reconnects);
  field("window_bytes", s.window_bytes);
  field("window_used", s.window_used);
  field("chunk_patience_s", s.chunk_patience_s);
  field("waiting_for", s.waiting_for);
}

template <class Fields, Either<WaitStatus> Status>
void describe(Fields&& field, Status& s) {
  field("computing_s", s.computing_s);
  field("transfer_s", s.transfer_s);
  field("other_sites_s", s.straggler_s);
  field("agreement_s", s.agreement_s);
  field("applying_s", s.applying_s);
}

template <class Fields, Either<RankStatus> Status>
void describe(Fields&& field, Status& s) {
  field("rank", s.rank);
  field("world", s.world);
  field("pid", s.pid);
  field("inner_step", s.inner_step);
  field("loss", s.loss);
  field("tokens_per_second", s.tokens_per_second);
  field("state", s.state);
}

template <class Fields, Either<GatewayStatus> Status>
void describe(Fields&& field, Status& s) {
  field("site", s.site);
  field("run", s.run);
  field("phase", s.phase);
  field("outer_step", s.outer_step);
  field("outer_steps", s.outer_steps);
  field("catching_up_to", s.catching_up_to);
  field("saved_step", s.saved_step);
  field("state_root", s.state_root);
  field("uptime_s", s.uptime_s);
  field("tokens_named", s.tokens_named);
  field("tokens_carried", s.tokens_carried);
  field("rate_limit", s.rate_limit);
  field("members", s.members);
  field("voters", s.voters);
  field("attention", s.attention);
  field("waits", s.waits);
  field("deadline", s.deadline);
  field("deadline_s", s.deadline_s);
  field("links", s.links);
  field("ranks", s.ranks);
}

class Writer {
 public:
  template <std::integral T>
  void value(T number) {
    text_ += fmt::format("{}", number);
  }
  void value(double number) { text_ += std::isfinite(number) ? fmt::format("{}", number) : "null"; }
  void value(const std::optional<double>& number) {
    value(number.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  void value(const std::string& text) { text_ += json_string(text); }
  template <class T>
  void value(const std::vector<T>& items) {
    text_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text_ += ',';
      value(items[i]);
    }
    text_ += ']';
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void value(const T& object) {
    char separator = '{';
    describe(
        [&](std::string_view name, const auto& member) {
          text_ += separator;
          text_ += json_string(name);
          text_ += ':';
          value(member);
          separator = ',';
        },
        object);
    text_ += '}';
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Reads the JSON that Writer makes, and that of other versions of it. After a fault it stays
// failed, and reads nothing more.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool done() {
    skip_space();
    return ok_ && rest_.empty();
  }

  template <std::integral T>
  void value(T& number) {
    T read{};
    if (parse_number(read)) number = read;
  }
  void value(double& number) {
    if (next_is("null"))
      number = std::numeric_limits<double>::quiet_NaN();
    else
      parse_number(number);
  }
  void value(std::optional<double>& number) {
    double read = 0;
    value(read);
    if (std::isfinite(read))
      number = read;
    else
      number.reset();
  }
  void value(std::string& text) { text = read_string(); }
  template <class T>
  void value(std::vector<T>& items) {
    items.clear();
    list('[', ']', [&] {
      if (items.size() == kItemsMax) return fail();
      value(items.emplace_back());
    });
  }
  template <class T>
  requires std::is_aggregate_v<T>
  void value(T& object) {
    list('{', '}', [&] {
      const std::string name = read_string();
      expect(':');
      bool known = false;
      describe(
          [&](std::string_view field, auto& member) {
            if (field != name) return;
            known = true;
            value(member);
          },
          object);
      if (!known) skip_value(0);
    });
  }

 private:
  static constexpr int kDepthMax = 32;
  // Of one list, ranks for example: "{}" is three bytes, what it becomes is some hundred times
  // more.
  static constexpr std::size_t kItemsMax = 1 << 13;

  void fail() {
    ok_ = false;
    rest_ = {};
  }
  void skip_space() {
    const auto start = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(start == rest_.npos ? rest_.size() : start);
  }
  bool next_is(std::string_view token) {
    skip_space();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(char token) {
    if (!next_is(std::string_view(&token, 1))) fail();
  }
  void list(char open, char close, auto&& item) {
    expect(open);
    if (!ok_ || next_is(std::string_view(&close, 1))) return;
    do {
      item();
      if (!ok_) return;
    } while (next_is(","));
    expect(close);
  }
  template <class T>
  bool parse_number(T& number) {
    skip_space();
    const auto parsed = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (parsed.ec != std::errc()) {
      fail();
      return false;
    }
    rest_.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest_.data()));
    return true;
  }
  std::string read_string() {
    std::string text;
    expect('"');
    while (ok_ && !rest_.empty() && rest_.front() != '"') {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '\\')
        read_escape(text);
      else
        text += c;
    }
    expect('"');
    return text;
  }
  void read_escape(std::string& text) {
    if (rest_.empty()) return fail();
    const char c = rest_.front();
    rest_.remove_prefix(1);
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const auto at = kNames.find(c); at != kNames.npos) {
      text += kMeanings[at];
      return;
    }
    if (c != 'u') return fail();
    std::uint32_t code = read_hex();
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
      if (!rest_.starts_with("\\u")) return fail();
      rest_.remove_prefix(2);
      const std::uint32_t low = read_hex();
      if (low < 0xDC00 || low > 0xDFFF) return fail();
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return fail();
    }
    append_utf8(code, text);
  }
  std::uint32_t read_hex() {
    std::uint32_t code = 0;
    const auto digits = rest_.substr(0, 4);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || parsed.ptr != digits.data() + 4) {
      fail();
      return 0;
    }
    rest_.remove_prefix(4);
    return code;
  }
  static void append_utf8(std::uint32_t code, std::string& text) {
    if (code < 0x80) {
      text += static_cast<char>(code);
      return;
    }
    const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
    text += static_cast<char>(kLead[tail] | (code >> (6 * tail)));
    for (int i = tail; i-- > 0;) text += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  }
  void skip_value(int depth) {
    skip_space();
    if (depth > kDepthMax || rest_.empty()) return fail();
    const char c = rest_.front();
    double number = 0;
    if (c == '"') {
      read_string();
    } else if (c == '[') {
      list('[', ']', [&] { skip_value(depth + 1); });
    } else if (c == '{') {
      list('{', '}', [&] {
        read_string();
        expect(':');
        skip_value(depth + 1);
      });
    } else if (!next_is("true") && !next_is("false") && !next_is("null")) {
      parse_number(number);
    }
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

std::string to_json(const GatewayStatus& status) {
  auto shown = status;
  for (auto& rank : shown.ranks) {  // 0: it has not trained yet
    constexpr auto kNone = std::numeric_limits<double>::quiet_NaN();
    if (rank.loss == 0) rank.loss = kNone;
    if (rank.tokens_per_second == 0) rank.tokens_per_second = kNone;
  }
  Writer writer;
  writer.value(shown);
  return writer.take();
}

Result<GatewayStatus> parse_status(std::string_view json) {
  GatewayStatus status;
  Reader reader(json);
  reader.value(status);
  if (!reader.done()) return Error{ErrorCode::bad_frame, "a gateway's status does not decode"};
  return status;
}

}  // namespace isthmus::inter
