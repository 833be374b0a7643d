#include "readers/registry.h"

#include <array>
#include <optional>

#include "readers/error_text/error_text.h"
#include "readers/nsys/nsys.h"
#include "readers/profiler/profiler.h"
#include "readers/snapshot/snapshot.h"
#include "timeline/vet.h"

namespace plimsoll {
namespace {

// The order matters: a binary format first. They are asked before a text is taken for a log, since
// a log may quote anything.
constexpr std::array<Reader, 6> kReaders = {{
    {"PyTorch memory snapshot (pickle)", RecognisePickle, ReadPickleSnapshot},
    {"PyTorch memory snapshot (SQLite)", RecogniseSqliteSnapshot, ReadSqliteSnapshot},
    {"Nsight Systems SQLite export", RecogniseNsys, ReadNsys},
    {"torch.profiler chrome trace", RecogniseChromeTrace, ReadChromeTrace},
    {"torch.profiler memory timeline", RecogniseMemoryTimeline, ReadMemoryTimeline},
    {"PyTorch memory snapshot (JSON)", RecogniseJsonSnapshot, ReadJsonSnapshot},
}};
/// All of them tell by less than this, with blanks in front of it.
constexpr std::size_t kHead = 2 << 20;

const Reader* ReaderOf(std::string_view head) {
  for (const Reader& reader : kReaders) {
    if (reader.recognise(head)) return &reader;
  }
  return nullptr;
}

Error EmptyFile(const std::string& name) {
  return Error{.message = "the file is empty", .file = name};
}

Error NothingInIt(const std::string& name) {
  return Error{
      .message =
          "not a memory snapshot, and neither an out-of-memory message nor a figure of memory "
          "in it",
      .file = name,
      .hint =
          "give a snapshot (torch.cuda.memory._dump_snapshot), the log with the error "
          "text, a profiler trace or an nsys SQLite export"};
}

/// What a reader returned, checked.
Result<Recording> Checked(Result<Recording> recording, const std::string& name) {
  if (recording) {
    TakeOutImpossible(*recording);
  } else if (recording.error().file.empty()) {
    recording.error().file = name;
  }
  return recording;
}

/// Logs may be longer than memory; everything else is read as a whole.
Result<Recording> ReadStream(ByteStream& stream, const std::string& path, std::string_view head) {
  if (ReaderOf(head) == nullptr && LooksLikeText(head)) {
    Result<Recording> recording = ReadLog(stream, head);
    if (recording && !TellsMemory(*recording)) return NothingInIt(stream.name());
    return Checked(std::move(recording), stream.name());
  }
  const Result<Input> input = stream.IsFile() ? Input::Open(path) : Input::FromStream(stream, head);
  if (!input) return input.error();
  return Read(*input);
}

}  // namespace

std::span<const Reader> Readers() { return kReaders; }

Result<Recording> Read(const Input& input) {
  if (input.bytes().empty()) return EmptyFile(input.name());
  if (const Reader* reader = ReaderOf(input.bytes())) {
    return Checked(reader->read(input), input.name());
  }
  if (!LooksLikeText(input.bytes())) return NothingInIt(input.name());
  Result<Recording> recording = ReadErrorText(input);
  if (!recording) return NothingInIt(input.name());
  return Checked(std::move(recording), input.name());
}

Result<Recording> ReadFile(const std::string& path) {
  // A pickle is read from its beginning to its end: it need not be in memory as a whole.
  if (std::optional<ByteWindow> window = ByteWindow::OfFile(path);
      window && RecognisePickle(window->window())) {
    return Checked(ReadPickleWindow(*window), path);
  }
  Result<ByteStream> stream = ByteStream::Open(path);
  if (!stream) return stream.error();
  std::string head(kHead, '\0');
  const Result<std::size_t> filled = stream->Fill(head.data(), head.size());
  if (!filled) return filled.error();
  if (*filled == 0) return EmptyFile(stream->name());
  return ReadStream(*stream, path, std::string_view(head).substr(0, *filled));
}

}  // namespace plimsoll
