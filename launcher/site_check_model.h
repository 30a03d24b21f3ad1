// What must hold between a model and the rest of its site file. Each adds a fault where it does
// not.
#pragma once

#include "launcher/site_file.h"
#include "runtime/tokenizer.h"

namespace isthmus::launcher {

// train.sequence is no longer than the model's longest.
void check_context(SiteText& text);
// [experts] says something of a model that has some, only.
void check_router(SiteText& text);
// [masking] says something of a model that predicts hidden tokens, only.
void check_masking(SiteText& text);
// Of such a model: there is a token to hide them by.
void check_mask_token(SiteText& text, const runtime::Tokenizer& tokenizer);
// Of a model that checks: the patterns of lora.targets or train.freeze, and of train.rates, are of
// its names. False where they are not.
bool check_tuning(SiteText& text);
// Of both: what ranks share with the gateway, a contribution and a state in f32, fits
// gateway.memory.
void check_memory(SiteText& text);

}  // namespace isthmus::launcher
