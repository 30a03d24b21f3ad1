// Decoding: several texts that a model continues token by token, each token computed once. What
// attention needs of the tokens read so far, their keys and values, is kept in each layer (a KV
// cache); one list reads a prompt in chunks, another one token more of every text:
//
//   positions   0 1 2 3 4 5 6 7 …                 read(0, prompt): in chunks, up to here ▒
//   text 0      ▒ ▒ ▒ ▒ ▒ █                       next({…, …}): one █ of each, and their scores
//   text 1      ▒ ▒ █
//
// A text's scores are the same to the bit whichever others are continued beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/cpu_device.h"
#include "runtime/executor.h"
#include "runtime/fine_tuning.h"
#include "runtime/model_config.h"

namespace isthmus::runtime {

inline constexpr std::int32_t kNoToken = -1;

class Decoding {
 public:
  // Of `texts` texts of at most `length` tokens each. Parameters and device outlive it.
  Decoding(const ModelConfig& config, const FineTuning& tuning, Precision precision,
           std::int64_t texts, std::int64_t length, ParameterPlaces parameters, CpuDevice& device);

  std::size_t texts() const { return read_.size(); }
  std::int64_t length() const { return length_; }
  // Bytes of what is kept of all texts, and of their scores.
  static std::size_t bytes_of(const ModelConfig& config, Precision precision, std::int64_t texts,
                              std::int64_t length);

  // Tokens of a text so far.
  std::int64_t tokens_read(std::size_t text) const { return read_[text]; }
  // The text begins again.
  void forget(std::size_t text) { read_[text] = 0; }
  // Reads on in one text, of which no more than length() tokens can be read.
  void read(std::size_t text, std::span<const std::int32_t> tokens);
  // Reads one token more of each text, or none where it is kNoToken: texts() of them. Scores of the
  // token after, [texts, vocabulary], until the next call; those of a text that rests mean nothing.
  // A few texts at a time, as one row of many would be summed in another order.
  std::span<const float> next(std::span<const std::int32_t> tokens);

 private:
  void set_row(CpuExecutor& executor, std::size_t row, std::int32_t token, std::size_t text);

  std::int64_t length_;
  std::int64_t vocabulary_;
  std::vector<std::int64_t> read_;  // per text
  std::vector<AlignedMemory> kept_;
  std::vector<float> scores_;
  std::unique_ptr<StandaloneExecutor> prompts_, continuations_;
};

}  // namespace isthmus::runtime
