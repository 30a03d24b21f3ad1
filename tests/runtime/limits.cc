// Tests of models are many and run at every change: each may take five seconds of the processor's
// time, its children's with it. Where a sanitizer slows it down, nothing is asked.
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace isthmus::runtime {
namespace {

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

constexpr double kSecondsMax = 5;

double used_seconds() {
  double seconds = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    for (const auto& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

class Limits final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { before_ = used_seconds(); }
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_LE(used_seconds() - before_, kSecondsMax) << "of the processor: make it smaller";
  }
  double before_ = 0;
};

const bool kListening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Limits);  // which deletes it
  return true;
}();

#endif

}  // namespace
}  // namespace isthmus::runtime
