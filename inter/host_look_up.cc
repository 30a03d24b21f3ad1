#include "inter/host_look_up.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <utility>

namespace isthmus::inter {
namespace {

bool is_number(const std::string& host) {
  boost::system::error_code no_number;
  boost::asio::ip::make_address(host, no_number);
  return !no_number.failed();
}

}  // namespace

void HostLookUp::next(std::function<void(Result<std::string> numeric_host)> found) {
  if (is_number(host_)) return found(host_);
  found_ = std::move(found);
  if (std::exchange(asked_, true)) return;
  names_.ask(host_, tasks_.guarded([this](const Result<NumericHosts>& hosts) {
    asked_ = false;
    const auto then = std::exchange(found_, nullptr);
    if (!then) return;
    if (hosts)
      then(choose(*hosts));
    else
      then(hosts.error());
  }));
}

void HostLookUp::reached() {
  reached_ = chosen_;
  tried_ = 0;
}

std::string HostLookUp::choose(const NumericHosts& hosts) {
  const auto last = std::ranges::find(hosts, reached_);
  const auto first = last == hosts.end() ? 0 : static_cast<std::size_t>(last - hosts.begin());
  chosen_ = hosts[(first + tried_++) % hosts.size()];
  return chosen_;
}

}  // namespace isthmus::inter
