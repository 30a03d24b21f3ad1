#include "compress/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compress/codec.h"
#include "tests/compress/values.h"

namespace isthmus::compress {
namespace {

// One site's side of an outer step: contributes, and learns whether the record names it.
class Contributor {
 public:
  Contributor(CodecId codec, std::size_t count)
      : codec_(make_codec(codec)), feedback_(count), applied_(count) {}

  void step(const std::vector<float>& pseudo_gradient, bool named) {
    const std::size_t count = feedback_.size();
    std::vector<float> quantity(count), decoded(count);
    Bytes bytes(codec_->encoded_bytes_max(count));
    form_quantity(pseudo_gradient, feedback_, quantity);
    ASSERT_TRUE(codec_->encode(quantity, bytes));
    ASSERT_TRUE(codec_->decode(bytes, decoded));
    form_residual(quantity, decoded, feedback_);
    if (named)
      for (std::size_t i = 0; i < count; ++i) applied_[i] += double{decoded[i]};
    else
      carry_all(feedback_, decoded, feedback_);
  }

  const std::vector<float>& feedback() const { return feedback_; }
  const std::vector<double>& applied() const { return applied_; }

 private:
  std::unique_ptr<Codec> codec_;
  std::vector<float> feedback_;
  std::vector<double> applied_;
};

TEST(ErrorFeedback, EachFormIsOneRoundedOperation) {
  const auto a = normal_values(1000, 1), b = normal_values(1000, 2);
  std::vector<float> out(1000);
  const auto expect = [&](double sign) {
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], static_cast<float>(double{a[i]} + sign * double{b[i]})) << i;
  };
  form_pseudo_gradient(a, b, out);
  expect(-1);
  form_quantity(a, b, out);
  expect(1);
  form_residual(a, b, out);
  expect(-1);
  carry_all(a, b, out);
  expect(1);
}

TEST(ErrorFeedback, SmallIntegersAreConservedExactly) {
  for (const auto codec : {CodecId::none, CodecId::bf16}) {
    Contributor site(codec, 600);
    std::vector<double> contributed(600);
    Random random(3);
    for (int step = 0; step < 50; ++step) {
      std::vector<float> gradient(600);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(static_cast<int>(random.below(17)) - 8);
        contributed[i] += double{gradient[i]};
      }
      site.step(gradient, random.chance(0.6));
      for (std::size_t i = 0; i < gradient.size(); ++i)
        ASSERT_EQ(site.applied()[i] + double{site.feedback()[i]}, contributed[i]) << step;
    }
  }
}

TEST(ErrorFeedback, NothingIsLostToQuantisation) {
  constexpr int kSteps = 200;
  Contributor site(CodecId::int8, 1024);
  std::vector<double> contributed(1024), lost_without(1024);
  const auto codec = make_codec(CodecId::int8);
  Random random(4);
  for (int step = 0; step < kSteps; ++step) {
    auto gradient = normal_values(1024, 1000 + static_cast<std::uint64_t>(step));
    for (auto& value : gradient) value += 2e-4F;  // a drift smaller than a code of its block
    for (std::size_t i = 0; i < gradient.size(); ++i) contributed[i] += double{gradient[i]};
    site.step(gradient, random.chance(0.8));

    Bytes bytes(codec->encoded_bytes_max(1024));
    std::vector<float> decoded(1024);
    ASSERT_TRUE(codec->encode(gradient, bytes));
    ASSERT_TRUE(codec->decode(bytes, decoded));
    for (std::size_t i = 0; i < gradient.size(); ++i)
      lost_without[i] += double{gradient[i]} - double{decoded[i]};
  }
  double with_feedback = 0, without = 0;
  for (std::size_t i = 0; i < contributed.size(); ++i) {
    const double lost = contributed[i] - site.applied()[i] - double{site.feedback()[i]};
    with_feedback = std::max(with_feedback, std::abs(lost));
    without = std::max(without, std::abs(lost_without[i]));
  }
  EXPECT_LT(with_feedback, 1e-5);  // f32 roundings only
  EXPECT_GT(without, 100 * with_feedback);
}

TEST(ErrorFeedback, StaysBelowOneCode) {
  // Of a contribution that is named every time, what is kept back is at most half a code.
  Contributor site(CodecId::int8, 256);
  for (int step = 0; step < 100; ++step) {
    const auto gradient = normal_values(256, static_cast<std::uint64_t>(step));
    float largest = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      largest = std::max(largest, std::abs(gradient[i] + site.feedback()[i]));
    site.step(gradient, true);
    for (const float kept : site.feedback()) ASSERT_LE(std::abs(kept), 0.5001F * largest / 127.0F);
  }
}

}  // namespace
}  // namespace isthmus::compress
