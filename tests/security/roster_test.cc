#include "security/roster.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "security/identity.h"
#include "security/roster_memory.h"
#include "security/roster_signature.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::security {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Roster roster_of(std::size_t sites, std::vector<Identity>* identities = nullptr) {
  Roster roster{.epoch = 1, .expires = 1'000 * kSecond, .sites = {}, .digest = {}};
  for (std::size_t i = 0; i < sites; ++i) {
    auto identity = Identity::generate();
    const auto& key = identity.public_part();
    roster.sites.push_back(
        {.id = static_cast<std::uint32_t>(10 * i),
         .name = fmt::format("site-{}", i),
         .voter = voter_by_default(i),
         .identity = key.identity,
         .gateways = {{.address = fmt::format("10.0.{}.{}:7700", i / 256, i % 256),
                       .curve_key = key.curve_key,
                       .curve_signature = key.curve_signature}}});
    if (identities != nullptr) identities->push_back(std::move(identity));
  }
  return roster;
}

std::vector<std::string> faults(const Roster& roster) {
  std::vector<std::string> texts;
  for (const auto& error : check_roster(roster)) texts.push_back(error.text());
  return texts;
}

TEST(Roster, GoodOnesHaveNoFault) {
  EXPECT_THAT(faults(roster_of(1)), IsEmpty());
  const auto nine = roster_of(9);
  EXPECT_THAT(faults(nine), IsEmpty());
  EXPECT_EQ(nine.voters(), 7u);
  auto dials = roster_of(2);
  dials.sites[0].gateways[0].address = dials.sites[1].gateways[0].address = "";
  EXPECT_THAT(faults(dials), IsEmpty());
}

TEST(Roster, HasABoundedNumberOfSites) {
  EXPECT_THAT(faults(roster_of(kRosterSitesMax)), IsEmpty());
  EXPECT_THAT(faults(roster_of(kRosterSitesMax + 1)),
              ElementsAre(HasSubstr("257 sites: a federation has 256 at most")));
}

TEST(Roster, FindsSites) {
  const auto roster = roster_of(3);
  EXPECT_EQ(roster.find(10u), &roster.sites[1]);
  EXPECT_EQ(roster.find(11u), nullptr);
  EXPECT_EQ(roster.find("site-2"), &roster.sites[2]);
  EXPECT_EQ(roster.find("site-3"), nullptr);
  EXPECT_EQ(Roster{}.find(0u), nullptr);
}

TEST(Roster, EachFaultIsNamed) {
  const auto good = roster_of(3);
  const auto spoilt = [&](auto spoil) {
    Roster roster = good;
    spoil(roster);
    return faults(roster);
  };
  EXPECT_THAT(spoilt([](Roster& r) { r.expires = 0; }), ElementsAre(HasSubstr("expiry")));
  EXPECT_THAT(spoilt([](Roster& r) { r.sites.clear(); }), ElementsAre(HasSubstr("no site")));
  EXPECT_THAT(spoilt([](Roster& r) {
                for (auto& site : r.sites) site.voter = false;
              }),
              ElementsAre(HasSubstr("voter")));
  EXPECT_THAT(spoilt([](Roster& r) { r.sites[2].id = r.sites[1].id; }),
              ElementsAre(HasSubstr("ascend")));
  EXPECT_THAT(spoilt([](Roster& r) { r.sites[2].name = r.sites[1].name; }),
              ElementsAre(HasSubstr("two sites")));
  for (std::string name : {"", "a b", "a\n", "caf\xc3\xa9", "a/b"})
    EXPECT_THAT(spoilt([&](Roster& r) { r.sites[0].name = name; }), ElementsAre(HasSubstr("name")));
  EXPECT_THAT(spoilt([](Roster& r) { r.sites[1].gateways.clear(); }),
              ElementsAre(HasSubstr("no gateway")));
  for (std::string address : {"host", "host:", ":7700", "host:0", "host:65535", "host:99999999999",
                              "host:+1", "ho st:1", "a:b:1", "[]:1", "http://host:1", "[host]:1"})
    EXPECT_THAT(spoilt([&](Roster& r) { r.sites[1].gateways[0].address = address; }),
                ElementsAre(HasSubstr("host:port")))
        << address;
  for (std::string host : {"999.1.1.1", "1.2.3", "[1::2::3]", "-gate", "a..b"})
    EXPECT_THAT(spoilt([&](Roster& r) { r.sites[1].gateways[0].address = host + ":7700"; }),
                ElementsAre(HasSubstr(host + ":7700 is neither an address nor a name")));
  for (std::string host : {"0.0.0.0", "[::]"})
    EXPECT_THAT(spoilt([&](Roster& r) { r.sites[1].gateways[0].address = host + ":7700"; }),
                ElementsAre(HasSubstr("nobody can dial")))
        << host;
  for (std::string host : {"[fe80::1%eth0]", "[fe80::1]"})
    EXPECT_THAT(spoilt([&](Roster& r) { r.sites[1].gateways[0].address = host + ":7700"; }),
                ElementsAre(HasSubstr("of one link alone")))
        << host;
  for (std::string address : {"host.example:1", "[::1]:7700", "[2001:db8::1]:65534"})
    EXPECT_THAT(spoilt([&](Roster& r) { r.sites[1].gateways[0].address = address; }), IsEmpty())
        << address;
  EXPECT_THAT(
      spoilt([](Roster& r) { r.sites[1].gateways[0].address = r.sites[2].gateways[0].address; }),
      ElementsAre(HasSubstr("two gateways take port 7700 of 10.0.0.2")));
  for (const auto& [port, taken] : {std::pair(7699, 7700), std::pair(7701, 7701)})
    EXPECT_THAT(spoilt([&](Roster& r) {
                  r.sites[1].gateways[0].address = fmt::format("10.0.0.2:{}", port);
                }),
                ElementsAre(HasSubstr(fmt::format("two gateways take port {} of", taken))));
  EXPECT_THAT(spoilt([](Roster& r) { r.sites[1].gateways[0].address = "10.0.0.2:7702"; }),
              IsEmpty());
  EXPECT_THAT(
      spoilt([](Roster& r) { r.sites[1].gateways[0].curve_signature.bytes[5] ^= std::byte{1}; }),
      ElementsAre(HasSubstr("does not sign")));
}

TEST(Roster, KeysCannotBeBorrowed) {
  auto roster = roster_of(2);
  roster.sites[1].identity = roster.sites[0].identity;
  EXPECT_THAT(faults(roster), Contains(HasSubstr("also that of another site")));

  roster = roster_of(2);
  roster.sites[1].gateways[0].curve_key = roster.sites[0].gateways[0].curve_key;
  roster.sites[1].gateways[0].curve_signature = roster.sites[0].gateways[0].curve_signature;
  EXPECT_THAT(faults(roster), Contains(HasSubstr("also that of another gateway")));
  EXPECT_THAT(faults(roster), Contains(HasSubstr("does not sign")));

  roster = roster_of(2);
  roster.sites[1].identity = {};
  EXPECT_THAT(faults(roster), Contains(HasSubstr("not an Ed25519 public key")));
}

TEST(Roster, FormerSitesKeepTheirIdAndIdentity) {
  auto roster = roster_of(3);
  const auto gone = roster.sites[1];
  roster.former = {{.id = gone.id, .name = gone.name, .identity = gone.identity}};
  EXPECT_THAT(faults(roster), Contains(HasSubstr("the id 10 of a former site")));
  EXPECT_THAT(faults(roster), Contains(HasSubstr("also that of another site")));
  roster.sites.erase(roster.sites.begin() + 1);
  EXPECT_THAT(faults(roster), IsEmpty());
  EXPECT_EQ(*roster.identity_of(10), gone.identity);
  EXPECT_EQ(roster.identity_of(11), nullptr);
  roster.recoveries = {{.run = {}, .step = 3, .root = {}, .voters = {0, 10}}};  // it was one then
  EXPECT_THAT(faults(roster), IsEmpty());
  roster.former.push_back({.id = 5, .name = "a b", .identity = {}});
  EXPECT_EQ(faults(roster).size(), 3u);  // order, name, key
  roster.former.resize(kFormerSitesMax + 1, roster.former.front());
  EXPECT_THAT(faults(roster), Contains(HasSubstr("at most 1024")));
}

TEST(Roster, AllFaultsAreReportedAtOnce) {
  auto roster = roster_of(3);
  roster.expires = -1;
  roster.sites[0].name = "";
  roster.sites[1].id = 0;
  roster.sites[1].gateways[0].address = "nowhere";
  roster.sites[2].gateways.clear();
  EXPECT_EQ(faults(roster).size(), 5u);
}

TEST(Roster, Expires) {
  const auto roster = roster_of(1);
  EXPECT_EQ(validity(roster, roster.expires - 1), RosterValidity::valid);
  EXPECT_EQ(validity(roster, roster.expires), RosterValidity::expired);
}

TEST(RosterVerifier, KnowsTheSitesOfItsRoster) {
  std::vector<Identity> identities;
  auto roster = roster_of(3, &identities);
  const auto& gone = roster.sites.back();
  roster.former = {{.id = gone.id, .name = gone.name, .identity = gone.identity}};
  roster.sites.pop_back();
  const auto verifier = make_verifier(roster);
  const auto message = bytes_of("message");
  const auto signature = identities[1].sign(context::accept, message);
  EXPECT_TRUE(verifier->verify(10, context::accept, message, signature));
  EXPECT_FALSE(verifier->verify(0, context::accept, message, signature));   // another site
  EXPECT_FALSE(verifier->verify(11, context::accept, message, signature));  // no site
  EXPECT_FALSE(verifier->verify(10, context::promise, message, signature));
  const auto of_former = identities[2].sign(context::accept, message);
  EXPECT_TRUE(verifier->verify(20, context::accept, message, of_former));
}

// --- The operator's signature

TEST(RosterSignature, CoversTheExactBytes) {
  const auto key = SigningKey::generate();
  const std::string text = "epoch = 3\n[[site]]\n";
  const auto signature = *sign_roster(bytes_of(text), key);
  const auto digest = verify_roster(bytes_of(text), signature, key.public_key());
  ASSERT_TRUE(digest) << digest.error().text();
  EXPECT_EQ(*digest, blake2b(bytes_of(text)));
  for (std::size_t at = 0; at < text.size(); ++at) {
    auto changed = text;
    changed[at] ^= 1;
    EXPECT_EQ(verify_roster(bytes_of(changed), signature, key.public_key()).error().code,
              ErrorCode::unauthenticated);
    EXPECT_FALSE(verify_roster(bytes_of(text.substr(0, at)), signature, key.public_key()));
  }
  EXPECT_FALSE(verify_roster(bytes_of(text + "\n"), signature, key.public_key()));
  EXPECT_EQ(
      verify_roster(bytes_of(text), signature, SigningKey::generate().public_key()).error().code,
      ErrorCode::unauthenticated);
}

TEST(RosterSignature, EveryDamageOfItsFileIsRefused) {
  const auto key = SigningKey::generate();
  const auto roster = bytes_of("roster");
  const auto good = *sign_roster(roster, key);
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(verify_roster(roster, good.substr(0, size), key.public_key())) << size;
  EXPECT_FALSE(verify_roster(roster, good + "\n", key.public_key()));
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] = bad[at] == '0' ? '1' : '0';
    EXPECT_FALSE(verify_roster(roster, bad, key.public_key())) << at;
  }
  Random random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string noise(random.below(300), '\0');
    for (auto& c : noise) c = static_cast<char>(random.below(256));
    EXPECT_FALSE(verify_roster(roster, noise, key.public_key()));
  }
}

TEST(RosterSignature, IsNotASitesSignature) {
  // Whoever gets an operator to sign a protocol message must not get a roster.
  const auto key = SigningKey::generate();
  const auto roster = bytes_of("roster");
  const auto file = *sign_roster(roster, key);
  const auto forged =
      file.substr(0, file.find('\n') + 1) + key.sign(context::open, roster).hex() + "\n";
  ASSERT_EQ(forged.size(), file.size());
  EXPECT_EQ(verify_roster(roster, forged, key.public_key()).error().code,
            ErrorCode::unauthenticated);
}

TEST(RosterSignature, OneMebibyteAtMost) {
  const auto key = SigningKey::generate();
  const Bytes most(kRosterBytesMax), more(kRosterBytesMax + 1);
  const auto signature = sign_roster(most, key);
  ASSERT_TRUE(signature);
  EXPECT_TRUE(verify_roster(most, *signature, key.public_key()));
  EXPECT_EQ(sign_roster(more, key).error().code, ErrorCode::too_large);
  EXPECT_EQ(verify_roster(more, *signature, key.public_key()).error().code, ErrorCode::too_large);
}

TEST(RosterSignature, ReadsBothFiles) {
  const TemporaryFolder folder;
  const auto disk = make_system_disk();
  const auto key = SigningKey::generate();
  const auto path = folder / "roster.toml";
  ASSERT_TRUE(replace_file(*disk, path, bytes_of("epoch = 1\n")));
  EXPECT_EQ(read_signed_roster(*disk, path, key.public_key()).error().code, ErrorCode::not_found);
  ASSERT_TRUE(
      replace_file(*disk, path + ".sig", bytes_of(*sign_roster(bytes_of("epoch = 1\n"), key))));
  const auto roster = read_signed_roster(*disk, path, key.public_key());
  ASSERT_TRUE(roster) << roster.error().text();
  EXPECT_EQ(text_of(roster->bytes), "epoch = 1\n");
  EXPECT_EQ(roster->digest, blake2b(roster->bytes));
  ASSERT_TRUE(replace_file(*disk, path, bytes_of("epoch = 2\n")));
  EXPECT_EQ(read_signed_roster(*disk, path, key.public_key()).error().code,
            ErrorCode::unauthenticated);
  ASSERT_TRUE(replace_file(*disk, path, Bytes(kRosterBytesMax + 1)));
  EXPECT_EQ(read_signed_roster(*disk, path, key.public_key()).error().code, ErrorCode::too_large);
}

// --- Epochs

TEST(RosterMemory, OlderEpochsAreRefusedAcrossRestarts) {
  const TemporaryFolder folder;
  const SeenRoster three{3, blake2b(bytes_of("three"))}, four{4, blake2b(bytes_of("four"))};
  {
    const auto disk = make_system_disk();
    EXPECT_FALSE(newest_seen_roster(*disk, folder.path())->has_value());
    EXPECT_TRUE(admit_roster(*disk, folder.path(), three));
    EXPECT_TRUE(admit_roster(*disk, folder.path(), three));  // again is fine
    EXPECT_TRUE(admit_roster(*disk, folder.path(), four));
  }
  const auto disk = make_system_disk();
  EXPECT_EQ(**newest_seen_roster(*disk, folder.path()), four);
  const auto refused = admit_roster(*disk, folder.path(), three);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::expired);
  EXPECT_THAT(refused.error().text(), HasSubstr("epoch 3"));
  EXPECT_EQ(**newest_seen_roster(*disk, folder.path()), four);
}

TEST(RosterMemory, TwoRostersOfOneEpochAreRefused) {
  const TemporaryFolder folder;
  const auto disk = make_system_disk();
  ASSERT_TRUE(admit_roster(*disk, folder.path(), {3, blake2b(bytes_of("one"))}));
  EXPECT_EQ(admit_roster(*disk, folder.path(), {3, blake2b(bytes_of("other"))}).error().code,
            ErrorCode::mismatch);
}

TEST(RosterMemory, DamageFailsClosed) {
  const TemporaryFolder folder;
  const auto disk = make_system_disk();
  const SeenRoster three{3, blake2b(bytes_of("three"))};
  ASSERT_TRUE(admit_roster(*disk, folder.path(), three));
  const auto path = folder / "roster.seen";
  const auto good = *read_file(*disk, path, 1000);
  const auto refused = [&](const Bytes& bytes) {
    EXPECT_TRUE(replace_file(*disk, path, bytes));
    const auto admitted = admit_roster(*disk, folder.path(), {9, {}});
    return !admitted && admitted.error().code == ErrorCode::corrupt;
  };
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_TRUE(refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))));
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_TRUE(refused(bad)) << at;
  }
  EXPECT_TRUE(refused(Bytes(10'000)));
}

TEST(RosterMemory, NothingIsAdmittedThatCannotBeKept) {
  const TemporaryFolder folder;
  const auto disk = make_system_disk();
  EXPECT_FALSE(admit_roster(*disk, folder / "missing", {1, {}}));
}

}  // namespace
}  // namespace isthmus::security
