#include "inter/zmq_watch.h"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/system/error_code.hpp>

namespace isthmus::inter {

namespace asio = boost::asio;

struct SocketWatch::State : std::enable_shared_from_this<State> {
  State(Loop& l, ZmqSocket& s, std::function<void()> t)
      : loop(l), socket(&s), turn(std::move(t)), descriptor(l.io(), s.descriptor()) {}

  void arm() {
    if (armed) return;
    armed = true;
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](boost::system::error_code error) {
                            self->armed = false;
                            if (!error) self->run();
                          });
  }

  void post() {
    if (posted) return;
    posted = true;
    loop.post([self = shared_from_this()] {
      self->posted = false;
      self->run();
    });
  }

  void run() {
    if (socket == nullptr) return;
    turn();
    if (socket == nullptr) return;  // the turn ended its own watch
    if ((socket->events() & ZMQ_POLLIN) != 0)
      post();
    else
      arm();
  }

  Loop& loop;
  ZmqSocket* socket;  // null: ended
  std::function<void()> turn;
  asio::posix::stream_descriptor descriptor;
  bool armed = false;
  bool posted = false;
};

SocketWatch::SocketWatch(Loop& loop, ZmqSocket& socket, std::function<void()> turn)
    : state_(std::make_shared<State>(loop, socket, std::move(turn))) {
  state_->post();
}

SocketWatch::~SocketWatch() {
  state_->socket = nullptr;
  state_->descriptor.release();  // the descriptor is libzmq's
}

void SocketWatch::kick() { state_->post(); }

}  // namespace isthmus::inter
