#include "security/sodium_ready.h"

#include <sodium.h>

#include "base/assert.h"

namespace isthmus::security {

void require_sodium() {
  static const bool ready = sodium_init() >= 0;
  ISTHMUS_ASSERT(ready);
}

}  // namespace isthmus::security
