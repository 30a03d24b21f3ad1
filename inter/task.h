// Task: a coroutine of a Loop that gives a T. It begins when it is awaited, once, and runs on the
// loop's thread. Its frame goes with the Task: destroying that of a suspended coroutine destroys,
// without running them, all that it awaits.
#pragma once

#include <coroutine>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

namespace isthmus::inter {

template <class T>
class Task;

namespace task_detail {

// Neither awaiting nor returning takes stack for each turn of a loop, whatever the compiler makes
// of tail calls: who awaits runs the coroutine as a call, and only one that was suspended meanwhile
// resumes who awaits it.
struct PromiseBase {
  struct Final {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> handle) const noexcept {
      auto& promise = handle.promise();
      promise.ended = true;
      // The frame may be gone when this returns.
      if (promise.awaited_by) promise.awaited_by.resume();
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  Final final_suspend() const noexcept { return {}; }
  void unhandled_exception() { failure = std::current_exception(); }

  std::coroutine_handle<> awaited_by;  // none before the coroutine was suspended
  bool ended = false;
  std::exception_ptr failure;
};

template <class T>
struct Promise : PromiseBase {
  Task<T> get_return_object();
  template <class Value>
  void return_value(Value&& value) {
    std::construct_at(&result, std::forward<Value>(value));
    returned = true;
  }
  T take() { return std::move(result); }

  // No optional, which may hold another one: g++ 12 takes what is in the inner one for unchanged.
  Promise() {}
  ~Promise() {
    if (returned) std::destroy_at(&result);
  }
  bool returned = false;
  union {
    T result;
  };
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() const {}
  void take() const {}
};

}  // namespace task_detail

template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = task_detail::Promise<T>;

  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~Task() {
    if (frame_) frame_.destroy();
  }

  // What the coroutine throws, this throws.
  auto operator co_await() && noexcept {
    struct Awaiter {
      bool await_ready() const noexcept { return false; }
      bool await_suspend(std::coroutine_handle<> awaiting) {
        frame.resume();
        auto& promise = frame.promise();
        if (promise.ended) return false;
        promise.awaited_by = awaiting;
        return true;
      }
      T await_resume() {
        auto& promise = frame.promise();
        if (promise.failure) std::rethrow_exception(promise.failure);
        return promise.take();
      }
      std::coroutine_handle<promise_type> frame;
    };
    return Awaiter{frame_};
  }

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}

  std::coroutine_handle<promise_type> frame_;
};

template <class T>
Task<T> task_detail::Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise>::from_promise(*this));
}

inline Task<void> task_detail::Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise>::from_promise(*this));
}

}  // namespace isthmus::inter
