// Several processes of one job: which is the odd one, and by what it differs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"

namespace plimsoll {

/// The rank that a file's name tells: "ddp.rank3.pickle.xz", "snapshot_rank_12.pkl", "r7.pickle".
std::optional<int> RankFromName(const std::string& path);

/// Compares the ranks of a trace. A finding for each odd one; none if they are even, and then
/// `even` says so.
std::vector<Finding> CompareRanks(const std::vector<RankReport>& ranks, std::string& even);

}  // namespace plimsoll
