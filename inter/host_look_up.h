// HostLookUp: the numeric address of one peer's host, for one attempt to connect after another. A
// name is looked up anew each time; of several addresses the one that was reached last comes first,
// and each attempt that fails is followed by one that was not tried since, in whatever order the
// answers are.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "base/result.h"
#include "inter/host_names.h"
#include "inter/owned_tasks.h"

namespace isthmus::inter {

// On the loop.
class HostLookUp {
 public:
  HostLookUp(Loop& loop, HostNames& names, std::string host)
      : host_(std::move(host)), names_(names), tasks_(loop) {}

  // Calls `found`, at once if the host is a number. A look-up that is under way is given up.
  // Errors: unavailable.
  void next(std::function<void(Result<std::string> numeric_host)> found);
  void give_up() { found_ = nullptr; }
  // What was found last has been connected to.
  void reached();

 private:
  std::string choose(const NumericHosts& hosts);

  const std::string host_;
  HostNames& names_;
  std::string chosen_, reached_;
  static constexpr std::size_t kTriedMax = 64;
  std::set<std::string> tried_;  // since one was reached, or all were tried
  bool asked_ = false;           // the answer is on its way
  std::function<void(Result<std::string>)> found_;
  OwnedTasks tasks_;
};

}  // namespace isthmus::inter
