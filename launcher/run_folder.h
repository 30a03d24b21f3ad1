// RunFolder: where the files of a site's run lie, below its run_dir.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/disk.h"
#include "base/result.h"

namespace isthmus::launcher {

class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string events() const { return path_ + "/events.jsonl"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string tensorboard() const { return path_ + "/tensorboard"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string outer() const { return path_ + "/outer"; }           // the gateway's durable state
  std::string socket() const { return path_ + "/gateway.sock"; }   // attach and status
  std::string lock() const { return path_ + "/lock"; }             // lock_run()
  std::string rank_lock() const { return path_ + "/ranks.lock"; }  // lock_ranks()
  std::string traffic() const { return path_ + "/traffic.json"; }  // what the links carried
  std::string report() const { return path_ + "/report.json"; }
  std::string gateway_output() const { return path_ + "/gateway.log"; }
  std::string rank_output() const { return path_ + "/ranks.log"; }

 private:
  std::string path_;
};

// Makes the folder and takes its lock, which whoever changes it holds: the gateway, or the first
// rank of a site that has none. Errors: busy when another process holds it; io, permission.
Result<std::unique_ptr<DiskLock>> lock_run(Disk& disk, const RunFolder& folder);

// The same for the first rank of a site that has a gateway: nobody else may train it meanwhile.
Result<std::unique_ptr<DiskLock>> lock_ranks(Disk& disk, const RunFolder& folder);

// Whether somebody holds the lock of the run. Changes nothing, and makes no file.
bool somebody_runs(const RunFolder& folder);

}  // namespace isthmus::launcher
