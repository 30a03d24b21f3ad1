// A federation with a listed site, without a vote, that does what the test says.
#pragma once

#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {

class HostilePeerTest : public testing::Test {
 protected:
  // The first of four sites is the puppet, without a vote.
  static ScriptedFederation::Options endless_with_puppet() {
    auto options = options_of({kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
    options.puppets = {1};
    options.without_vote = {1};
    options.gateway.sync.outer_steps = 100'000;
    return options;
  }
  // The same, and a rate limit, for which control goes at once and bulk pays.
  static ScriptedFederation::Options limited_with_puppet() {
    auto options = endless_with_puppet();
    options.gateway.rate_limit_bytes_per_second = 200'000;
    return options;
  }
};

}  // namespace isthmus::inter
