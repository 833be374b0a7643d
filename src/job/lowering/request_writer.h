// Writes down what a step asks of the allocator, one request after the other, with the moment of
// each.
#pragma once

#include <cstdint>

#include "job/lowering/lower.h"

namespace plimsoll {

class RequestWriter {
 public:
  explicit RequestWriter(Lowered& into) : into_(into) {}

  // Of all that follows.
  const Moment& now() const { return now_; }
  void BeginStep(int step) { now_.step = step; }
  /// One of those behind the steps.
  void BeginPart(int part) {
    now_.part = part;
    now_.round = 0;
  }
  void BeginRound(std::int64_t round) { now_.round = round; }
  void BeginStage(Stage stage);
  void BeginCall(std::uint32_t call, std::uint16_t stream);
  /// What follows is in the computing stream, and is still told of the last call.
  void EndCall() { stream_ = 0; }
  /// What follows is asked for in this pool.
  void UsePool(std::uint8_t pool) { pool_ = pool; }
  std::uint8_t pool() const { return pool_; }
  /// What follows is told of no call.
  void LeaveCall() { now_.call = LoweredBlock::kNoCall; }

  /// Each is the number of a new block.
  std::uint32_t Allocate(Bytes bytes, Category category);
  /// One that is no result.
  std::uint32_t AllocateBeside(Bytes bytes, Category category);
  void Borrow(Bytes bytes);
  void Search(Bytes bytes);
  void Release(std::uint32_t block);
  /// What is cached goes back to the driver, but for what pools of graphs have.
  void EmptyCache();
  /// What was asked for and not given back.
  Bytes held() const { return held_; }

 private:
  std::uint32_t AddBlock(Bytes bytes, const LoweredBlock& block, Request::Kind kind);
  void Add(Bytes bytes, std::uint32_t block, Request::Kind kind);

  Lowered& into_;
  Moment now_;
  std::uint16_t stream_ = 0;
  std::uint8_t pool_ = 0;
  /// By all requests so far.
  Bytes asked_ = 0;
  Bytes held_ = 0;
};

}  // namespace plimsoll
