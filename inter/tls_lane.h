// TlsLane: what all connections of the bulk lane share: the threads that seal, open and move their
// bytes, so that the loop's thread never does; the way from them to the loop; and buffers. Internal
// to the wire (inter/zmq_wire.h).
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_log.h"
#include "inter/congestion_control.h"
#include "inter/lane_end.h"
#include "inter/log_pace.h"
#include "inter/loop_mailbox.h"
#include "inter/rate_limit.h"
#include "inter/tcp_address.h"
#include "inter/zmq_wire.h"
#include "security/tls_stream.h"

namespace isthmus::inter {

class TlsLane {
 public:
  // Starts options.io_threads threads. Errors: io. `options` outlives the lane.
  static Result<std::unique_ptr<TlsLane>> make(Loop& loop, EventLog& log,
                                               const ZmqWireOptions& options,
                                               CongestionControl& congestion);
  ~TlsLane() { stop(); }
  TlsLane(const TlsLane&) = delete;
  TlsLane& operator=(const TlsLane&) = delete;

  // Ends the threads: nothing moves any more, and nothing reaches the loop. Before whatever
  // connections call is destroyed; connections are destroyed before the lane.
  void stop();

  // Each connection's work stays on one of them.
  boost::asio::io_context& next_thread();

  // Of a socket that is about to connect or to listen: what an accepted one inherits, and what not.
  void set_up_unconnected(int descriptor);
  void set_up_connected(int descriptor);
  // What the kernel takes of a connection that is one of so many, beyond what it can send at once.
  void share_unsent(int descriptor, std::uint32_t connections);

  // As Wire::limit_bulk; and what left beside, for which bulk waits.
  void limit(double bytes_per_second);
  void pay(std::size_t bytes);
  // From any thread: of so many bytes the next ones that leave, as a record, and when.
  RateLimit::Piece next_piece(std::size_t bytes);

  Loop& loop() { return loop_; }
  EventLog& log() { return log_; }
  // From any thread; at a pace.
  void log_violation(GatewayId peer, std::string_view what);
  const ZmqWireOptions& options() const { return options_; }
  const security::TlsContext& tls() const { return tls_; }
  LoopMailbox& mailbox() { return *mailbox_; }
  BufferPool& buffers() { return *buffers_; }  // for messages that come in
  const CongestionControl& congestion() const { return congestion_; }

 private:
  // Peers' contributions of two steps come back at once: those of one peer with 64 million
  // parameters, a byte each, fit. What is beyond is freed, and costs fresh pages the next time.
  static constexpr std::size_t kBufferedBytesMax = 160 << 20;

  struct Thread {
    boost::asio::io_context io{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work =
        boost::asio::make_work_guard(io);
    std::thread thread;
  };

  TlsLane(Loop& loop, EventLog& log, const ZmqWireOptions& options, CongestionControl& congestion,
          security::TlsContext tls, std::unique_ptr<LoopMailbox> mailbox)
      : loop_(loop),
        log_(log),
        options_(options),
        congestion_(congestion),
        tls_(std::move(tls)),
        mailbox_(std::move(mailbox)) {}

  Loop& loop_;
  EventLog& log_;
  const ZmqWireOptions& options_;
  CongestionControl& congestion_;
  std::mutex limit_mutex_;
  RateLimit limit_{0};  // guarded by limit_mutex_; of all connections
  std::atomic<bool> limited_ = false;
  const security::TlsContext tls_;
  const std::shared_ptr<BufferPool> buffers_ = std::make_shared<BufferPool>(kBufferedBytesMax);
  std::vector<std::unique_ptr<Thread>> threads_;
  std::atomic<std::size_t> next_thread_ = 0;
  std::mutex violations_mutex_;
  LogPace violations_{kSecond, kViolationsAtOnce};  // of all connections
  std::unique_ptr<LoopMailbox> mailbox_;  // gone before the connections that it holds lose theirs
};

// Errors: invalid_argument, the host is not written in numbers.
Result<boost::asio::ip::tcp::endpoint> tcp_endpoint(const TcpAddress& address);

}  // namespace isthmus::inter
