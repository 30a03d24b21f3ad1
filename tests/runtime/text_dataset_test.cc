#include "runtime/text_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "runtime/batch_loss.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::HasSubstr;

class TextDatasetTest : public testing::Test {
 protected:
  // A file in which each byte tells its place, modulo 251.
  std::string file(std::string_view name, std::size_t bytes) {
    std::string text(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
    write_contents(folder_ / name, text);
    return folder_ / name;
  }
  TextDataset open(std::vector<TextSource> sources, std::int64_t sequence, std::uint64_t seed = 1) {
    auto dataset = TextDataset::open(*disk_, sources, sequence, seed);
    EXPECT_TRUE(dataset) << dataset.error().text();
    return std::move(*dataset);
  }
  Error refused(std::vector<TextSource> sources, std::int64_t sequence) {
    auto dataset = TextDataset::open(*disk_, sources, sequence, 1);
    EXPECT_FALSE(dataset);
    return dataset.error();
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(TextDatasetTest, SamplesAreTheBytesAtTheirPlace) {
  const auto dataset = open({{file("a", 5000)}, {file("b", 3001)}}, 37);
  std::vector<std::int32_t> tokens(37), targets(37);
  for (std::uint64_t sample = 0; sample < 500; ++sample) {
    ASSERT_TRUE(dataset.read(sample, tokens, targets));
    const auto place = dataset.locate(sample);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i], static_cast<std::int32_t>((place.offset + i) % 251));
      ASSERT_EQ(targets[i], static_cast<std::int32_t>((place.offset + i + 1) % 251));
    }
  }
}

TEST_F(TextDatasetTest, AnEpochTakesEachWindowOnceAndSharesNoByteButTheSeam) {
  const std::int64_t sequence = 50;
  const auto dataset = open({{file("a", 10'049)}}, sequence);
  std::map<std::uint64_t, std::set<std::uint64_t>> offsets;  // by epoch
  std::uint64_t samples = 0;
  for (; dataset.locate(samples).epoch < 3; ++samples) {
    const auto place = dataset.locate(samples);
    EXPECT_TRUE(offsets[place.epoch].insert(place.offset).second);
    EXPECT_LE(place.offset + 51, 10'049U);
  }
  ASSERT_EQ(offsets.size(), 3U);
  std::set<std::uint64_t> firsts;
  for (const auto& [epoch, places] : offsets) {
    EXPECT_EQ(places.size(), 199U);  // floor((10049 - 50) / 50)
    firsts.insert(*places.begin());
    for (auto a = places.begin(), b = std::next(a); b != places.end(); ++a, ++b)
      EXPECT_EQ(*b - *a, static_cast<std::uint64_t>(sequence));
  }
  EXPECT_GT(firsts.size(), 1U);  // epochs begin elsewhere
}

TEST_F(TextDatasetTest, MixesExactlyByWeight) {
  const auto dataset =
      open({{file("a", 3000), 1}, {file("b", 9000), 2}, {file("c", 500), 0.5}}, 20);
  for (const std::uint64_t block : {0, 1, 5}) {
    std::vector<int> counts(3, 0);
    for (std::uint64_t i = 0; i < 4096; ++i) ++counts[dataset.locate(block * 4096 + i).source];
    EXPECT_EQ(counts, (std::vector<int>{1170, 2341, 585}));  // 4096 in 2 : 4 : 1, largest remainder
  }
  // Already a short stretch is mixed.
  std::vector<int> counts(3, 0);
  for (std::uint64_t i = 0; i < 400; ++i) ++counts[dataset.locate(i).source];
  EXPECT_NEAR(counts[1], 229, 40);
}

TEST_F(TextDatasetTest, SamplesDependOnSeedAndNumberAlone) {
  const std::vector<TextSource> sources{{file("a", 4000)}, {file("b", 4000)}};
  const auto one = open(sources, 30), again = open(sources, 30), other = open(sources, 30, 2);
  int equal = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto sample = 299 - i;  // in another order
    EXPECT_EQ(one.locate(sample).offset, again.locate(sample).offset);
    EXPECT_EQ(one.locate(sample).source, again.locate(sample).source);
    equal += one.locate(sample).offset == other.locate(sample).offset;
  }
  EXPECT_LT(equal, 30);
  EXPECT_EQ(one.digest(), again.digest());
  EXPECT_NE(one.digest(), other.digest());
}

TEST_F(TextDatasetTest, AnEditedTextOfTheSameLengthIsAnother) {
  for (const std::size_t bytes : {std::size_t{4000}, std::size_t{9'000'000}}) {
    const auto path = file("text", bytes);
    const auto before = open({{path}}, 30).digest();
    EXPECT_EQ(open({{path}}, 30).digest(), before);
    std::fstream text(path, std::ios::binary | std::ios::in | std::ios::out);
    text.seekp(static_cast<std::streamoff>(bytes / 2));
    const std::string page(std::min<std::size_t>(200'000, bytes / 4), '#');
    text << page << std::flush;
    EXPECT_EQ(std::filesystem::file_size(path), bytes);
    EXPECT_NE(open({{path}}, 30).digest(), before);
  }
}

TEST_F(TextDatasetTest, TheSmallestFileGivesItsOnlyWindow) {
  const auto dataset = open({{file("a", 33)}}, 32);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(dataset.locate(i).offset, 0U);
  const auto two = open({{file("b", 34)}}, 32);
  std::set<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < 40; ++i) offsets.insert(two.locate(i).offset);
  EXPECT_EQ(offsets, (std::set<std::uint64_t>{0, 1}));
}

TEST_F(TextDatasetTest, EverySourceGoesThroughItsOwnEpochs) {
  const auto dataset = open({{file("a", 1000), 3}, {file("b", 3000), 1}}, 20);
  std::map<std::pair<std::size_t, std::uint64_t>, std::set<std::uint64_t>> offsets;
  std::vector<std::uint64_t> epochs(2, 0);
  for (std::uint64_t sample = 0; sample < 10'000; ++sample) {
    const auto place = dataset.locate(sample);
    EXPECT_TRUE(offsets[std::pair(place.source, place.epoch)].insert(place.offset).second);
    EXPECT_GE(place.epoch, epochs[place.source]);
    epochs[place.source] = place.epoch;
  }
  EXPECT_EQ(epochs, (std::vector<std::uint64_t>{7500 / 49, 2500 / 149}));
}

TEST_F(TextDatasetTest, NeverReadsPastTheEnd) {
  std::vector<std::int32_t> tokens(7), targets(7);
  for (std::size_t bytes = 8; bytes < 40; ++bytes) {
    const auto dataset = open({{file("a", bytes)}}, 7);
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(dataset.read(i, tokens, targets)) << bytes;
  }
}

TEST_F(TextDatasetTest, SaysWhatIsWrongWithTheSources) {
  EXPECT_EQ(refused({}, 8).code, ErrorCode::invalid_argument);
  const auto missing = refused({{folder_ / "missing.txt"}}, 8);
  EXPECT_EQ(missing.code, ErrorCode::not_found);
  EXPECT_THAT(missing.text(), HasSubstr("missing.txt"));
  const auto short_text = refused({{file("short.txt", 8)}}, 8);
  EXPECT_EQ(short_text.code, ErrorCode::invalid_argument);
  EXPECT_THAT(short_text.text(), HasSubstr("short.txt has 8 bytes"));
  EXPECT_THAT(short_text.text(), HasSubstr("needs 9"));
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_EQ(refused({{file("a", 100), weight}}, 8).code, ErrorCode::invalid_argument);
  const auto tiny = refused({{file("a", 100), 1e-6}, {file("b", 100), 1.0}}, 8);
  EXPECT_THAT(tiny.text(), HasSubstr("too little to ever be drawn"));
}

// Tokens of two bytes, with a mask; ids the model does not know; and what its digest covers.
TEST_F(TextDatasetTest, SamplesOfTokensAndTargets) {
  std::string bytes, mask;
  for (int i = 0; i < 500; ++i) {
    bytes += {static_cast<char>(1000 + i), static_cast<char>((1000 + i) >> 8)};
    mask += static_cast<char>(i % 3 == 0);
  }
  const auto path = folder_ / "tokens.bin";
  write_contents(path, bytes);
  const auto read = [&](std::int32_t vocabulary) {
    return TextDataset::open(*disk_, {{path}}, 16, 1, {TokenWidth::two, vocabulary});
  };
  const auto unmasked = read(1500)->digest();
  write_contents(path + ".mask", mask);
  const auto dataset = read(1500);
  ASSERT_TRUE(dataset) << dataset.error().text();
  EXPECT_NE(dataset->digest(), unmasked);
  EXPECT_EQ(dataset->tokens(), 500U);
  std::vector<std::int32_t> tokens(16), targets(16);
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    ASSERT_TRUE(dataset->read(sample, tokens, targets));
    const auto first = static_cast<std::int32_t>(dataset->locate(sample).offset);
    for (std::int32_t i = 0; i < 16; ++i) {
      const auto next = first + i + 1;
      ASSERT_EQ(tokens[static_cast<std::size_t>(i)], 1000 + first + i);
      ASSERT_EQ(targets[static_cast<std::size_t>(i)], next % 3 == 0 ? 1000 + next : kIgnoredTarget);
    }
  }
  const auto small = read(1400);
  bool refused = false;
  for (std::uint64_t sample = 0; sample < 50 && !refused; ++sample)
    refused = !small->read(sample, tokens, targets);
  EXPECT_TRUE(refused);
}

TEST_F(TextDatasetTest, DocumentsApartSayWhereTheyBegin) {
  const auto path = file("a", 2000);  // 250 ends a document
  const auto open_with = [&](Documents documents) {
    return TextDataset::open(*disk_, {{path}}, 48, 1, {.vocabulary = 256}, documents);
  };
  EXPECT_EQ(open_with(Documents::apart).error().code, ErrorCode::invalid_argument);
  const auto joined = open_with(Documents::joined)->digest();
  std::string begin;
  for (std::uint64_t at = 0; at < 2000; at += 251)
    begin.append(reinterpret_cast<const char*>(&at), sizeof(at));
  write_contents(path + ".documents", begin);
  EXPECT_EQ(open_with(Documents::joined)->digest(), joined);
  const auto dataset = open_with(Documents::apart);
  ASSERT_TRUE(dataset) << dataset.error().text();
  EXPECT_NE(dataset->digest(), joined);
  std::vector<std::int32_t> tokens(48), targets(48), starts(48);
  int seams = 0;
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    ASSERT_TRUE(dataset->read(sample, tokens, targets, starts));
    std::int32_t start = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i] == 0) start = static_cast<std::int32_t>(i);
      ASSERT_EQ(starts[i], start);
      ASSERT_EQ(targets[i], tokens[i] == 250 ? kIgnoredTarget : tokens[i] + 1);
      seams += tokens[i] == 250;
    }
  }
  EXPECT_GT(seams, 10);
  begin[8] = 7;
  write_contents(path + ".documents", begin);
  EXPECT_NE(open_with(Documents::apart)->digest(), dataset->digest());
}

TEST_F(TextDatasetTest, AFileThatShrinksIsAnErrorAndNoCrash) {
  const auto dataset = open({{file("a", 5000)}}, 64);
  std::filesystem::resize_file(folder_ / "a", 10);
  std::vector<std::int32_t> tokens(64), targets(64);
  const auto status = dataset.read(0, tokens, targets);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::corrupt);
  EXPECT_THAT(status.error().text(), HasSubstr("changed while it is in use"));
}

}  // namespace
}  // namespace isthmus::runtime
