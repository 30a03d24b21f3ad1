// A site whose run_dir somebody has put back from an older copy. What it signed since then it has
// forgotten: it could vote otherwise, and contribute again to the same step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

using Files = std::map<std::string, Bytes>;

Files files_of(const sim::SimulatedDisk& disk) {
  Files files;
  for (const std::string folder : {"outer", "outer/contributions"}) {
    const auto names = *disk.list(folder);
    for (const auto& name : names) {
      const auto path = folder + "/" + name;
      files[path] = *read_file(disk, path, 1 << 24);
    }
  }
  return files;
}

void put_back(sim::SimulatedDisk& disk, const Files& files) {
  disk.wipe();
  for (const auto& [path, bytes] : files) ASSERT_TRUE(replace_file(disk, path, bytes));
}

constexpr std::uint64_t kCopied = 3, kSteps = 12;

struct Copied {
  std::size_t sites;
  bool with_boot;
  bool voted;  // in the step that it has forgotten; else it only contributed
};

class OlderCopyTest : public testing::TestWithParam<Copied> {
 protected:
  OlderCopyTest() : federation_(options()) {}

  static ScriptedFederation::Options options() {
    auto options = options_of(std::vector<Nanoseconds>(GetParam().sites, 2 * kSecond));
    options.gateway.sync.outer_steps = kSteps;
    options.gateway.sync.min_sites = 2;
    // The last one is late: until it comes, steps stand with the contributions of the others.
    options.compute.back() = 10 * kSecond;
    return options;
  }
  bool until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 600 * kSecond);
  }
  Gateway& gateway(SiteId site) { return federation_.gateway(site); }
  // The second site has said something in a step of after the copy, which the first one knows, and
  // is lost in it.
  void lose_after_copy() {
    ASSERT_TRUE(until([&] { return federation_.step(2) >= kCopied; }));
    copy_ = files_of(federation_.disk(2));
    federation_.kill(2);  // so that there are starts of after the copy, too
    federation_.ranks(2).restart();
    federation_.start(2);
    ASSERT_TRUE(until([&] {
      return federation_.step(2) >= kCopied + 3 && gateway(1).held().contains(2) &&
             (GetParam().voted || !gateway(1).held().contains(last()));
    }));
    if (GetParam().voted) {
      federation_.cut(1, 2, true);  // the vote that would decide does not come
      ASSERT_TRUE(until([&] { return gateway(2).held().size() == GetParam().sites; }));
      federation_.run_for(kSecond);
    }
    forgotten_ = gateway(1).state()->step + 1;
    federation_.kill(2);
    federation_.ranks(2).restart();
    if (!GetParam().with_boot) copy_.erase("outer/boot");
    put_back(federation_.disk(2), copy_);
    federation_.cut(1, 2, false);
    federation_.start(2);
  }
  SiteId last() const { return static_cast<SiteId>(GetParam().sites); }
  const std::optional<Error>& failure() { return federation_.process(2).failure(); }

  ScriptedFederation federation_;
  Files copy_;
  std::uint64_t forgotten_ = 0;
};

TEST_P(OlderCopyTest, EndsWithWhatToDoOrGoesOn) {
  lose_after_copy();
  if (HasFatalFailure()) return;
  ASSERT_TRUE(until([&] { return failure().has_value() || federation_.finished(); }))
      << "step " << federation_.step(1) << ", forgotten " << forgotten_;
  for (SiteId site = 1; site <= last(); ++site)
    EXPECT_EQ(federation_.events(site, "two_contributions"), 0U) << site;
  if (!failure()) return;
  EXPECT_EQ(failure()->code, ErrorCode::corrupt);
  EXPECT_THAT(failure()->text(), HasSubstr("run_dir is an older copy"));
  EXPECT_THAT(failure()->text(), HasSubstr("move outer/vote away"));
  if (GetParam().sites == 2) return;  // then the operator names the state
  federation_.kill(2);
  federation_.ranks(2).restart();
  federation_.disk(2).lose("outer/vote");
  federation_.start(2);
  EXPECT_TRUE(until([&] { return federation_.finished(); }));
  EXPECT_EQ(gateway(2).root(), gateway(1).root());
}

INSTANTIATE_TEST_SUITE_P(Copies, OlderCopyTest,
                         testing::Values(Copied{3, false, false}, Copied{3, true, false},
                                         Copied{3, false, true}, Copied{3, true, true}),
                         [](const auto& tested) {
                           return std::string(tested.param.with_boot ? "WithItsCount"
                                                                     : "WithoutItsCount") +
                                  (tested.param.voted ? "Voted" : "Contributed");
                         });

// Alone with what it has: a number that nobody had before, and all the rest is right.
TEST(LostCountTest, OfStartsIsNoLossOfTheSite) {
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = kSteps;
  ScriptedFederation federation(std::move(options));
  const auto until = [&](const std::function<bool()>& condition) {
    return federation.run_until(condition, 600 * kSecond);
  };
  for (int starts = 0; starts < 3; ++starts) {
    const auto step = federation.step(2);
    ASSERT_TRUE(until([&] {
      return federation.step(2) >= step + 2 && federation.gateway(1).held().contains(2);
    }));
    federation.kill(2);
    if (starts == 2) federation.disk(2).lose("outer/boot");
    federation.ranks(2).restart();
    federation.start(2);
  }
  EXPECT_TRUE(until([&] { return federation.finished(); }));
  EXPECT_EQ(federation.events(2, "file_damaged"), 1U);
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

}  // namespace
}  // namespace isthmus::inter
