#include "launcher/site_doubts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/host_here.h"

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CheckedSite site_of(const std::string& name, std::int64_t seed, const std::string& text,
                    const std::string& listen, const std::string& address) {
  CheckedSite site;
  site.text.path = name + ".toml";
  site.text.file.site.name = name;
  site.text.file.train.seed = seed;
  site.text.file.data.train = {{.path = text}};
  site.text.file.gateway.listen = listen;
  security::Roster roster;
  roster.sites = {{.id = 1,
                   .name = name,
                   .voter = true,
                   .identity = {},
                   .gateways = {{.address = address, .curve_key = {}, .curve_signature = {}}}}};
  site.roster = roster;
  return site;
}

TEST(SiteDoubts, NoneWhereThereIsNoReason) {
  const CheckedSite sites[] = {site_of("alpha", 0, "en", "0.0.0.0:7700", "a.example:7700"),
                               site_of("beta", 0, "de", "0.0.0.0:7700", "b.example:7700"),
                               site_of("gamma", 1, "en", "", "")};
  EXPECT_THAT(doubts_about(sites, {}), IsEmpty());
}

TEST(SiteDoubts, TheSameBatchesTwice) {
  const CheckedSite sites[] = {site_of("alpha", 3, "en", "", ""), site_of("beta", 3, "en", "", "")};
  EXPECT_THAT(doubts_about(sites, {}), ElementsAre(HasSubstr("train.seed = 3")));
}

TEST(SiteDoubts, ACongestionControlThatTheMachineDoesNotHave) {
  const Machine machine{.congestion_controls = {"reno", "cubic"}};
  const auto chosen = [&](const std::string& name) {
    CheckedSite sites[1];
    sites[0].text =
        parse_site_text("alpha.toml", "[gateway]\ncongestion_control = \"" + name + "\"\n", {});
    return doubts_about(sites, machine);
  };
  EXPECT_THAT(chosen("tsunami"),
              ElementsAre(HasSubstr("congestion_control = \"tsunami\" is not in force")));
  EXPECT_THAT(chosen("system"), IsEmpty());
  EXPECT_THAT(chosen("cubic"), IsEmpty());
}

// The file may be checked on another machine than the gateway's.
TEST(SiteDoubts, AnAddressOfAnotherMachine) {
  const CheckedSite sites[] = {site_of("alpha", 0, "en", "10.0.0.5:7700", "a.example:7700")};
  Machine machine;
  bool is_here = false;
  machine.is_here = [&](const std::string& host) {
    EXPECT_EQ(host, "10.0.0.5");
    return is_here;
  };
  EXPECT_THAT(doubts_about(sites, machine),
              ElementsAre(AllOf(HasSubstr("gateway.listen = \"10.0.0.5:7700\""),
                                HasSubstr("no address of this machine"))));
  is_here = true;
  EXPECT_THAT(doubts_about(sites, machine), IsEmpty());
}

TEST(SiteDoubts, WhatThisMachineIs) {
  for (const char* host : {"127.0.0.1", "0.0.0.0", "*", "127.1.2.3"})
    EXPECT_TRUE(is_host_here(host)) << host;
  for (const char* host : {"192.0.2.1", "fe80::1%none"})  // the first is of documentation
    EXPECT_FALSE(is_host_here(host)) << host;
}

TEST(SiteDoubts, APortThatOthersAreNotSentTo) {
  const CheckedSite sites[] = {site_of("alpha", 0, "en", "0.0.0.0:7790", "a.example:7700")};
  EXPECT_THAT(doubts_about(sites, {}),
              ElementsAre(HasSubstr("alpha.toml: gateway.listen = \"0.0.0.0:7790\"")));
}

TEST(SiteDoubts, SitesThatOnlyDialHaveNoLinkBetweenThem) {
  CheckedSite sites[] = {site_of("alpha", 0, "en", "", "a.example:7700"),
                         site_of("beta", 1, "en", "", "")};
  security::Roster roster = *sites[0].roster;
  roster.sites.push_back(sites[1].roster->sites.front());
  for (auto& site : sites) {
    site.text.file.site.roster = "run.roster";
    site.roster = roster;
  }
  EXPECT_THAT(doubts_about(sites, {}), IsEmpty());
  auto gamma = roster.sites.back();
  gamma.name = "gamma";
  for (auto& site : sites) site.roster->sites.push_back(gamma);
  EXPECT_THAT(doubts_about(sites, {}),
              ElementsAre(AllOf(HasSubstr("run.roster: beta and gamma have no address"),
                                HasSubstr("alpha sends on what they contribute"))));
}

TEST(SiteDoubts, AModelThatTheRunDoesNotBeginWith) {
  CheckedSite sites[] = {site_of("beta", 0, "en", "", "")};
  sites[0].text.file.model.from = "model";
  EXPECT_THAT(doubts_about(sites, {}), IsEmpty());
  auto alpha = sites[0].roster->sites.front();
  alpha.name = "alpha";
  sites[0].roster->sites.front().id = 2;
  sites[0].roster->sites.insert(sites[0].roster->sites.begin(), alpha);
  EXPECT_THAT(doubts_about(sites, {}), ElementsAre(HasSubstr("its first voter, alpha")));
}

TEST(SiteDoubts, ARateThatHeartbeatsFill) {
  CheckedSite sites[] = {site_of("alpha", 0, "en", "", "")};
  sites[0].text.file.gateway.rate_limit = 64'000;
  auto other = sites[0].roster->sites.front();
  while (sites[0].roster->sites.size() < 4) {
    EXPECT_THAT(doubts_about(sites, {}), IsEmpty());
    sites[0].roster->sites.push_back(other);
  }
  sites[0].roster->sites.push_back(other);
  EXPECT_THAT(doubts_about(sites, {}),
              ElementsAre(HasSubstr("the links to 4 sites alive takes about")));
}

TEST(SiteDoubts, MetricsForEverybody) {
  CheckedSite sites[] = {site_of("alpha", 0, "en", "", "")};
  for (const char* fine : {"", "127.0.0.1:9464", "localhost:9464", "[::1]:9464"}) {
    sites[0].text.file.gateway.metrics = fine;
    EXPECT_THAT(doubts_about(sites, {}), IsEmpty()) << fine;
  }
  sites[0].text.file.gateway.metrics = "0.0.0.0:9464";
  EXPECT_THAT(doubts_about(sites, {}), ElementsAre(HasSubstr("whoever can reach it")));
}

}  // namespace
}  // namespace isthmus::launcher
