#include "answer/finding.h"

#include <set>
#include <utility>

namespace plimsoll {

void TellRemediesOnce(std::vector<Finding>& findings) {
  std::set<std::pair<Lever, std::string>> told;
  for (Finding& finding : findings) {
    std::erase_if(finding.remedies, [&](const Remedy& remedy) {
      // Two sentences about the same lever are one remedy, but for settings and what has no name.
      const bool own = remedy.lever == Lever::kOther || remedy.lever == Lever::kAllocatorSetting;
      return !told.insert({remedy.lever, own ? remedy.change : std::string()}).second;
    });
  }
}

}  // namespace plimsoll
