#include "security/hash.h"

#include <gtest/gtest.h>

#include "base/byte_stream.h"
#include "security/hex.h"

namespace isthmus::security {
namespace {

// RFC 7693 gives BLAKE2b-512 of "abc"; these are BLAKE2b-256, made with b2sum -l 256.
TEST(Hash, MatchesKnownDigests) {
  EXPECT_EQ(blake2b({}).hex(), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  EXPECT_EQ(blake2b(bytes_of("abc")).hex(),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST(Hash, PiecesHashLikeTheWhole) {
  Bytes bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const auto whole = blake2b(bytes);
  for (std::size_t cut : {0, 1, 63, 64, 127, 128, 129, 999, 1000}) {
    Hasher hasher;
    hasher.update(std::span(bytes).first(cut));
    Hasher copy = hasher;  // carries the state along
    hasher.update(std::span(bytes).subspan(cut));
    EXPECT_EQ(hasher.finish(), whole);
    copy.update(std::span(bytes).subspan(cut));
    EXPECT_EQ(copy.finish(), whole);
  }
}

TEST(Hash, FinishedIsFinished) {
  Hasher hasher;
  hasher.finish();
  EXPECT_DEATH(hasher.update({}), "finished_");
  EXPECT_DEATH(hasher.finish(), "finished_");
}

TEST(Hex, ReadsWhatItWrites) {
  const auto digest = blake2b(bytes_of("x"));
  EXPECT_EQ(*parse_hex<Digest>(digest.hex()), digest);
  auto upper = digest.hex();
  for (auto& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(*parse_hex<Digest>(upper), digest);
}

TEST(Hex, RefusesEverythingElse) {
  const auto good = blake2b({}).hex();
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(parse_hex<Digest>(good.substr(0, size))) << size;
  EXPECT_FALSE(parse_hex<Digest>(good + "0"));
  for (std::size_t at = 0; at < good.size(); ++at)
    for (char c : {'g', ' ', ':', '\0', '-', '\xff'}) {
      auto bad = good;
      bad[at] = c;
      EXPECT_FALSE(parse_hex<Digest>(bad)) << at;
    }
}

}  // namespace
}  // namespace isthmus::security
