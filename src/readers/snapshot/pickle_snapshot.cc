#include <fmt/format.h>

#include "readers/snapshot/pickle_machine.h"
#include "readers/snapshot/snapshot.h"

namespace plimsoll {

bool RecognisePickle(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

Result<Recording> ReadPickleSnapshot(const Input& input) {
  ByteWindow stream(input);
  return ReadPickleWindow(stream);
}

Result<Recording> ReadPickleWindow(ByteWindow& stream) {
  snapshot::Builder builder(stream.size());
  snapshot::PickleMachine machine(stream, builder);
  Result<snapshot::Value> root = machine.Run();
  if (!root) {
    root.error().file = stream.name();
    return root.error();
  }
  Result<Recording> recording = builder.Finish(*root);
  if (!recording) {
    recording.error().file = stream.name();
    return recording;
  }
  recording->file = stream.name();
  recording->format =
      fmt::format("PyTorch memory snapshot (pickle, protocol {})", machine.protocol());
  return recording;
}

}  // namespace plimsoll
