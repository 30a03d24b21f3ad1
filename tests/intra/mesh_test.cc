#include "intra/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::intra {
namespace {

using testing::HasSubstr;

TEST(Mesh, NumbersTheDataAxisByRank) {
  for (int rank = 0; rank < 3; ++rank) {
    const auto mesh = Mesh::make({.data = 3}, rank, 3);
    ASSERT_TRUE(mesh);
    EXPECT_EQ(mesh->place(), (MeshShape{rank, 0, 0, 0}));
    EXPECT_EQ(mesh->is_first(), rank == 0);
  }
}

TEST(Mesh, RefusesWhatThisVersionCannotSplit) {
  const MeshShape shapes[] = {{.pipeline = 2}, {.tensor = 2}, {.expert = 2}};
  const char* names[] = {"mesh.pipeline", "mesh.tensor", "mesh.expert"};
  for (int i = 0; i < 3; ++i) {
    const auto mesh = Mesh::make(shapes[i], 0, 2);
    ASSERT_FALSE(mesh);
    EXPECT_EQ(mesh.error().code, ErrorCode::unsupported);
    EXPECT_THAT(mesh.error().message, HasSubstr(names[i]));
  }
}

TEST(Mesh, RefusesSizesThatMakeNoSense) {
  for (const int size : {0, -1, 65537, 1 << 30}) {
    const auto mesh = Mesh::make({.data = size}, 0, 1);
    ASSERT_FALSE(mesh);
    EXPECT_EQ(mesh.error().code, ErrorCode::invalid_argument);
  }
}

TEST(Mesh, SaysHowManyRanksItNeeds) {
  const auto mesh = Mesh::make({.data = 4}, 0, 3);
  ASSERT_FALSE(mesh);
  EXPECT_EQ(mesh.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(mesh.error().message, HasSubstr("needs 4 ranks"));
  EXPECT_THAT(mesh.error().message, HasSubstr("3 were started"));
}

}  // namespace
}  // namespace isthmus::intra
