// What only ZeroMQ can do wrong: every trap of libzmq that the wire avoids, once.
#include "inter/zmq_wire.h"

#include <gtest/gtest.h>

#include "inter/socket_check.h"
#include "tests/inter/wire_contract.h"
#include "tests/inter/zmq_world.h"

namespace isthmus::inter {

INSTANTIATE_TEST_SUITE_P(ZeroMq, WireContract,
                         testing::Values(WireBackend{"zeromq", &make_zmq_world}));

}  // namespace isthmus::inter
