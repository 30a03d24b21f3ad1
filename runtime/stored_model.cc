#include "runtime/stored_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/shallow_json.h"

namespace isthmus::runtime {
namespace {

constexpr std::uint64_t kIndexBytesMax = kSafetensorsHeaderBytesMax;
constexpr std::size_t kNamesShown = 3;
constexpr std::size_t kPieceElements = std::size_t{1} << 18;

// "a, b, c and 4 more"
std::string some_of(const std::vector<std::string>& names) {
  const auto shown = std::min(names.size(), kNamesShown);
  auto text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// A file of the directory itself, and no other.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

// What lies beside a model's parameters and is none of them: what old programs wrote, and of a BERT
// the heads of other objectives. transformers leaves it out as well.
bool is_left_over(std::string_view name, bool is_bert) {
  constexpr std::string_view kOfBert[] = {
      "bert.embeddings.position_ids", "bert.pooler.dense.weight", "bert.pooler.dense.bias",
      "cls.seq_relationship.weight", "cls.seq_relationship.bias"};
  return name.ends_with(".rotary_emb.inv_freq") ||
         (is_bert && std::ranges::find(kOfBert, name) != std::end(kOfBert));
}

// Of a head that is its embedding, the same parameter under its other name.
std::string_view repeated_by(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kRepeated[] = {
      {"lm_head.weight", "model.embed_tokens.weight"},
      {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
      {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  for (const auto& [other, of] : kRepeated)
    if (name == other) return of;
  return "";
}

// As BERT's first checkpoints call the parameters of LayerNorm.
std::string name_today(std::string name) {
  const auto replace = [&](std::string_view end, std::string_view with) {
    if (name.ends_with(end)) name.replace(name.size() - end.size(), end.size(), with);
  };
  replace(".LayerNorm.gamma", ".LayerNorm.weight");
  replace(".LayerNorm.beta", ".LayerNorm.bias");
  return name;
}

}  // namespace

Result<std::map<std::string, std::string>> parse_model_index(std::string_view text) {
  const auto json = parse_shallow_json(text);
  if (json.is_discarded() || !json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object())
    return Error{ErrorCode::corrupt, "it is cut short, or no JSON object with a weight_map"};
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>()))
      return Error{ErrorCode::corrupt,
                   fmt::format("for {} it names no file of this directory", tensor)};
    files[tensor] = file.get<std::string>();
  }
  return files;
}

Result<void> StoredModel::add_file(Disk& disk, const std::string& name) {
  ISTHMUS_TRY(auto reader, SafetensorsReader::open(disk, directory_ + "/" + name));
  files_.push_back(std::move(reader));
  for (const auto& tensor : files_.back().tensors())
    if (!tensors_.try_emplace(name_today(tensor.name), Place{files_.size() - 1, &tensor}).second)
      return Error{ErrorCode::corrupt, fmt::format("{}: the tensor {} is there twice", directory_,
                                                   name_today(tensor.name))};
  return {};
}

Result<void> StoredModel::follow_index(Disk& disk, const std::string& index) {
  ISTHMUS_TRY(const auto bytes, read_file(disk, index, kIndexBytesMax));
  auto map = parse_model_index(text_of(bytes));
  if (!map)
    return Error{map.error().code, fmt::format("{} cannot be used", index), std::move(map).error()};
  std::map<std::string, std::size_t> file_numbers;
  for (const auto& [tensor, file] : *map) file_numbers.try_emplace(file, 0);
  files_.reserve(file_numbers.size());  // tensors_ points into them
  for (auto& [file, number] : file_numbers) {
    number = files_.size();
    ISTHMUS_CHECK(add_file(disk, file));
  }
  for (const auto& [tensor, file] : *map) {
    const auto place = tensors_.find(name_today(tensor));
    if (place == tensors_.end() || place->second.file != file_numbers[file])
      return Error{ErrorCode::corrupt,
                   fmt::format("{} says that {} holds the tensor {}, which it does not", index,
                               file, tensor)};
  }
  return {};
}

Result<StoredModel> StoredModel::open(Disk& disk, const std::string& directory) {
  StoredModel model(directory);
  const auto file = directory + "/" + kModelFile;
  ISTHMUS_TRY(const bool whole, disk.exists(file));
  if (whole) {
    model.files_.reserve(1);
    ISTHMUS_CHECK(model.add_file(disk, kModelFile));
    return model;
  }
  const auto index = directory + "/" + kModelIndexFile;
  ISTHMUS_TRY(const bool sharded, disk.exists(index));
  if (!sharded)
    return Error{ErrorCode::not_found,
                 fmt::format("there is no {}, and no {} either", file, kModelIndexFile)};
  ISTHMUS_CHECK(model.follow_index(disk, index));
  return model;
}

Result<void> StoredModel::check(std::span<const CanonicalTensor> tensors) const {
  std::vector<std::string> missing, misshapen, extra;
  std::set<std::string_view> known;
  for (const auto& tensor : tensors) {
    known.insert(tensor.name);
    const auto place = tensors_.find(tensor.name);
    if (place == tensors_.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    if (const auto fits = check_shape(*place->second.tensor, tensor.shape); !fits)
      misshapen.push_back(fits.error().message);
  }
  const bool is_bert = known.contains("bert.embeddings.word_embeddings.weight");
  for (const auto& [name, place] : tensors_) {
    if (known.contains(name) || is_left_over(name, is_bert)) continue;
    ISTHMUS_TRY(const bool is_repetition, repeats(place, repeated_by(name)));
    if (!is_repetition) extra.push_back(name);
  }
  const auto fault = [&](std::string what) {
    return Error{ErrorCode::mismatch, fmt::format("{}: {}", directory_, what)};
  };
  if (!missing.empty()) return fault(fmt::format("there is no tensor {}", some_of(missing)));
  if (!misshapen.empty()) return fault(some_of(misshapen));
  if (!extra.empty())
    return fault(
        fmt::format("the model its config.json describes has no tensor {}", some_of(extra)));
  return {};
}

// Compared value by value.
Result<bool> StoredModel::repeats(const Place& tensor, std::string_view other) const {
  const auto found = tensors_.find(std::string(other));
  if (found == tensors_.end() || found->second.tensor->shape != tensor.tensor->shape) return false;
  const auto& first = found->second;
  const auto elements = tensor.tensor->elements;
  std::vector<float> ours(std::min<std::uint64_t>(elements, kPieceElements)), theirs(ours.size());
  for (std::uint64_t at = 0; at < elements; at += ours.size()) {
    const auto count = std::min<std::uint64_t>(ours.size(), elements - at);
    const auto a = std::span(ours).first(count), b = std::span(theirs).first(count);
    ISTHMUS_CHECK(files_[first.file].read(*first.tensor, at, a));
    ISTHMUS_CHECK(files_[tensor.file].read(*tensor.tensor, at, b));
    if (!std::equal(a.begin(), a.end(), b.begin())) return false;
  }
  return true;
}

Result<void> StoredModel::read(const CanonicalTensor& tensor, std::span<float> out) const {
  const auto place = tensors_.find(tensor.name);
  ISTHMUS_ASSERT(place != tensors_.end());
  return files_[place->second.file].read_finite(*place->second.tensor, out);
}

}  // namespace isthmus::runtime
