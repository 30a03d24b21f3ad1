#include "inter/sync_options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace isthmus::inter {
namespace {

ModelLayout layout_of(std::int64_t ffn, int layers = 3) {
  std::vector<TensorInfo> tensors = {{"model.embed_tokens.weight", Shape({260, 60})}};
  for (int i = 0; i < layers; ++i)
    tensors.push_back(
        {"model.layers." + std::to_string(i) + ".mlp.up_proj.weight", Shape({ffn, 60})});
  return *ModelLayout::make(std::move(tensors));
}

TEST(Fingerprint, NamesTheTensorThatDiffers) {
  const auto alpha = Fingerprint::of(layout_of(131), {});
  const auto gamma = Fingerprint::of(layout_of(132), {});
  EXPECT_EQ(alpha.difference(gamma, "at alpha", "at gamma"),
            "shape of model.layers.*.mlp.up_proj.weight: 131 x 60 (3 times) at alpha, "
            "132 x 60 (3 times) at gamma");
  EXPECT_EQ(alpha.difference(alpha), "");
  EXPECT_EQ(alpha.difference(Fingerprint::of(layout_of(131, 4), {})),
            "shape of model.layers.*.mlp.up_proj.weight: 131 x 60 (3 times) here, "
            "131 x 60 (4 times) there");
}

TEST(Fingerprint, NamesSettingsThatDifferWhereShapesDoNot) {
  const auto of = [](const char* settings) {
    return Fingerprint::of_run(*ModelLayout::make({{"a", Shape{5}, 0}}, settings), {});
  };
  EXPECT_EQ(of("heads 8/4").difference(of("heads 4/2"), "at alpha", "at beta"),
            "model settings: heads 8/4 at alpha, heads 4/2 at beta");
  EXPECT_EQ(of("llama, heads 8/4, theta 1, eps 2")
                .difference(of("llama, heads 8/4, theta 3, eps 4"), "at alpha", "at beta"),
            "model settings: theta 1, eps 2 at alpha, theta 3, eps 4 at beta");
  EXPECT_EQ(of("a, b").difference(of("a")), "model settings: a, b here, a there");
}

TEST(Fingerprint, NamesTheKeyThatDiffers) {
  SyncOptions options;
  const auto ours = Fingerprint::of(layout_of(8), options);
  options.inner_steps += 1;
  EXPECT_EQ(ours.difference(Fingerprint::of(layout_of(8), options)).substr(0, 17),
            "sync.inner_steps:");
}

TEST(Fingerprint, AFieldOfOneEndOnlyIsNamedAtBoth) {
  const Fingerprint few{{{"a", "1"}}}, more{{{"a", "1"}, {"b", "2"}}};
  EXPECT_EQ(few.difference(more), "b: none here, 2 there");
  EXPECT_EQ(more.difference(few), "b: 2 here, none there");
  const Fingerprint twice{{{"a", "1"}, {"a", "1"}}};
  EXPECT_EQ(few.difference(twice), "a field comes twice");
}

// What sites find alike in a run must not depend on how its tensors are summed up for people.
TEST(Fingerprint, OfARunKnowsEveryShape) {
  EXPECT_NE(Fingerprint::of_run(layout_of(8), {}).digest(),
            Fingerprint::of_run(layout_of(9), {}).digest());
}

TEST(Fingerprint, SurvivesTheWireWhateverTheModel) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 300; ++i)
    tensors.push_back(
        {std::string(1 + i % 100, static_cast<char>('a' + i % 26)) + std::string(1 + i / 26, 'z'),
         Shape({i + 1})});
  const auto layout = ModelLayout::make(std::move(tensors));
  ASSERT_TRUE(layout) << layout.error().text();
  const auto print = Fingerprint::of(*layout, {});
  ByteWriter out;
  print.encode(out);
  ByteReader in(out.view());
  const auto again = Fingerprint::decode(in);
  EXPECT_TRUE(in.ok());
  EXPECT_EQ(print.difference(again), "");
}

}  // namespace
}  // namespace isthmus::inter
