// Events, and the lists of frames in them, read straight from the bytes that CPython and LibTorch
// write for them. Nearly all of a large file is these. The pickle machine knows them too, opcode by
// opcode: `explain` of a recorded trace in protocol 2 took 0.138 s of processor time by that way
// alone and takes 0.048 s by this one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "files/input.h"
#include "readers/snapshot/builder.h"
#include "readers/snapshot/memo.h"
#include "readers/snapshot/spelled_stacks.h"

namespace plimsoll::snapshot {

class EventReader {
 public:
  using At = const std::uint8_t*;

  EventReader(Memo& memo, Builder& builder, InputSize file);

  /// Reads the dict whose opcode stands before `at`, if it is an event whose keys were all written
  /// before and whose values are numbers, texts and lists of frames. Returns where it ends; null,
  /// and nothing has changed, where it is written in another way or is not whole.
  At Event(At at, At end, Value& event);
  /// Likewise the list whose opcode stands before `at`, if its items are frames that were written
  /// before.
  At Stack(At at, At end, Value& stack);
  using Read = At (EventReader::*)(At, At, Value&);
  /// An index of the memo got another meaning.
  void ForgetReferences() {
    spelled_.Clear();
    keys_ = {};
  }

  static constexpr std::size_t kMostFields = 16;
  /// What the machine would have had on its stack for an event.
  static constexpr std::size_t kMostValues = 2 * kMostFields + 2;

 private:
  /// A key as it was spelled at this place of the last event: a reference of two or five bytes.
  struct SpelledKey {
    std::uint64_t bytes = 1;
    std::uint64_t mask = 0;  // which of the bytes count
    std::size_t length = 0;
    Key key = Key::kUnknown;
  };

  // Each reads something at `at` and returns where it ends, or null.
  At Reference(At at, Value& value) const;
  At KeyAt(At at, SpelledKey& known) const;
  At ValueAt(At at, Value& value);
  At Pair(At at, Value& value);
  At Text(At at, Value& value);
  At List(At at, Value& value);
  At Frames(At at, Value& stack);

  bool Put(At& at, Value value);
  std::optional<std::uint64_t> NewStack(std::string_view spelling);
  bool Remember();

  Memo& memo_;
  Builder& builder_;
  SpelledStacks spelled_;
  std::array<SpelledKey, kMostFields> keys_;
  std::vector<FrameId> scratch_;

  // What is being read. The machine's memo gets what it is to remember once all of it is read.
  At end_ = nullptr;
  std::array<Builder::Field, kMostFields> fields_;
  std::array<Value, 4> puts_;
  std::size_t put_count_ = 0;
};

}  // namespace plimsoll::snapshot
