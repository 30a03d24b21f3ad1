#include "inter/loop_mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <deque>
#include <mutex>

namespace isthmus::inter {

namespace asio = boost::asio;

namespace {

constexpr int kTurnEventsMax = 4;

}  // namespace

struct LoopMailbox::State : std::enable_shared_from_this<State> {
  State(Loop& l, int event_descriptor) : loop(l), descriptor(l.io(), event_descriptor) {}

  void arm() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](boost::system::error_code error) {
                            if (error || self->ended) return;
                            std::uint64_t count = 0;
                            (void)!::read(self->descriptor.native_handle(), &count, sizeof count);
                            self->turn();
                          });
  }

  void turn() {
    for (int taken = 0; taken < kTurnEventsMax; ++taken) {
      std::function<void()> event;
      {
        const std::lock_guard lock(mutex);
        if (events.empty()) return arm();
        event = std::move(events.front());
        events.pop_front();
      }
      event();
      if (ended) return;
    }
    loop.post([self = shared_from_this()] {
      if (!self->ended) self->turn();
    });
  }

  Loop& loop;
  asio::posix::stream_descriptor descriptor;
  std::mutex mutex;  // guards events
  std::deque<std::function<void()>> events;
  bool ended = false;  // the loop's thread
};

Result<std::unique_ptr<LoopMailbox>> LoopMailbox::make(Loop& loop) {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) return error_of_errno(errno, "no event descriptor");
  return std::unique_ptr<LoopMailbox>(new LoopMailbox(std::make_shared<State>(loop, descriptor)));
}

LoopMailbox::~LoopMailbox() {
  state_->ended = true;
  boost::system::error_code ignored;
  state_->descriptor.close(ignored);
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(state_->mutex);
    dropped.swap(state_->events);
  }
}

void LoopMailbox::start() { state_->arm(); }

void LoopMailbox::put(std::function<void()> event) {
  bool first = false;
  {
    const std::lock_guard lock(state_->mutex);
    first = state_->events.empty();
    state_->events.push_back(std::move(event));
  }
  const std::uint64_t one = 1;
  if (first) (void)!::write(state_->descriptor.native_handle(), &one, sizeof one);
}

}  // namespace isthmus::inter
