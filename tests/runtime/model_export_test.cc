#include "runtime/model_export.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "runtime/checkpoint.h"
#include "runtime/model_directory.h"
#include "runtime/stored_model.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ModelExportTest : public testing::Test {
 protected:
  ModelExportTest() {
    for (auto& x : model->parameters()) x *= 8;
    model->parameters_changed();
    const auto written = write_checkpoint(*disk, folder / "run", *model, {.inner_step = 3}, 1);
    EXPECT_TRUE(written) << written.error().text();
  }
  void export_to(const std::string& name, const ExportOptions& options,
                 const std::string& from = "run") {
    const auto done = export_model(*disk, folder / from, folder / name, options);
    ASSERT_TRUE(done) << done.error().text();
  }
  std::unique_ptr<Model> opened(const std::string& name) {
    auto read = open_model(*disk, folder / name, small_shape(), pool);
    EXPECT_TRUE(read) << read.error().text();
    return read ? std::move(*read) : nullptr;
  }
  std::vector<std::string> files(const std::string& name) {
    auto names = *disk->list(folder / name);
    std::ranges::sort(names);
    return names;
  }
  void expect_same_files(const std::string& a, const std::string& b) {
    ASSERT_EQ(files(a), files(b));
    for (const auto& file : files(a))
      EXPECT_EQ(contents_of(folder / a + "/" + file), contents_of(folder / b + "/" + file)) << file;
  }

  TemporaryFolder folder;
  std::unique_ptr<Disk> disk = make_system_disk();
  ThreadPool pool{{-1}};
  std::unique_ptr<Model> model = make_small_model(pool);
};

TEST_F(ModelExportTest, InF32ItIsTheModel) {
  export_to("out", {});
  EXPECT_THAT(files("out"), ElementsAre("config.json", "model.safetensors"));
  const auto again = opened("out");
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->config(), model->config());
  EXPECT_TRUE(std::ranges::equal(again->parameters(), model->parameters()));
}

// What was read from bf16 or f16 is written as the same bits, whole or in several files.
TEST_F(ModelExportTest, ARoundTripIsBitExact) {
  for (const auto dtype : {StoredDType::f32, StoredDType::bf16, StoredDType::f16})
    for (const std::uint64_t file_bytes : {std::uint64_t{1} << 30, std::uint64_t{10'000}}) {
      const auto name = fmt::format("{}-{}", name_of(dtype).name, file_bytes);
      const ExportOptions options{.dtype = dtype, .file_bytes_max = file_bytes};
      export_to(name, options);
      export_to(name + "-again", options, name);
      expect_same_files(name, name + "-again");
      EXPECT_EQ(files(name).size() > 3, file_bytes < 100'000) << name;
    }
}

TEST_F(ModelExportTest, RoundsToNearestEven) {
  const struct {
    float value;
    float bf16, f16;
  } cases[] = {
      {1.0F, 1.0F, 1.0F},
      {1.0F + 0x1p-9F, 1.0F, 1.0F + 0x1p-9F},       // half of a bf16 unit: to even
      {1.0F + 0x1p-11F, 1.0F, 1.0F},                // half of an f16 unit: to even
      {1.0F + 3 * 0x1p-11F, 1.0F, 1.0F + 0x1p-9F},  // and up to it
      {-65504.0F, -65536.0F, -65504.0F},            // the largest f16
      {0x1p-24F, 0x1p-24F, 0x1p-24F},               // the smallest f16
      {0x1.8p-24F, 0x1.8p-24F, 0x1p-23F},           // between two of them: to even
      {0x1p-25F, 0x1p-25F, 0.0F},
      {-0x1.ff8p-15F, -0x1p-14F, -0x1.ff8p-15F},  // below the normal ones
      {-0.0F, -0.0F, -0.0F},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i) model->parameters(0)[i] = cases[i].value;
  ASSERT_TRUE(write_checkpoint(*disk, folder / "run", *model, {.inner_step = 4}, 1));
  for (const auto dtype : {StoredDType::bf16, StoredDType::f16}) {
    const std::string name(name_of(dtype).name);
    export_to(name, {.dtype = dtype});
    const auto again = opened(name);
    ASSERT_NE(again, nullptr);
    for (std::size_t i = 0; i < std::size(cases); ++i) {
      const float expected = dtype == StoredDType::bf16 ? cases[i].bf16 : cases[i].f16;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(again->parameters(0)[i]),
                std::bit_cast<std::uint32_t>(expected))
          << name << " " << cases[i].value;
    }
  }
}

TEST_F(ModelExportTest, AppearsWholeOrNotAtAll) {
  model->parameters(1)[5] = 65520;  // rounds to what F16 has no number for
  ASSERT_TRUE(write_checkpoint(*disk, folder / "run", *model, {.inner_step = 4}, 1));
  const auto refused =
      export_model(*disk, folder / "run", folder / "out", {.dtype = StoredDType::f16});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::too_large);
  EXPECT_THAT(refused.error().text(), HasSubstr(model->tensors()[1].name + " holds 65520"));
  EXPECT_THAT(files("."), ElementsAre("run"));
  export_to("out", {.dtype = StoredDType::bf16});
  const auto before = contents_of(folder / "out/model.safetensors");
  const auto again = export_model(*disk, folder / "run", folder / "out", {});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::already_exists);
  EXPECT_EQ(contents_of(folder / "out/model.safetensors"), before);
}

TEST_F(ModelExportTest, OfADamagedCheckpointNothing) {
  const auto file = folder / "run/step_00000003/model.safetensors";
  auto bytes = contents_of(file);
  bytes[bytes.size() - 1] ^= 1;
  write_contents(file, bytes);
  const auto refused = export_model(*disk, folder / "run", folder / "out", {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::corrupt);
  EXPECT_THAT(files("."), ElementsAre("run"));
}

}  // namespace
}  // namespace isthmus::runtime
