#include "runtime/decoding.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "kernels/cached_attention.h"
#include "kernels/few_rows.h"

namespace isthmus::runtime {
namespace {

constexpr std::int64_t kPromptRows = 64;  // tokens of a prompt that are read at once

BatchShape shape_of(Precision precision, std::int64_t rows, std::int64_t texts,
                    std::int64_t length) {
  return {.micro_batch = rows,
          .sequence = 1,
          .precision = precision,
          .kept_texts = texts,
          .kept_length = length};
}

}  // namespace

Decoding::Decoding(const ModelConfig& config, const FineTuning& tuning, Precision precision,
                   std::int64_t texts, std::int64_t length, ParameterPlaces parameters,
                   CpuDevice& device)
    : length_(length),
      vocabulary_(config.vocabulary),
      read_(static_cast<std::size_t>(texts)),
      scores_(static_cast<std::size_t>(texts * config.vocabulary)) {
  auto prompts =
      build_program(config, tuning, shape_of(precision, kPromptRows, texts, length), Head::none);
  for (const auto id : prompts.kept) {
    kept_.emplace_back(prompts.value(id).bytes());
    parameters.kept.push_back(kept_.back().bytes().data());
  }
  prompts_ = std::make_unique<StandaloneExecutor>(std::move(prompts), parameters, device);
  continuations_ = std::make_unique<StandaloneExecutor>(
      build_program(config, tuning,
                    shape_of(precision, std::min(texts, kernels::kFewRows), texts, length),
                    Head::logits),
      parameters, device);
}

std::size_t Decoding::bytes_of(const ModelConfig& config, Precision precision, std::int64_t texts,
                               std::int64_t length) {
  const auto of_layer = 2 * texts * length * config.kv_heads * config.head_elements();
  return static_cast<std::size_t>(config.layers * of_layer) *
             size_of(precision == Precision::bf16 ? DType::bf16 : DType::f32) +
         static_cast<std::size_t>(texts * config.vocabulary) * sizeof(float);
}

// The next token of `text`; a row of no text is left out.
void Decoding::set_row(CpuExecutor& executor, std::size_t row, std::int32_t token,
                       std::size_t text) {
  const bool rests = token == kNoToken;
  ISTHMUS_ASSERT(rests || (token >= 0 && token < vocabulary_));
  auto& read = read_[text];
  ISTHMUS_ASSERT(rests || read < length_);
  executor.tokens()[row] = rests ? 0 : token;
  executor.texts()[row] = rests ? kernels::kNoText : static_cast<std::int32_t>(text);
  executor.positions()[row] = rests ? 0 : static_cast<std::int32_t>(read++);
}

void Decoding::read(std::size_t text, std::span<const std::int32_t> tokens) {
  auto& executor = prompts_->executor;
  const auto rows = executor.tokens().size();
  while (!tokens.empty()) {
    const auto count = std::min(rows, tokens.size());
    for (std::size_t row = 0; row < rows; ++row)
      set_row(executor, row, row < count ? tokens[row] : kNoToken, text);
    executor.run();
    tokens = tokens.subspan(count);
  }
}

std::span<const float> Decoding::next(std::span<const std::int32_t> tokens) {
  ISTHMUS_ASSERT(tokens.size() == texts());
  auto& executor = continuations_->executor;
  const auto rows = executor.tokens().size();
  const auto vocabulary = static_cast<std::size_t>(vocabulary_);
  for (std::size_t text = 0; text < tokens.size();) {
    std::array<std::size_t, kernels::kFewRows> of_row{};
    std::size_t count = 0;
    for (; text < tokens.size() && count < rows; ++text) {
      if (tokens[text] == kNoToken) continue;
      set_row(executor, count, tokens[text], text);
      of_row[count++] = text;
    }
    if (count == 0) break;
    for (auto row = count; row < rows; ++row) set_row(executor, row, kNoToken, 0);
    executor.run();
    for (std::size_t row = 0; row < count; ++row)
      std::copy_n(executor.logits().data() + row * vocabulary, vocabulary,
                  scores_.data() + of_row[row] * vocabulary);
  }
  return scores_;
}

}  // namespace isthmus::runtime
