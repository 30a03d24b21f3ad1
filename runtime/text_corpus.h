// Preparing a corpus: a text, or JSON lines (runtime/document_layout.h), plain or compressed,
// becomes what is trained on and what is held out to judge by. Of every 20 documents the 8th is
// held out; of a text, paragraphs are the documents.
//
//              ┌ 1 MiB of documents ─► tokens ┐
//   source ──► ┤ …         (all threads)      ├ ──► files .new, synced ──► journal
//     ▲        └ …                            ┘          in order             │
//     └──── until all is read; then the files get their names ────────────────┘
//
// Without a tokenizer a text stays text, joined again by blank lines; with one its tokens are those
// of each paragraph and the blank line behind it, and nothing besides. JSON lines always become
// tokens, each record with what begins and ends it, a mask where not all of them are targets, and a
// list of where each begins.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "runtime/document_reader.h"
#include "runtime/token_file.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

inline constexpr std::uint64_t kHeldOutPeriod = 20;
inline constexpr std::uint64_t kHeldOutPlace = 7;  // document i is held out when i % 20 == 7

// "x.jsonl", "x.ndjson.gz": JSON lines; any other name: text.
DocumentFormat format_by_name(const std::string& path);

struct PrepareOptions {
  std::string source = {};
  std::string train = {};
  std::string held_out = {};  // "": nothing is held out
  DocumentFormat format = DocumentFormat::text;
  const Tokenizer* tokenizer = nullptr;  // none: a text stays text; JSON lines become bytes' tokens
  // Bytes of the source's file that are done, and all of them; now and then.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

struct PreparedText {
  std::uint64_t documents = 0;
  TokenFileFacts train = {};
  TokenFileFacts held_out = {};
  bool went_on = false;  // from where an earlier process was stopped
};

// Memory is bounded by the threads, not by the source. The files get their names only when all are
// whole and on disk, the tokens theirs last, so that a process that ends on the way leaves none
// that are not whole; the same bytes come out of any number of threads, and of a process that went
// on where another was killed, which it finds by itself when source, tokenizer and names are the
// same. Errors: not_found, permission, io, disk_full (then running it again goes on); corrupt (a
// broken file, a line that is no record), invalid_argument (too few documents to hold one out; two
// of the files are one; text that is not UTF-8), too_large (a line), busy (another process prepares
// the same): after these nothing new is left, unless only names are missing.
Result<PreparedText> prepare_text(Disk& disk, ThreadPool& pool, const PrepareOptions& options);

}  // namespace isthmus::runtime
