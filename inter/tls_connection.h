// TlsConnection: one TCP connection of the bulk lane, at either end, from its first packet to its
// end. All I/O and sealing happens on one thread of the TlsLane; the loop hands messages over and
// takes them, a few at a time each way, and TCP pushes back on whoever is faster than that.
//
//     dialing end                         listening end
//     connect ──────────────────────────▶ accept               strangers: bounded in number, time
//     TLS 1.3: each end proves the identity key of its site    and memory (inter/tls_listener.h)
//             ◀────────────────────────── its GatewayId        now it has judged our key
//     its GatewayId ────────────────────▶ of the key's site?
//     up                                  up
//     u32 bytes │ message  ◀────────────▶ …                    memory once the length is checked
//
// A GatewayId is u32 site, u32 index. Internal to the wire (inter/zmq_wire.h).
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "inter/polite_rate.h"
#include "inter/tls_lane.h"

namespace isthmus::inter {

inline constexpr std::size_t kGatewayIdBytes = 8;
inline constexpr std::size_t kFrameHeaderBytes = 4;

class TlsConnection;

// From the loop, in this order: up, then received and writable, then ended; ended alone when a
// dialing end never came up. Connections hold their user for as long as the lane runs.
class TlsUser {
 public:
  virtual ~TlsUser() = default;
  virtual void up(const std::shared_ptr<TlsConnection>& connection) = 0;
  virtual void received(TlsConnection& connection, const SharedBytes& message) = 0;
  virtual void writable(TlsConnection& connection) = 0;
  virtual void ended(TlsConnection& connection, const Error& why) = 0;
};

// Decides who may come. On the lane's threads.
class TlsGate {
 public:
  virtual ~TlsGate() = default;
  virtual bool admits(const security::PublicKey& key) = 0;
  // Whether the connection is to go on, once the peer has said which gateway of its site it is.
  virtual bool admits(const std::shared_ptr<TlsConnection>& connection,
                      const security::PublicKey& key, GatewayId id) = 0;
  virtual void gone(TlsConnection& connection, const Error& why, bool was_up) = 0;
};

class TlsConnection final : public std::enable_shared_from_this<TlsConnection> {
 public:
  TlsConnection(TlsLane& lane, boost::asio::io_context& io, TlsUser& user, TlsGate& gate)
      : lane_(lane),
        io_(io),
        user_(user),
        gate_(gate),
        queue_(lane.options().bulk_queue),
        socket_(io),
        deadline_(io),
        pace_timer_(io),
        turn_timer_(io) {}

  // One of these, once; from any thread.
  void dial(const boost::asio::ip::tcp::endpoint& to, Nanoseconds connect_timeout);
  void accept(boost::asio::ip::tcp::socket socket);

  // From the loop, once it is up. Takes messages in from now on.
  void start_reading();
  // Errors: busy (TlsUser::writable follows, or its end).
  Result<void> send(WireMessage message);
  // It is one of so many (LaneEnd::share).
  void share(std::uint32_t connections);
  // Another limit holds for the lane: what waits at the one of before gets a new place.
  void limit_changed();
  // As Wire::pace; a polite one has its own.
  void pace(std::optional<double> bytes_per_second);
  // From any thread; TlsUser::ended follows unless it has ended already.
  void end(ErrorCode code, std::string why);

  // The wire's number for it: the loop's alone.
  ConnectionId id() const { return number_; }
  void number(ConnectionId id) { number_ = id; }

  // Once it is up.
  GatewayId peer() const { return peer_; }
  std::shared_ptr<const LaneMeter> meter() const { return meter_; }
  // Any thread: when TCP had connected this end, which dials, by the loop's clock.
  std::optional<Nanoseconds> connected_at() const {
    const Nanoseconds at = connected_at_;
    return at < 0 ? std::nullopt : std::optional(at);
  }
  // Any thread: nothing has come from the other end yet.
  bool silent() const { return silent_; }
  // Any thread; nothing: it has ended.
  std::optional<BulkPath> path() const;
  // In numbers; "" while not connected. On the connection's thread.
  std::string address() const;

 private:
  using Step = void (TlsConnection::*)();
  enum class Stage { connecting, handshaking, greeting, up, ended };

  void connected();
  void open_stream();
  void handshake();
  void greet();
  bool say_id();
  bool hear_id();
  void come_up();
  void keep_pace();
  void read_on();
  bool read_some(std::span<std::byte> into, std::size_t& got);
  void deliver();
  void taken();
  void write_on();
  Result<security::TlsStream::Moved> write_piece();
  bool take_turn(std::size_t bytes);
  bool within_message() const { return header_got_ > 0 || message_ != nullptr; }
  void watch_silence();
  void wait(security::TlsWants wants, Step next);
  void limit(Nanoseconds time, std::string what);
  void fail(Error why);
  void note_bytes();

  TlsLane& lane_;
  boost::asio::io_context& io_;
  TlsUser& user_;
  TlsGate& gate_;
  const std::shared_ptr<LaneMeter> meter_ = std::make_shared<LaneMeter>();
  std::atomic<bool> silent_ = true;
  std::atomic<Nanoseconds> connected_at_ = -1;  // not yet
  // Handed over by one thread and not yet taken by the other.
  std::atomic<int> outgoing_ = 0;
  std::atomic<std::uint64_t> outgoing_bytes_ = 0;
  int queue_;  // messages that may wait to be sent: the loop's alone
  std::atomic<int> incoming_ = 0;
  std::atomic<bool> said_busy_ = false;
  mutable std::mutex path_mutex_;  // guards the end of socket_, and polite_
  PoliteRate polite_;
  GatewayId peer_;  // written before the loop hears of the connection
  ConnectionId number_ = 0;

  // The connection's thread alone.
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_, pace_timer_, turn_timer_;
  std::chrono::steady_clock::time_point dialed_{};
  bool keeps_pace_ = false;   // a polite one: its timer runs
  std::uint64_t limits_ = 0;  // how many were set: an expired one is told by its number
  security::TlsRole role_ = security::TlsRole::listening;
  Stage stage_ = Stage::connecting;
  std::unique_ptr<security::TlsStream> stream_;
  std::array<std::byte, kGatewayIdBytes> id_out_{}, id_in_{};
  std::size_t id_sent_ = 0, id_got_ = 0;

  std::array<std::byte, kFrameHeaderBytes> header_{};
  std::size_t header_got_ = 0;
  std::shared_ptr<std::byte[]> message_;  // the one that comes in; null between two
  std::size_t message_bytes_ = 0, message_got_ = 0;
  bool reading_ = false;  // waits, or works; not while the loop has enough to do
  std::chrono::steady_clock::time_point last_byte_{};
  bool silence_watched_ = false;

  std::deque<WireMessage> out_;
  std::size_t frame_sent_ = 0;  // of the first, with its header
  bool writing_ = false;
  // Of the next piece, whose turn at the limit has come, or comes when the timer ends; 0: none.
  std::size_t turn_bytes_ = 0;
  bool turn_waits_ = false;  // for the timer
  std::uint64_t turns_ = 0;  // that did: one that was given up is told by its number
};

}  // namespace isthmus::inter
