// Fuzz target: a connection of the bulk lane. The first byte chooses: what a stranger sends to a
// listening or to a dialing end; a connection of two true ends whose bytes somebody changes on
// their way; or what a listed gateway seals, which becomes messages.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/event_log.h"
#include "inter/local_socket.h"
#include "inter/tls_connection.h"
#include "security/identity.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/script.h"

namespace isthmus::inter {
namespace {

using security::TlsContext;
using security::TlsRole;
using security::TlsStream;
using security::TlsWants;

enum Choice : std::uint8_t { to_listening, to_dialing, tampered, messages, kChoices };
// Of a step: bytes that nobody sealed.
constexpr std::uint8_t kRaw = 1;

using Ends = std::array<FileDescriptor, 2>;
Ends connected_pair() {
  int ends[2];
  ISTHMUS_ASSERT(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}
void send_raw(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  (void)!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
Bytes receive_raw(const FileDescriptor& socket) {
  Bytes bytes(1 << 16);
  const auto got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

const security::Identity& identity(std::size_t i) {
  static const security::Identity both[] = {security::Identity::generate(),
                                            security::Identity::generate()};
  return both[i];
}
const security::PublicKey& key(std::size_t i) { return identity(i).public_part().identity; }
const TlsContext& context(std::size_t i) {
  static const TlsContext both[] = {*TlsContext::make(identity(0).identity_seed()),
                                    *TlsContext::make(identity(1).identity_seed())};
  return both[i];
}

// An end that shakes hands, then reads all it can, until something is wrong.
class End {
 public:
  End(std::size_t i, TlsRole role, int socket)
      : stream_(*TlsStream::make(context(i), role, socket,
                                 [i](const auto& shown) { return shown == key(1 - i); })) {}

  void go_on() {
    if (failed) return;
    if (!up) {
      const auto wants = stream_->handshake();
      failed = !wants;
      up = wants && *wants == TlsWants::nothing;
    }
    std::array<std::byte, 4096> buffer;
    while (up && !failed) {
      const auto got = stream_->read(buffer);
      failed = !got;
      if (failed || got->wants != TlsWants::nothing) return;
      received.insert(received.end(), buffer.begin(), buffer.begin() + got->bytes);
    }
  }
  void write(std::span<const std::byte> bytes) {
    while (up && !failed && !bytes.empty()) {
      const auto sent = stream_->write(bytes, false);
      failed = !sent;
      if (failed || sent->wants != TlsWants::nothing) return;
      bytes = bytes.subspan(sent->bytes);
    }
  }

  bool up = false, failed = false;
  Bytes received;

 private:
  std::unique_ptr<TlsStream> stream_;
};

// Nobody gets anywhere who has no key.
void hear_stranger(TlsRole role, std::span<const std::byte> script) {
  const auto ends = connected_pair();
  End end(0, role, ends[0].get());
  end.go_on();
  each_step(script, [&](const ScriptStep& step) {
    send_raw(ends[1], step.bytes);
    end.go_on();
    ISTHMUS_ASSERT(!end.up && end.received.empty());
  });
}

// Each step lets both ends go on; its bytes are {u16 offset, u8 value, …} of what one of them
// (`who`) sends meanwhile. Whatever is changed, what is received is what was sent, or nothing.
void tamper(std::span<const std::byte> script) {
  const auto dialing = connected_pair(), listening = connected_pair();
  End from(0, TlsRole::dialing, dialing[0].get()), to(1, TlsRole::listening, listening[0].get());
  Bytes sent;
  each_step(script, [&](const ScriptStep& step) {
    from.go_on();
    if (from.up) {
      const std::array word{std::byte{1}, std::byte{2}, static_cast<std::byte>(sent.size())};
      from.write(word);
      sent.insert(sent.end(), word.begin(), word.end());
    }
    auto forth = receive_raw(dialing[1]), back = receive_raw(listening[1]);
    auto& changed = step.who % 2 == 0 ? forth : back;
    for (ByteReader in(step.bytes); in.rest().size() >= 3;) {
      const auto at = in.get<std::uint16_t>();
      const auto value = in.get<std::byte>();
      if (at < changed.size()) changed[at] = value;
    }
    send_raw(listening[1], forth);
    send_raw(dialing[1], back);
    to.go_on();
    ISTHMUS_ASSERT(to.received.size() <= sent.size() &&
                   std::equal(to.received.begin(), to.received.end(), sent.begin()));
    ISTHMUS_ASSERT(from.received.empty());
  });
}

// The listening end of a lane, with its threads: made once.
class Lane final : public TlsUser, public TlsGate {
 public:
  static Lane& the_one() {
    static Lane lane;
    return lane;
  }

  // What came of these bytes, after which the other end closes.
  std::vector<Bytes> receive(std::span<const std::byte> script) {
    messages_.clear();
    ended_ = false;
    auto ends = connected_pair();
    auto& io = lane_->next_thread();
    boost::asio::ip::tcp::socket socket(io);
    socket.assign(boost::asio::ip::tcp::v4(), ends[0].release());
    const auto connection = std::make_shared<TlsConnection>(*lane_, io, *this, *this);
    connection->accept(std::move(socket));
    {
      End peer(1, TlsRole::dialing, ends[1].get());
      for (peer.go_on(); peer.received.size() < kGatewayIdBytes; peer.go_on()) {
        ISTHMUS_ASSERT(!peer.failed);
        wait_for(ends[1], POLLIN);
      }
      peer.write(ByteWriter().put(kPeer.site).put(kPeer.index).view());
      each_step(script, [&](const ScriptStep& step) {
        if ((step.what & kRaw) != 0)
          send_raw(ends[1], step.bytes);
        else
          peer.write(step.bytes);
        wait_for(ends[1], POLLOUT);
      });
    }
    ::shutdown(ends[1].get(), SHUT_WR);
    while (!ended_) {
      loop_.io().restart();
      loop_.io().run_one_for(std::chrono::seconds(1));
    }
    return std::move(messages_);
  }

 private:
  static constexpr GatewayId kPeer{2, 0};

  Lane() {
    options_.self = {1, 0};
    options_.identity = &identity(0);
    lane_ = *TlsLane::make(loop_, log_, options_, congestion_);
    lane_->mailbox().start();
  }
  ~Lane() override { lane_->stop(); }
  static void wait_for(const FileDescriptor& socket, short what) {
    pollfd polled{socket.get(), what, 0};
    ::poll(&polled, 1, 1000);
  }

  void up(const std::shared_ptr<TlsConnection>& connection) override {
    ISTHMUS_ASSERT(connection->peer() == kPeer);
    connection->start_reading();
  }
  void received(TlsConnection&, const SharedBytes& message) override {
    messages_.emplace_back(message.begin(), message.end());
  }
  void writable(TlsConnection&) override {}
  void ended(TlsConnection&, const Error& why) override {
    ISTHMUS_ASSERT(!why.text().empty());
    ended_ = true;
  }
  bool admits(const security::PublicKey& shown) override { return shown == key(1); }
  bool admits(const std::shared_ptr<TlsConnection>&, const security::PublicKey& shown,
              GatewayId id) override {
    return shown == key(1) && id == kPeer;
  }
  void gone(TlsConnection&, const Error&, bool) override {}

  std::unique_ptr<Clock> clock_ = make_system_clock();
  EventLog log_{*clock_, "alpha"};
  Loop loop_{*clock_};
  ZmqWireOptions options_;
  CongestionControl congestion_{log_, ""};
  std::unique_ptr<TlsLane> lane_;
  std::vector<Bytes> messages_;
  bool ended_ = false;
};

// The messages are those that were sealed, up to where somebody breaks the rules.
void send_messages(std::span<const std::byte> script) {
  constexpr std::size_t kUnreadMax = 1 << 15;  // of what is sent nobody reads before the end
  script = script.first(std::min(script.size(), kUnreadMax));
  Bytes sealed;
  bool broken = false;
  each_step(script, [&](const ScriptStep& step) {
    broken |= (step.what & kRaw) != 0 && !step.bytes.empty();
    if (!broken) sealed.insert(sealed.end(), step.bytes.begin(), step.bytes.end());
  });
  const auto got = Lane::the_one().receive(script);
  std::size_t count = 0;
  for (ByteReader in(sealed);; ++count) {
    const auto size = in.get<std::uint32_t>();
    const auto body = in.raw(size);
    if (!in.ok() || size > kBulkMessageBytesMax) break;
    ISTHMUS_ASSERT(count < got.size() && std::ranges::equal(got[count], body));
  }
  ISTHMUS_ASSERT(count == got.size());
}

}  // namespace
}  // namespace isthmus::inter

// OpenSSL's random generators are in its secure heap, where the leak sanitizer does not look.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libcrypto.so"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  using namespace isthmus::inter;
  if (size == 0) return 0;
  const auto script = fuzz_input(data, size).subspan(1);
  switch (data[0] % kChoices) {
    case to_listening:
      hear_stranger(TlsRole::listening, script);
      break;
    case to_dialing:
      hear_stranger(TlsRole::dialing, script);
      break;
    case tampered:
      tamper(script);
      break;
    case messages:
      send_messages(script);
  }
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using namespace inter;
  std::vector<Bytes> seeds;
  const auto add = [&seeds](Choice choice, ScriptWriter& script) {
    seeds.push_back(ByteWriter().put(choice).raw(script.take()).take());
  };
  ScriptWriter hello, silent, quiet, changed, sealed, raw;
  {
    const auto ends = connected_pair();
    End dialing(1, TlsRole::dialing, ends[0].get());
    dialing.go_on();
    add(to_listening, hello.step(0, 0, receive_raw(ends[1])));
  }
  add(to_dialing, silent.step(0, 0, bytes_of("HTTP/1.1 400 Bad Request\r\n\r\n")));
  for (int i = 0; i < 5; ++i) quiet.step(0, 0);
  add(tampered, quiet);
  for (std::uint8_t i = 0; i < 4; ++i)
    changed.step(0, i, ByteWriter().put(std::uint16_t{60}).put(i).view());
  add(tampered, changed);
  const auto frame = ByteWriter().put(std::uint32_t{5}).raw(bytes_of("hello")).take();
  sealed.step(0, 0, frame).step(0, 0, frame).step(0, 0, Bytes(4));
  sealed.step(0, 0, std::span(frame).first(3)).step(0, 0, std::span(frame).subspan(3));
  add(messages, sealed.step(0, 0, ByteWriter().put(std::uint32_t{1 << 24}).view()));
  add(messages, raw.step(0, 0, frame).step(kRaw, 0, Bytes(30)).step(0, 0, frame));
  return seeds;
}

}  // namespace isthmus
