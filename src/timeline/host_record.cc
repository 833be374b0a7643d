#include "timeline/host_record.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

struct HostRoleRow {
  HostRole role;
  std::string_view name;
};
constexpr auto kHostRoles = std::to_array<HostRoleRow>({{HostRole::kMain, "main"},
                                                        {HostRole::kRank, "rank"},
                                                        {HostRole::kLoaderWorker, "loader_worker"},
                                                        {HostRole::kWorker, "worker"},
                                                        {HostRole::kOther, "other"}});

}  // namespace

std::string_view HostRoleName(HostRole role) {
  return std::ranges::find(kHostRoles, role, &HostRoleRow::role)->name;
}

std::optional<HostRole> HostRoleOf(std::string_view name) {
  const auto* const found = std::ranges::find(kHostRoles, name, &HostRoleRow::name);
  return found == kHostRoles.end() ? std::nullopt : std::optional(found->role);
}

}  // namespace plimsoll
