#include "runtime/byte_tokenizer.h"

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/text_tokens.h"

namespace isthmus::runtime {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : digest_(security::blake2b(bytes_of("isthmus bytes 1"))) {
    for (std::size_t i = 0; i < sizeof(bytes_); ++i) bytes_[i] = static_cast<char>(i);
  }
  Result<void> encode(std::string_view text, std::vector<std::int32_t>& ids,
                      Specials) const override {
    const auto first = ids.size();
    ids.resize(first + text.size());
    for (std::size_t i = 0; i < text.size(); ++i)
      ids[first + i] = static_cast<std::uint8_t>(text[i]);
    return {};
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const auto id : ids) text += piece(id);
    return text;
  }
  std::string_view piece(std::int32_t id) const override {
    ISTHMUS_ASSERT(id >= 0 && id < kTextVocabulary);
    if (id >= kByteTokens) return {};
    return {&bytes_[id], 1};
  }
  std::int32_t vocabulary() const override { return kTextVocabulary; }
  std::optional<std::int32_t> begin() const override { return std::nullopt; }
  std::optional<std::int32_t> end() const override { return kEndToken; }
  std::optional<std::int32_t> special(std::string_view name) const override {
    return name == "[MASK]" ? std::optional(kMaskToken) : std::nullopt;
  }
  const security::Digest& digest() const override { return digest_; }
  std::string description() const override { return "bytes"; }

 private:
  char bytes_[kByteTokens];
  security::Digest digest_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

bool is_byte_tokenizer(const Tokenizer& tokenizer) {
  return tokenizer.digest() == ByteTokenizer().digest();
}

}  // namespace isthmus::runtime
