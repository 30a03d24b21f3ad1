#include "runtime/frozen_digest.h"

#include "base/byte_stream.h"
#include "security/hash.h"

namespace isthmus::runtime {

std::string frozen_digest(Model& model) {
  security::Hasher hasher;
  bool any = false;
  for (std::size_t i = 0; i < model.tensors().size(); ++i) {
    const auto& tensor = model.tensors()[i];
    if (tensor.trains) continue;
    any = true;
    ByteWriter head;
    head.string(tensor.name);
    for (std::size_t d = 0; d < tensor.shape.rank(); ++d) head.put(tensor.shape[d]);
    hasher.update(head.view());
    hasher.update(std::as_bytes(model.parameters(i)));
  }
  return any ? hasher.finish().hex() : "";
}

}  // namespace isthmus::runtime
