// What was captured, run once more: what it calls a storage of the round before is then that
// storage's counterpart in itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "job/file/job.h"
#include "job/lowering/request_writer.h"
#include "job/lowering/storage_blocks.h"

namespace plimsoll {

/// From one event to before another.
struct EventSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A storage, and by what it can be known again in another round.
struct MadeStorage {
  Storage storage = 0;
  StringId op;
  StringId where;
  std::int64_t bytes = 0;

  bool Like(const MadeStorage& other) const { return op == other.op && bytes == other.bytes; }
};

std::vector<MadeStorage> MadeIn(const Variant& variant, const std::vector<JobEvent>& events,
                                const EventSpan& span);

/// Storages of one round, each with the one that stands for it in the next.
using StoragePairs = std::vector<std::pair<Storage, Storage>>;
StoragePairs FindCounterparts(const std::vector<MadeStorage>& older,
                              const std::vector<MadeStorage>& last);

/// Blocks that lose their name though they stay, by the storage whose end is theirs.
using KeptBlocks = std::unordered_map<Storage, std::vector<std::uint32_t>>;

/// Before the last round runs once more: what it calls a storage of the one before is now that
/// storage's counterpart in itself.
void Shift(StorageBlocks& blocks, const StoragePairs& pairs, KeptBlocks* kept = nullptr);

/// The last captured step, run again as a later one. What it keeps loses its name then, as its
/// successor has it; where the keeper has room for so many steps only, the oldest goes.
class Repetition {
 public:
  /// `steps`: where those of the capture are, two at least.
  Repetition(const Job& job, const Variant& variant, const std::vector<EventSpan>& steps,
             StorageBlocks& blocks, RequestWriter& requests);

  /// What the step before let go itself, and the last one did not: to be freed first.
  const std::vector<Storage>& LeftOver() const { return left_over_; }
  /// As the step of this number.
  void Begin(int number);
  /// What the step makes may take the place of what goes.
  void BeforeCall(const CallRecord& call);
  void End(int number);

 private:
  std::int64_t most() const { return job_.keeper ? job_.keeper->most : 0; }
  bool BothStay(const std::pair<Storage, Storage>& pair) const;
  void FindLeftOver(std::size_t storages, const std::vector<JobEvent>& events,
                    const EventSpan& before, const EventSpan& last);
  void FindLetGo(std::size_t storages, const std::vector<JobEvent>& events, const EventSpan& before,
                 const EventSpan& last);
  void NoteKept(int number);
  void NoteKeptBefore(const std::unordered_set<Storage>& kept);
  void Lose(Storage storage, std::int64_t step);
  void LetGo(std::int64_t step);

  const Job& job_;
  StorageBlocks& blocks_;
  RequestWriter& requests_;
  /// By captured step.
  std::vector<std::vector<MadeStorage>> made_;
  /// Of the step before the last, and of the last.
  StoragePairs counterparts_;
  std::vector<Storage> left_over_;
  /// What the last step lets go of the step two before it, as one that keeps its last two losses
  /// does, and what the step before keeps in its place.
  StoragePairs let_go_;
  std::map<std::int64_t, std::vector<std::uint32_t>> kept_of_steps_;
  /// Of the last captured step: what is kept. Before it makes the first of them, it lets go of what
  /// is kept of a step, where there is one.
  std::unordered_set<Storage> keeps_;
  std::optional<std::int64_t> lets_go_of_;
};

}  // namespace plimsoll
