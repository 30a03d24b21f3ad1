#include "tests/wan/tun_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_descriptor.h"

namespace isthmus::wan {

namespace {

FileDescriptor opened(const std::string& path, int flags = O_RDONLY) {
  return FileDescriptor(::open(path.c_str(), flags | O_CLOEXEC));
}

Result<int> make_device() {
  auto tun = opened("/dev/net/tun", O_RDWR | O_NONBLOCK);
  if (!tun.valid())
    return error_of_errno(errno, "cannot open /dev/net/tun; load it with: modprobe tun");
  ifreq request{};
  std::strncpy(request.ifr_name, "wan0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(tun.get(), TUNSETIFF, &request) != 0)
    return error_of_errno(errno, "cannot make the device wan0");
  if (::ioctl(tun.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0)
    return error_of_errno(errno, "wan0 has no segmentation offload");
  return tun.release();
}

}  // namespace

Result<TunDevice> TunDevice::open(const std::string& name) {
  const auto home = opened("/proc/thread-self/ns/net");
  if (!home.valid()) return error_of_errno(errno, "cannot open /proc/thread-self/ns/net");
  const auto there = opened("/run/netns/" + name);
  if (!there.valid())
    return error_of_errno(
        errno, fmt::format("no network namespace {0}; make it with: ip netns add {0}", name));
  if (::setns(there.get(), CLONE_NEWNET) != 0)
    return error_of_errno(errno, fmt::format("cannot enter the namespace {}; be root", name));
  auto device = make_device();
  // Who looks for processes in the namespace must not find the emulator.
  if (::setns(home.get(), CLONE_NEWNET) != 0) {
    const int number = errno;
    if (device) ::close(*device);
    return error_of_errno(number, fmt::format("cannot come back from the namespace {}", name));
  }
  if (!device) return std::move(device).error();
  return TunDevice(*device);
}

TunDevice::TunDevice(TunDevice&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

TunDevice::~TunDevice() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<std::size_t> TunDevice::read(std::span<std::uint8_t> buffer) {
  const auto bytes = ::read(descriptor_, buffer.data(), buffer.size());
  if (bytes <= 0) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

bool TunDevice::write(std::span<const std::uint8_t> packet) {
  return ::write(descriptor_, packet.data(), packet.size()) >= 0;
}

}  // namespace isthmus::wan
