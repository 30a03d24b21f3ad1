#include "security/identity.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "security/operator_key.h"
#include "security/roster.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::security {
namespace {

using testing::HasSubstr;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_secret(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  ::chmod(path.c_str(), 0600);
}

unsigned mode_of(const std::string& path) {
  struct stat s {};
  ::stat(path.c_str(), &s);
  return s.st_mode & 07777;
}

class IdentityFile : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(identity_.save(*disk_, path_)); }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  std::string path_ = folder_ / "alpha.key";
  Identity identity_ = Identity::generate();
};

TEST_F(IdentityFile, LoadsWhatItSaved) {
  const auto loaded = Identity::load(path_);
  ASSERT_TRUE(loaded) << loaded.error().text();
  EXPECT_EQ(loaded->public_part(), identity_.public_part());
  EXPECT_EQ(to_hex(loaded->curve_secret()), to_hex(identity_.curve_secret()));
  const auto signature = loaded->sign(context::open, bytes_of("x"));
  EXPECT_TRUE(
      verify_signature(identity_.public_part().identity, context::open, bytes_of("x"), signature));
}

TEST_F(IdentityFile, PublicPartProvesItsCurveKeyAndTellsNoSecret) {
  const auto text = contents(path_ + ".pub");
  const auto parsed = parse_public_identity(text);
  ASSERT_TRUE(parsed) << parsed.error().text();
  EXPECT_EQ(*parsed, identity_.public_part());
  EXPECT_TRUE(signs_curve_key(parsed->identity, parsed->curve_key, parsed->curve_signature));
  EXPECT_EQ(text.find(to_hex(identity_.curve_secret())), std::string::npos);
}

TEST_F(IdentityFile, IsMadeForTheOwnerAlone) {
  EXPECT_EQ(mode_of(path_), 0600u);
  const auto mask = ::umask(0);
  const auto other = folder_ / "open.key";
  ASSERT_TRUE(Identity::generate().save(*disk_, other));
  ::umask(mask);
  EXPECT_EQ(mode_of(other), 0600u);
}

TEST_F(IdentityFile, IsNeverOverwritten) {
  const auto before = contents(path_);
  const auto again = Identity::generate().save(*disk_, path_);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::already_exists);
  EXPECT_EQ(contents(path_), before);
  EXPECT_EQ(*parse_public_identity(contents(path_ + ".pub")), identity_.public_part());
}

TEST_F(IdentityFile, IsNotWrittenThroughALink) {
  const auto target = folder_ / "target";
  ASSERT_EQ(::symlink(target.c_str(), (folder_ / "link.key").c_str()), 0);
  EXPECT_FALSE(Identity::generate().save(*disk_, folder_ / "link.key"));
  EXPECT_FALSE(*disk_->exists(target));
}

TEST_F(IdentityFile, IsRefusedWhenOthersHaveAnyAccess) {
  for (unsigned bit : {0040u, 0020u, 0010u, 0004u, 0002u, 0001u}) {
    ::chmod(path_.c_str(), 0600 | bit);
    const auto loaded = Identity::load(path_);
    ASSERT_FALSE(loaded) << bit;
    EXPECT_EQ(loaded.error().code, ErrorCode::permission);
    EXPECT_THAT(loaded.error().text(), HasSubstr("chmod 600 " + path_));
  }
  ::chmod(path_.c_str(), 0400);
  EXPECT_TRUE(Identity::load(path_));
  // What is public may be read by everybody: it is the wrong file, not one to hide.
  EXPECT_EQ(Identity::load(path_ + ".pub").error().code, ErrorCode::corrupt);
}

TEST_F(IdentityFile, IsRefusedWhenAnotherUserOwnsIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  const auto loaded = Identity::load(path_);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::permission);
  EXPECT_THAT(loaded.error().text(), HasSubstr("12345"));
}

TEST_F(IdentityFile, IsRefusedWhenItIsNoFile) {
  const auto pipe = folder_ / "pipe.key";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Identity::load(pipe).error().code, ErrorCode::permission);
  EXPECT_EQ(Identity::load(folder_.path()).error().code, ErrorCode::permission);
  EXPECT_EQ(Identity::load(folder_ / "missing").error().code, ErrorCode::not_found);
}

TEST_F(IdentityFile, EveryTruncationAndChangeIsSeen) {
  const auto good = contents(path_);
  const auto copy = folder_ / "copy.key";
  for (std::size_t size = 0; size < good.size(); ++size) {
    put_secret(copy, good.substr(0, size));
    const auto loaded = Identity::load(copy);
    ASSERT_FALSE(loaded) << size;
    EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
  }
  put_secret(copy, good + "\n");
  EXPECT_FALSE(Identity::load(copy));
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] = '~';
    put_secret(copy, bad);
    ASSERT_FALSE(Identity::load(copy)) << at;
  }
}

TEST_F(IdentityFile, ErrorsDoNotRepeatSecrets) {
  auto bad = contents(path_);
  const auto digits = bad.substr(bad.find('\n') + 1, 60);
  bad[bad.size() - 2] = '~';
  const auto copy = folder_ / "copy.key";
  put_secret(copy, bad);
  EXPECT_EQ(Identity::load(copy).error().text().find(digits), std::string::npos);
}

TEST_F(IdentityFile, OneKindOfKeyIsNotTakenForAnother) {
  EXPECT_EQ(load_operator_key(path_).error().code, ErrorCode::invalid_argument);
  const auto operator_path = folder_ / "operator.key";
  const auto key = SigningKey::generate();
  ASSERT_TRUE(save_operator_key(*disk_, key, operator_path));
  EXPECT_EQ(Identity::load(operator_path).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(load_operator_key(operator_path)->public_key(), key.public_key());
  EXPECT_EQ(mode_of(operator_path), 0600u);
  EXPECT_EQ(contents(operator_path + ".pub"),
            fmt::format("operator_key = \"{}\"\n", key.public_key().hex()));
}

TEST(Identity, ASecondCurveKeyIsTheSameSites) {
  const auto first = Identity::generate();
  const auto second = first.with_new_curve_key();
  const auto& key = second.public_part();
  EXPECT_EQ(key.identity, first.public_part().identity);
  EXPECT_NE(key.curve_key, first.public_part().curve_key);
  EXPECT_NE(to_hex(second.curve_secret()), to_hex(first.curve_secret()));
  EXPECT_TRUE(signs_curve_key(key.identity, key.curve_key, key.curve_signature));
}

TEST(PublicIdentity, AcceptsCommentsAndOtherOrders) {
  const auto identity = Identity::generate().public_part();
  const auto text = fmt::format(
      "# alpha\r\n\n  curve_signature=\"{}\"\n curve_key =   \"{}\"\t\nidentity = \"{}\"",
      identity.curve_signature.hex(), identity.curve_key.hex(), identity.identity.hex());
  const auto parsed = parse_public_identity(text);
  ASSERT_TRUE(parsed) << parsed.error().text();
  EXPECT_EQ(*parsed, identity);
}

TEST(PublicIdentity, RefusesWhatDoesNotBelongTogether) {
  auto mixed = Identity::generate().public_part();
  mixed.curve_key = Identity::generate().public_part().curve_key;
  EXPECT_EQ(parse_public_identity(to_text(mixed)).error().code, ErrorCode::unauthenticated);
}

TEST(PublicIdentity, EveryTruncationIsRefused) {
  const auto text = to_text(Identity::generate().public_part());
  for (std::size_t size = 0; size + 1 < text.size(); ++size)  // the last newline may go
    EXPECT_FALSE(parse_public_identity(text.substr(0, size))) << size;
  EXPECT_FALSE(parse_public_identity(text + text));
  EXPECT_THAT(parse_public_identity("identity = 5\n").error().text(), HasSubstr("line 1"));
}

}  // namespace
}  // namespace isthmus::security
