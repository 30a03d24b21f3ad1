// Fuzz target: a safetensors file.
#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "inter/sim/simulated_disk.h"
#include "runtime/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace isthmus::runtime {
namespace {

constexpr const char* kPath = "model.safetensors";
constexpr const char* kCopy = "copy.safetensors";

void check_file(Disk& disk, std::size_t file_bytes) {
  const auto reader = SafetensorsReader::open(disk, kPath);
  if (!reader) {
    ISTHMUS_ASSERT(reader.error().code == ErrorCode::corrupt ||
                   reader.error().code == ErrorCode::too_large);
    ISTHMUS_ASSERT(!reader.error().text().empty());
    return;
  }
  std::vector<std::vector<float>> values;
  std::vector<TensorToStore> copies;
  for (const auto& tensor : reader->tensors()) {
    ISTHMUS_ASSERT(reader->find(tensor.name) != nullptr);
    ISTHMUS_ASSERT(tensor.bytes <= file_bytes && tensor.offset <= file_bytes - tensor.bytes);
    ISTHMUS_ASSERT(tensor.elements <= tensor.bytes);
    auto& read = values.emplace_back(tensor.elements);
    if (!reader->read(tensor, read)) continue;
    if (tensor.shape.size() > Shape::kRankMax ||
        std::ranges::any_of(tensor.shape, [](auto size) { return size > 1 << 15; }))
      continue;  // of an empty tensor, sizes whose product does not fit
    const std::vector<std::int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
    copies.push_back({tensor.name, Shape(sizes), read});
  }
  // What can be read comes back from what is written of it.
  ISTHMUS_ASSERT(write_safetensors(disk, kCopy, copies, reader->metadata()));
  const auto again = SafetensorsReader::open(disk, kCopy);
  ISTHMUS_ASSERT(again && again->metadata() == reader->metadata());
  ISTHMUS_ASSERT(again->tensors().size() == copies.size());
  for (const auto& copy : copies) {
    const auto* const tensor = again->find(copy.name);
    ISTHMUS_ASSERT(tensor != nullptr && tensor->elements == copy.values.size());
    std::vector<float> read(tensor->elements);
    ISTHMUS_ASSERT(again->read(*tensor, read));
    ISTHMUS_ASSERT(std::ranges::equal(std::as_bytes(std::span(read)), std::as_bytes(copy.values)));
  }
}

Bytes file_of(std::string_view header, std::size_t data_bytes) {
  return ByteWriter()
      .put(static_cast<std::uint64_t>(header.size()))
      .raw(bytes_of(header))
      .raw(Bytes(data_bytes, std::byte{0x3c}))
      .take();
}

}  // namespace
}  // namespace isthmus::runtime

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  inter::sim::SimulatedDisk disk{Random(1)};
  ISTHMUS_ASSERT(
      (*disk.open(runtime::kPath, Disk::Open::create))->write_at(0, fuzz_input(data, size)));
  runtime::check_file(disk, size);
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using runtime::file_of;
  return {
      file_of(
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
          24),
      file_of(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
              R"("b":{"dtype":"F16","shape":[2,1,2],"data_offsets":[4,12]},)"
              R"("c":{"dtype":"I64","shape":[],"data_offsets":[12,20]},)"
              R"("d":{"dtype":"F8_E4M3","shape":[0,7],"data_offsets":[20,20]}}  )",
              20),
      file_of("{}", 0)};
}

}  // namespace isthmus
