// What a rank, an evaluation and a generation have in common: threads, model and data as a site's
// file describes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "launcher/site_file.h"
#include "runtime/model.h"
#include "runtime/text_dataset.h"

namespace isthmus::launcher {

// The CPUs of one rank's threads, for ThreadPool (-1: not pinned). `available`: how many this
// process may use, when the file does not say.
std::vector<int> rank_cpus(const SiteFile& file, int rank, int available);

runtime::BatchShape batch_shape(const SiteFile& file);
std::vector<runtime::TextSource> text_sources(const SiteFile& file);

// The model with the parameters a new run begins with: of model.from, or initialised from
// model.seed.
Result<std::unique_ptr<runtime::Model>> make_initial_model(const SiteFile& file, Disk& disk,
                                                           ThreadPool& pool);

// The model of a checkpoint: `checkpoint` is a Hugging Face directory, or a folder of checkpoints,
// of which it is the newest.
Result<std::unique_ptr<runtime::Model>> open_trained_model(const SiteFile& file, Disk& disk,
                                                           const std::string& checkpoint,
                                                           ThreadPool& pool);

}  // namespace isthmus::launcher
