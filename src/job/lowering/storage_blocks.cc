#include "job/lowering/storage_blocks.h"

#include <algorithm>
#include <utility>

namespace plimsoll {
namespace {

/// Rules hold a handful for a storage; what a file makes them hold beyond this stays for good.
constexpr std::size_t kMostHeld = 100;

}  // namespace

void StorageBlocks::Put(Storage storage, std::uint32_t block) {
  block_of_[storage] = block;
  if (block == kNone) return;
  if (users_.size() <= block) users_.resize(block + std::size_t{1});
  users_[block] = 1;
}

void StorageBlocks::Share(Storage storage, std::uint32_t block) {
  block_of_[storage] = block;
  ++users_[block];
}

std::optional<std::uint32_t> StorageBlocks::Leave(Storage storage) {
  const std::uint32_t block = std::exchange(block_of_[storage], kNone);
  if (block == kNone || --users_[block] != 0) return std::nullopt;
  return block;
}

void StorageBlocks::Hold(Storage storage, const Held& held) {
  std::vector<Held>& all = held_[storage];
  if (all.size() >= kMostHeld) return;
  const auto after = std::upper_bound(all.begin(), all.end(), held.name,
                                      [](int name, const Held& h) { return name < h.name; });
  all.insert(after, held);
}

std::optional<std::uint32_t> StorageBlocks::TakeHeld(Storage storage, int name) {
  std::vector<Held>& all = held_[storage];
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Held& h) { return h.name == name; });
  if (found == all.end()) return std::nullopt;
  const std::uint32_t block = found->block;
  all.erase(found);
  return block;
}

std::vector<StorageBlocks::Held> StorageBlocks::TakeAllHeld(Storage storage) {
  return std::exchange(held_[storage], {});
}

void StorageBlocks::Move(Storage from, Storage to) {
  block_of_[to] = std::exchange(block_of_[from], kNone);
  held_[to] = std::exchange(held_[from], {});
}

}  // namespace plimsoll
