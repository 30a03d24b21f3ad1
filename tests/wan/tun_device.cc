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

namespace isthmus::wan {

namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path, int flags = O_RDONLY)
      : number_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  bool open() const { return number_ >= 0; }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

Result<int> make_device() {
  Descriptor tun("/dev/net/tun", O_RDWR | O_NONBLOCK);
  if (!tun.open())
    return error_of_errno(errno, "cannot open /dev/net/tun; load it with: modprobe tun");
  ifreq request{};
  std::strncpy(request.ifr_name, "wan0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(tun.number(), TUNSETIFF, &request) != 0)
    return error_of_errno(errno, "cannot make the device wan0");
  if (::ioctl(tun.number(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0)
    return error_of_errno(errno, "wan0 has no segmentation offload");
  return tun.release();
}

}  // namespace

Result<TunDevice> TunDevice::open(const std::string& name) {
  const Descriptor home("/proc/thread-self/ns/net");
  if (!home.open()) return error_of_errno(errno, "cannot open /proc/thread-self/ns/net");
  const Descriptor there("/run/netns/" + name);
  if (!there.open())
    return error_of_errno(
        errno, fmt::format("no network namespace {0}; make it with: ip netns add {0}", name));
  if (::setns(there.number(), CLONE_NEWNET) != 0)
    return error_of_errno(errno, fmt::format("cannot enter the namespace {}; be root", name));
  auto device = make_device();
  // Who looks for processes in the namespace must not find the emulator.
  if (::setns(home.number(), CLONE_NEWNET) != 0) {
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
