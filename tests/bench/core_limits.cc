#include "tests/bench/core_limits.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/blake2s_columns.h"
#include "kernels/leaf_hash.h"
#include "kernels/stream_copy.h"
#include "security/aes_gcm_provider.h"
#include "security/tls_stream.h"
#include "tests/bench/bench_site.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

constexpr int kLooks = 5;
constexpr std::size_t kLargeBytes = std::size_t{128} << 20;  // beyond the last-level cache's share
constexpr std::size_t kSmallBytes = security::kTlsRecordBytesMax;
constexpr std::size_t kSmallBytesInLook = std::size_t{8} << 20;
constexpr int kGcmTagBytes = 16;

template <class Body>
double least_seconds(const Body& body) {
  double least = std::numeric_limits<double>::infinity();
  for (int look = 0; look < kLooks; ++look) {
    const double before = thread_seconds();
    body();
    least = std::min(least, thread_seconds() - before);
  }
  return least;
}

// Of `bytes`, all of them in the first-level cache.
template <class Body>
double small_seconds(double bytes, const Body& body) {
  const double took = least_seconds([&] {
    for (std::size_t done = 0; done < kSmallBytesInLook; done += kSmallBytes) body();
  });
  return took * bytes / static_cast<double>(kSmallBytesInLook);
}

volatile std::uint64_t seen;  // so that nothing is left out

}  // namespace

CoreLimits::CoreLimits()
    : large_(kLargeBytes / sizeof(float), 1.0F), small_(kSmallBytes / sizeof(float), 1.0F) {}

double CoreLimits::memory(double read, double written) {
  const double reading = least_seconds([&] {
    std::array<std::uint64_t, 8> sums{}, line{};
    for (std::size_t i = 0; i < large_.size(); i += sizeof line / sizeof(float)) {
      std::memcpy(line.data(), &large_[i], sizeof line);
      for (std::size_t word = 0; word < line.size(); ++word) sums[word] += line[word];
    }
    for (const auto sum : sums) seen = sum;
  });
  const double writing = least_seconds([&] {
    for (std::size_t i = 0; i < large_.size(); i += small_.size())
      kernels::stream_copy(small_, std::span(large_).subspan(i, small_.size()));
  });
  return (read * reading + written * writing) / static_cast<double>(kLargeBytes);
}

double CoreLimits::blake2s(double bytes) {
  return small_seconds(bytes, [&] {
    seen =
        static_cast<std::uint64_t>(kernels::blake2s_columns(std::as_bytes(std::span(small_)))[0]);
  });
}

double CoreLimits::xxh3(double bytes) {
  return small_seconds(bytes,
                       [&] { seen = kernels::leaf_hash(std::as_bytes(std::span(small_))).low; });
}

double CoreLimits::aes_gcm(double bytes) {
  const std::unique_ptr<EVP_CIPHER, decltype(&EVP_CIPHER_free)> cipher(
      EVP_CIPHER_fetch(nullptr, "AES-256-GCM", security::fastest_ciphers()), &EVP_CIPHER_free);
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
      EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  if (cipher == nullptr || context == nullptr) give_up("OpenSSL has no AES-256-GCM");
  const std::array<unsigned char, 32> key{};
  const std::array<unsigned char, 12> nonce{};
  std::array<unsigned char, kGcmTagBytes> tag{};
  std::array<unsigned char, kSmallBytes> sealed{}, opened{};
  const auto* plain = reinterpret_cast<const unsigned char*>(small_.data());
  auto* made = context.get();
  int size = 0;
  return small_seconds(bytes, [&] {
    const bool done =
        EVP_EncryptInit_ex2(made, cipher.get(), key.data(), nonce.data(), nullptr) == 1 &&
        EVP_EncryptUpdate(made, sealed.data(), &size, plain, kSmallBytes) == 1 &&
        EVP_EncryptFinal_ex(made, sealed.data() + size, &size) == 1 &&
        EVP_CIPHER_CTX_ctrl(made, EVP_CTRL_AEAD_GET_TAG, kGcmTagBytes, tag.data()) == 1 &&
        EVP_DecryptInit_ex2(made, cipher.get(), key.data(), nonce.data(), nullptr) == 1 &&
        EVP_DecryptUpdate(made, opened.data(), &size, sealed.data(), kSmallBytes) == 1 &&
        EVP_CIPHER_CTX_ctrl(made, EVP_CTRL_AEAD_SET_TAG, kGcmTagBytes, tag.data()) == 1 &&
        EVP_DecryptFinal_ex(made, opened.data() + size, &size) == 1;
    if (!done) give_up("OpenSSL does not open what it sealed");
  });
}

}  // namespace isthmus::bench
