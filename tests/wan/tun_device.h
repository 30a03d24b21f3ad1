// TunDevice: the emulator's end of the device "wan0" in a network namespace, which hands over super
// packets (super_packet.h). The device goes with its TunDevice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace isthmus::wan {

class TunDevice {
 public:
  // Makes the device in the namespace /run/netns/`name`; the thread stays in its own. permission,
  // or not_found, io: in a sentence that says what to do.
  static Result<TunDevice> open(const std::string& name);
  TunDevice(TunDevice&& other) noexcept;
  TunDevice& operator=(TunDevice&&) = delete;
  ~TunDevice();

  // For ppoll. Once it reports an error, the device or its namespace is gone.
  int descriptor() const { return descriptor_; }

  // The bytes of the next packet, which are in `buffer`; nothing when there is none now.
  std::optional<std::size_t> read(std::span<std::uint8_t> buffer);
  // False when the device does not take it: the packet is lost.
  bool write(std::span<const std::uint8_t> packet);

 private:
  explicit TunDevice(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

}  // namespace isthmus::wan
