#include "launcher/roster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "security/identity.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

security::RosterSite site_of(std::uint32_t id, std::string name, std::string address) {
  const auto identity = security::Identity::generate();
  const auto& part = identity.public_part();
  return {.id = id,
          .name = std::move(name),
          .voter = true,
          .identity = part.identity,
          .gateways = {{.address = std::move(address),
                        .curve_key = part.curve_key,
                        .curve_signature = part.curve_signature}}};
}

security::Roster two_sites() {
  security::Roster roster;
  roster.epoch = 3;
  roster.expires = 1'800'000'000 * kSecond;
  roster.sites = {site_of(1, "alpha", "alpha.example:7700"), site_of(4, "beta", "")};
  return roster;
}

TEST(RosterFile, ReadsWhatItWrites) {
  const auto roster = two_sites();
  const auto source = roster_text(roster);
  const auto text = parse_roster_text("roster.toml", source);
  ASSERT_EQ(text.faults.text("roster.toml", source), "");
  EXPECT_EQ(text.roster.epoch, 3U);
  EXPECT_EQ(text.roster.expires, roster.expires);
  ASSERT_EQ(text.roster.sites.size(), 2U);
  EXPECT_EQ(text.roster.sites[0].gateways[0].address, "alpha.example:7700");
  EXPECT_EQ(text.roster.sites[1].id, 4U);
  EXPECT_EQ(text.roster.sites[1].identity, roster.sites[1].identity);
  EXPECT_EQ(text.roster.sites[1].gateways[0].address, "");
  EXPECT_NE(text.roster.digest, security::Digest{});
  EXPECT_EQ(roster_text(text.roster), source);
}

TEST(RosterFile, NamesTheRunAndWhereItGoesOn) {
  auto roster = two_sites();
  const auto gone = site_of(2, "gone", "");
  roster.former = {{.id = gone.id, .name = gone.name, .identity = gone.identity}};
  roster.run = security::blake2b({});
  roster.recoveries = {
      {.run = *roster.run, .step = 41, .root = security::Digest{}, .voters = {1, 4}},
      {.run = *roster.run, .step = 60, .root = security::Digest{}, .voters = {4}}};
  const auto source = roster_text(roster);
  const auto text = parse_roster_text("roster.toml", source);
  ASSERT_EQ(text.faults.text("roster.toml", source), "");
  EXPECT_EQ(text.roster.run, roster.run);
  ASSERT_EQ(text.roster.former.size(), 1U);
  EXPECT_EQ(text.roster.former[0].name, "gone");
  EXPECT_EQ(text.roster.former[0].identity, gone.identity);
  ASSERT_EQ(text.roster.recoveries.size(), 2U);
  EXPECT_EQ(text.roster.recoveries[0].run, *roster.run);
  EXPECT_EQ(text.roster.recoveries[0].step, 41U);
  EXPECT_EQ(text.roster.recoveries[0].voters, (std::vector<std::uint32_t>{1, 4}));
  EXPECT_EQ(text.roster.recoveries[1].step, 60U);
  EXPECT_EQ(roster_text(text.roster), source);

  roster.recoveries[1].step = 41;
  const auto twice = parse_roster_text("roster.toml", roster_text(roster));
  EXPECT_THAT(twice.faults.text("roster.toml", twice.source),
              HasSubstr("the steps of recoveries ascend"));

  roster.recoveries[1].voters = {4, 7};
  const auto unknown = parse_roster_text("roster.toml", roster_text(roster));
  EXPECT_THAT(unknown.faults.text("roster.toml", unknown.source),
              HasSubstr("the recovery names voter 7, which is no site"));
  const auto wrong = parse_roster_text("roster.toml", source + "witnesses = 2\n");
  EXPECT_THAT(wrong.faults.text("roster.toml", wrong.source),
              HasSubstr("[[recovery]] has no \"witnesses\""));
}

TEST(RosterFile, NextIdIsAboveEveryId) {
  auto roster = two_sites();
  const auto old = parse_roster_text("roster.toml", roster_text(roster));
  EXPECT_TRUE(old.faults.empty()) << "rosters of older versions have none";
  EXPECT_EQ(old.roster.next_id, 0U);
  roster.next_id = roster.sites.back().id + 5;
  const auto text = parse_roster_text("roster.toml", roster_text(roster));
  ASSERT_TRUE(text.faults.empty());
  EXPECT_EQ(text.roster.next_id, roster.next_id);
  roster.next_id = roster.sites.back().id;
  const auto wrong = parse_roster_text("roster.toml", roster_text(roster));
  EXPECT_THAT(wrong.faults.text("roster.toml", wrong.source),
              HasSubstr("next_id must be above every id"));
}

TEST(RosterFile, AllFaultsAtOnce) {
  const auto text = parse_roster_text("roster.toml", R"(epoch = 0
expires = "tomorrow"
[[site]]
id = -1
nane = "alpha"
identity = "12"
gateway = 5
)");
  const auto faults = text.faults.text(text.path, text.source);
  for (const char* expected :
       {"roster.toml:1:9: error: epoch must be a whole number from 1 to",
        "roster.toml:2:11: error: expires must be a date like 2027-06-30T00:00:00Z",
        "roster.toml:4:6: error: id must be a whole number from 0 to 4294967295",
        "roster.toml:5:1: error: [[site]] has no \"nane\"; did you mean \"name\"?",
        "[[site]] needs name",
        "roster.toml:6:12: error: identity (the site's public key): expected 64 hexadecimal digits",
        "roster.toml:7:11: error: gateway must be written as [[site.gateway]]"})
    EXPECT_THAT(faults, HasSubstr(expected));
  EXPECT_EQ(text.faults.size(), 7U) << faults;
}

TEST(RosterFile, SecurityHasTheLastWord) {
  auto roster = two_sites();
  roster.sites[1].gateways[0].curve_signature = roster.sites[0].gateways[0].curve_signature;
  const auto text = parse_roster_text("roster.toml", roster_text(roster));
  EXPECT_EQ(text.faults.size(), 1U);
  EXPECT_THAT(text.faults.text("roster.toml", text.source), HasSubstr("beta"));
}

TEST(RosterFile, EveryTruncationIsRefused) {
  const auto source = roster_text(two_sites());
  const auto second = source.rfind("\n[[site]]");  // what comes before is a roster of one site
  for (std::size_t n = 0; n + 2 < source.size(); ++n)
    EXPECT_EQ(parse_roster_text("roster.toml", source.substr(0, n)).faults.empty(),
              n + 1 >= second && n <= second + 1)
        << n;
}

TEST(RosterFile, TheFirstSevenVoteByDefault) {
  security::Roster roster = two_sites();
  roster.sites.clear();
  for (std::uint32_t i = 1; i <= 8; ++i)
    roster.sites.push_back(site_of(i, "site" + std::to_string(i), ""));
  auto source = roster_text(roster);
  for (std::size_t at; (at = source.find("voter = true\n")) != std::string::npos;)
    source.erase(at, std::string_view("voter = true\n").size());
  const auto text = parse_roster_text("roster.toml", source);
  ASSERT_TRUE(text.faults.empty());
  EXPECT_TRUE(text.roster.sites[6].voter);
  EXPECT_FALSE(text.roster.sites[7].voter);
}

TEST(Calendar, BackAndForth) {
  EXPECT_EQ(*parse_calendar("1970-01-01T00:00:01Z"), kSecond);
  EXPECT_EQ(*parse_calendar("2027-06-30"), *parse_calendar("2027-06-30T00:00:00Z"));
  EXPECT_EQ(calendar_text(*parse_calendar("2028-02-29T23:59:58Z")), "2028-02-29T23:59:58Z");
  for (const char* wrong : {"", "2027", "2027-02-29", "2027-13-01", "2027-01-01T24:00:00Z",
                            "2027-01-01 00:00:00Z", "27-01-01", "2027-1-1", "9999-01-01"})
    EXPECT_FALSE(parse_calendar(wrong)) << wrong;
}

}  // namespace
}  // namespace isthmus::launcher
