// A gateway's link tests: when one may run, and what it says of this end (inter/link_tester.h).
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "inter/gateway.h"

namespace isthmus::inter {

namespace {

// "4096 131072 6291456"; "": no such file.
std::string kernel_setting(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::ranges::replace(line, '\t', ' ');
  return line;
}

}  // namespace

std::unique_ptr<LinkTester> Gateway::make_link_tester() {
  return std::make_unique<LinkTester>(LinkTester::Context{
      .loop = world_.loop,
      .wire = world_.wire,
      .limit = limit_,
      .log = world_.log,
      .random = world_.random.split("link test"),
      .self = name_of(self_),
      .name_of = [this](GatewayId id) { return name_of(id.site); },
      .side = [this] { return link_test_side(); },
      .exchange = [this] { return exchange_now(); },
      .objection =
          [this] {
            const bool expired = security::validity(roster_, world_.loop.clock().unix_time()) ==
                                 security::RosterValidity::expired;
            return expired ? std::string("the roster has expired") : std::string();
          }});
}

LinkTestSide Gateway::link_test_side() const {
  return {
      .tcp_rmem = kernel_setting("/proc/sys/net/ipv4/tcp_rmem"),
      .tcp_wmem = kernel_setting("/proc/sys/net/ipv4/tcp_wmem"),
      .rate_limit = static_cast<std::uint64_t>(8 * limit_.bytes_per_second()),
      .polite = options_.polite,
      .narrows_in_pauses = kernel_setting("/proc/sys/net/ipv4/tcp_slow_start_after_idle") == "1"};
}

// What of outer steps is on its way, or computed; "": nothing.
std::string Gateway::exchange_now() const {
  for (const auto& [site, peer] : peers_.all())
    if (peer.link->sends_bulk()) return fmt::format("bytes are on their way to {}", peer.name);
  if (state_fetcher_ && state_fetcher_->fetching()) return "a state is being fetched";
  if (!exchange_ || !state_ || finished_) return {};
  bool exchanges = has_contribution_to_make() || exchange_->contributed() || applying_;
  for (const auto member : current_view().members)
    exchanges = exchanges || (member != self_ && exchange_->incoming(member) != nullptr);
  return exchanges ? fmt::format("outer step {} is being exchanged", working_step())
                   : std::string();
}

bool Gateway::has_address(SiteId site) const {
  const auto* entry = roster_.find(site);
  return entry != nullptr && !entry->gateways.empty() && !entry->gateways[0].address.empty();
}

Result<std::string> Gateway::test_link(std::uint64_t number, std::string_view peer,
                                       LinkTester::Wish wish) {
  std::string others;
  for (const auto& [site, other] : peers_.all()) {
    if (other.name == peer) {
      if (!has_address(self_) && !has_address(site))
        return Error{ErrorCode::unavailable,
                     fmt::format("neither {} nor {} has an address in the roster, so no line joins "
                                 "them: what they exchange goes over other sites",
                                 name_of(self_), other.name)};
      if (!other.link->connected() && !link_tester_->has_begun(number))
        return Error{ErrorCode::unavailable,
                     fmt::format("{} is not connected: is its gateway up, and the address of {} in "
                                 "the roster right? This gateway's log says what became of it",
                                 other.name, has_address(site) ? other.name : name_of(self_))};
      wish.peer = other.link->peer();
      return link_tester_->ask(number, wish);
    }
    others += fmt::format("{}{}", others.empty() ? "" : ", ", other.name);
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("there is no other site \"{}\" with a gateway; there is {}", peer,
                           others.empty() ? "none" : others)};
}

}  // namespace isthmus::inter
