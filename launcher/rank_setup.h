// What a rank, an evaluation and a generation have in common: threads, model and data as a site's
// file describes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "launcher/command.h"
#include "launcher/site_file.h"
#include "runtime/model.h"
#include "runtime/text_dataset.h"
#include "runtime/tokenizer.h"

namespace isthmus::launcher {

// The CPUs of one rank's threads, for ThreadPool (-1: not pinned). `available`: how many this
// process may use, when the file does not say.
std::vector<int> rank_cpus(const SiteFile& file, int rank, int available);

runtime::BatchShape training_shape(const SiteFile& file);
// One sequence at a time, and in f32 however the site trains: losses of all sites compare.
runtime::BatchShape evaluation_shape(const SiteFile& file);

std::vector<runtime::TextSource> text_sources(const SiteFile& file);

// model.tokenizer, else that of model.from, else bytes. Errors: those of open_tokenizer.
Result<std::unique_ptr<runtime::Tokenizer>> site_tokenizer(const SiteFile& file, const Disk& disk);

// Of the files in [data], for a model with so many tokens.
runtime::TokenFormat token_format(const SiteFile& file, const runtime::Tokenizer& tokenizer,
                                  std::int64_t vocabulary);

// What sites must agree on of a tokenizer: "" for bytes, else ", tokenizer 4f…".
std::string tokenizer_settings(const runtime::Tokenizer& tokenizer);

// Where the model is that is asked for, for runtime::open_model: the site's own checkpoints, the
// best of them, or any other. Errors: not_found (none yet), corrupt, io.
Result<std::string> trained_model_of(const SiteFile& file, Disk& disk,
                                     const ModelArguments& wish = {});

// The model that a new run trains: with the parameters of model.from, or initialised from
// model.seed; frozen or with adapters as the file says.
Result<std::unique_ptr<runtime::Model>> make_training_model(const SiteFile& file, Disk& disk,
                                                            ThreadPool& pool);
// The same to be looked at: all in one, adapters that a run begins with merged.
Result<std::unique_ptr<runtime::Model>> make_initial_model(const SiteFile& file,
                                                           const runtime::BatchShape& shape,
                                                           Disk& disk, ThreadPool& pool);

}  // namespace isthmus::launcher
