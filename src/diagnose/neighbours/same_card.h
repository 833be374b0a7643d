// Which records are of processes that share a card, and not of ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"

namespace plimsoll {

/// A device of one file, with the name that its process has among the others of the card.
struct CardMember {
  CardProcess process;
  /// As launchers leave it beside a record, or the file's path tells; "" where nothing does.
  std::string host;
};

/// Processes of one card.
struct SharedCard {
  int device = 0;
  std::vector<CardMember> members;
  /// Their records in words: "device 0 in each, …".
  std::string known_by;
};

struct SharedCards {
  std::vector<SharedCard> cards;
  /// Why records that could be of one card are not taken for it, in sentences.
  std::vector<std::string> apart;
};

/// The host that a path names, as in "node3/trainer.pickle" or "hostA.trainer.pickle"; "" where it
/// names none.
std::string HostFromPath(const std::string& path);

/// Groups the traces by device, rank and host. Those of a group share a card if their clocks
/// overlap and none of them are the same program at work at the same time, which ranks are. `hosts`
/// has a name for each file of which more is known than its path tells.
SharedCards FindSharedCards(const std::vector<Explanation>& parts,
                            const std::vector<std::pair<std::string, std::string>>& hosts = {});

/// The card's memory, if an error text beside the records tells it.
std::optional<Bytes> CapacityBeside(const std::vector<Explanation>& parts, int device);

/// What the texts count for other processes when one of the card ran out, if they do.
std::optional<Bytes> OthersBeside(const std::vector<Explanation>& parts, int device);

}  // namespace plimsoll
