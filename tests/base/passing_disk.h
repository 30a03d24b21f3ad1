// A disk that passes all on to another one: tests override what they are about.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/disk.h"

namespace isthmus {

class PassingDisk : public Disk {
 public:
  explicit PassingDisk(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    return disk_->open(path, how);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return disk_->rename(from, to);
  }
  Result<void> remove(const std::string& path) override { return disk_->remove(path); }
  Result<bool> exists(const std::string& path) const override { return disk_->exists(path); }
  Result<std::vector<std::string>> list(const std::string& folder) const override {
    return disk_->list(folder);
  }
  Result<void> make_folders(const std::string& path) override { return disk_->make_folders(path); }
  Result<void> sync_folder(const std::string& path) override { return disk_->sync_folder(path); }
  Result<std::unique_ptr<DiskLock>> lock(const std::string& path) override {
    return disk_->lock(path);
  }

 private:
  std::shared_ptr<Disk> disk_;
};

class PassingFile : public File {
 public:
  explicit PassingFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    return file_->read_at(offset, out);
  }
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return file_->write_at(offset, bytes);
  }
  Result<void> truncate(std::uint64_t bytes) override { return file_->truncate(bytes); }
  Result<std::uint64_t> size() const override { return file_->size(); }
  Result<void> sync() override { return file_->sync(); }

 private:
  std::unique_ptr<File> file_;
};

}  // namespace isthmus
