#include <gtest/gtest.h>

#include "tests/intra/communicator_contract.h"

namespace isthmus::intra {

Communicator& communicator_under_test() {
  static const auto world = make_alone_communicator();
  return *world;
}

TEST(AloneCommunicator, IsAWorldOfOne) {
  auto world = make_alone_communicator();
  EXPECT_EQ(world->rank(), 0);
  EXPECT_EQ(world->world_size(), 1);
  EXPECT_TRUE(world->close());
}

}  // namespace isthmus::intra
