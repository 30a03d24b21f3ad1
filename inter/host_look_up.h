// HostLookUp: the numeric address of a host, for one attempt to connect after another. Names are
// looked up anew each time, off the loop; of several addresses each attempt gets another, should
// the first not be reachable from here.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "inter/owned_tasks.h"

namespace isthmus::inter {

// On the loop.
class HostLookUp {
 public:
  HostLookUp(Loop& loop, std::string host)
      : host_(std::move(host)), resolver_(loop.io()), tasks_(loop) {}
  ~HostLookUp() { give_up(); }

  bool is_name() const;
  // Calls `found`, at once if the host is a number. A look-up that is under way is given up.
  // Errors: unavailable.
  void next(std::function<void(Result<std::string> numeric_host)> found);
  void give_up();

 private:
  const std::string host_;
  std::uint64_t attempts_ = 0;
  std::uint64_t current_ = 0;  // the look-up that counts; older ones have been given up
  boost::asio::ip::tcp::resolver resolver_;
  OwnedTasks tasks_;
};

}  // namespace isthmus::inter
