#include "runtime/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/random.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  // A file with this header and this much data.
  std::string file(std::string_view header, std::size_t data_bytes) {
    std::uint64_t size = header.size();
    std::string text(reinterpret_cast<const char*>(&size), sizeof(size));
    text += header;
    text.append(data_bytes, '\1');
    write_contents(path_, text);
    return path_;
  }
  Error refused() {
    auto reader = SafetensorsReader::open(*disk_, path_);
    EXPECT_FALSE(reader) << contents_of(path_).substr(8);
    return reader ? Error{ErrorCode::io, ""} : reader.error();
  }
  void expect_refused(std::string_view header, std::size_t data_bytes, std::string_view why,
                      ErrorCode code = ErrorCode::corrupt) {
    file(header, data_bytes);
    const auto error = refused();
    EXPECT_EQ(error.code, code) << error.text();
    EXPECT_THAT(error.text(), HasSubstr(std::string(why)));
    EXPECT_THAT(error.text(), HasSubstr("model.safetensors"));
  }
  void write_two_tensors() {
    const std::vector<float> a{1, 2, 3, 4, 5, 6}, b{-0.5F};
    const TensorToStore tensors[] = {{"b", Shape{1}, b}, {"a", Shape{2, 3}, a}};
    ASSERT_TRUE(write_safetensors(*disk_, path_, tensors, {{"format", "pt"}}));
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "model.safetensors";
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(SafetensorsTest, WritesWhatItReads) {
  write_two_tensors();
  const auto reader = SafetensorsReader::open(*disk_, path_);
  ASSERT_TRUE(reader) << reader.error().text();
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  ASSERT_EQ(reader->tensors().size(), 2U);
  EXPECT_EQ(reader->tensors()[0].name, "b");
  const auto* a = reader->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, "F32");
  EXPECT_EQ(a->shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(a->offset % 4, 0U);
  std::vector<float> values(6);
  ASSERT_TRUE(reader->read(*a, values));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(reader->find("c"), nullptr);
}

TEST_F(SafetensorsTest, WritesTheSameBytesAgain) {
  write_two_tensors();
  const auto first = contents_of(path_);
  write_two_tensors();
  EXPECT_EQ(contents_of(path_), first);
}

TEST_F(SafetensorsTest, ConvertsHalfAndBrainFloats) {
  const std::string header =
      R"({"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]}})";
  const std::uint16_t data[] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x8000, 0x3F80, 0xC049};
  std::uint64_t size = header.size();
  write_contents(path_, std::string(reinterpret_cast<const char*>(&size), 8) + header +
                            std::string(reinterpret_cast<const char*>(data), sizeof(data)));
  const auto reader = SafetensorsReader::open(*disk_, path_);
  ASSERT_TRUE(reader) << reader.error().text();
  std::vector<float> half(6), brain(2);
  ASSERT_TRUE(reader->read(*reader->find("h"), half));
  ASSERT_TRUE(reader->read(*reader->find("b"), brain));
  EXPECT_EQ(half, (std::vector<float>{1, -2, 0x1p-24F, 65504, INFINITY, 0}));
  EXPECT_TRUE(std::signbit(half[5]));
  EXPECT_EQ(brain, (std::vector<float>{1, -3.140625F}));
}

TEST_F(SafetensorsTest, RefusesToConvertOtherTypes) {
  file(R"({"i":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4);
  const auto reader = SafetensorsReader::open(*disk_, path_);
  ASSERT_TRUE(reader);
  std::vector<float> value(1);
  const auto status = reader->read(*reader->find("i"), value);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::unsupported);
}

TEST_F(SafetensorsTest, AcceptsTheEdgesOfTheFormat) {
  file(R"({})", 0);
  EXPECT_TRUE(SafetensorsReader::open(*disk_, path_));
  file(R"({"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )", 4);
  EXPECT_TRUE(SafetensorsReader::open(*disk_, path_));
  file(
      R"({"none":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"one":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4);
  EXPECT_TRUE(SafetensorsReader::open(*disk_, path_));
}

TEST_F(SafetensorsTest, NamesTheFault) {
  expect_refused("[]", 0, "not JSON of the expected form");
  expect_refused("{", 0, "not JSON of the expected form");
  expect_refused(R"({"a":{"dtype":[[[[1]]]]}})", 0, "not JSON of the expected form");
  expect_refused(R"({"a":{}})", 0, "tensor a: dtype, shape or data_offsets");
  expect_refused(R"({"a":3})", 0, "tensor a: dtype, shape or data_offsets");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "tensor a");
  expect_refused(R"({"a":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}})", 4, "dtype F9");
  expect_refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "whole number");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "whole number");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}})", 4, "whole number");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "differ");
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
                 "too large");
  // 2^62 elements of 4 bytes: their bytes overflow to 0.
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
                 "differ");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "cut short");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "need 4 bytes");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "gap");
  expect_refused(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "overlaps");
  expect_refused(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      8, "twice");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, "metadata");
  expect_refused(R"({"__metadata__":"a"})", 0, "metadata");
}

TEST_F(SafetensorsTest, RefusesAHeaderTooLargeForItsFileOrForUs) {
  write_contents(path_, "1234567");
  EXPECT_EQ(refused().code, ErrorCode::corrupt);
  write_contents(path_, std::string(8, '\xff') + "{}");
  EXPECT_THAT(refused().text(), HasSubstr("ends inside its header"));
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  write_two_tensors();
  const auto whole = contents_of(path_);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_contents(path_, std::string_view(whole).substr(0, bytes));
    EXPECT_EQ(refused().code, ErrorCode::corrupt) << bytes;
  }
}

TEST_F(SafetensorsTest, SurvivesRandomDamage) {
  write_two_tensors();
  const auto whole = contents_of(path_);
  Random random(5);
  for (int i = 0; i < 3000; ++i) {
    auto damaged = whole;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
      damaged[random.below(damaged.size())] = static_cast<char>(random.next());
    std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary) << damaged;  // in place
    const auto reader = SafetensorsReader::open(*disk_, path_);
    if (!reader) continue;
    for (const auto& tensor : reader->tensors()) {
      ASSERT_LE(tensor.offset + tensor.bytes, damaged.size());
      std::vector<float> values(tensor.elements);
      (void)reader->read(tensor, values);
    }
  }
}

TEST_F(SafetensorsTest, AMissingFileIsNotFound) {
  const auto reader = SafetensorsReader::open(*disk_, folder_ / "none.safetensors");
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace isthmus::runtime
