// A closed pickle machine: it knows the opcodes that data needs and none that could load a module
// or call a function, so whatever a file says, nothing of it is executed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "files/byte_window.h"
#include "readers/snapshot/builder.h"
#include "readers/snapshot/event_reader.h"
#include "readers/snapshot/memo.h"
#include "readers/snapshot/pickle_bytes.h"

namespace plimsoll::snapshot {

class PickleMachine {
 public:
  PickleMachine(ByteWindow& stream, Builder& builder);

  /// Runs the file up to STOP and returns the root value.
  Result<Value> Run();
  int protocol() const { return protocol_; }

 private:
  bool Step(std::uint8_t opcode);
  bool StepContainer(std::uint8_t opcode);
  bool StepNumber(std::uint8_t opcode);
  bool StepText(std::uint8_t opcode);
  bool StepMemo(std::uint8_t opcode);
  bool RefuseCode(std::uint8_t opcode);
  bool TooManyValues();
  bool PushText(std::uint64_t length);
  bool Push(Value v) {
    if (stack_.size() >= most_values_) [[unlikely]]
      return TooManyValues();
    stack_.push_back(v);
    return true;
  }
  bool PopToMark(std::size_t& first_item);
  bool MemoGet(std::uint64_t index);
  bool MemoPut(std::uint64_t index);
  bool ExtendDict(std::size_t dict_at, std::size_t first_item);
  bool AppendList(std::size_t list_at, std::size_t first_item);
  /// Containers that were memoized before they were filled are known by their memo index.
  Value Resolve(Value v) const {
    if (v.kind != Kind::kNewDict && v.kind != Kind::kNewList) return v;
    Value now;
    return v.payload != kNoMemo && memo_.Get(v.payload, now) ? now : v;
  }
  void Settle(std::size_t stack_at, Value before, Value after);
  /// Whether a whole event finds room on the stack, item by item.
  bool HasRoom() const {
    return std::max(stack_.size(), marks_.size()) + EventReader::kMostValues < most_values_;
  }
  bool ReadAhead(EventReader::Read read);

  PickleBytes bytes_;
  Builder& builder_;
  int protocol_ = 0;
  std::size_t most_values_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  Memo memo_;
  EventReader events_;
};

}  // namespace plimsoll::snapshot
