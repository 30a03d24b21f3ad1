#include "tests/wan/real_time_allowance.h"

namespace isthmus::wan {

std::optional<bool> RealTimeAllowance::judge(Nanoseconds now, Nanoseconds cpu_time) {
  if (!due(now)) return std::nullopt;
  const double share =
      static_cast<double>(cpu_time - cpu_then_) / static_cast<double>(now - since_);
  since_ = now;
  cpu_then_ = cpu_time;
  const bool grant = share <= (granted_ ? kShareMost : kShareToReturn);
  if (grant == granted_) return std::nullopt;
  granted_ = grant;
  return grant;
}

}  // namespace isthmus::wan
