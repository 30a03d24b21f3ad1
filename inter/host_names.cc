#include "inter/host_names.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace isthmus::inter {
namespace {

Error no_address(const std::string& name, std::string_view why) {
  return {ErrorCode::unavailable, fmt::format("no address for {}: {}", name, why)};
}

}  // namespace

Result<NumericHosts> look_up_host(const std::string& name) {
  addrinfo wish{}, *first = nullptr;
  wish.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(name.c_str(), nullptr, &wish, &first); error != 0)
    return no_address(name, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(first, &::freeaddrinfo);
  NumericHosts hosts;
  for (const auto* one = first; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      hosts.emplace_back(text.data());
  }
  if (hosts.empty()) return no_address(name, "it has none for TCP");
  return hosts;
}

// What threads that look a name up hold on to, for as long as it takes them.
struct HostNames::Threads {
  std::mutex mutex;
  LoopMailbox* mailbox = nullptr;  // null: nobody waits for them any more
};

HostNames::HostNames(Loop& loop, LoopMailbox& mailbox, LookUp look_up)
    : loop_(loop), look_up_(std::move(look_up)), threads_(std::make_shared<Threads>()) {
  threads_->mailbox = &mailbox;
}

HostNames::~HostNames() {
  const std::lock_guard lock(threads_->mutex);
  threads_->mailbox = nullptr;
}

void HostNames::ask(const std::string& name, Found found) {
  auto& of_name = names_.try_emplace(name, loop_).first->second;
  const bool at_once = !of_name.remembered.empty() && !of_name.in_time;
  if (!at_once) of_name.waiting.push_back(std::move(found));
  if (!of_name.began) begin(name);
  if (at_once) found(of_name.remembered);
}

void HostNames::begin(const std::string& name) {
  auto& of_name = names_.at(name);
  of_name.began = loop_.now();
  const auto work = [this, &of_name, name, look_up = look_up_, threads = threads_] {
    auto hosts = look_up(name);
    const std::lock_guard lock(threads->mutex);
    if (threads->mailbox == nullptr) return;
    threads->mailbox->put([this, &of_name, threads, hosts = std::move(hosts)] {
      if (threads->mailbox != nullptr) ended(of_name, hosts);
    });
  };
  if (!of_name.remembered.empty())
    of_name.patience.start_timer(kPatience, [&of_name] {
      of_name.in_time = false;
      for (const auto& found : std::exchange(of_name.waiting, {})) found(of_name.remembered);
    });
  try {
    std::thread(work).detach();
  } catch (const std::system_error& error) {  // no more threads
    of_name.patience.post(
        [this, &of_name, failed = no_address(name, error.what())] { ended(of_name, failed); });
  }
}

void HostNames::ended(Name& name, Result<NumericHosts> hosts) {
  const auto took = loop_.now() - *std::exchange(name.began, std::nullopt);
  name.in_time = hosts && took <= kPatience;
  name.patience.stop_timer();
  if (hosts) name.remembered = *hosts;
  if (!name.remembered.empty()) hosts = name.remembered;
  for (const auto& found : std::exchange(name.waiting, {})) found(hosts);
}

}  // namespace isthmus::inter
