#include "security/signature.h"

#include <gtest/gtest.h>

#include "base/byte_stream.h"
#include "security/signing_key.h"

namespace isthmus::security {
namespace {

SigningKey key_of(std::uint8_t seed) {
  std::array<std::byte, SigningKey::kSeedBytes> bytes{};
  bytes[0] = static_cast<std::byte>(seed);
  return SigningKey::from_seed(bytes);
}

TEST(Signature, HoldsForItsKeyContextAndMessageOnly) {
  const auto key = key_of(1);
  const auto signature = key.sign(context::open, bytes_of("message"));
  EXPECT_TRUE(verify_signature(key.public_key(), context::open, bytes_of("message"), signature));
  EXPECT_FALSE(verify_signature(key.public_key(), context::open, bytes_of("messagf"), signature));
  EXPECT_FALSE(verify_signature(key.public_key(), context::close, bytes_of("message"), signature));
  EXPECT_FALSE(
      verify_signature(key_of(2).public_key(), context::open, bytes_of("message"), signature));
}

TEST(Signature, EveryBitCounts) {
  const auto key = key_of(3);
  const auto good = key.sign("context", bytes_of("message"));
  for (std::size_t bit = 0; bit < 8 * good.bytes.size(); ++bit) {
    auto bad = good;
    bad.bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(verify_signature(key.public_key(), "context", bytes_of("message"), bad)) << bit;
  }
}

TEST(Signature, ContextDoesNotRunIntoMessage) {
  const auto key = key_of(4);
  const auto signature = key.sign("isthmus open", bytes_of(" v1 and more"));
  EXPECT_FALSE(
      verify_signature(key.public_key(), "isthmus open v1", bytes_of(" and more"), signature));
}

TEST(Signature, IsDeterministicAndKeepsItsLayout) {
  // The layout of what is signed is a promise to other versions; this vector breaks when it
  // changes.
  const auto signed_twice = key_of(5).sign(context::saved, bytes_of("step 7"));
  EXPECT_EQ(signed_twice, key_of(5).sign(context::saved, bytes_of("step 7")));
  EXPECT_EQ(signed_twice.hex(),
            "ffb3b4a00692442837143c1d96f6387f3d81bdf46a743b7c1a6bb1d45069c334"
            "7b4e81b009a46fba240b5089d7b9398e27a2752dc9dcf0ee5c29d8feea4ccd03");
}

TEST(Signature, RefusesWeakKeys) {
  // The neutral element as key verifies anything in a naive implementation: R = S·B with S = 0.
  PublicKey weak;
  weak.bytes[0] = std::byte{1};
  Signature forged;
  forged.bytes[0] = std::byte{1};
  EXPECT_FALSE(verify_signature(weak, context::open, bytes_of("anything"), forged));
  EXPECT_FALSE(verify_signature(PublicKey{}, context::open, bytes_of("anything"), Signature{}));
}

TEST(Signature, GeneratedKeysDiffer) {
  EXPECT_NE(SigningKey::generate().public_key(), SigningKey::generate().public_key());
}

}  // namespace
}  // namespace isthmus::security
