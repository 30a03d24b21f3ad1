// AttachListener: the connections to a gateway's attach socket. It admits whom it trusts, cuts what
// they send into messages, sends what they are answered, and bounds all of it: connections, time,
// bytes, messages a second. What messages mean, and what a rank is, is inter/attach_server.h.
//
// All on the loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/event_log.h"
#include "inter/attach_messages.h"
#include "inter/local_socket.h"
#include "inter/loop.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {

class AttachConnection {
 public:
  virtual ~AttachConnection() = default;
  virtual bool is_open() const = 0;
  // The other end is gone, although its last messages may not have been read yet.
  virtual bool has_hung_up() const = 0;
  virtual const LocalPeer& peer() const = 0;

  // A connection without a rank is a visitor: few may be there, and they must not be silent.
  virtual std::optional<std::uint32_t> rank() const = 0;
  virtual void set_rank(std::optional<std::uint32_t> rank) = 0;

  // Never blocks: waits in memory until the other end reads. The descriptor of `memory` goes along,
  // and keeps it alive until then. Does nothing when the connection is closed or refused.
  virtual void send(Bytes frame, std::shared_ptr<const SharedMemory> memory = nullptr) = 0;
  // Says why; hears nothing more, and closes when that has left. A refusal is logged; what is
  // declined concerns nobody but who asked.
  virtual void refuse(const Error& why) = 0;
  virtual void decline(const Error& why) = 0;
  virtual void close() = 0;
};

// Shared by the listener, by coroutines that wait for its socket, and by who answers later.
using AttachConnectionPointer = std::shared_ptr<AttachConnection>;

class AttachReceiver {
 public:
  virtual ~AttachReceiver() = default;
  // A message of a kind and length that ranks may send; its body is not decoded yet.
  virtual void on_message(const AttachConnectionPointer& connection, attach::Kind kind,
                          std::span<const std::byte> body) = 0;
  // It is closed, by whomever.
  virtual void on_closed(const AttachConnectionPointer& connection) = 0;
};

struct ListenerOptions {
  std::uint32_t visitors_max = 32;
  Nanoseconds message_timeout = 10 * kSecond;  // for a visitor's next message, and to complete any
};

class AttachListener {
 public:
  // Listens at once. Errors: io, permission, not_found. The references outlive the listener.
  static Result<std::unique_ptr<AttachListener>> listen(Loop& loop, EventLog& log,
                                                        const std::string& path,
                                                        AttachReceiver& receiver,
                                                        ListenerOptions options);
  // Closes all connections, without on_closed(), and removes the socket.
  ~AttachListener();
  AttachListener(const AttachListener&) = delete;
  AttachListener& operator=(const AttachListener&) = delete;

 private:
  class Listener;
  explicit AttachListener(std::shared_ptr<Listener> listener);
  std::shared_ptr<Listener> listener_;  // shared with its coroutines, which may outlive this
};

}  // namespace isthmus::inter
