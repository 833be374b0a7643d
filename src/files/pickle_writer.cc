#include "files/pickle_writer.h"

#include <array>
#include <bit>
#include <cstddef>
#include <limits>

namespace plimsoll {
namespace {

constexpr std::size_t kEnough = 64 << 10;
/// As Python's own pickler has it.
constexpr std::int64_t kBatch = 1000;

/// The opcodes, as pickletools names them.
enum : char {
  kOpProto = '\x80',
  kOpEmptyDict = '}',
  kOpEmptyList = ']',
  kOpMark = '(',
  kOpSetItems = 'u',
  kOpAppends = 'e',
  kOpTuple2 = '\x86',
  kOpText = 'X',
  kOpByte = 'K',
  kOpShort = 'M',
  kOpInt = 'J',
  kOpLong = '\x8a',
  kOpFloat = 'G',
  kOpTrue = '\x88',
  kOpFalse = '\x89',
  kOpPut = 'r',
  kOpGet = 'j',
  kOpStop = '.',
};

}  // namespace

PickleWriter::PickleWriter(Sink sink) : sink_(std::move(sink)) {
  Put(kOpProto);
  Put('\x02');
}

void PickleWriter::HandOver() {
  if (buffer_.size() < kEnough) return;
  sink_(buffer_);
  buffer_.clear();
}

/// Little-endian.
template <typename Integer>
void PickleWriter::PutNumber(Integer value) {
  auto rest = static_cast<std::uint64_t>(value);
  std::array<char, sizeof value> bytes;
  for (char& byte : bytes) {
    byte = static_cast<char>(rest & 0xff);
    rest >>= 8;
  }
  buffer_.append(bytes.data(), bytes.size());
}

void PickleWriter::BeginDict() {
  Put(kOpEmptyDict);
  Put(kOpMark);
}

void PickleWriter::EndDict() {
  Put(kOpSetItems);
  HandOver();
}

void PickleWriter::BeginList() {
  Put(kOpEmptyList);
  Put(kOpMark);
}

void PickleWriter::Split() {
  HandOver();
  if (++items_ % kBatch != 0) return;
  Put(kOpAppends);
  Put(kOpMark);
}

void PickleWriter::EndList() { Put(kOpAppends); }

void PickleWriter::Pair() { Put(kOpTuple2); }

void PickleWriter::Text(std::string_view text) {
  if (const auto found = texts_.find(text); found != texts_.end()) return Again(found->second);
  texts_.emplace(text, next_);
  Put(kOpText);
  PutNumber(static_cast<std::uint32_t>(text.size()));
  buffer_ += text;
  Keep();
}

void PickleWriter::Number(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    Put(kOpByte);
    return PutNumber(static_cast<std::uint8_t>(value));
  }
  if (value >= 0 && value <= 0xffff) {
    Put(kOpShort);
    return PutNumber(static_cast<std::uint16_t>(value));
  }
  if (value >= std::numeric_limits<std::int32_t>::min() &&
      value <= std::numeric_limits<std::int32_t>::max()) {
    Put(kOpInt);
    return PutNumber(static_cast<std::int32_t>(value));
  }
  Put(kOpLong);
  Put('\x08');
  PutNumber(value);
}

/// Big-endian, unlike the rest.
void PickleWriter::Real(double value) {
  Put(kOpFloat);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) Put(static_cast<char>((bits >> shift) & 0xff));
}

void PickleWriter::Truth(bool value) { Put(value ? kOpTrue : kOpFalse); }

PickleWriter::Kept PickleWriter::Keep() {
  Put(kOpPut);
  PutNumber(next_);
  return next_++;
}

void PickleWriter::Again(Kept kept) {
  Put(kOpGet);
  PutNumber(kept);
}

void PickleWriter::Finish() {
  Put(kOpStop);
  sink_(buffer_);
  buffer_.clear();
}

}  // namespace plimsoll
