// The provider's AES-256-GCM against OpenSSL's own, through the same interface.
#include "security/aes_gcm_provider.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "base/byte_stream.h"
#include "base/random.h"

namespace isthmus::security {
namespace {

struct Freed {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Cipher = std::unique_ptr<EVP_CIPHER, Freed>;
using Context = std::unique_ptr<EVP_CIPHER_CTX, Freed>;

constexpr std::size_t kTagBytes = 16;

unsigned char* octets(Bytes& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

class AesGcmProviderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_aes_gcm_provider()) GTEST_SKIP() << "built without libipsec-mb";
    ours.reset(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", "provider=isthmus"));
    openssls.reset(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", "provider=default"));
    ASSERT_TRUE(ours && openssls);
  }

  Bytes some(std::size_t bytes) {
    Bytes all(bytes);
    for (auto& byte : all) byte = static_cast<std::byte>(random.next());
    return all;
  }
  Context begin(const Cipher& cipher, bool seal) {
    Context context(EVP_CIPHER_CTX_new());
    EXPECT_EQ(EVP_CipherInit_ex(context.get(), cipher.get(), nullptr, octets(key), octets(nonce),
                                seal ? 1 : 0),
              1);
    return context;
  }
  // In pieces of at most `piece`; the tag behind. In place, as TLS reads.
  Bytes seal(const Cipher& cipher, const Bytes& plain, std::size_t piece) {
    const auto context = begin(cipher, true);
    Bytes out(plain);
    int done = 0;
    EXPECT_EQ(EVP_CipherUpdate(context.get(), nullptr, &done, octets(associated),
                               static_cast<int>(associated.size())),
              1);
    for (std::size_t at = 0; at < out.size(); at += piece) {
      const auto bytes = static_cast<int>(std::min(piece, out.size() - at));
      EXPECT_EQ(EVP_CipherUpdate(context.get(), octets(out) + at, &done, octets(out) + at, bytes),
                1);
      EXPECT_EQ(done, bytes);
    }
    out.resize(plain.size() + kTagBytes);
    EXPECT_EQ(EVP_CipherFinal_ex(context.get(), octets(out) + plain.size(), &done), 1);
    EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                                  octets(out) + plain.size()),
              1);
    return out;
  }
  std::optional<Bytes> open(const Cipher& cipher, const Bytes& sealed, std::size_t piece) {
    const auto context = begin(cipher, false);
    auto in = sealed;
    Bytes out(sealed.size() - kTagBytes);
    int done = 0;
    EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                                  octets(in) + out.size()),
              1);
    EXPECT_EQ(EVP_CipherUpdate(context.get(), nullptr, &done, octets(associated),
                               static_cast<int>(associated.size())),
              1);
    for (std::size_t at = 0; at < out.size(); at += piece)
      EXPECT_EQ(EVP_CipherUpdate(context.get(), octets(out) + at, &done, octets(in) + at,
                                 static_cast<int>(std::min(piece, out.size() - at))),
                1);
    if (EVP_CipherFinal_ex(context.get(), octets(out), &done) != 1) return std::nullopt;
    return out;
  }

  Random random{1};
  Cipher ours, openssls;
  Bytes key = some(32), nonce = some(12), associated = some(5);
};

TEST_F(AesGcmProviderTest, SealsAsOpensslDoesAndOpensWhatThatSealed) {
  std::vector<std::size_t> lengths(301);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = i;
  lengths.insert(lengths.end(), {4095, 4096, 4097, 16383, 16384, 100'001});
  for (const auto length : lengths) {
    key = some(32);
    nonce = some(12);
    associated = some(length % 33);
    const auto plain = some(length);
    const auto expected = seal(openssls, plain, length + 1);
    for (const std::size_t piece : {length + 1, std::size_t{1} + length / 3, std::size_t{17}}) {
      ASSERT_EQ(seal(ours, plain, piece), expected) << length << " in pieces of " << piece;
      ASSERT_EQ(open(ours, expected, piece), plain) << length << " in pieces of " << piece;
    }
  }
}

TEST_F(AesGcmProviderTest, OpensNothingThatWasChanged) {
  const auto plain = some(1000);
  const auto sealed = seal(ours, plain, 1000);
  for (std::size_t at = 0; at < sealed.size(); at += at < 990 ? 37 : 1) {
    auto changed = sealed;
    changed[at] ^= std::byte{0x10};
    EXPECT_FALSE(open(ours, changed, 1000)) << at;
  }
  for (auto* whole : {&key, &nonce, &associated}) {
    whole->front() ^= std::byte{1};
    EXPECT_FALSE(open(ours, sealed, 1000));
    whole->front() ^= std::byte{1};
  }
  EXPECT_EQ(open(ours, sealed, 1000), plain);
}

// Two messages under one nonce give both away, and the key of the tags.
TEST_F(AesGcmProviderTest, ANonceIsUsedOnce) {
  const auto context = begin(ours, true);
  Bytes out(64);
  int done = 0;
  const auto update = [&] {
    return EVP_CipherUpdate(context.get(), octets(out), &done, octets(out), 64);
  };
  ASSERT_EQ(update(), 1);
  ASSERT_EQ(EVP_CipherFinal_ex(context.get(), octets(out), &done), 1);
  EXPECT_EQ(update(), 0);
  EXPECT_EQ(EVP_CipherFinal_ex(context.get(), octets(out), &done), 0);
  nonce.front() ^= std::byte{1};
  ASSERT_EQ(EVP_CipherInit_ex(context.get(), nullptr, nullptr, nullptr, octets(nonce), 1), 1);
  EXPECT_EQ(update(), 1);
}

TEST_F(AesGcmProviderTest, WhatItCannotDoIsRefused) {
  const auto context = begin(ours, false);
  Bytes some_bytes(64);
  int done = 0;
  EXPECT_NE(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_IVLEN, 16, nullptr), 1);
  EXPECT_NE(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, 4, octets(some_bytes)), 1);
  EXPECT_NE(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, 16, octets(some_bytes)), 1);
  EXPECT_EQ(EVP_CipherUpdate(context.get(), octets(some_bytes), &done, octets(some_bytes), 64), 1);
  // Associated data after the bytes, and an end without a tag to find.
  EXPECT_NE(EVP_CipherUpdate(context.get(), nullptr, &done, octets(some_bytes), 5), 1);
  EXPECT_NE(EVP_CipherFinal_ex(context.get(), octets(some_bytes), &done), 1);
}

// As the CPU says by itself. VAES came with VPCLMULQDQ; clang 14 knows only the latter's name.
bool has_wide_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("vpclmulqdq");
#else
  return false;
#endif
}

// What a gateway's TLS asks for finds the provider where the CPU is one of those it is made for.
TEST_F(AesGcmProviderTest, IsFoundByTheQueryForTheFastest) {
  const bool wide = has_wide_instructions();
  const Cipher fastest(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", fastest_ciphers()));
  ASSERT_TRUE(fastest);
  EXPECT_STREQ(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(fastest.get())),
               wide ? "isthmus" : "default");
  const Cipher chacha(EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", fastest_ciphers()));
  EXPECT_TRUE(chacha) << "all else is OpenSSL's";
}

}  // namespace
}  // namespace isthmus::security
