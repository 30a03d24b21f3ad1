#include "runtime/micro_batches.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "runtime/batch_loss.h"
#include "tests/base/temporary_folder.h"
#include "tests/runtime/small_model.h"

namespace isthmus::runtime {
namespace {

constexpr std::int64_t kDealtColumns = 24;
constexpr std::uint64_t kSeed = 5, kSamples = 48;

struct DealtRow {
  std::uint64_t key = 0;
  std::vector<std::int32_t> tokens, targets;
  bool operator==(const DealtRow&) const = default;
};

class MicroBatchesTest : public testing::Test {
 protected:
  MicroBatchesTest() { write_contents(folder_ / "text", sample_text(1000, 1)); }

  TextDataset open() {
    auto data = TextDataset::open(*disk_, {{folder_ / "text"}}, kDealtColumns, kSeed);
    EXPECT_TRUE(data) << data.error().text();
    return std::move(*data);
  }

  // The rows of the first samples, in their order.
  std::vector<DealtRow> deal(const TextDataset& data, std::int64_t rows, int ranks,
                             std::int64_t micro_batches, const Masking* masking,
                             std::uint64_t seed = kSeed) {
    std::vector<DealtRow> all(kSamples);
    std::uint64_t of_step = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      MicroBatches batches(data, {.micro_batch = rows, .sequence = kDealtColumns}, rank, ranks,
                           seed, masking);
      of_step = batches.samples() * static_cast<std::uint64_t>(micro_batches);
      for (std::uint64_t position = 0; position < kSamples; position += of_step)
        for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
          EXPECT_TRUE(batches.read(position, micro));
          const auto first = position + static_cast<std::uint64_t>((micro * ranks + rank) * rows);
          for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
            const auto of_row = [&](std::span<const std::int32_t> of_all) {
              const auto part = of_all.subspan(row * kDealtColumns, kDealtColumns);
              return std::vector(part.begin(), part.end());
            };
            all[first + row] = {batches.row_keys()[row], of_row(batches.tokens()),
                                of_row(batches.targets())};
          }
        }
    }
    return all;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  const Masking masking_{{.token = 259, .vocabulary = 260, .special = {256, 257, 258}}};
};

TEST_F(MicroBatchesTest, RowsAreTheSameHoweverTheyAreDealt) {
  const auto data = open();
  for (const auto* masking : {static_cast<const Masking*>(nullptr), &masking_}) {
    const auto plain = deal(data, 1, 1, 4, masking);
    EXPECT_EQ(deal(data, 4, 1, 1, masking), plain);
    EXPECT_EQ(deal(data, 2, 1, 2, masking), plain);
    EXPECT_EQ(deal(data, 2, 2, 1, masking), plain);
    EXPECT_EQ(deal(data, 1, 3, 2, masking), plain);
    EXPECT_EQ(deal(data, 16, 3, 1, masking), plain);
  }
}

TEST_F(MicroBatchesTest, KeysAreOfTheSampleAndTheSeed) {
  const auto data = open();
  const auto rows = deal(data, 2, 2, 1, nullptr);
  std::set<std::uint64_t> keys;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    EXPECT_EQ(rows[sample].key, Random(kSeed).split("rows").at(sample));
    keys.insert(rows[sample].key);
  }
  EXPECT_EQ(keys.size(), kSamples);
  EXPECT_NE(deal(data, 2, 2, 1, &masking_, kSeed + 1), deal(data, 2, 2, 1, &masking_));
}

TEST_F(MicroBatchesTest, HidesWhatTheDatasetGives) {
  const auto data = open();
  const auto plain = deal(data, 2, 1, 1, nullptr), hidden = deal(data, 2, 1, 1, &masking_);
  std::size_t targets = 0;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    DealtRow expected = plain[sample];
    masking_.hide(expected.key, expected.tokens, expected.targets);
    EXPECT_EQ(hidden[sample], expected);
    for (std::size_t i = 0; i < kDealtColumns; ++i)
      if (hidden[sample].targets[i] != kIgnoredTarget) {
        ++targets;
        EXPECT_EQ(hidden[sample].targets[i], plain[sample].tokens[i]);
      }
  }
  EXPECT_GT(targets, 100U);  // 0.15 of 1104 on average
  EXPECT_LT(targets, 230U);
}

// A mask file is of targets: of those alone some are hidden.
TEST_F(MicroBatchesTest, NothingThatAMaskFileHidesIsChosen) {
  const auto text = contents_of(folder_ / "text");
  std::string mask(text.size(), '\1');
  for (std::size_t i = 0; i < text.size(); ++i) mask[i] = text[i] == 'n' || text[i] == ' ' ? 0 : 1;
  write_contents(folder_ / "text.mask", mask);
  const auto data = open();
  const Masking all({.share = 1, .token = 259, .vocabulary = 260});
  const auto plain = deal(data, 2, 1, 1, nullptr), hidden = deal(data, 2, 1, 1, &all);
  for (std::uint64_t sample = 0; sample < kSamples; ++sample)
    for (std::size_t i = 1; i < kDealtColumns; ++i) {
      const auto token = plain[sample].tokens[i];
      const bool may = token != 'n' && token != ' ';
      EXPECT_EQ(hidden[sample].targets[i], may ? token : kIgnoredTarget);
    }
}

}  // namespace
}  // namespace isthmus::runtime
