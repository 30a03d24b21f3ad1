#include "security/tls_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "security/signing_key.h"

namespace isthmus::security {
namespace {

using Bytes = std::vector<std::byte>;

// Two ends and what lies between them: bytes go from one socket to the other by carry().
class Pair : public testing::Test {
 protected:
  struct End {
    SigningKey key = SigningKey::generate();
    int inside = -1;   // the stream's
    int outside = -1;  // the network's
    std::unique_ptr<TlsStream> stream;
    std::optional<Error> failed;
    bool up = false;
    int asked = 0;  // whether a key may come

    ~End() {
      stream.reset();
      ::close(inside);
      if (outside >= 0) ::close(outside);
    }
  };

  void SetUp() override {
    for (auto* end : {&dialer_, &listener_}) {
      int pair[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
      end->inside = pair[0];
      end->outside = pair[1];
    }
  }

  void make(End& end, TlsRole role, PublicKey wanted, std::uint64_t key_bytes_max) {
    const auto context = TlsContext::make(end.key.seed(), key_bytes_max);
    ASSERT_TRUE(context) << context.error().text();
    auto stream = TlsStream::make(*context, role, end.inside, [&end, wanted](const PublicKey& key) {
      ++end.asked;
      return key == wanted;
    });
    ASSERT_TRUE(stream) << stream.error().text();
    end.stream = std::move(*stream);
  }
  void make_both(std::uint64_t key_bytes_max = kTlsKeyBytesMax) {
    make(dialer_, TlsRole::dialing, listener_.key.public_key(), key_bytes_max);
    make(listener_, TlsRole::listening, dialer_.key.public_key(), key_bytes_max);
  }

  // What passes from one end to the other, with the bits that `flip` says turned over.
  static std::size_t carry(End& from, End& to, std::int64_t flip = -1) {
    char bytes[65536];
    const auto got = ::recv(from.outside, bytes, sizeof bytes, 0);
    if (got <= 0) return 0;
    if (flip >= 0 && flip < got) bytes[flip] ^= 0x10;
    EXPECT_EQ(::send(to.outside, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL), got);
    return static_cast<std::size_t>(got);
  }
  static void step(End& end) {
    if (end.up || end.failed) return;
    const auto done = end.stream->handshake();
    if (!done)
      end.failed = done.error();
    else
      end.up = *done == TlsWants::nothing;
  }
  void shake_hands() {
    for (int i = 0; i < 10; ++i) {
      step(dialer_);
      carry(dialer_, listener_);
      step(listener_);
      carry(listener_, dialer_);
    }
  }
  Bytes move(End& from, End& to, const Bytes& message) {
    std::size_t sent = 0;
    Bytes arrived(message.size());
    std::size_t got = 0;
    for (int i = 0; i < 10'000 && got < message.size(); ++i) {
      if (sent < message.size()) {
        const auto wrote = from.stream->write(std::span(message).subspan(sent), false);
        EXPECT_TRUE(wrote);
        if (!wrote) break;
        sent += wrote->bytes;
      }
      while (carry(from, to) > 0) {
      }
      const auto read = to.stream->read(std::span(arrived).subspan(got));
      EXPECT_TRUE(read) << read.error().text();
      if (!read) break;
      got += read->bytes;
    }
    return arrived;
  }
  static ErrorCode read_error(End& end) {
    std::byte byte;
    const auto read = end.stream->read(std::span(&byte, 1));
    return read ? ErrorCode::cancelled : read.error().code;
  }

  End dialer_, listener_;
};

Bytes message_of(std::size_t size) {
  Bytes message(size);
  for (std::size_t i = 0; i < size; ++i) message[i] = static_cast<std::byte>(i * 7 + i / 256);
  return message;
}

TEST_F(Pair, BothEndsLearnTheOthersKeyAndCarryBytes) {
  make_both();
  shake_hands();
  ASSERT_TRUE(dialer_.up && listener_.up);
  EXPECT_EQ(dialer_.stream->peer(), listener_.key.public_key());
  EXPECT_EQ(listener_.stream->peer(), dialer_.key.public_key());
  for (const std::size_t size : {1, 16384, 16385, 300'000}) {
    EXPECT_EQ(move(dialer_, listener_, message_of(size)), message_of(size));
    EXPECT_EQ(move(listener_, dialer_, message_of(size)), message_of(size));
  }
  EXPECT_EQ(dialer_.stream->bytes_sent(), listener_.stream->bytes_received());
  EXPECT_EQ(listener_.stream->bytes_sent(), dialer_.stream->bytes_received());
}

TEST_F(Pair, WhatSealingAddsIsWhatTheHeaderSays) {
  make_both();
  shake_hands();
  const auto before = dialer_.stream->bytes_sent();
  (void)move(dialer_, listener_, message_of(2 * kTlsRecordBytesMax + 1));
  EXPECT_EQ(dialer_.stream->bytes_sent() - before,
            2 * kTlsRecordBytesMax + 1 + 3 * kTlsRecordOverhead);
}

TEST_F(Pair, AKeyOfNobodyIsRefusedBeforeAnythingIsRead) {
  make(dialer_, TlsRole::dialing, listener_.key.public_key(), kTlsKeyBytesMax);
  make(listener_, TlsRole::listening, SigningKey::generate().public_key(), kTlsKeyBytesMax);
  shake_hands();
  ASSERT_TRUE(listener_.failed);
  EXPECT_EQ(listener_.failed->code, ErrorCode::unauthenticated);
  EXPECT_NE(listener_.failed->text().find(dialer_.key.public_key().hex()), std::string::npos);
  EXPECT_EQ(listener_.asked, 1);
  // The other end learns it with its first read.
  ASSERT_TRUE(dialer_.up);
  EXPECT_EQ(read_error(dialer_), ErrorCode::unauthenticated);
}

TEST_F(Pair, AnotherEndThanTheOneDialedIsRefused) {
  make(dialer_, TlsRole::dialing, SigningKey::generate().public_key(), kTlsKeyBytesMax);
  make(listener_, TlsRole::listening, dialer_.key.public_key(), kTlsKeyBytesMax);
  shake_hands();
  ASSERT_TRUE(dialer_.failed);
  EXPECT_EQ(dialer_.failed->code, ErrorCode::unauthenticated);
  ASSERT_TRUE(listener_.failed);
  EXPECT_EQ(listener_.asked, 0) << "it showed its key to whom it did not want";
}

TEST_F(Pair, EveryFlippedBitEndsTheHandshakeOrTheConnection) {
  for (std::int64_t place = 0; place < 700; place += 13) {
    for (auto* end : {&dialer_, &listener_}) {
      end->stream.reset();
      end->up = false;
      end->failed.reset();
      char rest[65536];
      for (const int socket : {end->inside, end->outside})
        while (::recv(socket, rest, sizeof rest, 0) > 0) {
        }
    }
    make_both();
    step(dialer_);
    std::int64_t left = place;
    for (int i = 0; i < 6; ++i) {
      const bool to_listener = i % 2 == 0;
      auto& from = to_listener ? dialer_ : listener_;
      auto& to = to_listener ? listener_ : dialer_;
      const auto moved = static_cast<std::int64_t>(carry(from, to, left));
      left = left < moved ? -1 : left - moved;
      step(to);
    }
    ASSERT_FALSE(dialer_.up && listener_.up) << place;
  }
}

TEST_F(Pair, AFlippedBitOfAMessageIsNoMessage) {
  make_both();
  shake_hands();
  ASSERT_TRUE(dialer_.stream->write(message_of(1000), false));
  carry(dialer_, listener_, 500);
  EXPECT_EQ(read_error(listener_), ErrorCode::bad_frame);
}

TEST_F(Pair, TheNextKeyComesWhenOneHasSealedEnough) {
  constexpr std::size_t kKeyUpdateBytes = 5 + kTlsRecordOverhead;
  make_both(3 * kTlsRecordBytesMax);
  shake_hands();
  const auto before = dialer_.stream->bytes_sent();
  const auto message = message_of(7 * kTlsRecordBytesMax);
  EXPECT_EQ(move(dialer_, listener_, message), message);
  EXPECT_EQ(dialer_.stream->bytes_sent() - before,
            message.size() + 7 * kTlsRecordOverhead + 2 * kKeyUpdateBytes);
  EXPECT_EQ(move(listener_, dialer_, message), message) << "each direction has its own";
}

// OpenSSL goes on from key to key, as long as there are bytes, and gives none to anybody else.
TEST_F(Pair, KeysWithoutEndEndTheConnection) {
  make_both(1);
  shake_hands();
  ASSERT_TRUE(dialer_.up && listener_.up);
  std::byte byte{};
  std::optional<Error> end;
  int read = 0;
  for (; !end && read < 1000; ++read) {
    ASSERT_TRUE(dialer_.stream->write(std::span(&byte, 1), false));
    carry(dialer_, listener_);
    const auto got = listener_.stream->read(std::span(&byte, 1));
    if (!got) end = got.error();
  }
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, ErrorCode::bad_frame);
  EXPECT_NE(end->text().find("changes its key"), std::string::npos) << end->text();
  EXPECT_GE(read, 64);
}

TEST_F(Pair, AnErrorOfOneConnectionIsNotTheNextOnes) {
  make_both();
  shake_hands();
  ASSERT_TRUE(dialer_.stream->write(message_of(100), false));
  carry(dialer_, listener_, 50);
  EXPECT_EQ(read_error(listener_), ErrorCode::bad_frame);
  // On the same thread: this one only has nothing to read.
  EXPECT_EQ(read_error(dialer_), ErrorCode::cancelled);
}

TEST_F(Pair, TheEndIsTold) {
  make_both();
  shake_hands();
  ::close(dialer_.outside);
  dialer_.outside = -1;
  EXPECT_EQ(read_error(dialer_), ErrorCode::closed);
}

TEST_F(Pair, TheSameMessageIsNeverSealedTheSame) {
  make_both();
  shake_hands();
  Bytes seen[2];
  for (auto& bytes : seen) {
    ASSERT_TRUE(dialer_.stream->write(Bytes(100), false));
    bytes.resize(100 + kTlsRecordOverhead);
    ASSERT_EQ(::recv(dialer_.outside, bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  EXPECT_NE(seen[0], seen[1]);
  // Played back in the other order they are refused.
  ASSERT_GT(::send(listener_.outside, seen[1].data(), seen[1].size(), 0), 0);
  EXPECT_EQ(read_error(listener_), ErrorCode::bad_frame);
}

// ---- What strangers say first.

class Stranger : public Pair {
 protected:
  // What the listening end makes of it, and what it answers.
  void say(std::initializer_list<int> bytes, std::size_t zeros = 0) {
    make(listener_, TlsRole::listening, dialer_.key.public_key(), kTlsKeyBytesMax);
    Bytes said;
    for (const int b : bytes) said.push_back(static_cast<std::byte>(b));
    said.resize(said.size() + zeros);
    ASSERT_EQ(::send(listener_.outside, said.data(), said.size(), 0),
              static_cast<ssize_t>(said.size()));
    step(listener_);
    answer_.resize(4096);
    const auto got = ::recv(listener_.outside, answer_.data(), answer_.size(), 0);
    answer_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  void expect_refused() {
    ASSERT_TRUE(listener_.failed);
    EXPECT_EQ(listener_.failed->code, ErrorCode::bad_frame);
    EXPECT_EQ(listener_.asked, 0);
    // An alert at most.
    EXPECT_LE(answer_.size(), 7U);
  }
  Bytes answer_;
};

TEST_F(Stranger, PlaintextIsRefused) {
  say({'G', 'E', 'T', ' ', '/', ' ', 'H', 'T', 'T', 'P', '/', '1', '.', '1', '\r', '\n'});
  expect_refused();
}

TEST_F(Stranger, Tls12IsRefused) {
  // A hello of TLS 1.2: one cipher, no extensions.
  say({0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3}, 32 + 1);
  Bytes rest;
  for (const int b : {0, 2, 0xc0, 0x2c, 1, 0}) rest.push_back(static_cast<std::byte>(b));
  ASSERT_GT(::send(listener_.outside, rest.data(), rest.size(), 0), 0);
  step(listener_);
  answer_.resize(64);
  const auto got = ::recv(listener_.outside, answer_.data(), answer_.size(), 0);
  ASSERT_EQ(got, 7);
  answer_.resize(7);
  EXPECT_EQ(answer_[0], std::byte{21});  // an alert: protocol_version
  EXPECT_EQ(answer_[6], std::byte{70});
  expect_refused();
}

TEST_F(Stranger, AHelloThatClaimsToBeLongIsNotWaitedFor) {
  say({0x16, 3, 1, 0x40, 0, 1, 0x01, 0xff, 0xff, 3, 3}, 100);
  expect_refused();
}

}  // namespace
}  // namespace isthmus::security
