#include "base/printable.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace isthmus {
namespace {

TEST(Printable, ATerminalObeysNothing) {
  EXPECT_EQ(printable("a\x1b[2Jb\x07\x7f"), "a [2Jb  ");
  EXPECT_EQ(printable("line\nline\ttab\r"), "line line tab ");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            " 2J");  // CSI in one character
  EXPECT_EQ(printable(std::string_view("\0x", 2)), " x");
}

TEST(Printable, TextStays) {
  EXPECT_EQ(printable("größer 日本 \xf0\x9f\x98\x80"), "größer 日本 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, WhatIsNoTextIsMarked) {
  EXPECT_EQ(printable("a\xff\xc3"), "a??");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");  // a surrogate
}

TEST(Printable, LinesKeepTheirEnds) {
  EXPECT_EQ(printable_lines("a\x1b\n\nb\n"), "a \n\nb\n");
  EXPECT_EQ(printable_lines(""), "");
}

}  // namespace
}  // namespace isthmus
