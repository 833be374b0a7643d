// Writes what CPython's pickle.dump(…, protocol=4) writes, byte for byte, for the few types that a
// memory snapshot has: the same memo, the same batches, the same frames. Loading such a file in
// Python and dumping it again gives the file back (lab/explain_vs_pickle.sh checks that on a
// small one), so what is measured on it holds for real files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace plimsoll::bench {

class PickleWriter {
 public:
  /// The sink gets the bytes in pieces of about 64 KiB.
  explicit PickleWriter(std::function<void(std::string_view)> sink) : sink_(std::move(sink)) {
    sink_(std::string_view("\x80\x04", 2));
  }

  /// Position in the memo, for Get().
  using Memo = std::uint32_t;

  void None() { Atom("N"); }
  void Bool(bool value) { Atom(value ? "\x88" : "\x89"); }

  void Int(std::int64_t value) {
    Boundary();
    if (value >= 0 && value <= 0xff) {
      Put('K');
      Little(static_cast<std::uint64_t>(value), 1);
    } else if (value >= 0 && value <= 0xffff) {
      Put('M');
      Little(static_cast<std::uint64_t>(value), 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      Put('J');
      Little(static_cast<std::uint64_t>(value), 4);
    } else {
      // LONG1: as few bytes as two's complement needs.
      int size = 8;
      while (size > 1 && Fits(value, size - 1)) --size;
      Put('\x8a');
      Little(static_cast<std::uint64_t>(size), 1);
      Little(static_cast<std::uint64_t>(value), size);
    }
  }

  void Float(double value) {
    Boundary();
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    Put('G');
    for (int shift = 56; shift >= 0; shift -= 8) Put(static_cast<char>(bits >> shift));
  }

  /// The same text is one string object: written once, then by reference.
  void Str(std::string_view text) {
    if (const auto it = strings_.find(std::string(text)); it != strings_.end()) {
      Get(it->second);
      return;
    }
    strings_.emplace(text, FreshStr(text));
  }

  /// A string object of its own, though another may have the same text.
  Memo FreshStr(std::string_view text) {
    Boundary();
    if (text.size() < 256) {
      Put('\x8c');
      Little(text.size(), 1);
    } else {
      Put('X');
      Little(text.size(), 4);
    }
    frame_ += text;
    return Memoize();
  }

  void Get(Memo memo) {
    Boundary();
    Put(memo < 256 ? 'h' : 'j');
    Little(memo, memo < 256 ? 1 : 4);
  }

  void IntPair(std::int64_t first, std::int64_t second) {
    Boundary();
    Int(first);
    Int(second);
    Put('\x86');
    Memoize();
  }

  /// Calls item(i) for each of `count` items; each call writes one value.
  template <typename F>
  Memo List(std::size_t count, F item) {
    Boundary();
    Put(']');
    const Memo memo = Memoize();
    if (count == 1) {
      item(std::size_t{0});
      Put('a');
    }
    for (std::size_t i = 0; count > 1 && i < count;) {
      Put('(');
      for (const std::size_t end = std::min(i + kBatch, count); i < end; ++i) item(i);
      Put('e');
    }
    return memo;
  }

  /// Calls fill(), which writes `count` keys and values; a snapshot's dicts fit into one batch.
  template <typename F>
  Memo Dict(std::size_t count, F fill) {
    Boundary();
    Put('}');
    const Memo memo = Memoize();
    if (count > 1) Put('(');
    fill();
    if (count > 0) Put(count > 1 ? 'u' : 's');
    return memo;
  }

  void Stop() {
    Put('.');
    EndFrame();
  }

 private:
  static constexpr std::size_t kFrameTarget = 64 * 1024;
  static constexpr std::size_t kBatch = 1000;

  static bool Fits(std::int64_t value, int bytes) {
    const std::int64_t limit = std::int64_t{1} << (8 * bytes - 1);
    return value >= -limit && value < limit;
  }

  void Atom(std::string_view opcode) {
    Boundary();
    frame_ += opcode;
  }
  void Put(char byte) { frame_ += byte; }
  void Little(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) Put(static_cast<char>(value >> (8 * i)));
  }
  Memo Memoize() {
    Put('\x94');
    return next_memo_++;
  }

  // CPython looks before each object whether the frame is full.
  void Boundary() {
    if (frame_.size() >= kFrameTarget) EndFrame();
  }
  void EndFrame() {
    std::string body = std::exchange(frame_, {});
    // A frame that is shorter than its header is not worth one.
    if (body.size() >= 4) {
      Put('\x95');
      Little(body.size(), 8);
      sink_(frame_);
    }
    sink_(body);
    frame_.clear();
    frame_.reserve(kFrameTarget + 4096);
  }

  std::function<void(std::string_view)> sink_;
  std::string frame_;
  std::unordered_map<std::string, Memo> strings_;
  Memo next_memo_ = 0;
};

}  // namespace plimsoll::bench
