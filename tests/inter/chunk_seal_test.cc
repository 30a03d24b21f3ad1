#include "inter/chunk_seal.h"

#include <gtest/gtest.h>

#include "base/copy_to.h"
#include "inter/sim/simulated_keys.h"

namespace isthmus::inter {
namespace {

using security::kSignatureBytes;

constexpr std::uint32_t kChunks = 11;  // a whole group and three
constexpr SiteId kOrigin = 3;
constexpr TransferId kTransfer = 77;

class CountingVerifier final : public security::Verifier {
 public:
  bool verify(std::uint32_t site, std::string_view context, std::span<const std::byte> message,
              const security::Signature& signature) const override {
    ++count;
    return verifier_.verify(site, context, message, signature);
  }
  mutable int count = 0;

 private:
  sim::SimulatedVerifier verifier_;
};

class ChunkSealTest : public testing::Test {
 protected:
  // Chunks whose payloads are `value` and their index, 100 bytes and more.
  static std::vector<Bytes> sealed(int value) {
    std::vector<Bytes> all;
    std::vector<security::Digest> hashes;
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      Bytes chunk(kSealBytes + 100 + i, static_cast<std::byte>(value));
      chunk.back() = static_cast<std::byte>(i);
      hashes.push_back(chunk_hash(kTransfer, i, std::span(chunk).subspan(kSealBytes)));
      all.push_back(std::move(chunk));
    }
    for (std::size_t first = 0; first < kChunks; first += kSealedTogether) {
      const auto count = std::min<std::size_t>(kSealedTogether, kChunks - first);
      const std::vector<std::span<std::byte>> group(all.begin() + first,
                                                    all.begin() + first + count);
      seal_group(sim::SimulatedSigner(kOrigin), std::span(hashes).subspan(first, count), group);
    }
    return all;
  }
  Result<security::Digest> check(std::uint32_t index, const Bytes& chunk,
                                 TransferId transfer = kTransfer, SiteId origin = kOrigin) {
    return seals.check(verifier, origin, transfer, index, chunk);
  }
  void expect_refused(std::uint32_t index, const Bytes& chunk, ErrorCode code) {
    const auto checked = check(index, chunk);
    ASSERT_FALSE(checked) << index;
    EXPECT_EQ(checked.error().code, code);
  }

  CountingVerifier verifier;
  CheckedSeals seals{kChunks};
  const std::vector<Bytes> chunks = sealed(1);
};

TEST_F(ChunkSealTest, EachProvesItselfAndAGroupIsVerifiedOnce) {
  for (const std::uint32_t i : {9, 2, 7, 0, 10, 1, 3, 4, 5, 6, 8}) {
    const auto hash = check(i, chunks[i]);
    ASSERT_TRUE(hash) << i;
    EXPECT_EQ(*hash, chunk_hash(kTransfer, i, std::span(chunks[i]).subspan(kSealBytes)));
  }
  EXPECT_EQ(verifier.count, 2);
  for (std::uint32_t i = 0; i < kChunks; ++i) {  // alone
    CheckedSeals none(kChunks);
    EXPECT_TRUE(none.check(verifier, kOrigin, kTransfer, i, chunks[i]));
  }
}

// Whether the group is known already or not.
TEST_F(ChunkSealTest, WhateverIsChangedIsRefused) {
  for (const bool known : {false, true}) {
    if (known) {
      ASSERT_TRUE(check(3, chunks[3]));
    }
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{63},            // the signature
          kSignatureBytes, kSignatureBytes + 32 * 3,  // hashes: another's, its own
          kSealBytes - 1, kSealBytes, chunks[3].size() - 1}) {
      auto chunk = chunks[3];
      chunk[at] ^= std::byte{1};
      expect_refused(3, chunk, ErrorCode::unauthenticated);
    }
    auto longer = chunks[3];
    longer.push_back({});
    expect_refused(3, longer, ErrorCode::unauthenticated);
    expect_refused(2, chunks[3], ErrorCode::unauthenticated);
    expect_refused(3 + kSealedTogether, chunks[3], ErrorCode::unauthenticated);
    EXPECT_FALSE(check(3, chunks[3], kTransfer + 1));
    expect_refused(3, Bytes(kSealBytes - 1), ErrorCode::bad_frame);
    expect_refused(2 * kSealedTogether, chunks[3], ErrorCode::bad_frame);
    ASSERT_TRUE(check(3, chunks[3])) << "what is refused must not take the place of what is good";
  }
  EXPECT_FALSE(CheckedSeals(kChunks).check(verifier, kOrigin + 1, kTransfer, 3, chunks[3]));
}

// The hashes of a group of which the origin has sealed another version.
TEST_F(ChunkSealTest, AnotherSealOfTheOriginIsVerifiedToo) {
  const auto others = sealed(2);
  ASSERT_TRUE(check(0, chunks[0]));
  ASSERT_TRUE(check(1, others[1]));
  EXPECT_EQ(verifier.count, 2);
  auto mixed = chunks[2];
  copy_to(std::span(others[2]).first(kSealBytes), mixed.begin());
  expect_refused(2, mixed, ErrorCode::unauthenticated);
}

}  // namespace
}  // namespace isthmus::inter
