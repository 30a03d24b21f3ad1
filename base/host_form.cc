#include "base/host_form.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cctype>
#include <string>

namespace isthmus {
namespace {

HostForm form_of_ipv4(const std::string& host) {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) != 1) return HostForm::none;
  return address.s_addr == INADDR_ANY ? HostForm::every : HostForm::number;
}

HostForm form_of_ipv6(std::string_view host) {
  const auto scope = host.find('%');
  in6_addr address{};
  if (::inet_pton(AF_INET6, std::string(host.substr(0, scope)).c_str(), &address) != 1)
    return HostForm::none;
  if (scope != std::string_view::npos || IN6_IS_ADDR_LINKLOCAL(&address))
    return HostForm::link_local;
  return IN6_IS_ADDR_UNSPECIFIED(&address) ? HostForm::every : HostForm::number;
}

}  // namespace

HostForm form_of_host(std::string_view host) {
  constexpr std::size_t kNameBytesMax = 253;
  if (host == "*") return HostForm::every;
  if (host.empty()) return HostForm::none;
  if (host.find_first_not_of("0123456789.") == std::string_view::npos)
    return form_of_ipv4(std::string(host));
  if (host.find(':') != std::string_view::npos) return form_of_ipv6(host);
  const bool is_name = std::isalnum(static_cast<unsigned char>(host.front())) != 0 &&
                       host.find("..") == std::string_view::npos &&
                       host.find('%') == std::string_view::npos && host.size() <= kNameBytesMax;
  return is_name ? HostForm::name : HostForm::none;
}

}  // namespace isthmus
