#include "runtime/model_export.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/adapter.h"
#include "runtime/canonical_tensor.h"
#include "runtime/family.h"
#include "runtime/model_description.h"
#include "runtime/model_directory.h"
#include "runtime/stored_model.h"
#include "runtime/trainer_file.h"

namespace isthmus::runtime {
namespace {

using Tensors = std::span<const CanonicalTensor>;

// In the order of the tensors, as many in each file as fit.
std::vector<Tensors> cut_into_files(Tensors tensors, const ExportOptions& options) {
  std::vector<Tensors> files;
  std::uint64_t bytes = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto size = tensors[i].elements() * name_of(options.dtype).bytes;
    if (i > first && bytes + size > options.file_bytes_max) {
      files.push_back(tensors.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += size;
  }
  files.push_back(tensors.subspan(first));
  return files;
}

std::string file_name(std::size_t file, std::size_t files) {
  return files == 1 ? kModelFile : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files);
}

// The parameters of a directory; of an adapter those of its base, with it merged into them.
class Source {
 public:
  static Result<Source> open(Disk& disk, const std::string& directory) {
    ISTHMUS_TRY(const bool has_adapter, holds_adapter(disk, directory));
    if (!has_adapter) return open(disk, directory, std::nullopt);
    ISTHMUS_TRY(auto adapter, StoredAdapter::open(disk, directory));
    ISTHMUS_TRY(const auto base, base_of_adapter(disk, directory, adapter.description()));
    ISTHMUS_CHECK(check_as_written(disk, base));
    ISTHMUS_TRY(auto source, open(disk, base, std::move(adapter)));
    ISTHMUS_CHECK(source.adapter_->check(source.config()));
    return source;
  }

  const ModelConfig& config() const { return config_; }
  std::span<const CanonicalTensor> tensors() const { return layout_.tensors; }
  Result<void> read(const CanonicalTensor& tensor, std::span<float> out) const {
    ISTHMUS_CHECK(stored_.read(tensor, out));
    return adapter_ ? adapter_->merge_into(tensor, out) : Result<void>();
  }

 private:
  Source(ModelConfig config, ParameterLayout layout, StoredModel stored,
         std::optional<StoredAdapter> adapter)
      : config_(std::move(config)),
        layout_(std::move(layout)),
        stored_(std::move(stored)),
        adapter_(std::move(adapter)) {}

  static Result<Source> open(Disk& disk, const std::string& directory,
                             std::optional<StoredAdapter> adapter) {
    ISTHMUS_TRY(auto config, read_model_config(disk, directory));
    const BatchShape least{.micro_batch = 1, .sequence = 1};
    auto layout = lay_out_parameters(build_program(config, least, Head::loss));
    ISTHMUS_TRY(auto stored, StoredModel::open(disk, directory));
    ISTHMUS_CHECK(stored.check(layout.tensors));
    return Source(std::move(config), std::move(layout), std::move(stored), std::move(adapter));
  }

  ModelConfig config_;
  ParameterLayout layout_;
  StoredModel stored_;
  std::optional<StoredAdapter> adapter_;
};

Result<void> write_file(Disk& disk, const std::string& path, const Source& source, Tensors tensors,
                        StoredDType dtype) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& tensor : tensors) entries.push_back({tensor.name, tensor.shape});
  ISTHMUS_TRY(auto writer,
              SafetensorsWriter::create(disk, path, entries, dtype, {{"format", "pt"}}));
  for (const auto& tensor : tensors) {
    std::vector<float> values(tensor.elements());
    ISTHMUS_CHECK(source.read(tensor, values));
    ISTHMUS_CHECK(writer.add(values));
  }
  return writer.finish();
}

std::string index_text(const std::vector<Tensors>& files, StoredDType dtype) {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const auto& tensor : files[i]) {
      index["weight_map"][tensor.name] = file_name(i, files.size());
      bytes += tensor.elements() * name_of(dtype).bytes;
    }
  index["metadata"]["total_size"] = bytes;
  return index.dump(2) + "\n";
}

Result<void> write_all(Disk& disk, const std::string& directory, const std::string& source,
                       const ExportOptions& options) {
  ISTHMUS_TRY(const auto model, Source::open(disk, source));
  ISTHMUS_CHECK(replace_file(disk, directory + "/" + kConfigFile,
                             bytes_of(to_config_json(model.config(), options.dtype))));
  const auto files = cut_into_files(model.tensors(), options);
  for (std::size_t i = 0; i < files.size(); ++i)
    ISTHMUS_CHECK(write_file(disk, directory + "/" + file_name(i, files.size()), model, files[i],
                             options.dtype));
  if (files.size() > 1)
    ISTHMUS_CHECK(replace_file(disk, directory + "/" + kModelIndexFile,
                               bytes_of(index_text(files, options.dtype))));
  return disk.sync_folder(directory);
}

}  // namespace

Result<void> export_model(Disk& disk, const std::string& source, const std::string& destination,
                          const ExportOptions& options) {
  ISTHMUS_TRY(const auto directory, model_directory(disk, source));
  ISTHMUS_CHECK(check_as_written(disk, directory));
  auto path = std::filesystem::absolute(destination).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "model/"
  const auto folder = path.string();
  ISTHMUS_TRY(const bool there, disk.exists(folder));
  if (there)
    return Error{ErrorCode::already_exists,
                 fmt::format("{} is there already: name a new folder, or move it away", folder)};
  const auto writing = (path.parent_path() / (".writing_" + path.filename().string())).string();
  std::error_code ignored;
  std::filesystem::remove_all(writing, ignored);  // of an export that was interrupted
  ISTHMUS_CHECK(disk.make_folders(writing));
  auto written = write_all(disk, writing, directory, options);
  if (written) written = disk.rename(writing, folder);
  if (!written) std::filesystem::remove_all(writing, ignored);
  return written;
}

}  // namespace isthmus::runtime
