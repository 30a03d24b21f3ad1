// LoopMailbox: how threads hand events to a loop, in order. Unlike Loop::post it may be used while
// the loop is being abandoned, delivers nothing before start(), and takes turns: a few events, then
// whatever else the loop has to do.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "inter/loop.h"

namespace isthmus::inter {

class LoopMailbox {
 public:
  // Errors: io (out of descriptors).
  static Result<std::unique_ptr<LoopMailbox>> make(Loop& loop);
  // What was not delivered is dropped. No thread may put() any more.
  ~LoopMailbox();
  LoopMailbox(const LoopMailbox&) = delete;
  LoopMailbox& operator=(const LoopMailbox&) = delete;

  void start();  // from the loop's thread
  void put(std::function<void()> event);

 private:
  struct State;
  explicit LoopMailbox(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;  // shared with handlers in flight
};

}  // namespace isthmus::inter
