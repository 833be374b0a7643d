#include "job/answer/held_by.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace plimsoll {

std::vector<Holder> HeldBy(const Trial& trial, const std::vector<std::uint32_t>& blocks) {
  const StringTable& strings = trial.setting().job->strings;
  std::map<std::tuple<std::string_view, std::string, Category>, Holder> sums;
  for (const std::uint32_t b : blocks) {
    const LoweredBlock& block = trial.lowered().blocks[b];
    std::string_view where;
    std::string_view module;
    if (block.call != LoweredBlock::kNoCall) {
      const CallRecord& call = trial.setting().variant().calls[block.call];
      where = strings[call.where];
      module = strings[call.module];
      if (where.empty()) where = strings[call.op];
    } else if (block.model_tensor != LoweredBlock::kNoCall) {
      where = "the model";
    }
    Holder& holder = sums[{where, FoldedLayers(module), block.category}];
    holder.bytes += block.requested;
    ++holder.count;
  }
  std::vector<Holder> rows;
  for (auto& [key, holder] : sums) {
    std::tie(holder.where, holder.module, holder.category) = key;
    rows.push_back(std::move(holder));
  }
  return ByLine(std::move(rows));
}

}  // namespace plimsoll
