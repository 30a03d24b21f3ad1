// The codecs there are, one file each. Callers use make_codec (compress/codec.h).
#pragma once

#include <memory>

#include "compress/codec.h"

namespace isthmus::compress {

std::unique_ptr<Codec> make_f32_codec();   // compress/FORMATS.md#none
std::unique_ptr<Codec> make_bf16_codec();  // compress/FORMATS.md#bf16
std::unique_ptr<Codec> make_int8_codec();  // compress/FORMATS.md#int8

}  // namespace isthmus::compress
