#include "inter/host_look_up.h"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <iterator>

namespace isthmus::inter {

bool HostLookUp::is_name() const {
  boost::system::error_code no_number;
  boost::asio::ip::make_address(host_, no_number);
  return no_number.failed();
}

void HostLookUp::next(std::function<void(Result<std::string> numeric_host)> found) {
  give_up();
  ++attempts_;
  if (!is_name()) return found(host_);
  resolver_.async_resolve(
      host_, "",
      tasks_.guarded([this, look_up = current_, found = std::move(found)](
                         boost::system::error_code error, const auto& addresses) {
        if (look_up != current_) return;
        if (error || addresses.empty())
          return found(Error{ErrorCode::unavailable,
                             fmt::format("no address for {}: {}", host_, error.message())});
        auto chosen = addresses.begin();
        std::advance(chosen, (attempts_ - 1) % addresses.size());
        found(chosen->endpoint().address().to_string());
      }));
}

void HostLookUp::give_up() {
  ++current_;
  resolver_.cancel();
}

}  // namespace isthmus::inter
