#include "compress/codec.h"

#include <fmt/format.h>

#include "base/assert.h"
#include "compress/codecs.h"

namespace isthmus::compress {

std::string_view to_string(CodecId id) {
  switch (id) {
    case CodecId::none:
      return "none";
    case CodecId::bf16:
      return "bf16";
    case CodecId::int8:
      return "int8";
  }
  ISTHMUS_ASSERT(!"a codec without a name");
}

Result<CodecId> parse_codec(std::string_view name) {
  for (const auto id : {CodecId::none, CodecId::bf16, CodecId::int8})
    if (name == to_string(id)) return id;
  return Error{ErrorCode::invalid_argument,
               fmt::format("no codec is called \"{}\": there are none, bf16 and int8", name)};
}

Result<CodecId> codec_of_wire(std::uint8_t id) {
  if (id > static_cast<std::uint8_t>(CodecId::int8))
    return Error{ErrorCode::unsupported,
                 fmt::format("codec number {} is not known to this version", id)};
  return static_cast<CodecId>(id);
}

std::unique_ptr<Codec> make_codec(CodecId id) {
  switch (id) {
    case CodecId::none:
      return make_f32_codec();
    case CodecId::bf16:
      return make_bf16_codec();
    case CodecId::int8:
      return make_int8_codec();
  }
  ISTHMUS_ASSERT(!"a codec without an implementation");
}

}  // namespace isthmus::compress
