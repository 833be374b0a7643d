#include "report/growth_text.h"

#include <fmt/format.h>

#include "base/text.h"

namespace plimsoll {
namespace {

std::string KeptBy(const Growth& growth) {
  if (!growth.keeper) return "";
  const std::string name = fmt::format(" and kept in {}", Printable(growth.keeper->name));
  return growth.keeper->where.empty()
             ? name
             : fmt::format("{} ({})", name, Printable(growth.keeper->where));
}

/// "every 50 steps `if step % 50 == 0:` (train.py:63) leaves 8.00 MiB"
std::string LeavesMore(const Growth& growth) {
  if (growth.branch.empty()) {
    return fmt::format("each step leaves {} more allocated than the one before",
                       FormatBytes(growth.bytes));
  }
  return fmt::format("every {} steps {} leaves {} more allocated than it found", growth.every,
                     Printable(growth.branch), FormatBytes(growth.bytes));
}

}  // namespace

std::string GrowthText(const Growth& growth) {
  return fmt::format("{}, made at {}{}", LeavesMore(growth), growth.holders.front().where,
                     KeptBy(growth));
}

}  // namespace plimsoll
