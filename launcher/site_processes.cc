#include "launcher/site_processes.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <utility>

#include "launcher/run_folder.h"

namespace isthmus::launcher {
namespace {

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::vector<std::string> command_of(std::string_view command, const std::string& path,
                                    std::span<const std::string> overrides) {
  std::vector<std::string> arguments = {own_path(), std::string(command), path};
  for (const auto& one : overrides) {
    arguments.push_back("--set");
    arguments.push_back(one);
  }
  return arguments;
}

// A rank that waits for others spins, which is quickest unless it keeps one of them, or the gateway
// that they all wait for, from a CPU.
std::vector<std::string> mpirun(const SiteFile& file, std::size_t cpus) {
  const auto ranks = static_cast<std::size_t>(file.mesh.ranks());
  std::vector<std::string> arguments = {"mpirun",    "-n",   fmt::format("{}", ranks),
                                        "--bind-to", "none", "--oversubscribe"};
  const auto given = file.train.cpus.empty() ? cpus : file.train.cpus.size();
  const auto busy = ranks + (file.alone() ? 0 : 1);
  if (busy > given) arguments.insert(arguments.end(), {"--mca", "mpi_yield_when_idle", "1"});
  if (::geteuid() == 0) arguments.push_back("--allow-run-as-root");
  return arguments;
}

}  // namespace

std::vector<SupervisedProcess> site_processes(const SiteFile& file, const std::string& path,
                                              std::span<const std::string> overrides, int number,
                                              std::size_t cpus) {
  const RunFolder folder(file.site.run_dir);
  std::vector<SupervisedProcess> processes;
  if (!file.alone())
    processes.push_back({.name = file.site.name + " gateway",
                         .command = {.arguments = command_of("gateway", path, overrides),
                                     .log_path = folder.gateway_output()},
                         .is_gateway = true,
                         .site = number});
  ChildCommand ranks{.arguments = command_of("train", path, overrides),
                     .log_path = folder.rank_output()};
  const bool several = file.mesh.ranks() > 1;
  if (several) {
    const auto start = mpirun(file, cpus);
    ranks.arguments.insert(ranks.arguments.begin(), start.begin(), start.end());
  }
  // mpirun would follow SIGTERM with SIGKILL before a checkpoint is written, but passes SIGUSR1 on
  // as it is.
  processes.push_back({.name = file.site.name + " ranks",
                       .command = std::move(ranks),
                       .site = number,
                       .stop_signal = several ? SIGUSR1 : SIGTERM});
  return processes;
}

}  // namespace isthmus::launcher
