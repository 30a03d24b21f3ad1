// SharedBytes: bytes that nobody changes any more, with what keeps them: they are handed on between
// threads and layers, and copied by none.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "base/byte_stream.h"

namespace isthmus {

class SharedBytes {
 public:
  SharedBytes() = default;  // none
  SharedBytes(Bytes bytes) {
    auto kept = std::make_shared<const Bytes>(std::move(bytes));
    bytes_ = *kept;
    owner_ = std::move(kept);
  }
  // `bytes` stay as long as `owner` does.
  SharedBytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  explicit operator bool() const { return owner_ != nullptr; }
  operator std::span<const std::byte>() const { return bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  auto begin() const { return bytes_.begin(); }
  auto end() const { return bytes_.end(); }
  // A part of them, or what was made of one.
  SharedBytes part(std::span<const std::byte> bytes) const { return {owner_, bytes}; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace isthmus
