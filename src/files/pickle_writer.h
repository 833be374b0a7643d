// Writes Python's pickle format, protocol 2, piece by piece: what is written need not be in memory.
// Dictionaries, lists, texts and numbers only, so that nothing is run by who reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace plimsoll {

class PickleWriter {
 public:
  using Sink = std::function<void(std::string_view)>;
  /// What a value is kept under, to be written again.
  using Kept = std::uint32_t;

  /// `sink` gets the bytes, some ten thousand at a time.
  explicit PickleWriter(Sink sink);

  /// A dictionary: keys and values, alternating, until EndDict.
  void BeginDict();
  void EndDict();
  /// A list: items until EndList. Split says that an item is done: long lists are written in
  /// batches, as Python does, so that a reader need not hold all of it open.
  void BeginList();
  void Split();
  void EndList();
  /// A pair of what was written last.
  void Pair();

  /// Each distinct text once; then a reference to it.
  void Text(std::string_view text);
  void Number(std::int64_t value);
  void Real(double value);
  void Truth(bool value);

  /// Keeps the value that was written last.
  Kept Keep();
  void Again(Kept kept);

  /// The last byte; everything is with the sink then.
  void Finish();

 private:
  void Put(char opcode) { buffer_ += opcode; }
  void HandOver();
  template <typename Integer>
  void PutNumber(Integer value);

  Sink sink_;
  std::string buffer_;
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, Kept, TextHash, std::equal_to<>> texts_;
  Kept next_ = 0;
  std::int64_t items_ = 0;
};

}  // namespace plimsoll
