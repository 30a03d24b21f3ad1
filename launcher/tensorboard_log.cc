#include "launcher/tensorboard_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <boost/crc.hpp>
#include <span>
#include <utility>

namespace isthmus::launcher {
namespace {

// ---- protocol buffers: fields with their number and wire type

constexpr std::uint32_t kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5;

void put_varint(ByteWriter& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.put(static_cast<std::uint8_t>(value | 0x80));
  out.put(static_cast<std::uint8_t>(value));
}
void put_key(ByteWriter& out, std::uint32_t number, std::uint32_t type) {
  put_varint(out, number << 3 | type);
}
void put_bytes(ByteWriter& out, std::uint32_t number, std::span<const std::byte> bytes) {
  put_key(out, number, kBytes);
  put_varint(out, bytes.size());
  out.raw(bytes);
}

// Event: double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
// SessionLog session_log = 7.
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr std::uint32_t kValue = 1;                     // of Summary, repeated
constexpr std::uint32_t kTag = 1, kSimpleValue = 2;     // of its Value
constexpr std::uint32_t kStatus = 1, kStatusStart = 1;  // of SessionLog

ByteWriter event_at(const Clock& clock, std::int64_t step) {
  ByteWriter out;
  put_key(out, kWallTime, kEightBytes);
  out.put(std::bit_cast<std::uint64_t>(seconds_of(clock.unix_time())));
  put_key(out, kStep, kVarint);
  put_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

// ---- records

std::uint32_t masked_crc(std::span<const std::byte> bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;  // CRC-32C
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "host";
  return name;
}

}  // namespace

Result<std::unique_ptr<TensorBoardLog>> TensorBoardLog::open(Disk& disk, const std::string& folder,
                                                             const Clock& clock) {
  ISTHMUS_CHECK(disk.make_folders(folder));
  static std::atomic<int> number = 0;  // of those of one process in one second
  const auto path = fmt::format("{}/events.out.tfevents.{:010.0f}.{}.{}.{}", folder,
                                seconds_of(clock.unix_time()), host_name(), ::getpid(), number++);
  ISTHMUS_TRY(auto file, disk.open(path, Disk::Open::create));
  std::unique_ptr<TensorBoardLog> log(new TensorBoardLog(std::move(file), clock));
  auto first = event_at(clock, 0);
  put_bytes(first, kFileVersion, bytes_of("brain.Event:2"));
  log->add(first.take());
  log->write();
  return log;
}

void TensorBoardLog::begin(std::int64_t next_step) {
  if (std::exchange(begun_, true)) return;
  auto event = event_at(clock_, next_step);
  ByteWriter session;
  put_key(session, kStatus, kVarint);
  put_varint(session, kStatusStart);
  put_bytes(event, kSessionLog, session.view());
  add(event.take());
}

void TensorBoardLog::inner_step(const runtime::StepReport& step) {
  begin(step.inner_step);
  scalar(step.inner_step, "train/loss", step.loss);
  scalar(step.inner_step, "train/learning_rate", step.learning_rate);
  scalar(step.inner_step, "train/gradient_norm", step.gradient_norm);
  const bool of_hidden = step.objective == runtime::Objective::masked_tokens;
  scalar(step.inner_step, of_hidden ? "train/hidden_tokens_per_second" : "train/tokens_per_second",
         step.tokens_per_second);
  if (const auto* routing = step.routing; routing != nullptr) {
    scalar(step.inner_step, "experts/imbalance", routing->imbalance());
    scalar(step.inner_step, "experts/dropped_share", routing->dropped_share());
    scalar(step.inner_step, "experts/balance_loss", step.mean(routing->balance_loss));
    scalar(step.inner_step, "experts/z_loss", step.mean(routing->z_loss));
  }
  write();
}

void TensorBoardLog::held_out(const runtime::HeldOutResult& held_out) {
  begin(held_out.inner_step);
  const auto tag = [&](const char* what) {
    return fmt::format("held_out/{}/{}", held_out.text, what);
  };
  const bool of_hidden = held_out.loss.objective == runtime::Objective::masked_tokens;
  if (held_out.loss.bits_per_byte)
    scalar(held_out.inner_step, tag(of_hidden ? "bits_per_hidden_byte" : "bits_per_byte"),
           *held_out.loss.bits_per_byte);
  scalar(held_out.inner_step, tag(of_hidden ? "hidden_perplexity" : "perplexity"),
         held_out.loss.perplexity);
  write();
}

void TensorBoardLog::scalar(std::int64_t step, std::string_view tag, double value) {
  ByteWriter one, summary;
  put_bytes(one, kTag, bytes_of(tag));
  put_key(one, kSimpleValue, kFourBytes);
  one.put(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  put_bytes(summary, kValue, one.view());
  auto event = event_at(clock_, step);
  put_bytes(event, kSummary, summary.view());
  add(event.take());
}

void TensorBoardLog::add(Bytes event) {
  ByteWriter length;
  length.put(static_cast<std::uint64_t>(event.size()));
  records_.raw(length.view()).put(masked_crc(length.view())).raw(event).put(masked_crc(event));
}

// Where the disk is full, training counts for more: those of this step are left out, and half of
// them is written over by the next.
void TensorBoardLog::write() {
  const auto records = records_.take();
  records_ = {};
  if (file_->write_at(end_, records))
    end_ += records.size();
  else
    (void)file_->truncate(end_);
}

}  // namespace isthmus::launcher
