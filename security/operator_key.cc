#include "security/operator_key.h"

#include <fmt/format.h>

#include "base/byte_stream.h"
#include "security/secret_file.h"

namespace isthmus::security {
namespace {

constexpr std::string_view kOperatorTitle = "isthmus secret operator v1";

}  // namespace

Result<void> save_operator_key(Disk& disk, const SigningKey& key, const std::string& path) {
  ISTHMUS_CHECK(write_secret_file(path, kOperatorTitle, {key.seed()}));
  const auto text = fmt::format("operator_key = \"{}\"\n", key.public_key().hex());
  return replace_file(disk, path + ".pub", bytes_of(text));
}

Result<SigningKey> load_operator_key(const std::string& path) {
  ISTHMUS_TRY(auto keys, read_secret_file(path, kOperatorTitle, 1));
  return SigningKey::from_seed(keys[0].bytes());
}

}  // namespace isthmus::security
