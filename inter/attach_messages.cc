#include "inter/attach_messages.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "base/copy_to.h"

namespace isthmus::inter::attach {
namespace {

constexpr std::size_t kTensorBytesMin = 4 + 1 + 8 + 4;  // a name may be short, a shape is not empty
constexpr std::size_t kBoxBytesMin = 4 + 1 + 8 + 8;

std::string_view front(std::string_view text, std::size_t bytes_max) {
  return text.substr(0, bytes_max);
}

std::size_t read_rank(ByteReader& in) {
  const auto rank = in.get<std::uint8_t>();
  if (rank >= 1 && rank <= Shape::kRankMax) return rank;
  in.fail();
  return 0;
}

Shape read_sizes(ByteReader& in, std::size_t rank) {
  std::array<std::int64_t, Shape::kRankMax> sizes{};
  for (std::size_t i = 0; i < rank; ++i) sizes[i] = in.get<std::int64_t>();
  return Shape(std::span(sizes.data(), rank));
}

void write_sizes(ByteWriter& out, const Shape& shape) {
  for (const std::int64_t size : shape.sizes()) out.put(size);
}

bool read_flag(ByteReader& in) {
  const auto value = in.get<std::uint8_t>();
  if (value > 1) in.fail();
  return value == 1;
}

}  // namespace

void Attach::write(ByteWriter& out) const {
  out.put(version).put(rank).put(world).put(pid).string(
      front(model_settings, ModelLayout::kSettingsBytesMax));
  out.put(static_cast<std::uint32_t>(tensors.size()));
  for (const TensorInfo& tensor : tensors) {
    out.string(tensor.name).put(static_cast<std::uint8_t>(tensor.shape.rank()));
    write_sizes(out, tensor.shape);
    out.put(tensor.fragment);
  }
  out.put(static_cast<std::uint32_t>(boxes.size()));
  for (const Box& box : boxes) {
    ISTHMUS_ASSERT(box.first.rank() == box.count.rank());
    out.put(box.tensor).put(static_cast<std::uint8_t>(box.first.rank()));
    write_sizes(out, box.first);
    write_sizes(out, box.count);
  }
}

void Attach::read(ByteReader& in) {
  version = in.get<std::uint32_t>();
  if (in.ok() && version != kVersion) {
    in.raw(in.rest().size());  // whatever it says, the version is the answer
    return;
  }
  rank = in.get<std::uint32_t>();
  world = in.get<std::uint32_t>();
  pid = in.get<std::int64_t>();
  model_settings = in.string(ModelLayout::kSettingsBytesMax);
  tensors.resize(in.count(ModelLayout::kTensorsMax, kTensorBytesMin));
  for (TensorInfo& tensor : tensors) {
    tensor.name = in.string(ModelLayout::kNameBytesMax);
    tensor.shape = read_sizes(in, read_rank(in));
    tensor.fragment = in.get<std::uint32_t>();
    if (!in.ok()) return;
  }
  boxes.resize(in.count(kBoxesMax, kBoxBytesMin));
  for (Box& box : boxes) {
    box.tensor = in.get<std::uint32_t>();
    const std::size_t box_rank = read_rank(in);
    box.first = read_sizes(in, box_rank);
    box.count = read_sizes(in, box_rank);
    if (!in.ok()) return;
  }
}

void Contribute::write(ByteWriter& out) const { out.put(publication).put(step).put(tokens); }
void Contribute::read(ByteReader& in) {
  publication = in.get<std::uint64_t>();
  step = in.get<std::uint64_t>();
  tokens = in.get<std::uint64_t>();
}

void Took::write(ByteWriter& out) const { out.put(publication); }
void Took::read(ByteReader& in) { publication = in.get<std::uint64_t>(); }

void Progress::write(ByteWriter& out) const {
  out.put(inner_step).put(loss).put(tokens_per_second).string(front(state, kTextBytesMax));
}
void Progress::read(ByteReader& in) {
  inner_step = in.get<std::uint64_t>();
  loss = in.get<double>();
  tokens_per_second = in.get<double>();
  state = in.string(kTextBytesMax);
}

void Memory::write(ByteWriter& out) const {
  out.put(bytes).put(contribution_offset).put(state_offset).put(elements);
}
void Memory::read(ByteReader& in) {
  bytes = in.get<std::uint64_t>();
  contribution_offset = in.get<std::uint64_t>();
  state_offset = in.get<std::uint64_t>();
  elements = in.get<std::uint64_t>();
}

void State::write(ByteWriter& out) const {
  out.put(publication).put(step).raw(record.bytes).raw(run.bytes).put(merge);
  out.put(static_cast<std::uint8_t>(final_step)).put(static_cast<std::uint8_t>(contribution_open));
  out.put(contributed);
}
void State::read(ByteReader& in) {
  publication = in.get<std::uint64_t>();
  step = in.get<std::uint64_t>();
  for (auto* digest : {&record, &run}) copy_to(in.raw(digest->bytes.size()), digest->bytes.begin());
  merge = in.get<MergeRule>();
  if (merge != MergeRule::keep_progress) in.fail();
  final_step = read_flag(in);
  contribution_open = read_flag(in);
  contributed = in.get<std::uint64_t>();
}

void Taken::write(ByteWriter& out) const { out.put(step); }
void Taken::read(ByteReader& in) { step = in.get<std::uint64_t>(); }

void Refused::write(ByteWriter& out) const {
  out.string(front(code, kTextBytesMax)).string(front(sentence, kSentenceBytesMax));
}
void Refused::read(ByteReader& in) {
  code = in.string(kTextBytesMax);
  sentence = in.string(kSentenceBytesMax);
}

void StatusJson::write(ByteWriter& out) const { out.string(json); }
void StatusJson::read(ByteReader& in) { json = in.string(kReplyBytesMax); }

void LinkTest::write(ByteWriter& out) const {
  out.put(number).string(front(peer, kTextBytesMax)).put(static_cast<std::uint8_t>(force));
  out.put(time).put(bytes_max);
}
void LinkTest::read(ByteReader& in) {
  number = in.get<std::uint64_t>();
  peer = in.string(kTextBytesMax);
  force = read_flag(in);
  time = in.get<Nanoseconds>();
  bytes_max = in.get<std::uint64_t>();
  if (number == 0 || time < 0) in.fail();
}

void LinkTestJson::write(ByteWriter& out) const { out.string(json); }
void LinkTestJson::read(ByteReader& in) { json = in.string(kReplyBytesMax); }

Refused refused_of(const Error& why) { return {std::string(to_string(why.code)), why.text()}; }

Error error_of(const Refused& refused) {
  // A code of a later version is no reason to lose its sentence.
  ErrorCode code = ErrorCode::unsupported;
  for (int i = 0; i < static_cast<int>(ErrorCode::unsupported); ++i)
    if (to_string(static_cast<ErrorCode>(i)) == refused.code) code = static_cast<ErrorCode>(i);
  return Error{code, refused.sentence};
}

Header read_header(std::span<const std::byte> header) {
  ISTHMUS_ASSERT(header.size() == kHeaderBytes);
  ByteReader in(header);
  Header result;
  result.body_bytes = in.get<std::uint32_t>();
  result.kind = in.get<Kind>();
  return result;
}

std::size_t rank_message_bytes_max(Kind kind) {
  switch (kind) {
    case Kind::attach:
      return kAttachBytesMax;
    case Kind::initial:
    case Kind::contribute:
    case Kind::took:
    case Kind::progress:
    case Kind::leaving:
    case Kind::status:
    case Kind::link_test:
      return kRankMessageBytesMax;
    default:
      return 0;
  }
}

Bytes finish_frame(Kind kind, ByteWriter body) {
  ByteWriter frame;
  frame.put(static_cast<std::uint32_t>(body.size())).put(kind).raw(body.view());
  return frame.take();
}

}  // namespace isthmus::inter::attach
