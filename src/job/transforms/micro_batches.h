// The micro-batches of a captured job: where each begins and ends, and which storage of one is the
// counterpart of which storage of another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "job/file/job.h"
#include "job/transforms/index_set.h"

namespace plimsoll {

/// One round of the training loop. Events [begin, backward_end) are its head: the batch, the
/// forward and the backward. Events [backward_end, end) are its tail: the optimizer's step, if this
/// is the last micro-batch of a step, and what the loop does until the next round begins.
struct MicroBatch {
  std::size_t begin = 0;
  std::size_t backward_end = 0;
  std::size_t end = 0;
  bool updates = false;
};

/// In their order. Empty if a captured step has no backward that ends in an optimizer's stage.
std::vector<MicroBatch> MicroBatchesIn(const Variant& variant);

/// Which storages a round of the loop makes, and which calls belong to the optimizer's step.
class LoopStorages {
 public:
  /// Storages of one place are made by the same operator in the same line of the script, each in
  /// another micro-batch.
  struct Origin {
    std::size_t micro_batch = 0;
    std::uint32_t place = kNoPlace;

    static constexpr std::uint32_t kNoPlace = 0xffffffffu;
  };

  LoopStorages(const Job& job, const Variant& variant,
               const std::vector<MicroBatch>& micro_batches);

  /// Null for model tensors and for storages that the optimizer's step makes.
  const Origin* Find(Storage storage) const;
  bool IsMadeIn(Storage storage, std::size_t micro_batch) const {
    const Origin* const origin = Find(storage);
    return origin != nullptr && origin->micro_batch == micro_batch;
  }
  /// How many places there are.
  std::size_t places() const { return place_of_.size(); }
  /// Gradients that live until the optimizer's step.
  bool IsGradient(Storage storage) const { return gradients_.contains(storage); }
  /// Whether the call of this event runs in every micro-batch, and not only in the last of a step.
  bool InEach(std::size_t event) const { return !of_update_.contains(event); }
  /// One past the last event of the optimizer's step that follows this micro-batch.
  std::size_t UpdateEnd(std::size_t micro_batch) const { return update_end_[micro_batch]; }

 private:
  enum Half : std::uint8_t { kHead, kTail };
  /// With the operator, the line, the module, which of these calls, and which of its storages.
  using Place = std::tuple<Half, StringId, StringId, StringId, std::uint32_t, std::size_t>;
  struct MadeInTail {
    IndexSet by_update, by_loop;
  };

  void FindGradients(const std::vector<MicroBatch>& micro_batches);
  void FindZeroing(const MicroBatch& micro_batch);
  void FindUpdate(const MicroBatch& micro_batch);
  bool IsOfUpdate(std::size_t event, std::size_t last_update, const MadeInTail& made) const;
  bool TakesGradientOrState(const CallRecord& call) const;
  void NotePlaces(std::size_t begin, std::size_t end, std::size_t number, Half half);

  const Job& job_;
  const Variant& variant_;
  /// By storage; those without a place have none.
  std::vector<Origin> origins_;
  IndexSet gradients_, state_;
  /// By event.
  IndexSet of_update_;
  std::map<Place, std::uint32_t> place_of_;
  std::vector<std::size_t> update_end_;
};

/// The captured micro-batch whose head further ones have: the last, if it frees all that the one
/// before it frees. It may not: what a script frees behind its last captured step is not offloaded,
/// for example.
std::size_t HeadToRepeat(const Variant& variant, const std::vector<MicroBatch>& captured,
                         const LoopStorages& storages);

/// The captured micro-batch whose tail further ones have: the last that a micro-batch follows. The
/// very last tail may be cut off, or free what the loop still holds while it goes on. It counts
/// only where it frees more of older micro-batches.
std::size_t TailToRepeat(const Variant& variant, const std::vector<MicroBatch>& captured,
                         const LoopStorages& storages);

/// Of one with this head and this tail: how many micro-batches before it was made what it frees, at
/// most; 1 at least.
std::size_t FurthestFree(const Variant& variant, const std::vector<MicroBatch>& captured,
                         const LoopStorages& storages, std::size_t head, std::size_t tail);

/// Whether `zero_grad()` before the backward frees the gradients of the step before. With several
/// micro-batches it has its place behind the optimizer's step.
bool ZeroesBeforeBackward(const Variant& variant, const std::vector<MicroBatch>& captured,
                          const LoopStorages& storages);

}  // namespace plimsoll
