// What every communicator must do, as tests: communicator_contract.cc, linked into one binary per
// backend. The binary says which communicator, and under MPI all ranks run all tests in step.
#pragma once

#include "intra/communicator.h"

namespace isthmus::intra {

Communicator& communicator_under_test();

}  // namespace isthmus::intra
