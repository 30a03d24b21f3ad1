#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>

namespace isthmus {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error{ErrorCode::invalid_argument, "give an even number"};
  return x / 2;
}

Result<int> quarter(int x) {
  ISTHMUS_TRY(const auto a, half(x));
  ISTHMUS_TRY(const auto b, half(a));
  return b;
}

Result<void> even(int x) {
  ISTHMUS_CHECK(half(x));
  return {};
}

Result<std::unique_ptr<int>> owned(bool fine) {
  if (!fine) return Error{ErrorCode::io, "no"};
  return std::make_unique<int>(5);
}

Result<int> unwrapped(bool fine) {
  ISTHMUS_TRY(const auto pointer, owned(fine));
  return *pointer;
}

TEST(Result, TryUnwrapsOrLeaves) {
  EXPECT_EQ(quarter(8).value(), 2);
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(quarter(6).error().message, "give an even number");
}

TEST(Result, CheckPassesErrorsOn) {
  EXPECT_TRUE(even(2));
  EXPECT_FALSE(even(1));
}

TEST(Result, CarriesWhatOnlyMoves) {
  EXPECT_EQ(unwrapped(true).value(), 5);
  EXPECT_EQ(unwrapped(false).error().code, ErrorCode::io);
}

TEST(Error, TextJoinsTheCausesOutermostFirst) {
  const Error inner{ErrorCode::io, "disk on fire"};
  const Error middle{ErrorCode::corrupt, "cannot read x", inner};
  const Error outer{ErrorCode::unavailable, "cannot start", middle};
  EXPECT_EQ(outer.text(), "cannot start: cannot read x: disk on fire");
  EXPECT_EQ(Error(outer).text(), outer.text());
  EXPECT_EQ(inner.text(), "disk on fire");
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  const int last = static_cast<int>(ErrorCode::unsupported);
  for (int i = 0; i <= last; ++i) names.insert(to_string(static_cast<ErrorCode>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Error, OfErrnoSaysWhatTheSystemSaid) {
  EXPECT_EQ(error_of_errno(ENOSPC, "x").code, ErrorCode::disk_full);
  EXPECT_EQ(error_of_errno(EDQUOT, "x").code, ErrorCode::disk_full);
  EXPECT_EQ(error_of_errno(EACCES, "x").code, ErrorCode::permission);
  EXPECT_EQ(error_of_errno(EPERM, "x").code, ErrorCode::permission);
  EXPECT_EQ(error_of_errno(ENOENT, "x").code, ErrorCode::not_found);
  EXPECT_EQ(error_of_errno(EEXIST, "x").code, ErrorCode::already_exists);
  EXPECT_EQ(error_of_errno(EISDIR, "x").code, ErrorCode::wrong_kind);
  EXPECT_EQ(error_of_errno(ENOTDIR, "x").code, ErrorCode::wrong_kind);
  EXPECT_EQ(error_of_errno(EIO, "x").code, ErrorCode::io);
  EXPECT_EQ(error_of_errno(ENOENT, "cannot open a").text(),
            "cannot open a: No such file or directory");
}

}  // namespace
}  // namespace isthmus
