// One link test as either end knows it, and how its data are paced: for the parts of LinkTester
// (inter/link_tester.h), which talk about it (link_tester.cc) and move its data
// (link_test_data.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "inter/bulk_pace.h"
#include "inter/link_tester.h"

namespace isthmus::inter {

inline constexpr Nanoseconds kLinkTestPatience = 10 * kSecond;  // for the peer's next word

struct LinkTester::Test {
  GatewayId peer;
  std::string peer_name;
  LinkTestId id = 0;
  std::uint64_t number = 0;  // of the operator's, if it is asked for here
  bool asked_here = false;
  bool force = false;
  Nanoseconds began = 0;
  std::optional<Nanoseconds> forced_before;  // by the same site, so that it may not now
  Wish wish;
  std::string doing = "asking";
  std::optional<Error> ended;
  Nanoseconds heard = 0;
  bool moving = false;                          // data are sent or received
  bool has_sent = false, has_received = false;  // for who asked, each once
  bool receiving = false;                       // of those: received
  bool beside_exchange = false;                 // they went beside one
  std::uint64_t data_bytes = 0;
  std::optional<LinkTestAnswer> answer;
  std::optional<Nanoseconds> pinged, pong;
  int pongs = 0;  // said
  std::optional<LinkTestSent> sent;
  std::optional<LinkTestGot> got;
};

// As outer steps are paced: unpaced, several connections under BBR would fill the queue on the way
// until it drops packets (inter/line_pace.h).
struct LinkTester::Pacing {
  Pacing(Loop& loop, Wire& wire, TestPointer whose, std::span<const ConnectionId> connections)
      : test(std::move(whose)), pace(loop, wire, test->peer) {
    pace.use(connections);
    pace.sending_begins();
  }

  const TestPointer test;
  BulkPace pace;
};

}  // namespace isthmus::inter
