// Events, and the lists of frames in them, read straight from the bytes that CPython and LibTorch
// write for them. Nearly all of a large file is these. The pickle machine knows them too, opcode by
// opcode, but takes three times as long for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/input.h"
#include "readers/snapshot/builder.h"
#include "readers/snapshot/memo.h"
#include "readers/snapshot/spelled_stacks.h"

namespace plimsoll::snapshot {

class EventReader {
 public:
  EventReader(Memo& memo, Builder& builder, InputSize file);

  struct Made {
    Value value;
    const std::uint8_t* end = nullptr;
  };
  /// The dict whose opcode stands before `at`, if it is an event whose keys were all written before
  /// and whose values are numbers, texts and lists of frames. Where it is not, or is not whole,
  /// there is nothing, and nothing has changed.
  std::optional<Made> Event(const std::uint8_t* at, const std::uint8_t* end);
  /// The list whose opcode stands before `at`, likewise, if its items are frames that were written
  /// before.
  std::optional<Made> Stack(const std::uint8_t* at, const std::uint8_t* end);
  /// An index of the memo got another meaning.
  void ForgetReferences() { spelled_.Clear(); }

  /// What the machine would have put on its stack for an event.
  static constexpr std::size_t kMostFields = 16;
  static constexpr std::size_t kMostValues = 2 * kMostFields + 2;

 private:
  /// How far an event has been read. What is to be remembered is remembered once it is whole.
  struct Cursor {
    const std::uint8_t* at;
    const std::uint8_t* end;
    std::array<Value, 4> puts = {};
    std::size_t put_count = 0;
  };

  bool TakePut(Cursor& cursor, Value value) const;
  bool TakeReference(Cursor& cursor, Value& value) const;
  bool TakeValue(Cursor& cursor, Value& value);
  bool TakePair(Cursor& cursor, Value& value);
  bool TakeText(Cursor& cursor, Value& value);
  bool TakeList(Cursor& cursor, Value& value);
  std::optional<std::uint64_t> TakeFrames(Cursor& cursor);
  std::optional<std::uint64_t> NewStack(std::string_view spelling);
  std::optional<Made> Finish(const Cursor& cursor, Value value);

  Memo& memo_;
  Builder& builder_;
  SpelledStacks spelled_;
  std::array<Builder::Field, kMostFields> fields_;
  std::vector<FrameId> scratch_;
};

}  // namespace plimsoll::snapshot
