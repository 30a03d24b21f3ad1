#include "launcher/site_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>

namespace isthmus::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

SiteFile site_of(int ranks) {
  SiteFile file;
  file.site.name = "alpha";
  file.site.run_dir = "run";
  file.mesh.data = ranks;
  return file;
}

TEST(SiteProcesses, AGatewayAndOneRank) {
  auto file = site_of(1);
  file.site.roster = "roster.toml";
  const std::array<std::string, 1> overrides = {"sync.outer_steps=8"};
  const auto processes = site_processes(file, "alpha.toml", overrides, 3, 2);
  ASSERT_EQ(processes.size(), 2U);
  EXPECT_EQ(processes[0].name, "alpha gateway");
  EXPECT_TRUE(processes[0].is_gateway);
  const auto& arguments = processes[1].command.arguments;
  ASSERT_EQ(arguments.size(), 5U);
  EXPECT_THAT(std::vector(arguments.begin() + 1, arguments.end()),
              ElementsAre("train", "alpha.toml", "--set", "sync.outer_steps=8"));
  EXPECT_EQ(processes[1].stop_signal, SIGTERM);
  EXPECT_EQ(processes[1].site, 3);
}

TEST(SiteProcesses, ASiteAloneHasNoGateway) {
  EXPECT_EQ(site_processes(site_of(1), "alpha.toml", {}, 0, 2).size(), 1U);
}

TEST(SiteProcesses, RanksYieldOnlyWhenTheyOutnumberTheCpus) {
  auto file = site_of(4);
  const auto ranks = [&file](std::size_t cpus) {
    return site_processes(file, "alpha.toml", {}, 0, cpus).front();
  };
  EXPECT_EQ(ranks(4).command.arguments.front(), "mpirun");
  EXPECT_EQ(ranks(4).stop_signal, SIGUSR1);
  EXPECT_THAT(ranks(4).command.arguments, Not(Contains("mpi_yield_when_idle")));
  EXPECT_THAT(ranks(3).command.arguments, Contains("mpi_yield_when_idle"));
  file.site.roster = "roster.toml";  // the gateway needs one as well
  EXPECT_THAT(site_processes(file, "alpha.toml", {}, 0, 4).back().command.arguments,
              Contains("mpi_yield_when_idle"));
  file.site.roster.clear();
  file.train.cpus = {0, 1};  // of all that there are
  EXPECT_THAT(ranks(4).command.arguments, Contains("mpi_yield_when_idle"));
}

}  // namespace
}  // namespace isthmus::launcher
