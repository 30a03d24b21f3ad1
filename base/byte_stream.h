// ByteWriter and ByteReader: the one way bytes of files and messages are laid out. Integers are
// little-endian, strings and byte strings carry a 32-bit length. The reader never trusts a length:
// past the end, or above a limit, it fails and stays failed, so a decoder reads everything first
// and asks ok() once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/assert.h"

namespace isthmus {

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

static_assert(std::endian::native == std::endian::little, "files and messages are little-endian");

class ByteWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> ByteWriter& put(T value) {
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  // Exactly these bytes, without a length.
  ByteWriter& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteWriter& string(std::string_view text) { return block(bytes_of(text)); }
  ByteWriter& block(std::span<const std::byte> bytes) {
    ISTHMUS_ASSERT(bytes.size() <= std::numeric_limits<std::uint32_t>::max());
    return put(static_cast<std::uint32_t>(bytes.size())).raw(bytes);
  }
  std::span<const std::byte> view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> T get() {
    if constexpr (std::is_same_v<T, bool>) {  // any byte but 0 and 1 is no bool
      const auto byte = get<std::uint8_t>();
      if (byte > 1) fail();
      return byte == 1;
    }
    T value{};
    if (auto bytes = raw(sizeof(T)); bytes.size() == sizeof(T))
      std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // A view of the next `count` bytes; empty and failed when there are fewer.
  std::span<const std::byte> raw(std::size_t count) {
    if (count > rest_.size()) {
      fail();
      return {};
    }
    auto front = rest_.first(count);
    rest_ = rest_.subspan(count);
    return front;
  }
  std::span<const std::byte> block(std::size_t bytes_max) {
    const auto count = get<std::uint32_t>();
    if (count > bytes_max) {
      fail();
      return {};
    }
    return raw(count);
  }
  std::string string(std::size_t bytes_max) { return std::string(text_of(block(bytes_max))); }
  // A count of items of at least `item_bytes` each: refused when the rest cannot hold them, so that
  // nobody reserves on a peer's word.
  std::size_t count(std::size_t count_max, std::size_t item_bytes) {
    const auto n = get<std::uint32_t>();
    if (n > count_max || n > rest_.size() / std::max<std::size_t>(item_bytes, 1)) {
      fail();
      return 0;
    }
    return n;
  }
  void fail() {
    failed_ = true;
    rest_ = {};
  }
  std::span<const std::byte> rest() const { return rest_; }
  bool ok() const { return !failed_; }
  // Everything read, nothing left: what a message must be.
  bool done() const { return !failed_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

// What a decoder gives: the value, or nothing where what was read is not good.
template <class T>
std::optional<T> when(bool good, T value) {
  if (!good) return std::nullopt;
  return value;
}

}  // namespace isthmus
