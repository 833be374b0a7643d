#include "readers/error_text/error_text.h"

#include <algorithm>

#include "readers/error_text/log_reader.h"

namespace plimsoll {
namespace {

Result<Recording> ReadAll(LogWindow& window, const std::string& name) {
  LogReader reader(name);
  while (true) {
    const Result<bool> more = window.Advance();
    if (!more) return more.error();
    if (!*more) break;
    reader.Read({window.text(), window.offset()}, window.begin(), window.end());
  }
  Recording recording = std::move(reader).Finish();
  recording.file = name;
  const bool figures = recording.messages.empty() && recording.summaries.empty();
  recording.format = figures                       ? "log"
                     : recording.summaries.empty() ? "error text"
                     : recording.messages.empty()  ? "torch.cuda.memory_summary() text"
                                                   : "error text with torch.cuda.memory_summary()";
  return recording;
}

}  // namespace

bool TellsMemory(const Recording& recording) {
  return !recording.messages.empty() || !recording.summaries.empty() ||
         std::ranges::any_of(recording.logged, [](const LoggedSeries& series) {
           // A text about memory has numbers of it too: one is no log.
           const bool prose =
               series.source.program == kOwnProgram && series.count < 2 && series.stepped == 0;
           return TellsUse(series.counts) && !prose;
         });
}

bool RecogniseErrorText(std::string_view bytes) {
  if (!LooksLikeText(bytes)) return false;
  LogWindow window(bytes);
  const Result<Recording> recording = ReadAll(window, "");
  return recording.ok() && !recording->messages.empty();
}

Result<Recording> ReadErrorText(const Input& input) {
  LogWindow window(input.bytes());
  Result<Recording> recording = ReadAll(window, input.name());
  if (recording && !TellsMemory(*recording)) {
    return Error{.message = "no out-of-memory message and no figure of memory in it",
                 .file = input.name()};
  }
  return recording;
}

Result<Recording> ReadLog(ByteStream& stream, std::string_view head) {
  LogWindow window(stream, head);
  return ReadAll(window, stream.name());
}

}  // namespace plimsoll
