// Which weights of a model are those of experts that a router chooses among: found by shapes and by
// what chooses, not by the names of modules.
#pragma once

#include <cstdint>
#include <map>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct ExpertWeight {
  /// Of how many experts it is one, or has all.
  std::int64_t experts = 0;
  /// All experts' weights lie in one tensor, which has them in its first dimension. Else it is of
  /// one expert of a list of modules.
  bool stacked = false;
  std::uint32_t layout = 0;
};

struct ExpertRoles {
  std::map<Storage, ExpertWeight> weights;
};

/// An error where the model has none, or they cannot be divided among so many.
Result<ExpertRoles> FindExpertRoles(const Job& job, const Variant& variant, std::int64_t ranks);

}  // namespace plimsoll
