// The JSON form of a snapshot, as memory_viz and Mosaic accept it.
#include "files/json_visit.h"
#include "readers/snapshot/builder.h"
#include "readers/snapshot/json_values.h"
#include "readers/snapshot/snapshot.h"

namespace plimsoll {
bool RecogniseJsonSnapshot(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first == std::string_view::npos || (bytes[first] != '{' && bytes[first] != '[')) return false;
  const std::string_view head = bytes.substr(first, std::size_t{1} << 20);
  // The segments come first in what PyTorch writes; a re-written file may have any order.
  return head.find("\"segments\"") != std::string_view::npos ||
         head.find("\"device_traces\"") != std::string_view::npos ||
         head.find("\"total_size\"") != std::string_view::npos;
}

Result<Recording> ReadJsonSnapshot(const Input& input) {
  snapshot::Builder builder(input.size());
  snapshot::JsonValues handler(builder);
  if (std::optional<Error> fault = VisitJson(input, handler)) {
    if (builder.budget().spent()) return ReadBudget::Refusal();
    return *std::move(fault);
  }
  Result<Recording> recording = builder.Finish(handler.root());
  if (recording) {
    recording->file = input.name();
    recording->format = "PyTorch memory snapshot (JSON)";
  }
  return recording;
}

}  // namespace plimsoll
