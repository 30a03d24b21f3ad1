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
  tried_.clear();
}

std::string HostLookUp::choose(const NumericHosts& hosts) {
  const auto untried = [this](const std::string& host) { return !tried_.contains(host); };
  if (tried_.size() >= kTriedMax || std::ranges::none_of(hosts, untried)) tried_.clear();
  const bool has_reached = std::ranges::find(hosts, reached_) != hosts.end();
  chosen_ = has_reached && untried(reached_) ? reached_ : *std::ranges::find_if(hosts, untried);
  tried_.insert(chosen_);
  return chosen_;
}

}  // namespace isthmus::inter
