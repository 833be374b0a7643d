#include "readers/snapshot/pickle_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "files/read_budget.h"
#include "readers/snapshot/opcodes.h"

namespace plimsoll::snapshot {
namespace {

/// Opcodes that load or call something, by the name under which pickletools lists them.
const char* CodeOpcode(std::uint8_t opcode) {
  switch (opcode) {
    case 'c':
      return "GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 0x81:
      return "NEWOBJ";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x93:
      return "STACK_GLOBAL";
    case 0x97:
      return "NEXT_BUFFER";
    case 0x98:
      return "READONLY_BUFFER";
    default:
      return nullptr;
  }
}

std::size_t AtMost(std::size_t wanted, double most) {
  return std::min(wanted, static_cast<std::size_t>(most));
}

}  // namespace

// The limits are generous: every memo entry of a real file stands for at least four bytes of it,
// every value on the stack for at least one; and what unpacks to very much has few that large.
PickleMachine::PickleMachine(ByteWindow& stream, Builder& builder)
    : bytes_(stream),
      builder_(builder),
      most_values_(AtMost(stream.size().unpacked / 8 + 65536, 4e6 * ShareOf(stream.size()))),
      memo_(AtMost(stream.size().unpacked / 4 + 1024, 16e6 * ShareOf(stream.size()))),
      events_(memo_, builder, stream.size()) {}

bool PickleMachine::RefuseCode(std::uint8_t opcode) {
  bytes_.GoTo(bytes_.at() - 1);
  if (const char* name = CodeOpcode(opcode)) {
    return bytes_.Fail(
        fmt::format("the file asks to load or run Python code ({}), which a memory snapshot "
                    "never does; nothing was run",
                    name),
        "do not open it with pickle.load unless you trust who made it");
  }
  return bytes_.Fail(fmt::format("0x{:02x} is no opcode of a memory snapshot", opcode),
                     "is this a pickle at all?");
}

bool PickleMachine::TooManyValues() {
  return bytes_.Fail("more values are open than such a file can hold");
}

bool PickleMachine::PopToMark(std::size_t& first_item) {
  if (marks_.empty()) return bytes_.Fail("a group of items ends that never began");
  first_item = marks_.back();
  marks_.pop_back();
  return true;
}

/// A container on the stack got its type: whoever refers to it by its memo index must see that too.
void PickleMachine::Settle(std::size_t stack_at, Value before, Value after) {
  stack_[stack_at] = after;
  const bool was_new = before.kind == Kind::kNewDict || before.kind == Kind::kNewList;
  if (was_new && after.kind != before.kind && before.payload != kNoMemo) {
    memo_.Put(before.payload, after);
  }
}

bool PickleMachine::ExtendDict(std::size_t dict_at, std::size_t first_item) {
  const Value before = stack_[dict_at];
  Value dict = Resolve(before);
  for (std::size_t i = first_item; i < stack_.size(); ++i) stack_[i] = Resolve(stack_[i]);
  builder_.Extend(dict, std::span(stack_).subspan(first_item));
  Settle(dict_at, before, dict);
  return true;
}

bool PickleMachine::AppendList(std::size_t list_at, std::size_t first_item) {
  const Value before = stack_[list_at];
  Value list = Resolve(before);
  for (std::size_t i = first_item; i < stack_.size(); ++i) stack_[i] = Resolve(stack_[i]);
  builder_.Append(list, std::span(stack_).subspan(first_item));
  Settle(list_at, before, list);
  return true;
}

bool PickleMachine::MemoGet(std::uint64_t index) {
  Value v;
  if (!memo_.Get(index, v))
    return bytes_.Fail(fmt::format("item {} is used before it is there", index));
  return Push(v);
}

bool PickleMachine::MemoPut(std::uint64_t index) {
  if (stack_.empty()) return bytes_.Fail("there is nothing to remember");
  Value& top = stack_.back();
  if (top.kind == Kind::kNewDict || top.kind == Kind::kNewList) top.payload = index;
  if (index < memo_.size()) events_.ForgetReferences();
  if (!memo_.Put(index, top)) {
    return bytes_.Fail(fmt::format("item number {} is more than such a file can hold", index));
  }
  return true;
}

bool PickleMachine::PushText(std::uint64_t length) {
  if (!bytes_.Need(length)) return false;
  return Push(builder_.String(bytes_.TakeText(static_cast<std::size_t>(length))));
}

bool PickleMachine::StepNumber(std::uint8_t opcode) {
  switch (opcode) {
    case kBinInt1:
      return bytes_.Need(1) && Push(Value::Int(bytes_.Take<std::uint8_t>()));
    case kBinInt2:
      return bytes_.Need(2) && Push(Value::Int(bytes_.Take<std::uint16_t>()));
    case kBinInt:
      return bytes_.Need(4) && Push(Value::Int(bytes_.Take<std::int32_t>()));
    case kBinFloat: {
      if (!bytes_.Need(8)) return false;
      return Push({Kind::kFloat, __builtin_bswap64(bytes_.Take<std::uint64_t>())});
    }
    case kLong1:
    case kLong4: {
      if (!bytes_.Need(opcode == kLong1 ? 1 : 4)) return false;
      const std::uint32_t n =
          opcode == kLong1 ? bytes_.Take<std::uint8_t>() : bytes_.Take<std::uint32_t>();
      if (!bytes_.Need(n)) return false;
      // Nine bytes hold an address of 2^63 and above: the ninth is only the sign.
      if (n > 9) return bytes_.Fail("a number has more than 64 bits");
      std::uint64_t v = 0;
      const std::uint8_t* const digits = bytes_.at();
      std::memcpy(&v, digits, std::min<std::uint32_t>(n, 8));
      if (n > 0 && n < 8 && (digits[n - 1] & 0x80) != 0) v |= ~std::uint64_t{0} << (8 * n);
      bytes_.GoTo(digits + n);
      return Push({Kind::kInt, v});
    }
    case kNewTrue:
      return Push({Kind::kBool, 1});
    case kNewFalse:
      return Push({Kind::kBool, 0});
    default:
      return RefuseCode(opcode);
  }
}

bool PickleMachine::StepText(std::uint8_t opcode) {
  switch (opcode) {
    case kShortBinUnicode:
    case kShortBinString:
      return bytes_.Need(1) && PushText(bytes_.Take<std::uint8_t>());
    case kBinUnicode:
    case kBinString:
      return bytes_.Need(4) && PushText(bytes_.Take<std::uint32_t>());
    case kBinUnicode8:
      return bytes_.Need(8) && PushText(bytes_.Take<std::uint64_t>());
    case kShortBinBytes:
      return bytes_.Need(1) && PushText(bytes_.Take<std::uint8_t>());
    case kBinBytes:
      return bytes_.Need(4) && PushText(bytes_.Take<std::uint32_t>());
    case kBinBytes8:
    case kByteArray8:
      return bytes_.Need(8) && PushText(bytes_.Take<std::uint64_t>());
    default:
      return StepNumber(opcode);
  }
}

bool PickleMachine::StepMemo(std::uint8_t opcode) {
  switch (opcode) {
    case kBinGet:
      return bytes_.Need(1) && MemoGet(bytes_.Take<std::uint8_t>());
    case kLongBinGet:
      return bytes_.Need(4) && MemoGet(bytes_.Take<std::uint32_t>());
    case kMemoize:
      return MemoPut(memo_.size());
    case kBinPut:
      return bytes_.Need(1) && MemoPut(bytes_.Take<std::uint8_t>());
    case kLongBinPut:
      return bytes_.Need(4) && MemoPut(bytes_.Take<std::uint32_t>());
    case kFrame:
      // The length only helps readers that fetch in blocks; the end of the file is our bound.
      if (!bytes_.Need(8)) return false;
      bytes_.GoTo(bytes_.at() + 8);
      return true;
    case kProto:
      if (!bytes_.Need(1)) return false;
      protocol_ = bytes_.Take<std::uint8_t>();
      return protocol_ <= 5 ||
             bytes_.Fail(fmt::format("pickle protocol {} is not known", protocol_));
    default:
      return StepText(opcode);
  }
}

bool PickleMachine::StepContainer(std::uint8_t opcode) {
  std::size_t first = 0;
  switch (opcode) {
    case kAppends:
    case kSetItems: {
      if (!PopToMark(first)) return false;
      if (first == 0) return bytes_.Fail("items are added to nothing");
      const bool ok =
          opcode == kAppends ? AppendList(first - 1, first) : ExtendDict(first - 1, first);
      stack_.resize(first);
      return ok;
    }
    case kAppend:
      if (stack_.size() < 2) return bytes_.Fail("an item is added to nothing");
      AppendList(stack_.size() - 2, stack_.size() - 1);
      stack_.pop_back();
      return true;
    case kSetItem:
      if (stack_.size() < 3) return bytes_.Fail("a key is added to nothing");
      ExtendDict(stack_.size() - 3, stack_.size() - 2);
      stack_.resize(stack_.size() - 2);
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      const std::size_t n = static_cast<std::size_t>(opcode - kTuple1) + 1;
      if (stack_.size() < n) return bytes_.Fail("a tuple lacks its items");
      const Value tuple = builder_.Tuple(std::span(stack_).last(n));
      stack_.resize(stack_.size() - n);
      return Push(tuple);
    }
    case kTuple:
    case kList:
    case kDict: {
      if (!PopToMark(first)) return false;
      Value made{opcode == kDict ? Kind::kNewDict : Kind::kNewList, kNoMemo};
      const std::span<const Value> items = std::span(stack_).subspan(first);
      if (opcode == kTuple) made = builder_.Tuple(items);
      if (opcode == kList) builder_.Append(made, items);
      if (opcode == kDict) builder_.Extend(made, items);
      stack_.resize(first);
      return Push(made);
    }
    case kEmptyTuple:
      return Push({Kind::kOpaque, 0});
    case kNone:
      return Push({Kind::kNone, 0});
    case kPop:
      if (stack_.empty()) return bytes_.Fail("there is nothing to drop");
      stack_.pop_back();
      return true;
    case kPopMark:
      if (!PopToMark(first)) return false;
      stack_.resize(first);
      return true;
    case kDup:
      if (stack_.empty()) return bytes_.Fail("there is nothing to repeat");
      return Push(stack_.back());
    default:
      return StepMemo(opcode);
  }
}

/// Puts on the stack what the reader of events makes of the bytes from here on, if it can.
bool PickleMachine::ReadAhead(EventReader::Read read) {
  Value value;
  const std::uint8_t* const behind =
      HasRoom() ? (events_.*read)(bytes_.at(), bytes_.end(), value) : nullptr;
  if (behind == nullptr) return false;
  bytes_.GoTo(behind);
  stack_.push_back(value);
  return true;
}

/// The opcodes that events are made of come first; all others are rare.
bool PickleMachine::Step(std::uint8_t opcode) {
  switch (opcode) {
    case kLongBinGet: {
      Value v;
      if (!bytes_.Need(4)) return false;
      const auto index = bytes_.Take<std::uint32_t>();
      return memo_.Get(index, v) ? Push(v) : MemoGet(index);
    }
    case kBinGet: {
      Value v;
      if (!bytes_.Need(1)) return false;
      const auto index = bytes_.Take<std::uint8_t>();
      return memo_.Get(index, v) ? Push(v) : MemoGet(index);
    }
    case kBinInt1:
      return bytes_.Need(1) && Push(Value::Int(bytes_.Take<std::uint8_t>()));
    case kBinInt:
      return bytes_.Need(4) && Push(Value::Int(bytes_.Take<std::int32_t>()));
    case kLong1:
      return StepNumber(opcode);
    case kMark:
      if (marks_.size() >= most_values_) return bytes_.Fail("groups are nested too deeply");
      marks_.push_back(stack_.size());
      return true;
    case kMemoize:
      return MemoPut(memo_.size());
    case kEmptyDict:
      return ReadAhead(&EventReader::Event) || Push({Kind::kNewDict, kNoMemo});
    case kEmptyList:
      return ReadAhead(&EventReader::Stack) || Push({Kind::kNewList, kNoMemo});
    default:
      return StepContainer(opcode);
  }
}

Result<Value> PickleMachine::Run() {
  while (true) {
    if (!bytes_.Turn()) return *bytes_.error();
    const std::uint8_t opcode = bytes_.TakeOpcode();
    if (opcode == kStop) break;
    // A mark must not outlive the values below it.
    if (!Step(opcode)) return *bytes_.error();
    if (builder_.budget().spent()) {
      bytes_.Fail(ReadBudget::Refusal().message, ReadBudget::Refusal().hint);
      return *bytes_.error();
    }
    if (!marks_.empty() && marks_.back() > stack_.size()) {
      bytes_.Fail("a group lost the list or dict that it belongs to");
      return *bytes_.error();
    }
  }
  if (stack_.empty()) {
    bytes_.Fail("the file holds nothing");
    return *bytes_.error();
  }
  return Resolve(stack_.back());
}

}  // namespace plimsoll::snapshot
