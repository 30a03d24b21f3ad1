#include "runtime/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>
#include <utility>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/utf8_state.h"

namespace isthmus::runtime {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr std::string_view kUnknown = " \xE2\x81\x87 ";  // as the library decodes it
constexpr int kPiecesMax = 1 << 24;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                         security::Digest digest)
      : processor_(std::move(processor)), digest_(digest) {
    const int count = processor_->GetPieceSize();
    for (int id = 0; id < count; ++id) pieces_.push_back(bytes_of_piece(id));
  }

  Result<void> encode(std::string_view text, std::vector<std::int32_t>& ids,
                      Specials) const override {
    if (!is_utf8(text))
      return Error{ErrorCode::invalid_argument,
                   "the text is not UTF-8, which this tokenizer needs; convert it (iconv)"};
    std::vector<int> encoded;
    if (const auto status = processor_->Encode(text, &encoded); !status.ok())
      return Error{ErrorCode::invalid_argument,
                   fmt::format("SentencePiece refuses the text: {}", status.error_message())};
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    return {};
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    const auto status = processor_->Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    ISTHMUS_ASSERT(status.ok());  // which it is for all ids below vocabulary()
    return text;
  }
  std::string_view piece(std::int32_t id) const override {
    ISTHMUS_ASSERT(id >= 0 && id < vocabulary());
    return pieces_[static_cast<std::size_t>(id)];
  }
  std::int32_t vocabulary() const override { return static_cast<std::int32_t>(pieces_.size()); }
  std::optional<std::int32_t> begin() const override { return known(processor_->bos_id()); }
  std::optional<std::int32_t> end() const override { return known(processor_->eos_id()); }
  std::optional<std::int32_t> special(std::string_view) const override { return std::nullopt; }
  const security::Digest& digest() const override { return digest_; }
  std::string description() const override {
    return fmt::format("SentencePiece of {} tokens", vocabulary());
  }

 private:
  static std::optional<std::int32_t> known(int id) {
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }

  std::string bytes_of_piece(int id) const {
    if (processor_->IsControl(id)) return {};
    if (processor_->IsUnknown(id)) return std::string(kUnknown);
    const std::string& text = processor_->IdToPiece(id);
    if (processor_->IsByte(id)) {  // "<0xE4>"
      unsigned byte = 0;
      std::from_chars(text.data() + 3, text.data() + text.size() - 1, byte, 16);
      return std::string(1, static_cast<char>(byte));
    }
    std::string bytes;
    for (std::size_t at = 0; at < text.size();) {
      const bool is_space = std::string_view(text).substr(at).starts_with(kSpaceMark);
      bytes += is_space ? ' ' : text[at];
      at += is_space ? kSpaceMark.size() : 1;
    }
    return bytes;
  }

  const std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  const security::Digest digest_;
  std::vector<std::string> pieces_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(std::string_view model) {
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  if (const auto status = processor->LoadFromSerializedProto(model); !status.ok())
    return Error{ErrorCode::corrupt, fmt::format("neither a tokenizer.json nor a whole "
                                                 "SentencePiece model: {}",
                                                 status.error_message())};
  const int count = processor->GetPieceSize();
  if (count <= 0 || count > kPiecesMax)
    return Error{ErrorCode::corrupt, fmt::format("the SentencePiece model has {} pieces", count)};
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus SentencePiece 1"));
  hasher.update(bytes_of(model));
  return std::make_unique<SentencePieceTokenizer>(std::move(processor), hasher.finish());
}

}  // namespace isthmus::runtime
