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

/// A number of up to 64 bits.
[[gnu::always_inline]] inline const std::uint8_t* Number(const std::uint8_t* at, Value& value) {
  switch (*at) {
    case kBinInt1:
      value = Value::Int(at[1]);
      return at + 2;
    case kBinInt2:
      value = Value::Int(LoadAt<std::uint16_t>(at + 1));
      return at + 3;
    case kBinInt:
      value = Value::Int(LoadAt<std::int32_t>(at + 1));
      return at + 5;
    default: {
      const unsigned bytes = at[1];
      if (bytes - 1 > 7) return nullptr;
      const unsigned unused = 64 - 8 * bytes;
      value =
          Value::Int(static_cast<std::int64_t>(LoadAt<std::uint64_t>(at + 2) << unused) >> unused);
      return at + 2 + bytes;
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
/// out. False, and `at` stays, where the next opcode does neither.
inline bool EventReader::Put(At& at, Value value) {
  const std::uint64_t index = memo_.size() + put_count_;
  std::size_t length = 0;
  if (*at == kMemoize) {
    length = 1;
  } else if (*at == kBinPut && at[1] == index) {
    length = 2;
  } else if (*at == kLongBinPut && LoadAt<std::uint32_t>(at + 1) == index) {
    length = 5;
  }
  if (length == 0 || put_count_ == puts_.size()) return false;
  at += length;
  if (value.kind == Kind::kNewList) value.payload = index;
  puts_[put_count_++] = value;
  return true;
}

bool EventReader::Remember() {
  if (!memo_.HasRoom(put_count_)) return false;
  for (std::size_t i = 0; i < put_count_; ++i) memo_.Add(puts_[i]);
  return true;
}

inline EventReader::At EventReader::Reference(At at, Value& value) const {
  if (*at == kBinGet) return memo_.Get(at[1], value) ? at + 2 : nullptr;
  if (*at != kLongBinGet) return nullptr;
  return memo_.Get(LoadAt<std::uint32_t>(at + 1), value) ? at + 5 : nullptr;
}

/// Events have the same keys in the same order, so a key is known by its bytes and need not be
/// looked up in the memo.
[[gnu::always_inline]] inline EventReader::At EventReader::KeyAt(At at, SpelledKey& known) const {
  const auto bytes = LoadAt<std::uint64_t>(at);
  if ((bytes & known.mask) == known.bytes) return at + known.length;
  Value name;
  const At behind = Reference(at, name);
  if (behind == nullptr) return nullptr;
  known.length = static_cast<std::size_t>(behind - at);
  known.mask = ~std::uint64_t{0} >> (64 - 8 * known.length);
  known.bytes = bytes & known.mask;
  known.key = builder_.KeyOf(name);
  return behind;
}

EventReader::At EventReader::Pair(At at, Value& value) {
  std::array<Value, 2> items = {value, {}};
  at = Number(at, items[1]);
  if (at == nullptr || *at != kTuple2) return nullptr;
  ++at;
  value = builder_.Tuple(items);
  Put(at, value);
  return at;
}

EventReader::At EventReader::Text(At at, Value& value) {
  const bool is_short = *at == kShortBinUnicode;
  const std::size_t length = is_short ? at[1] : LoadAt<std::uint32_t>(at + 1);
  at += is_short ? 2 : 5;
  if (static_cast<std::size_t>(end_ - at) < length + kFieldBytes) return nullptr;
  value = builder_.String({reinterpret_cast<const char*>(at), length});
  at += length;
  Put(at, value);
  return at;
}

[[gnu::always_inline]] inline EventReader::At EventReader::ValueAt(At at, Value& value) {
  switch (*at) {
    case kBinGet:
    case kLongBinGet:
      return Reference(at, value);
    case kBinInt1:
    case kBinInt2:
    case kBinInt:
    case kLong1:
      at = Number(at, value);
      return at != nullptr && IsNumber(*at) ? Pair(at, value) : at;
    case kEmptyList:
      return List(at + 1, value);
    case kShortBinUnicode:
    case kBinUnicode:
      return Text(at, value);
    default:
      return nullptr;
  }
}

/// The frames that these references name, as a stack.
std::optional<std::uint64_t> EventReader::NewStack(std::string_view spelling) {
  scratch_.clear();
  At at = reinterpret_cast<At>(spelling.data());
  for (const At end = at + spelling.size(); at < end;) {
    Value v;
    at = Reference(at, v);
    if (at == nullptr || v.kind != Kind::kFrame) return std::nullopt;
    scratch_.push_back(FrameId(v.payload));
  }
  return builder_.Stack(scratch_).payload;
}

/// "Get item n" forty times, then `e`: recognised by the bytes, without looking at the items.
EventReader::At EventReader::Frames(At at, Value& stack) {
  const std::string_view rest(reinterpret_cast<const char*>(at),
                              static_cast<std::size_t>(end_ - at));
  const SpelledStacks::Spelled* known = spelled_.Expected(rest);
  if (known == nullptr || rest.size() == known->length || at[known->length] != kAppends) {
    const At behind = EndOfReferences(at, end_);
    if (behind == at || behind >= end_ || *behind != kAppends) return nullptr;
    const std::string_view spelling = rest.substr(0, static_cast<std::size_t>(behind - at));
    known = spelled_.Find(spelling);
    if (known == nullptr) {
      const std::optional<std::uint64_t> made = NewStack(spelling);
      if (!made) return nullptr;
      stack = {Kind::kStack, *made};
      known = spelled_.Add(spelling, *made);
      if (known == nullptr) return behind + 1;
      builder_.budget().Take(spelling.size() + SpelledStacks::kBytesEach);
    }
  }
  spelled_.Found(*known);
  stack = {Kind::kStack, known->stack};
  return at + known->length + 1;
}

/// `]`, memoize, `(`, frames, `e`; or an empty list.
EventReader::At EventReader::List(At at, Value& value) {
  value = {Kind::kNewList, kNoMemo};
  const bool put = Put(at, value);
  if (*at == kMark) {
    at = Frames(at + 1, value);
    if (put) puts_[put_count_ - 1] = value;
  } else if (put) {
    value = puts_[put_count_ - 1];
  }
  return at;
}

EventReader::At EventReader::Stack(At at, At end, Value& stack) {
  end_ = end;
  put_count_ = 0;
  if (end - at < kFieldBytes) return nullptr;
  at = List(at, stack);
  return at != nullptr && Remember() ? at : nullptr;
}

EventReader::At EventReader::Event(At at, At end, Value& event) {
  end_ = end;
  put_count_ = 0;
  if (end - at < kFieldBytes) return nullptr;
  const bool put = Put(at, {Kind::kNewDict, kNoMemo});
  if (*at != kMark) return nullptr;
  ++at;
  std::size_t count = 0;
  for (SpelledKey& spelled : keys_) {
    if (end - at < kFieldBytes) return nullptr;
    if (*at == kSetItems) break;
    at = KeyAt(at, spelled);
    if (at == nullptr || (count == 0 && spelled.key != Key::kAction)) return nullptr;
    Builder::Field& field = fields_[count];
    at = ValueAt(at, field.value);
    if (at == nullptr) return nullptr;
    field.key = spelled.key;
    if (field.key != Key::kUnknown) ++count;
  }
  if (count == 0 || at >= end || *at != kSetItems || !memo_.HasRoom(put_count_)) return nullptr;
  event = builder_.AddEvent(std::span(fields_).first(count));
  if (put) puts_[0] = event;
  Remember();
  return at + 1;
}

}  // namespace plimsoll::snapshot
