#include "base/byte_stream.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/random.h"

namespace isthmus {
namespace {

enum class Colour : std::uint16_t { red = 0x0102, green = 0x0304 };

Bytes example() {
  ByteWriter writer;
  writer.put(std::uint8_t{7})
      .put(Colour::green)
      .put(std::int64_t{-2})
      .put(1.5)
      .put(true)
      .string("Sèvres")
      .block(bytes_of("abc"))
      .put(std::uint32_t{2})
      .raw(bytes_of("xy"));
  return writer.take();
}

struct Example {
  std::uint8_t small;
  Colour colour;
  std::int64_t number;
  double real;
  bool flag;
  std::string text;
  std::string block;
  std::string items;
  bool done;
};

Example read_example(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Example e{};
  e.small = reader.get<std::uint8_t>();
  e.colour = reader.get<Colour>();
  e.number = reader.get<std::int64_t>();
  e.real = reader.get<double>();
  e.flag = reader.get<bool>();
  e.text = reader.string(16);
  e.block = text_of(reader.block(3));
  e.items = text_of(reader.raw(reader.count(2, 1)));
  e.done = reader.done();
  return e;
}

TEST(ByteStream, LaysIntegersOutLittleEndianWithoutPadding) {
  ByteWriter writer;
  writer.put(std::uint8_t{1}).put(std::uint32_t{0x0A0B0C0D}).string("hi");
  EXPECT_EQ(text_of(writer.view()), std::string_view("\x01\x0D\x0C\x0B\x0A\x02\0\0\0hi", 11));
  EXPECT_EQ(writer.size(), 11u);
}

TEST(ByteStream, ReadsBackWhatWasWritten) {
  const auto e = read_example(example());
  EXPECT_TRUE(e.done);
  EXPECT_EQ(e.small, 7);
  EXPECT_EQ(e.colour, Colour::green);
  EXPECT_EQ(e.number, -2);
  EXPECT_EQ(e.real, 1.5);
  EXPECT_TRUE(e.flag);
  EXPECT_EQ(e.text, "Sèvres");
  EXPECT_EQ(e.block, "abc");
  EXPECT_EQ(e.items, "xy");
}

TEST(ByteStream, EveryTruncationFails) {
  const auto bytes = example();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    // A heap copy of exactly this size, so that the address sanitizer sees a read past its end.
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_FALSE(read_example(cut).done) << n << " bytes";
  }
}

TEST(ByteStream, BytesLeftOverAreNotDone) {
  auto bytes = example();
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(read_example(bytes).done);
}

TEST(ByteStream, RandomBytesNeverReadOutside) {
  Random random(1);
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes(random.below(64));
    for (auto& b : bytes) b = static_cast<std::byte>(random.below(8) ? random.below(4) : 255);
    const auto e = read_example(bytes);
    EXPECT_LE(e.text.size(), 16u);
    EXPECT_LE(e.block.size(), 3u);
  }
}

TEST(ByteStream, AFailedReaderStaysFailedAndGivesZeros) {
  const auto bytes = example();
  ByteReader reader(bytes);
  EXPECT_TRUE(reader.raw(bytes.size() + 1).empty());
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.get<std::uint8_t>(), 0);  // though seven is there
  EXPECT_TRUE(reader.rest().empty());
  EXPECT_FALSE(reader.done());
}

TEST(ByteStream, RefusesLengthsAboveTheLimitOrTheRest) {
  ByteWriter writer;
  writer.string("abcd");
  EXPECT_EQ(ByteReader(writer.view()).string(4), "abcd");
  ByteReader limited(writer.view());
  EXPECT_EQ(limited.string(3), "");
  EXPECT_FALSE(limited.ok());

  ByteWriter liar;
  liar.put(std::numeric_limits<std::uint32_t>::max()).raw(bytes_of("abcd"));
  ByteReader reader(liar.view());
  EXPECT_TRUE(reader.block(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_FALSE(reader.ok());
}

TEST(ByteStream, CountIsWhatTheRestCanHold) {
  ByteWriter writer;
  writer.put(std::uint32_t{3}).raw(bytes_of("abcdef"));
  EXPECT_EQ(ByteReader(writer.view()).count(3, 2), 3u);
  for (const auto& [count_max, item_bytes] : {std::pair{2, 2}, {3, 3}, {1000, 1000}}) {
    ByteReader reader(writer.view());
    EXPECT_EQ(reader.count(count_max, item_bytes), 0u);
    EXPECT_FALSE(reader.ok());
  }
  ByteReader weightless(writer.view());
  EXPECT_EQ(weightless.count(10, 0), 3u);  // items of no bytes are still bounded by the limit
}

TEST(ByteStream, ABoolIsZeroOrOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const Bytes bytes{static_cast<std::byte>(byte)};
    ByteReader reader(bytes);
    EXPECT_EQ(reader.get<bool>(), byte == 1);
    EXPECT_EQ(reader.ok(), byte < 2) << byte;
  }
}

}  // namespace
}  // namespace isthmus
