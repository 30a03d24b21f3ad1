#include "runtime/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "kernels/bf16.h"

namespace isthmus::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kRankMax = 16;
constexpr int kHeaderDepthMax = 3;           // header, tensor, shape
constexpr std::size_t kHeaderAlignment = 8;  // so that data can be mapped as any type
constexpr std::size_t kConvertElements = std::size_t{1} << 18;

struct StoredType {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array kStoredTypes{
    StoredType{"F64", 8},  StoredType{"F32", 4},     StoredType{"F16", 2},    StoredType{"BF16", 2},
    StoredType{"I64", 8},  StoredType{"I32", 4},     StoredType{"I16", 2},    StoredType{"I8", 1},
    StoredType{"U64", 8},  StoredType{"U32", 4},     StoredType{"U16", 2},    StoredType{"U8", 1},
    StoredType{"BOOL", 1}, StoredType{"F8_E4M3", 1}, StoredType{"F8_E5M2", 1}};

// a * b, nothing when it does not fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Faults name the tensor; the caller adds the file.
Error tensor_fault(std::string_view name, std::string_view what) {
  return {ErrorCode::corrupt, fmt::format("tensor {}: {}", name, what)};
}

// The JSON of a header; a name that occurs twice is refused, where the parser would take the last.
Result<Json> parse_header(std::string_view text) {
  std::vector<std::set<std::string>> names;
  std::string repeated;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    too_deep = too_deep || depth > kHeaderDepthMax;
    if (too_deep) return false;
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second)
      repeated = value.get<std::string>();
    return true;
  };
  Json header = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (too_deep || header.is_discarded() || !header.is_object())
    return Error{ErrorCode::corrupt, "its header is not JSON of the expected form"};
  if (!repeated.empty())
    return Error{ErrorCode::corrupt, fmt::format("the name {} occurs twice", repeated)};
  return header;
}

Result<StoredTensor> parse_tensor(const std::string& name, const Json& entry,
                                  std::uint64_t data_bytes) {
  StoredTensor tensor;
  tensor.name = name;
  const auto field = [&](const char* key) { return entry.is_object() && entry.contains(key); };
  if (!field("dtype") || !field("shape") || !field("data_offsets") || !entry["dtype"].is_string() ||
      !entry["shape"].is_array() || !entry["data_offsets"].is_array() ||
      entry["data_offsets"].size() != 2 || entry["shape"].size() > kRankMax)
    return tensor_fault(name, "dtype, shape or data_offsets is missing or of the wrong kind");
  tensor.dtype = entry["dtype"].get<std::string>();
  const auto type = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                 [&](const StoredType& t) { return t.name == tensor.dtype; });
  if (type == kStoredTypes.end())
    return tensor_fault(name, fmt::format("the dtype {} is not known", tensor.dtype));
  tensor.elements = 1;
  for (const auto& size : entry["shape"]) {
    if (!size.is_number_unsigned()) return tensor_fault(name, "a size is no whole number");
    tensor.shape.push_back(size.get<std::uint64_t>());
    const auto elements = product(tensor.elements, tensor.shape.back());
    if (!elements) return tensor_fault(name, "the shape is too large");
    tensor.elements = *elements;
  }
  for (const auto& offset : entry["data_offsets"])
    if (!offset.is_number_unsigned()) return tensor_fault(name, "an offset is no whole number");
  const auto begin = entry["data_offsets"][0].get<std::uint64_t>();
  const auto end = entry["data_offsets"][1].get<std::uint64_t>();
  if (begin > end || end > data_bytes)
    return tensor_fault(
        name, fmt::format("its data is at {}..{}, but the file holds {} bytes: it was cut "
                          "short or damaged",
                          begin, end, data_bytes));
  tensor.bytes = end - begin;
  tensor.offset = begin;
  if (product(tensor.elements, type->bytes) != tensor.bytes)
    return tensor_fault(name, "its shape and the bytes of its data differ");
  return tensor;
}

Result<std::vector<StoredTensor>> parse_tensors(const Json& header, std::uint64_t data_start,
                                                std::uint64_t data_bytes) {
  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) continue;
    ISTHMUS_TRY(tensors.emplace_back(), parse_tensor(name, entry, data_bytes));
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  std::uint64_t expected = 0;
  for (auto& tensor : tensors) {
    if (tensor.offset != expected)
      return tensor_fault(tensor.name, "its data leaves a gap or overlaps another's");
    expected += tensor.bytes;
    tensor.offset += data_start;
  }
  if (expected != data_bytes)
    return Error{
        ErrorCode::corrupt,
        fmt::format("the tensors need {} bytes of data, the file has {}", expected, data_bytes)};
  return tensors;
}

float half_to_float(std::uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  float value = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                 : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return half & 0x8000 ? -value : value;
}

float bf16_to_float(std::uint16_t bits) { return kernels::to_float(bf16_t{bits}); }

std::uint16_t float_to_bf16(float value) { return kernels::to_bf16(value).bits; }

// To nearest, ties to even; what is too large becomes infinity.
std::uint16_t float_to_half(float value) {
  constexpr std::uint32_t kInfinity = 0x7f800000, kBiasDifference = 112U << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > kInfinity) return sign | 0x7e00;
  if (magnitude < 0x38800000)  // below 2^-14: multiples of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(
                      std::ldexp(static_cast<double>(std::bit_cast<float>(magnitude)), 24)));
  const auto rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  if (rounded >= 0x47800000) return sign | 0x7c00;
  return sign | static_cast<std::uint16_t>((rounded - kBiasDifference) >> 13);
}

bool is_half_infinity(std::uint16_t half) { return (half & 0x7fff) == 0x7c00; }

constexpr std::array kStoredDTypes{
    StoredDTypeName{StoredDType::f32, "f32", "float32", "F32", 4},
    StoredDTypeName{StoredDType::bf16, "bf16", "bfloat16", "BF16", 2},
    StoredDTypeName{StoredDType::f16, "f16", "float16", "F16", 2}};

}  // namespace

Result<void> check_shape(const StoredTensor& tensor, const Shape& needed) {
  const std::vector<std::uint64_t> sizes(needed.sizes().begin(), needed.sizes().end());
  if (tensor.shape == sizes) return {};
  return Error{ErrorCode::mismatch,
               fmt::format("tensor {} has shape [{}], the model needs [{}]", tensor.name,
                           fmt::join(tensor.shape, ", "), fmt::join(sizes, ", "))};
}

Result<SafetensorsReader> SafetensorsReader::open(Disk& disk, const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  ISTHMUS_TRY(reader.file_, disk.open(path, Disk::Open::read));
  ISTHMUS_TRY(const auto file_bytes, reader.file_->size());
  const auto read = [&]() -> Result<void> {
    std::uint64_t header_bytes = 0;
    if (file_bytes < sizeof(header_bytes))
      return Error{ErrorCode::corrupt, "it is shorter than any safetensors file"};
    ISTHMUS_CHECK(reader.file_->read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
    if (header_bytes > file_bytes - sizeof(header_bytes))
      return Error{ErrorCode::corrupt, "it ends inside its header: cut short, or no safetensors"};
    if (header_bytes > kSafetensorsHeaderBytesMax)
      return Error{ErrorCode::too_large, fmt::format("its header has {} bytes, more than {}",
                                                     header_bytes, kSafetensorsHeaderBytesMax)};
    std::string text(header_bytes, '\0');
    ISTHMUS_CHECK(
        reader.file_->read_at(sizeof(header_bytes), std::as_writable_bytes(std::span(text))));
    ISTHMUS_TRY(const auto header, parse_header(text));
    const std::uint64_t data_start = sizeof(header_bytes) + header_bytes;
    ISTHMUS_TRY(reader.tensors_, parse_tensors(header, data_start, file_bytes - data_start));
    if (header.contains(kMetadata) && !header[std::string(kMetadata)].is_object())
      return Error{ErrorCode::corrupt, "its metadata is no object"};
    if (header.contains(kMetadata))
      for (const auto& [key, value] : header[std::string(kMetadata)].items()) {
        if (!value.is_string()) return Error{ErrorCode::corrupt, "its metadata is not all text"};
        reader.metadata_[key] = value.get<std::string>();
      }
    return {};
  };
  if (auto status = read(); !status)
    return Error{status.error().code, fmt::format("{} cannot be used", path),
                 std::move(status).error()};
  return reader;
}

const StoredTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const StoredTensor& t) { return t.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

Result<void> SafetensorsReader::read(const StoredTensor& tensor, std::span<float> out) const {
  ISTHMUS_ASSERT(out.size() == tensor.elements);
  return read(tensor, 0, out);
}

Result<void> SafetensorsReader::read_finite(const StoredTensor& tensor,
                                            std::span<float> out) const {
  ISTHMUS_CHECK(read(tensor, out));
  if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }))
    return Error{ErrorCode::non_finite,
                 fmt::format("{}: tensor {} holds NaN or infinity", path_, tensor.name)};
  return {};
}

Result<void> SafetensorsReader::read(const StoredTensor& tensor, std::uint64_t first,
                                     std::span<float> out) const {
  ISTHMUS_ASSERT(first <= tensor.elements && out.size() <= tensor.elements - first);
  if (tensor.dtype == "F32")
    return file_->read_at(tensor.offset + sizeof(float) * first, std::as_writable_bytes(out));
  if (tensor.dtype != "BF16" && tensor.dtype != "F16")
    return Error{ErrorCode::unsupported,
                 fmt::format("tensor {} of {} has dtype {}; F32, BF16 and F16 can be read",
                             tensor.name, path_, tensor.dtype)};
  const auto convert = tensor.dtype == "BF16" ? bf16_to_float : half_to_float;
  std::vector<std::uint16_t> piece(std::min(out.size(), kConvertElements));
  for (std::size_t at = 0; at < out.size(); at += piece.size()) {
    const std::span part = std::span(piece).first(std::min(piece.size(), out.size() - at));
    ISTHMUS_CHECK(file_->read_at(tensor.offset + 2 * (first + at), std::as_writable_bytes(part)));
    std::transform(part.begin(), part.end(), out.begin() + static_cast<std::ptrdiff_t>(at),
                   convert);
  }
  return {};
}

std::span<const StoredDTypeName> stored_dtypes() { return kStoredDTypes; }

const StoredDTypeName& name_of(StoredDType dtype) {
  return kStoredDTypes[static_cast<std::size_t>(dtype)];
}

Result<SafetensorsWriter> SafetensorsWriter::create(
    Disk& disk, const std::string& path, std::span<const Entry> tensors, StoredDType dtype,
    const std::map<std::string, std::string>& metadata) {
  const auto& type = name_of(dtype);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::uint64_t data_bytes = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t begin = data_bytes;
    data_bytes += static_cast<std::uint64_t>(tensor.shape.elements()) * type.bytes;
    const auto sizes = tensor.shape.sizes();
    header[tensor.name] = {{"dtype", type.tensor_name},
                           {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
                           {"data_offsets", {begin, data_bytes}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  SafetensorsWriter writer;
  ISTHMUS_TRY(writer.file_, disk.open(path, Disk::Open::create));
  ByteWriter front;
  front.put(static_cast<std::uint64_t>(text.size())).raw(bytes_of(text));
  ISTHMUS_CHECK(writer.file_->write_at(0, front.view()));
  writer.at_ = front.size();
  writer.tensors_.assign(tensors.begin(), tensors.end());
  writer.dtype_ = dtype;
  return writer;
}

Result<void> SafetensorsWriter::add(std::span<const float> values) {
  ISTHMUS_ASSERT(next_ < tensors_.size());
  const auto& tensor = tensors_[next_++];
  ISTHMUS_ASSERT(static_cast<std::size_t>(tensor.shape.elements()) == values.size());
  if (dtype_ == StoredDType::f32) {
    ISTHMUS_CHECK(file_->write_at(at_, std::as_bytes(values)));
    at_ += values.size_bytes();
    return {};
  }
  std::vector<std::uint16_t> piece(std::min(values.size(), kConvertElements));
  for (std::size_t first = 0; first < values.size(); first += piece.size()) {
    const auto part = values.subspan(first, std::min(piece.size(), values.size() - first));
    const auto to = std::span(piece).first(part.size());
    std::transform(part.begin(), part.end(), to.begin(),
                   dtype_ == StoredDType::bf16 ? float_to_bf16 : float_to_half);
    if (dtype_ == StoredDType::f16) {
      const auto beyond = std::find_if(to.begin(), to.end(), is_half_infinity);
      if (beyond != to.end())
        return Error{ErrorCode::too_large,
                     fmt::format("tensor {} holds {}, and F16 at most 65504: store it as BF16",
                                 tensor.name, part[static_cast<std::size_t>(beyond - to.begin())])};
    }
    ISTHMUS_CHECK(file_->write_at(at_, std::as_bytes(to)));
    at_ += to.size_bytes();
  }
  return {};
}

Result<void> SafetensorsWriter::finish() {
  ISTHMUS_ASSERT(next_ == tensors_.size());
  return file_->sync();
}

Result<SafetensorsWriter> start_safetensors(Disk& disk, const std::string& path,
                                            std::span<const TensorToStore> tensors,
                                            const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& tensor : tensors) entries.push_back({tensor.name, tensor.shape});
  ISTHMUS_TRY(auto writer,
              SafetensorsWriter::create(disk, path, entries, StoredDType::f32, metadata));
  for (const auto& tensor : tensors) ISTHMUS_CHECK(writer.add(tensor.values));
  return writer;
}

Result<void> write_safetensors(Disk& disk, const std::string& path,
                               std::span<const TensorToStore> tensors,
                               const std::map<std::string, std::string>& metadata) {
  ISTHMUS_TRY(auto writer, start_safetensors(disk, path, tensors, metadata));
  return writer.finish();
}

}  // namespace isthmus::runtime
