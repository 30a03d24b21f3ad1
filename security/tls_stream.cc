#include "security/tls_stream.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/copy_to.h"
#include "security/aes_gcm_provider.h"
#include "security/signing_key.h"
#include "security/sodium_ready.h"

namespace isthmus::security {

// What OpenSSL calls back, each with the stream that it is about.
struct TlsCallbacks {
  static TlsStream& stream_of(BIO* bio) { return *static_cast<TlsStream*>(BIO_get_data(bio)); }
  static int read(BIO* bio, char* into, int size);
  static int write(BIO* bio, const char* bytes, int size);
  static long control(BIO* bio, int command, long, void*);
  static int verify(X509_STORE_CTX* store, void*);
  static int client_hello(SSL* ssl, int* alert, void*);
  static void message(int sent, int, int type, const void* bytes, std::size_t size, SSL* ssl,
                      void*);
};

namespace {

// A hello of ours has some 250 bytes. OpenSSL would set aside what a stranger's claims to have.
constexpr std::size_t kHelloBytesMax = 2048;
// A certificate of ours has some 200 bytes.
constexpr long kCertificateBytesMax = 2048;

// Once a peer is known: two records with one system call. OpenSSL moves what is left in this buffer
// to its beginning before each record: with four, half as much again as comes.
constexpr std::size_t kReadBufferBytes = 2 * (kTlsRecordBytesMax + kTlsRecordOverhead) + 512;

// Of a peer's keys each costs as much as opening 100 kB does: so many at once, and one for so many
// bytes. OpenSSL would go on through any number of them without a byte for us.
constexpr std::uint64_t kKeysAtOnce = 64;
constexpr std::uint64_t kBytesOfAKey = 1 << 20;

// Room for the private keys of a process; a power of two, as OpenSSL wants it.
constexpr std::size_t kSecureHeapBytes = 32768;

constexpr std::string_view kAesFirst = "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr std::string_view kChaChaFirst = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";

template <auto free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<&EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<&X509_free>>;

// The first error that OpenSSL noted on this thread, which then has none left.
Error take_error(ErrorCode code, std::string_view sentence) {
  const char* const reason = ERR_reason_error_string(ERR_peek_error());
  Error error(code,
              fmt::format("{}: {}", sentence, reason == nullptr ? "no reason given" : reason));
  ERR_clear_error();
  return error;
}

void require_openssl() {
  // No file of the system decides what is safe here.
  static const bool ready = [] {
    const bool made = OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1;
    // Where memory cannot be locked it goes on (harden_process warns).
    CRYPTO_secure_malloc_init(kSecureHeapBytes, 32);
    return made;
  }();
  ISTHMUS_ASSERT(ready);
}

// TLS wants one; nobody looks at anything but its key.
Certificate make_certificate(EVP_PKEY* key) {
  Certificate certificate(X509_new());
  if (!certificate) return nullptr;
  auto* const made = certificate.get();
  auto* const name = X509_get_subject_name(made);
  const bool complete =
      X509_set_version(made, 2) == 1 && ASN1_INTEGER_set(X509_get_serialNumber(made), 1) == 1 &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("isthmus"), -1, -1,
                                 0) == 1 &&
      X509_set_issuer_name(made, name) == 1 &&
      ASN1_TIME_set_string(X509_getm_notBefore(made), "19700101000000Z") == 1 &&
      ASN1_TIME_set_string(X509_getm_notAfter(made), "99991231235959Z") == 1 &&
      X509_set_pubkey(made, key) == 1 && X509_sign(made, key, nullptr) > 0;
  return complete ? std::move(certificate) : nullptr;
}

BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    auto* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "isthmus socket");
    ISTHMUS_ASSERT(made != nullptr);
    BIO_meth_set_read(made, &TlsCallbacks::read);
    BIO_meth_set_write(made, &TlsCallbacks::write);
    BIO_meth_set_ctrl(made, &TlsCallbacks::control);
    return made;
  }();
  return method;
}

}  // namespace

int TlsCallbacks::read(BIO* bio, char* into, int size) {
  auto& stream = stream_of(bio);
  BIO_clear_retry_flags(bio);
  if (stream.changes_keys_too_often()) return -1;
  const auto got = ::recv(stream.socket_, into, static_cast<std::size_t>(size), 0);
  if (got > 0) {
    stream.bytes_received_ += static_cast<std::uint64_t>(got);
    const auto received = std::as_bytes(std::span(into, static_cast<std::size_t>(got)));
    return stream.plausible_hello(received) ? static_cast<int>(got) : -1;
  }
  if (got == 0) {
    stream.ended_ = true;
    return 0;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
    BIO_set_retry_read(bio);
  else
    stream.socket_error_ = errno;
  return -1;
}

int TlsCallbacks::write(BIO* bio, const char* bytes, int size) {
  auto& stream = stream_of(bio);
  BIO_clear_retry_flags(bio);
  const auto sent = ::send(stream.socket_, bytes, static_cast<std::size_t>(size),
                           MSG_NOSIGNAL | (stream.more_ ? MSG_MORE : 0));
  if (sent >= 0) {
    stream.bytes_sent_ += static_cast<std::uint64_t>(sent);
    return static_cast<int>(sent);
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
    BIO_set_retry_write(bio);
  else
    stream.socket_error_ = errno;
  return -1;
}

long TlsCallbacks::control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return stream_of(bio).ended_ ? 1 : 0;
  return 0;
}

// In place of all that OpenSSL knows of chains, names and dates.
int TlsCallbacks::verify(X509_STORE_CTX* store, void*) {
  auto* const ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto& stream = *static_cast<TlsStream*>(SSL_get_app_data(ssl));
  const auto* const certificate = X509_STORE_CTX_get0_cert(store);
  const auto* const key = certificate == nullptr ? nullptr : X509_get0_pubkey(certificate);
  PublicKey shown;
  std::size_t size = shown.bytes.size();
  const bool readable = key != nullptr && EVP_PKEY_get_id(key) == EVP_PKEY_ED25519 &&
                        EVP_PKEY_get_raw_public_key(key, octets(shown.bytes.data()), &size) == 1 &&
                        size == shown.bytes.size();
  if (readable && stream.judge(shown)) {
    X509_STORE_CTX_set_error(store, X509_V_OK);
    return 1;
  }
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
  return 0;
}

// One key share, of the one group: a hello without it would be asked for a second time, and we
// could not tell the second one's length before OpenSSL believes it.
int TlsCallbacks::client_hello(SSL* ssl, int* alert, void*) {
  constexpr unsigned char kOneX25519[] = {0, 36, 0, 29, 0, 32};
  const unsigned char* shares = nullptr;
  std::size_t size = 0;
  if (SSL_client_hello_get0_legacy_version(ssl) == TLS1_2_VERSION &&
      SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_supported_versions, &shares, &size) == 1 &&
      SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_key_share, &shares, &size) == 1 && size == 38 &&
      std::memcmp(shares, kOneX25519, sizeof kOneX25519) == 0)
    return SSL_CLIENT_HELLO_SUCCESS;
  *alert = SSL_AD_PROTOCOL_VERSION;
  return SSL_CLIENT_HELLO_ERROR;
}

void TlsCallbacks::message(int sent, int, int type, const void* bytes, std::size_t size, SSL* ssl,
                           void*) {
  if (sent == 0 && type == SSL3_RT_HANDSHAKE && size > 0 &&
      *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE)
    ++static_cast<TlsStream*>(SSL_get_app_data(ssl))->keys_received_;
}

void TlsContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }
void TlsStream::Free::operator()(ssl_st* ssl) const { SSL_free(ssl); }

Result<TlsContext> TlsContext::make(std::span<const std::byte> seed, std::uint64_t key_bytes_max) {
  ISTHMUS_ASSERT(seed.size() == SigningKey::kSeedBytes);
  require_openssl();
  require_sodium();
  ERR_clear_error();
  const auto failed = [] { return take_error(ErrorCode::io, "OpenSSL gives no TLS 1.3"); };
  const Key key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, octets(seed.data()), seed.size()));
  if (!key) return failed();
  const auto certificate = make_certificate(key.get());
  std::unique_ptr<ssl_ctx_st, Free> context(
      SSL_CTX_new_ex(nullptr, fastest_ciphers(), TLS_method()));
  if (!certificate || !context) return failed();
  auto* const made = context.get();
  const auto& ciphers = crypto_aead_aes256gcm_is_available() == 1 ? kAesFirst : kChaChaFirst;
  SSL_CTX_set_security_level(made, 2);
  if (SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(made, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(made, ciphers.data()) != 1 ||
      SSL_CTX_set1_groups_list(made, "X25519") != 1 ||
      SSL_CTX_set1_sigalgs_list(made, "ed25519") != 1 ||
      SSL_CTX_set1_client_sigalgs_list(made, "ed25519") != 1 ||
      SSL_CTX_use_certificate(made, certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(made, key.get()) != 1 || SSL_CTX_set_num_tickets(made, 0) != 1 ||
      SSL_CTX_set_max_early_data(made, 0) != 1)
    return failed();
  // Who has no instructions for AES asks for ChaCha20 first, and gets it.
  SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(made, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                             SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_max_cert_list(made, kCertificateBytesMax);
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(made, &TlsCallbacks::verify, nullptr);
  SSL_CTX_set_client_hello_cb(made, &TlsCallbacks::client_hello, nullptr);
  SSL_CTX_set_msg_callback(made, &TlsCallbacks::message);
  return TlsContext(std::move(context), key_bytes_max);
}

Result<std::unique_ptr<TlsStream>> TlsStream::make(const TlsContext& context, TlsRole role,
                                                   int socket, Admits admits) {
  ERR_clear_error();
  std::unique_ptr<TlsStream> stream(
      new TlsStream(role, socket, std::move(admits), context.key_bytes_max_));
  stream->ssl_.reset(SSL_new(context.context_.get()));
  auto* const ssl = stream->ssl_.get();
  BIO* const bio = BIO_new(socket_method());
  if (ssl == nullptr || bio == nullptr || SSL_set_app_data(ssl, stream.get()) != 1) {
    BIO_free(bio);
    return take_error(ErrorCode::io, "OpenSSL gives no connection");
  }
  BIO_set_data(bio, stream.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);  // owns it from here on
  if (role == TlsRole::dialing)
    SSL_set_connect_state(ssl);
  else
    SSL_set_accept_state(ssl);
  return stream;
}

TlsStream::~TlsStream() {
  ssl_.reset();
  ERR_clear_error();
}

bool TlsStream::judge(const PublicKey& key) {
  shown_ = key;
  refused_ = !admits_(key);
  return !refused_;
}

bool TlsStream::changes_keys_too_often() const {
  return keys_received_ > kKeysAtOnce + opened_ / kBytesOfAKey;
}

// Record (type, version, length) and message (type, length) of the first thing that a stranger
// says.
bool TlsStream::plausible_hello(std::span<const std::byte> received) {
  auto& known = first_bytes_known_;
  if (role_ == TlsRole::dialing || known == first_bytes_.size()) return true;
  const auto count = std::min(received.size(), first_bytes_.size() - known);
  copy_to(received.first(count), first_bytes_.begin() + static_cast<long>(known));
  known += count;
  const auto at = [&](std::size_t i) { return std::to_integer<std::size_t>(first_bytes_[i]); };
  return known < first_bytes_.size() ||
         (at(0) == SSL3_RT_HANDSHAKE && at(5) == SSL3_MT_CLIENT_HELLO &&
          (at(6) << 16 | at(7) << 8 | at(8)) <= kHelloBytesMax) ||
         at(0) != SSL3_RT_HANDSHAKE;  // no hello at all: OpenSSL says so, and to the other end too
}

Result<TlsWants> TlsStream::wants_or_error(int status) {
  const int what = SSL_get_error(ssl_.get(), status);
  if (what == SSL_ERROR_WANT_READ) return TlsWants::read;
  if (what == SSL_ERROR_WANT_WRITE) return TlsWants::write;
  const auto code = ERR_peek_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  if (refused_) {
    ERR_clear_error();
    return Error{ErrorCode::unauthenticated,
                 fmt::format("key {} is not in the roster", shown_->hex())};
  }
  if (reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE) {
    ERR_clear_error();
    return role_ == TlsRole::dialing
               ? Error{ErrorCode::unauthenticated, "the other end refuses our key"}
               : Error{ErrorCode::closed, "it dialed another site's gateway"};
  }
  if (reason == SSL_R_BAD_SIGNATURE)
    return take_error(ErrorCode::unauthenticated, "the other end does not have its key");
  if (changes_keys_too_often()) {
    ERR_clear_error();
    return Error{ErrorCode::bad_frame, "it changes its key all the time"};
  }
  if (socket_error_ != 0) {
    ERR_clear_error();
    return Error{ErrorCode::closed, ::strerrordesc_np(socket_error_)};
  }
  if (what == SSL_ERROR_ZERO_RETURN || ended_) {
    ERR_clear_error();
    return Error{ErrorCode::closed, "disconnected"};
  }
  return take_error(ErrorCode::bad_frame, "no TLS 1.3 as gateways speak it");
}

Result<TlsWants> TlsStream::handshake() {
  ERR_clear_error();
  const int status = SSL_do_handshake(ssl_.get());
  if (status != 1) return wants_or_error(status);
  peer_ = shown_;
  ISTHMUS_ASSERT(peer_.has_value() && SSL_version(ssl_.get()) == TLS1_3_VERSION);
  SSL_set_read_ahead(ssl_.get(), 1);
  SSL_set_default_read_buffer_len(ssl_.get(), kReadBufferBytes);
  // A peer's are used all the time. Those of strangers, who may be many, are still released.
  SSL_clear_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);
  return TlsWants::nothing;
}

Result<TlsStream::Moved> TlsStream::read(std::span<std::byte> into) {
  ERR_clear_error();
  std::size_t got = 0;
  const int status = SSL_read_ex(ssl_.get(), into.data(), into.size(), &got);
  if (status == 1) {
    opened_ += got;
    return Moved{got, TlsWants::nothing};
  }
  ISTHMUS_TRY(const auto wants, wants_or_error(status));
  return Moved{0, wants};
}

Result<TlsStream::Moved> TlsStream::write(std::span<const std::byte> bytes, bool more) {
  ERR_clear_error();
  if (sealed_ >= key_bytes_max_ && !write_pending_) {
    if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
      return take_error(ErrorCode::io, "no next key");
    sealed_ = 0;
  }
  more_ = more;
  std::size_t taken = 0;
  const int status =
      SSL_write_ex(ssl_.get(), bytes.data(), std::min(bytes.size(), kTlsRecordBytesMax), &taken);
  more_ = false;
  write_pending_ = status != 1;
  if (status == 1) {
    sealed_ += taken;
    return Moved{taken, TlsWants::nothing};
  }
  ISTHMUS_TRY(const auto wants, wants_or_error(status));
  return Moved{0, wants};
}

}  // namespace isthmus::security
