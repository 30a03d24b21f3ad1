// TcpProxy: the network between two gateways, as a test wants it: it cuts, stalls, slows and
// damages what passes through one port. Runs on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace isthmus::inter {

enum class Direction : std::uint8_t { to_listener = 0, to_dialer = 1 };

class TcpProxy {
 public:
  // Both on 127.0.0.1.
  TcpProxy(std::uint16_t listen_port, std::uint16_t target_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  void cut() { cut_ = true; }  // ends every connection
  // Nothing passes, nothing ends: what a silent network looks like.
  void stall(bool stalled) { stalled_ = stalled; }
  // Of each connection no more than so many bytes reach the listener; it does not end.
  void hold_after(std::int64_t bytes) { held_after_ = bytes; }
  // Flips one bit of the byte that comes after this many more, in a way that TCP would not notice.
  void flip_bit(Direction direction, std::int64_t after_bytes) {
    flip_in_[static_cast<std::size_t>(direction)] = after_bytes;
  }
  bool flipped(Direction direction) const {
    return flip_in_[static_cast<std::size_t>(direction)] < 0;
  }
  void limit_rate(std::int64_t bytes_per_second) { rate_ = bytes_per_second; }  // 0: none
  std::uint64_t bytes(Direction direction) const {
    return passed_[static_cast<std::size_t>(direction)];
  }
  std::uint64_t accepted() const { return accepted_; }

 private:
  struct Pipe;
  void run();
  void accept_one();
  bool pump(Pipe& pipe, std::size_t direction);

  static constexpr std::int64_t kNoFlip = INT64_MAX;

  const std::uint16_t target_port_;
  int listener_ = -1;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> cut_ = false;
  std::atomic<bool> stalled_ = false;
  std::atomic<std::int64_t> flip_in_[2] = {kNoFlip, kNoFlip};
  std::atomic<std::int64_t> rate_ = 0;
  std::atomic<std::int64_t> held_after_ = INT64_MAX;
  std::atomic<std::uint64_t> passed_[2] = {0, 0};
  std::atomic<std::uint64_t> accepted_ = 0;
  std::int64_t allowance_ = 0;  // bytes that may pass now
  std::vector<std::unique_ptr<Pipe>> pipes_;
  std::thread thread_;
};

}  // namespace isthmus::inter
