#include "inter/attach_messages.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "inter/box_runs.h"

namespace isthmus::inter {
namespace {

attach::Attach an_attach() {
  attach::Attach message;
  message.rank = 1;
  message.world = 3;
  message.pid = 4711;
  message.model_settings = "llama";
  message.tensors = {{"a", {4, 6}, 0}, {"b", {5}, 1}};
  message.boxes = {{0, {0, 2}, {4, 2}}, {1, {1}, {3}}};
  return message;
}

Bytes body_of(const Bytes& frame) {
  return Bytes(frame.begin() + static_cast<std::ptrdiff_t>(attach::kHeaderBytes), frame.end());
}

// Comes back equal; each truncation and one byte more is refused; random bytes do no harm.
template <class Message>
void check(const Message& message) {
  const Bytes frame = attach::encode(message);
  const attach::Header header = attach::read_header(std::span(frame).first(attach::kHeaderBytes));
  EXPECT_EQ(header.kind, Message::kind);
  Bytes body = body_of(frame);
  EXPECT_EQ(header.body_bytes, body.size());
  const auto read = attach::decode<Message>(body);
  ASSERT_TRUE(read);
  EXPECT_EQ(attach::encode(*read), frame);
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes)
    EXPECT_FALSE(attach::decode<Message>(std::span(body).first(bytes))) << bytes;
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    Bytes damaged = body;
    for (auto& byte : damaged)
      if (random.chance(0.05)) byte = static_cast<std::byte>(random.below(256));
    (void)attach::decode<Message>(damaged);
    Bytes noise(random.below(200));
    for (auto& byte : noise) byte = static_cast<std::byte>(random.below(256));
    (void)attach::decode<Message>(noise);
  }
  body.push_back({});
  EXPECT_FALSE(attach::decode<Message>(body));
}

TEST(AttachMessages, EachComesBackAndNothingElseDecodes) {
  check(an_attach());
  check(attach::Initial{});
  check(attach::Contribute{3, 4, 5});
  check(attach::Took{9});
  check(attach::Progress{10, 2.5, 1e4, "computing"});
  check(attach::Leaving{});
  check(attach::Status{});
  check(attach::Memory{8192, 0, 4096, 99});
  attach::State state{7, 8, {}, {}, MergeRule::keep_progress, true, false};
  state.record.bytes[31] = std::byte{5};
  state.run.bytes[0] = std::byte{6};
  check(state);
  check(attach::Taken{3});
  check(attach::Refused{"mismatch", "another model"});
  check(attach::StatusJson{"{}"});
  check(attach::LinkTest{7, "beta", true, kSecond, 1 << 20});
  check(attach::LinkTestJson{"{}"});
}

TEST(AttachMessages, AnotherVersionIsReadAsFarAsItsNumber) {
  ByteWriter later;
  later.put(std::uint32_t{2}).string("whatever a later version says");
  const auto message = attach::decode<attach::Attach>(later.view());
  ASSERT_TRUE(message);
  EXPECT_EQ(message->version, 2u);
}

TEST(AttachMessages, CountsBeyondTheMessageAreRefusedBeforeAnythingIsAllocated) {
  ByteWriter body;
  body.put(attach::kVersion).put(0u).put(1u).put(std::int64_t{1}).string("m");
  body.put(std::uint32_t{1u << 16});  // tensors
  EXPECT_FALSE(attach::decode<attach::Attach>(body.view()));
}

TEST(AttachMessages, ARefusalKeepsItsCode) {
  for (const ErrorCode code : {ErrorCode::mismatch, ErrorCode::non_finite, ErrorCode::busy,
                               ErrorCode::closed, ErrorCode::unsupported}) {
    const Error back = attach::error_of(attach::refused_of(Error{code, "why"}));
    EXPECT_EQ(back.code, code);
    EXPECT_EQ(back.message, "why");
  }
}

TEST(BoxRuns, EqualANestedLoop) {
  const auto layout = ModelLayout::make({{"a", {3, 4, 5, 6}, 0}, {"b", {7}, 0}, {"c", {8, 9}, 0}});
  ASSERT_TRUE(layout);
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    Box box;
    box.tensor = static_cast<std::uint32_t>(random.below(3));
    const Shape& shape = layout->tensors()[box.tensor].shape;
    std::vector<std::int64_t> first(shape.rank()), count(shape.rank());
    for (std::size_t d = 0; d < shape.rank(); ++d) {
      const auto size = static_cast<std::uint64_t>(shape[d]);
      const bool whole = random.chance(0.5);
      first[d] = whole ? 0 : static_cast<std::int64_t>(random.below(size));
      count[d] = whole ? shape[d]
                       : 1 + static_cast<std::int64_t>(
                                 random.below(size - static_cast<std::uint64_t>(first[d])));
    }
    box.first = Shape(first);
    box.count = Shape(count);
    const auto elements = check_box(layout->tensors(), box);
    ASSERT_TRUE(elements);

    std::vector<std::uint64_t> expected;
    for (std::uint64_t e = 0; e < layout->tensor_elements(box.tensor); ++e) {
      bool inside = true;
      std::uint64_t rest = e;
      for (std::size_t d = shape.rank(); d-- > 0;) {
        const auto at = static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(shape[d]));
        rest /= static_cast<std::uint64_t>(shape[d]);
        inside &= at >= first[d] && at < first[d] + count[d];
      }
      if (inside) expected.push_back(layout->offset(box.tensor) + e);
    }
    ASSERT_EQ(expected.size(), *elements);
    std::vector<std::uint64_t> got;
    BoxRuns runs(*layout, box);
    while (const auto run = runs.next(1 + random.below(20))) {
      ASSERT_EQ(run->dense, got.size());
      for (std::uint64_t k = 0; k < run->count; ++k) got.push_back(run->canonical + k);
    }
    ASSERT_EQ(got, expected);
  }
}

TEST(BoxRuns, ABoxThatDoesNotLieInItsTensorIsRefused) {
  const std::vector<TensorInfo> tensors = {{"a", {4, 6}, 0}};
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::vector<Box> wrong = {{1, {0, 0}, {4, 6}},      {0, {0}, {4}},
                                  {0, {0, 0}, {5, 6}},      {0, {0, 1}, {4, 6}},
                                  {0, {-1, 0}, {4, 6}},     {0, {0, 0}, {0, 6}},
                                  {0, {0, 0}, {4, -6}},     {0, {kMax, 0}, {4, 6}},
                                  {0, {0, kMax}, {4, 1}},   {0, {0, 0}, {4, kMax}},
                                  {0, {0, 0, 0}, {4, 6, 1}}};
  for (std::size_t i = 0; i < wrong.size(); ++i) EXPECT_FALSE(check_box(tensors, wrong[i])) << i;
}

}  // namespace
}  // namespace isthmus::inter
