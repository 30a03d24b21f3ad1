// The contract suite with MPI: `mpirun -n N mpi_communicator_test N`. A rank that fails prints its
// findings and ends without close(), so that mpirun fails too. With a third argument, rank 0 ends
// with exit code 3 while the others wait for it: they must not wait for ever.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/intra/communicator_contract.h"

namespace isthmus::intra {
namespace {

std::unique_ptr<Communicator> world;

}  // namespace

Communicator& communicator_under_test() { return *world; }

}  // namespace isthmus::intra

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto made = isthmus::intra::make_mpi_communicator();
  if (!made) {
    std::fprintf(stderr, "%s\n", made.error().text().c_str());
    return 1;
  }
  isthmus::intra::world = std::move(*made);
  const int ranks_expected = argc > 1 ? std::atoi(argv[1]) : 1;
  if (isthmus::intra::world->world_size() != ranks_expected) {
    std::fprintf(stderr, "%d ranks, expected %d\n", isthmus::intra::world->world_size(),
                 ranks_expected);
    return 1;
  }
  if (argc > 2) {
    if (isthmus::intra::world->rank() == 0) return 3;
    return isthmus::intra::world->barrier() ? 0 : 1;
  }
  if (RUN_ALL_TESTS() != 0) return 1;
  return isthmus::intra::world->close() ? 0 : 1;
}
