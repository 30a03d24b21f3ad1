#include "launcher/site_masking.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/byte_tokenizer.h"
#include "runtime/family.h"
#include "runtime/text_tokens.h"

namespace isthmus::launcher {

Result<runtime::Masking> masking_of(const MaskingOptions& options,
                                    const runtime::Tokenizer& tokenizer, std::int64_t vocabulary) {
  const auto own = runtime::mask_token(tokenizer);
  if (options.token < 0 && !own)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model predicts hidden tokens, but its tokenizer ({}) has no "
                             "[MASK] or <mask> to hide them by: name an id that no text has in "
                             "masking.token",
                             tokenizer.description())};
  const std::int64_t token = options.token < 0 ? *own : options.token;
  if (token >= vocabulary)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format(
            "{} = {} is not below the model's vocabulary of {}: {}",
            options.token < 0 ? "the tokenizer's mask token" : "masking.token", token, vocabulary,
            options.token < 0 ? "raise model.vocabulary" : "name an id that the model has")};
  runtime::MaskingOptions masking{.share = options.share,
                                  .token = static_cast<std::int32_t>(token),
                                  .vocabulary = static_cast<std::int32_t>(
                                      std::min(vocabulary, std::int64_t{tokenizer.vocabulary()})),
                                  .special = runtime::special_tokens(tokenizer)};
  // A model of bytes that knows more than them has tokens that were made elsewhere: which of these
  // are special nobody says.
  if (runtime::is_byte_tokenizer(tokenizer) && vocabulary > runtime::kTextVocabulary) {
    masking.vocabulary = static_cast<std::int32_t>(vocabulary);
    masking.special = {masking.token};
  }
  return runtime::Masking(masking);
}

Result<std::optional<runtime::Masking>> site_masking(const SiteFile& file,
                                                     const runtime::Tokenizer& tokenizer,
                                                     const runtime::ModelConfig& config) {
  if (runtime::objective_of(config) == runtime::Objective::next_token)
    return std::optional<runtime::Masking>();
  ISTHMUS_TRY(auto masking, masking_of(file.masking, tokenizer, config.vocabulary));
  return std::optional(std::move(masking));
}

std::string masking_settings(const std::optional<runtime::Masking>& masking) {
  if (!masking) return {};
  return fmt::format(", hides {} as {}", masking->share(), masking->token());
}

}  // namespace isthmus::launcher
