// Which block each storage of a step lies in, and which ones are held until it dies.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/record/ledger.h"
#include "job/file/job.h"

namespace plimsoll {

class StorageBlocks {
 public:
  static constexpr std::uint32_t kNone = Ledger::kNoAllocation;

  /// A block that is held for a storage, and its name there.
  struct Held {
    int name = 0;
    std::uint32_t block = 0;
  };

  explicit StorageBlocks(std::size_t storages) : block_of_(storages, kNone), held_(storages) {}

  /// kNone where there is none.
  std::uint32_t Of(Storage storage) const { return block_of_[storage]; }
  /// In a block of its own, or in none.
  void Put(Storage storage, std::uint32_t block);
  /// In a block where others lie.
  void Share(Storage storage, std::uint32_t block);
  /// Takes it out; the block if it was the last one there.
  std::optional<std::uint32_t> Leave(Storage storage);

  void Hold(Storage storage, const Held& held);
  std::optional<std::uint32_t> TakeHeld(Storage storage, int name);
  /// From the lowest name up.
  std::vector<Held> TakeAllHeld(Storage storage);

  /// What one storage has becomes what the other has.
  void Move(Storage from, Storage to);

 private:
  /// By storage.
  std::vector<std::uint32_t> block_of_;
  std::vector<std::vector<Held>> held_;
  /// By block: how many storages lie in it.
  std::vector<int> users_;
};

}  // namespace plimsoll
