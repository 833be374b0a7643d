#include "readers/snapshot/event_reader.h"

#include <algorithm>
#include <cstring>

#include "readers/snapshot/opcodes.h"

namespace plimsoll::snapshot {
namespace {

/// A key, a pair of numbers and what follows them fit into so many bytes.
constexpr std::ptrdiff_t kFieldBytes = 48;

template <typename T>
T LoadAt(const std::uint8_t* at) {
  T v;
  std::memcpy(&v, at, sizeof v);  // pickles are little-endian, and so are the hosts we build for
  return v;
}

/// Where a run of "get item n" ends. Five bytes each are the commonest by far, so eight of those
/// are looked at together.
const std::uint8_t* EndOfReferences(const std::uint8_t* p, const std::uint8_t* end) {
  while (end - p > 40) {
    bool all = true;
    for (int i = 0; i < 8; ++i) all &= p[5 * i] == kLongBinGet;
    if (!all) break;
    p += 40;
  }
  while (true) {
    if (end - p > 5 && *p == kLongBinGet) {
      p += 5;
    } else if (end - p > 2 && *p == kBinGet) {
      p += 2;
    } else {
      return p;
    }
  }
}

bool IsNumber(std::uint8_t opcode) {
  return opcode == kBinInt1 || opcode == kBinInt2 || opcode == kBinInt || opcode == kLong1;
}

/// A number of up to 64 bits. False where it has more, or none.
bool TakeNumber(const std::uint8_t*& at, Value& value) {
  switch (*at) {
    case kBinInt1:
      value = Value::Int(at[1]);
      at += 2;
      return true;
    case kBinInt2:
      value = Value::Int(LoadAt<std::uint16_t>(at + 1));
      at += 3;
      return true;
    case kBinInt:
      value = Value::Int(LoadAt<std::int32_t>(at + 1));
      at += 5;
      return true;
    default: {
      const unsigned bytes = at[1];
      if (bytes - 1 > 7) return false;
      const unsigned unused = 64 - 8 * bytes;
      value = Value::Int(static_cast<std::int64_t>(LoadAt<std::uint64_t>(at + 2) << unused) >>
                         unused);
      at += 2 + bytes;
      return true;
    }
  }
}

}  // namespace

EventReader::EventReader(Memo& memo, Builder& builder, InputSize file)
    : memo_(memo),
      builder_(builder),
      // Few stacks are distinct; where nearly all are, to look for them is to no avail.
      spelled_(std::max(std::size_t{16} << 20, file.unpacked / 8)) {}

/// What the machine is to remember: protocol 4 counts by itself, before that the number was spelled
/// out. False, and nothing is taken, where the next opcode does neither.
bool EventReader::TakePut(Cursor& c, Value value) const {
  const std::uint64_t index = memo_.size() + c.put_count;
  std::size_t length = 0;
  if (*c.at == kMemoize) length = 1;
  if (*c.at == kBinPut && c.at[1] == index) length = 2;
  if (*c.at == kLongBinPut && LoadAt<std::uint32_t>(c.at + 1) == index) length = 5;
  if (length == 0 || c.put_count == c.puts.size()) return false;
  c.at += length;
  if (value.kind == Kind::kNewList) value.payload = index;
  c.puts[c.put_count++] = value;
  return true;
}

bool EventReader::TakeReference(Cursor& c, Value& value) const {
  if (*c.at == kBinGet) {
    const std::uint8_t index = c.at[1];
    c.at += 2;
    return memo_.Get(index, value);
  }
  if (*c.at != kLongBinGet) return false;
  const auto index = LoadAt<std::uint32_t>(c.at + 1);
  c.at += 5;
  return memo_.Get(index, value);
}

bool EventReader::TakePair(Cursor& c, Value& value) {
  std::array<Value, 2> items = {value, {}};
  if (!TakeNumber(c.at, items[1]) || *c.at != kTuple2) return false;
  ++c.at;
  value = builder_.Tuple(items);
  TakePut(c, value);
  return true;
}

bool EventReader::TakeText(Cursor& c, Value& value) {
  const bool is_short = *c.at == kShortBinUnicode;
  const std::size_t length = is_short ? c.at[1] : LoadAt<std::uint32_t>(c.at + 1);
  c.at += is_short ? 2 : 5;
  if (static_cast<std::size_t>(c.end - c.at) < length + kFieldBytes) return false;
  value = builder_.String({reinterpret_cast<const char*>(c.at), length});
  c.at += length;
  TakePut(c, value);
  return true;
}

bool EventReader::TakeValue(Cursor& c, Value& value) {
  switch (*c.at) {
    case kBinGet:
    case kLongBinGet:
      return TakeReference(c, value);
    case kBinInt1:
    case kBinInt2:
    case kBinInt:
    case kLong1:
      return TakeNumber(c.at, value) && (!IsNumber(*c.at) || TakePair(c, value));
    case kEmptyList:
      ++c.at;
      return TakeList(c, value);
    case kShortBinUnicode:
    case kBinUnicode:
      return TakeText(c, value);
    default:
      return false;
  }
}

/// The frames that these references name, as a stack.
std::optional<std::uint64_t> EventReader::NewStack(std::string_view spelling) {
  scratch_.clear();
  Cursor c{reinterpret_cast<const std::uint8_t*>(spelling.data()), nullptr};
  c.end = c.at + spelling.size();
  while (c.at < c.end) {
    Value v;
    if (!TakeReference(c, v) || v.kind != Kind::kFrame) return std::nullopt;
    scratch_.push_back(FrameId(v.payload));
  }
  return builder_.Stack(scratch_).payload;
}

/// `]`, memoize, `(`, then "get item n" forty times, `e`: such a list is recognised by its bytes,
/// without looking at its items.
std::optional<std::uint64_t> EventReader::TakeFrames(Cursor& c) {
  const std::string_view rest(reinterpret_cast<const char*>(c.at),
                              static_cast<std::size_t>(c.end - c.at));
  const SpelledStacks::Spelled* known = spelled_.Expected(rest);
  if (known == nullptr || rest.size() == known->length || c.at[known->length] != kAppends) {
    const std::uint8_t* const end = EndOfReferences(c.at, c.end);
    if (end == c.at || end >= c.end || *end != kAppends) return std::nullopt;
    const std::string_view spelling = rest.substr(0, static_cast<std::size_t>(end - c.at));
    known = spelled_.Find(spelling);
    if (known == nullptr) {
      const std::optional<std::uint64_t> stack = NewStack(spelling);
      if (!stack) return std::nullopt;
      known = spelled_.Add(spelling, *stack);
      if (known == nullptr) {
        c.at = end + 1;
        return stack;
      }
      builder_.budget().Take(spelling.size() + SpelledStacks::kBytesEach);
    }
  }
  spelled_.Found(*known);
  c.at += known->length + 1;
  return known->stack;
}

bool EventReader::TakeList(Cursor& c, Value& value) {
  value = {Kind::kNewList, kNoMemo};
  const bool put = TakePut(c, value);
  Value& remembered = put ? c.puts[c.put_count - 1] : value;
  if (*c.at != kMark) {
    value = remembered;  // an empty list
    return true;
  }
  ++c.at;
  const std::optional<std::uint64_t> stack = TakeFrames(c);
  if (!stack) return false;
  remembered = value = {Kind::kStack, *stack};
  return true;
}

std::optional<EventReader::Made> EventReader::Finish(const Cursor& c, Value value) {
  for (std::size_t i = 0; i < c.put_count; ++i) memo_.Put(memo_.size(), c.puts[i]);
  return Made{value, c.at};
}

std::optional<EventReader::Made> EventReader::Stack(const std::uint8_t* at,
                                                    const std::uint8_t* end) {
  Cursor c{at, end};
  Value list;
  if (end - at < kFieldBytes || !TakeList(c, list) || !memo_.HasRoom(c.put_count)) return {};
  return Finish(c, list);
}

std::optional<EventReader::Made> EventReader::Event(const std::uint8_t* at,
                                                    const std::uint8_t* end) {
  Cursor c{at, end};
  if (end - at < kFieldBytes) return {};
  const bool put = TakePut(c, {Kind::kNewDict, kNoMemo});
  if (*c.at != kMark) return {};
  ++c.at;
  std::size_t count = 0;
  while (end - c.at >= kFieldBytes && *c.at != kSetItems) {
    Value name;
    if (!TakeReference(c, name)) return {};
    const Key key = builder_.KeyOf(name);
    if (count == 0 && key != Key::kAction) return {};
    Builder::Field& field = fields_[count];
    field.key = key;
    if (!TakeValue(c, field.value)) return {};
    if (key != Key::kUnknown && ++count == fields_.size()) return {};
  }
  if (count == 0 || c.at >= end || *c.at != kSetItems || !memo_.HasRoom(c.put_count)) return {};
  ++c.at;
  const Value event = builder_.AddEvent(std::span(fields_).first(count));
  if (put) c.puts[0] = event;
  return Finish(c, event);
}

}  // namespace plimsoll::snapshot
