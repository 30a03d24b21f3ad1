#include "runtime/trainer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/byte_stream.h"
#include "runtime/shallow_json.h"
#include "security/hash.h"

namespace isthmus::runtime {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kTrainerFormat = 3;
constexpr std::uint64_t kBytesMax = std::uint64_t{16} << 20;
constexpr std::size_t kHashPieceBytes = std::size_t{1} << 20;
constexpr std::string_view kFiles[] = {kConfigFile, kModelFile, kAdapterConfigFile, kAdapterFile,
                                       kOptimizerFile};

std::string digest_of(const OrderedJson& json) {
  return security::blake2b(bytes_of(json.dump())).hex();
}

// Throws for anything else, where get() would convert.
template <class T>
T unsigned_of(const OrderedJson& json) {
  return static_cast<T>(json.get_ref<const OrderedJson::number_unsigned_t&>());
}

OrderedJson json_of(const FileIdentity& identity) {
  return {{"bytes", identity.bytes}, {"blake2b", identity.digest}};
}

FileIdentity identity_of(const OrderedJson& json) {
  return {.bytes = unsigned_of<std::uint64_t>(json.at("bytes")),
          .digest = json.at("blake2b").get<std::string>()};
}

}  // namespace

std::string encode(const TrainerFile& content) {
  const Progress& p = content.progress;
  OrderedJson json = {{"format", kTrainerFormat},
                      {"inner_step", p.inner_step},
                      {"data_position", p.data_position},
                      {"tokens", p.tokens},
                      {"seed", p.seed},
                      {"data_digest", p.data_digest},
                      {"frozen_digest", p.frozen_digest},
                      {"skipped_steps", p.skipped_steps},
                      {"gradient_norms", p.gradient_norms},
                      {"best_step", p.best_step},
                      {"best_bits_per_byte", p.best_bits},
                      {"outer_step", p.outer_step},
                      {"record", p.record},
                      {"run", p.run},
                      {"steps_since", p.steps_since},
                      {"tokens_since", p.tokens_since},
                      {"handed_steps", p.handed_steps},
                      {"handed_tokens", p.handed_tokens},
                      {"updates", content.updates},
                      {"files", OrderedJson::object()}};
  for (const auto& [name, identity] : content.files) json["files"][name] = json_of(identity);
  if (content.trained_on) json["files"][kTrainedOnFile] = json_of(*content.trained_on);
  const auto digest = digest_of(json);
  json["blake2b"] = digest;
  return json.dump(2) + "\n";
}

Result<TrainerFile> decode_trainer_file(std::string_view text) {
  auto json = parse_shallow_json<OrderedJson>(text);
  if (json.is_discarded() || !json.is_object() || !json.contains("blake2b") ||
      !json["blake2b"].is_string())
    return Error{ErrorCode::corrupt, "it was cut short or edited"};
  const auto digest = json["blake2b"].get<std::string>();
  json.erase("blake2b");
  if (digest_of(json) != digest)
    return Error{ErrorCode::corrupt, "its checksum does not fit: it was damaged or edited"};
  // Bytes that check were written by us; another version may still have other fields.
  TrainerFile content;
  try {
    if (const auto format = unsigned_of<std::int64_t>(json.at("format")); format != kTrainerFormat)
      return Error{ErrorCode::unsupported,
                   fmt::format("it has format {}, this version knows {}", format, kTrainerFormat)};
    const auto take = [&json](const char* key, auto& value) {
      value = unsigned_of<std::decay_t<decltype(value)>>(json.at(key));
    };
    Progress& p = content.progress;
    take("inner_step", p.inner_step);
    take("data_position", p.data_position);
    take("tokens", p.tokens);
    take("seed", p.seed);
    json.at("data_digest").get_to(p.data_digest);
    if (json.contains("frozen_digest")) json["frozen_digest"].get_to(p.frozen_digest);
    if (json.contains("skipped_steps")) take("skipped_steps", p.skipped_steps);
    if (json.contains("gradient_norms")) json["gradient_norms"].get_to(p.gradient_norms);
    if (json.contains("best_step")) take("best_step", p.best_step);
    if (json.contains("best_bits_per_byte")) json["best_bits_per_byte"].get_to(p.best_bits);
    take("outer_step", p.outer_step);
    json.at("record").get_to(p.record);
    json.at("run").get_to(p.run);
    take("steps_since", p.steps_since);
    take("tokens_since", p.tokens_since);
    take("handed_steps", p.handed_steps);
    take("handed_tokens", p.handed_tokens);
    take("updates", content.updates);
    const OrderedJson& files = json.at("files");
    for (const auto* always : {kConfigFile, kOptimizerFile}) (void)files.at(always);
    for (const auto& [name, identity] : files.items())
      if (name == kTrainedOnFile)
        content.trained_on = identity_of(identity);
      else
        content.files[name] = identity_of(identity);
    for (const auto& [name, identity] : content.files)
      if (std::ranges::find(kFiles, name) == std::end(kFiles))
        return Error{ErrorCode::corrupt, fmt::format("it names {}, which is none of ours", name)};
  } catch (const OrderedJson::exception& e) {
    return Error{ErrorCode::corrupt,
                 fmt::format("a field is missing, or is none of ours: {}", e.what())};
  }
  return content;
}

Result<TrainerFile> read_trainer_file(Disk& disk, const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kTrainerFile;
  const auto bytes = read_file(disk, path, kBytesMax);
  auto content = bytes ? decode_trainer_file(text_of(*bytes)) : Result<TrainerFile>(bytes.error());
  if (content) return content;
  // Without this file a folder with a checkpoint's name is none any more.
  const auto code =
      content.error().code == ErrorCode::not_found ? ErrorCode::corrupt : content.error().code;
  return Error{code, fmt::format("{} cannot be used", path), std::move(content).error()};
}

Result<FileIdentity> identity_of(Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto file, disk.open(path, Disk::Open::read));
  FileIdentity identity;
  ISTHMUS_TRY(identity.bytes, file->size());
  security::Hasher hasher;
  Bytes piece(kHashPieceBytes);
  for (std::uint64_t at = 0; at < identity.bytes; at += piece.size()) {
    const auto part =
        std::span(piece).first(std::min<std::uint64_t>(piece.size(), identity.bytes - at));
    ISTHMUS_CHECK(file->read_at(at, part));
    hasher.update(part);
  }
  identity.digest = hasher.finish().hex();
  return identity;
}

Result<void> check_file(Disk& disk, const std::string& path, const FileIdentity& expected) {
  auto found = identity_of(disk, path);
  if (!found) {
    const auto code =
        found.error().code == ErrorCode::not_found ? ErrorCode::corrupt : found.error().code;
    return Error{code, fmt::format("{} cannot be read", path), std::move(found).error()};
  }
  if (found->bytes != expected.bytes)
    return Error{ErrorCode::corrupt, fmt::format("{} has {} bytes, but {} were written: it was "
                                                 "cut short or overwritten",
                                                 path, found->bytes, expected.bytes)};
  if (*found != expected)
    return Error{ErrorCode::corrupt,
                 fmt::format("{} is damaged: its checksum is not that of what was written", path)};
  return {};
}

Result<void> check_files(Disk& disk, const std::string& checkpoint, const TrainerFile& trainer) {
  for (const auto& [name, identity] : trainer.files)
    ISTHMUS_CHECK(check_file(disk, checkpoint + "/" + name, identity));
  return {};
}

Result<void> check_as_written(Disk& disk, const std::string& directory) {
  ISTHMUS_TRY(const bool ours, disk.exists(directory + "/" + kTrainerFile));
  if (!ours) return {};
  ISTHMUS_TRY(const auto trainer, read_trainer_file(disk, directory));
  return check_files(disk, directory, trainer);
}

}  // namespace isthmus::runtime
