// TensorBoardLog: the steps of a training as an event file that TensorBoard shows: scalars
// train/loss, train/learning_rate, train/gradient_norm, train/tokens_per_second, and
// held_out/NAME/bits_per_byte and perplexity, over inner steps; of a model with experts also
// experts/imbalance, dropped_share, balance_loss and z_loss. Of one that predicts hidden tokens the
// loss is of those, and the others are train/hidden_tokens_per_second,
// held_out/NAME/bits_per_hidden_byte and hidden_perplexity.
//
// The format is TensorFlow's: records (length, its CRC-32C, data, its CRC-32C; tsl/lib/io) of the
// protocol buffer Event (tensorflow/core/util/event.proto), of which these few fields are written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/byte_stream.h"
#include "base/clock.h"
#include "base/disk.h"
#include "base/result.h"
#include "runtime/train_observer.h"

namespace isthmus::launcher {

class TensorBoardLog final : public runtime::TrainObserver {
 public:
  // A new file in the folder, which is made: a training that goes on adds one, and TensorBoard
  // drops of the older ones what is trained again. `clock` outlives it. Errors: io, permission.
  static Result<std::unique_ptr<TensorBoardLog>> open(Disk& disk, const std::string& folder,
                                                      const Clock& clock);

  void inner_step(const runtime::StepReport& step) override;
  void held_out(const runtime::HeldOutResult& held_out) override;

 private:
  TensorBoardLog(std::unique_ptr<File> file, const Clock& clock)
      : file_(std::move(file)), clock_(clock) {}

  void begin(std::int64_t next_step);
  void scalar(std::int64_t step, std::string_view tag, double value);
  void add(Bytes event);  // a record of it
  void write();

  std::unique_ptr<File> file_;
  const Clock& clock_;
  ByteWriter records_;     // not in the file yet
  std::uint64_t end_ = 0;  // of the file
  bool begun_ = false;
};

}  // namespace isthmus::launcher
