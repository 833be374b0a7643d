// A closed pickle machine: it knows the opcodes that data needs and none that could load a module
// or call a function, so whatever a file says, nothing of it is executed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "readers/snapshot/builder.h"

namespace plimsoll::snapshot {

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, Builder& builder);

  /// Runs the file up to STOP and returns the root value.
  Result<Value> Run();
  int protocol() const { return protocol_; }

 private:
  /// Eight bytes an entry: files have one for every dict, list and string.
  class Memo {
   public:
    explicit Memo(std::size_t most) : most_(most) {}
    bool Put(std::uint64_t index, Value value);
    bool Get(std::uint64_t index, Value& value) const;
    std::uint64_t size() const { return size_; }

   private:
    static constexpr std::size_t kPage = 1 << 16;
    std::size_t most_;
    std::uint64_t size_ = 0;
    std::vector<std::unique_ptr<std::uint64_t[]>> pages_;
    std::vector<std::uint64_t> wide_;  // integers that need all 64 bits
  };

  bool Step(std::uint8_t opcode);
  bool StepContainer(std::uint8_t opcode);
  bool StepNumber(std::uint8_t opcode);
  bool StepText(std::uint8_t opcode);
  bool StepMemo(std::uint8_t opcode);
  bool RefuseCode(std::uint8_t opcode);
  bool Fail(std::string message, std::string hint = {});
  bool CutShort();

  bool Need(std::size_t n) { return static_cast<std::size_t>(end_ - at_) >= n || CutShort(); }
  template <typename T>
  T Take();
  bool PushText(std::uint64_t length);
  bool Push(Value v);
  bool PopToMark(std::size_t& first_item);
  bool MemoGet(std::uint64_t index);
  bool MemoPut(std::uint64_t index);
  bool ExtendDict(std::size_t dict_at, std::size_t first_item);
  bool AppendList(std::size_t list_at, std::size_t first_item);
  /// Containers that were memoized before they were filled are known by their memo index.
  Value Resolve(Value v) const;
  void Settle(std::size_t stack_at, Value before, Value after);
  bool TryStackOfReferences();

  Builder& builder_;
  const std::uint8_t* begin_;
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  int protocol_ = 0;
  std::size_t most_values_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  Memo memo_;
  std::optional<Error> error_;

  /// Lists of frames that were seen before, by the very bytes that spell them.
  struct SpelledStack {
    std::uint64_t hash = 0;
    const std::uint8_t* bytes = nullptr;
    std::uint32_t length = 0;
    std::uint32_t stack = 0;
  };
  void RememberSpelling(const SpelledStack& spelled);
  std::vector<SpelledStack> spelled_;  // open addressing; the size is a power of two
  std::size_t spelled_count_ = 0;
  std::vector<FrameId> scratch_;
};

}  // namespace plimsoll::snapshot
