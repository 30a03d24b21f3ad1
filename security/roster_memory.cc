#include "security/roster_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/byte_stream.h"

namespace isthmus::security {
namespace {

// magic, epoch, digest; then the BLAKE2b-256 of all that.
constexpr std::uint64_t kMagic = 0x316e'6565'7373'6f72;  // "rosseen1"
constexpr std::size_t kBodyBytes = 8 + 8 + 32;

std::string path_in(const std::string& run_dir) { return run_dir + "/roster.seen"; }

Bytes encode(const SeenRoster& seen) {
  ByteWriter writer;
  writer.put(kMagic).put(seen.epoch).raw(seen.digest.bytes);
  const auto check = blake2b(writer.view());
  return writer.raw(check.bytes).take();
}

std::optional<SeenRoster> decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  SeenRoster seen;
  const auto magic = reader.get<std::uint64_t>();
  seen.epoch = reader.get<std::uint64_t>();
  const auto digest = reader.raw(seen.digest.bytes.size());
  const auto check = reader.raw(sizeof(Digest::bytes));
  if (!reader.done() || magic != kMagic) return {};
  const auto expected = blake2b(bytes.first(kBodyBytes));
  if (!std::equal(check.begin(), check.end(), expected.bytes.begin())) return {};
  std::copy(digest.begin(), digest.end(), seen.digest.bytes.begin());
  return seen;
}

}  // namespace

Result<std::optional<SeenRoster>> newest_seen_roster(const Disk& disk, const std::string& run_dir) {
  const auto path = path_in(run_dir);
  ISTHMUS_TRY(const bool there, disk.exists(path));
  if (!there) return std::optional<SeenRoster>{};
  const auto bytes = read_file(disk, path, 4096);
  if (!bytes && bytes.error().code != ErrorCode::too_large) return bytes.error();
  const auto seen = bytes ? decode(*bytes) : std::nullopt;
  if (!seen)
    return Error{ErrorCode::corrupt,
                 fmt::format("{} is damaged, so an old roster could not be told from a new one: "
                             "make sure that the roster is the newest, then remove the file",
                             path)};
  return seen;
}

Result<void> check_follows(const SeenRoster& newest, const SeenRoster& roster) {
  if (roster.epoch < newest.epoch)
    return Error{ErrorCode::expired,
                 fmt::format("the roster has epoch {}, but this site has already used epoch {}; an "
                             "older roster could bring back a withdrawn key: get the newest one "
                             "from the operator",
                             roster.epoch, newest.epoch)};
  if (roster.epoch == newest.epoch && roster.digest != newest.digest)
    return Error{ErrorCode::mismatch,
                 fmt::format("this site has already used another roster of epoch {0}, and every "
                             "change of a roster needs a higher epoch: the operator writes "
                             "epoch = {1} in it and signs it again (isthmus roster sign)",
                             roster.epoch, roster.epoch + 1)};
  return {};
}

Result<void> admit_roster(Disk& disk, const std::string& run_dir, const SeenRoster& roster) {
  ISTHMUS_TRY(const auto newest, newest_seen_roster(disk, run_dir));
  if (newest) ISTHMUS_CHECK(check_follows(*newest, roster));
  if (newest == roster) return {};
  return replace_file(disk, path_in(run_dir), encode(roster));
}

}  // namespace isthmus::security
