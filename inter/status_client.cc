#include "inter/status_client.h"

#include <fmt/format.h>

#include <utility>

namespace isthmus::inter {

namespace {

// What a gateway answers to one request of a visitor.
template <class Reply, class Request>
Result<std::string> ask_json(LocalStream& stream, const std::string& path, const Request& request,
                             Nanoseconds timeout) {
  const Nanoseconds deadline = local_now() + timeout;
  // A gateway that refuses may have said so and closed already.
  auto sent = stream.send(attach::encode(request), deadline);
  if (!sent && sent.error().code != ErrorCode::closed) return std::move(sent).error();
  for (;;) {
    const auto bytes = stream.received();
    if (bytes.size() >= attach::kHeaderBytes) {
      const attach::Header header = attach::read_header(bytes.first(attach::kHeaderBytes));
      if (header.body_bytes > attach::kReplyBytesMax)
        return Error{ErrorCode::bad_frame, "the gateway's answer is too long"};
      if (bytes.size() - attach::kHeaderBytes >= header.body_bytes) {
        const auto body = bytes.subspan(attach::kHeaderBytes, header.body_bytes);
        const auto refused = attach::decode<attach::Refused>(body);
        if (header.kind == attach::Kind::refused && refused) return attach::error_of(*refused);
        auto reply = attach::decode<Reply>(body);
        if (header.kind != Reply::kind || !reply)
          return Error{ErrorCode::bad_frame, "the gateway's answer does not decode"};
        stream.take(attach::kHeaderBytes + header.body_bytes);
        return std::move(reply->json);
      }
    }
    if (local_now() >= deadline)
      return Error{ErrorCode::timeout, fmt::format("the gateway at {} does not answer", path)};
    ISTHMUS_CHECK(stream.receive(deadline));
  }
}

}  // namespace

Result<std::string> fetch_status_json(const std::string& path, Nanoseconds timeout) {
  ISTHMUS_TRY(LocalStream stream, LocalStream::connect(path));
  return ask_json<attach::StatusJson>(stream, path, attach::Status{}, timeout);
}

Result<LinkTestClient> LinkTestClient::connect(const std::string& path) {
  ISTHMUS_TRY(LocalStream stream, LocalStream::connect(path));
  return LinkTestClient(path, std::move(stream));
}

Result<std::string> LinkTestClient::ask(const attach::LinkTest& wish, Nanoseconds timeout) {
  return ask_json<attach::LinkTestJson>(stream_, path_, wish, timeout);
}

Result<GatewayStatus> fetch_status(const std::string& path, Nanoseconds timeout) {
  ISTHMUS_TRY(const std::string json, fetch_status_json(path, timeout));
  return parse_status(json);
}

}  // namespace isthmus::inter
