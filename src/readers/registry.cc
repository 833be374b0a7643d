#include "readers/registry.h"

#include <array>
#include <optional>

#include "readers/error_text/error_text.h"
#include "readers/memory_summary/memory_summary.h"
#include "readers/nsys/nsys.h"
#include "readers/profiler/profiler.h"
#include "readers/snapshot/snapshot.h"
#include "timeline/vet.h"

namespace plimsoll {
namespace {

// The order matters: a binary format first, free text last, since a log may quote anything.
constexpr std::array<Reader, 7> kReaders = {{
    {"PyTorch memory snapshot (pickle)", RecognisePickle, ReadPickleSnapshot},
    {"Nsight Systems SQLite export", RecogniseNsys, ReadNsys},
    {"torch.profiler chrome trace", RecogniseChromeTrace, ReadChromeTrace},
    {"torch.profiler memory timeline", RecogniseMemoryTimeline, ReadMemoryTimeline},
    {"PyTorch memory snapshot (JSON)", RecogniseJsonSnapshot, ReadJsonSnapshot},
    {"torch.cuda.memory_summary() text", RecogniseMemorySummary, ReadMemorySummary},
    {"error text", RecogniseErrorText, ReadErrorText},
}};

/// Readers take what a file says; what no device has goes here.
Result<Recording> Vetted(Result<Recording> recording, const std::string& file) {
  if (recording) {
    TakeOutImpossible(*recording);
  } else if (recording.error().file.empty()) {
    recording.error().file = file;
  }
  return recording;
}

}  // namespace

std::span<const Reader> Readers() { return kReaders; }

Result<Recording> Read(const Input& input) {
  if (input.bytes().empty()) {
    return Error{.message = "the file is empty", .file = input.name(), .offset = 0};
  }
  for (const Reader& reader : kReaders) {
    if (!reader.recognise(input.bytes())) continue;
    return Vetted(reader.read(input), input.name());
  }
  return Error{.message = "not a memory snapshot, and no out-of-memory message in it",
               .file = input.name(),
               .offset = 0,
               .hint =
                   "give a snapshot (torch.cuda.memory._dump_snapshot), the log with the error "
                   "text, a profiler trace or an nsys SQLite export"};
}

Result<Recording> ReadFile(const std::string& path) {
  // A pickle is read from its beginning to its end: it need not be in memory as a whole.
  if (std::optional<ByteStream> stream = ByteStream::OfFile(path);
      stream && RecognisePickle(stream->window())) {
    return Vetted(ReadPickleStream(*stream), path);
  }
  Result<Input> input = Input::Open(path);
  if (!input) return input.error();
  return Read(*input);
}

}  // namespace plimsoll
