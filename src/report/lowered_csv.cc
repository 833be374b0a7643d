#include <fmt/format.h>

#include "base/printable.h"
#include "report/predict.h"

namespace plimsoll {
std::string LoweredCsv(const Job& job, const Variant& variant, const Lowered& lowered) {
  std::string out = "action,bytes,block,step,phase,category,beside,op,module,where\n";
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    const Request& request = lowered.workload.requests[i];
    const LoweredBlock& block = lowered.blocks[request.allocation];
    const Moment& moment = lowered.moments[i];
    std::string_view op;
    std::string_view module;
    std::string_view where;
    if (moment.call != LoweredBlock::kNoCall) {
      const CallRecord& call = variant.calls[moment.call];
      op = job.strings[call.op];
      module = job.strings[call.module];
      where = job.strings[call.where];
    } else if (block.model_tensor != LoweredBlock::kNoCall) {
      op = job.strings[variant.model_tensors[block.model_tensor].name];
    }
    const auto line = [&](std::string_view action) {
      out += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", action, block.requested,
                         request.allocation, moment.step, StageName(moment.stage),
                         CategoryName(block.category), block.beside ? 1 : 0, CsvCell(op),
                         CsvCell(module), CsvCell(where));
    };
    if (request.kind != Request::Kind::kFree) line("alloc");
    if (request.kind != Request::Kind::kAllocate) line("free");
  }
  return out;
}

}  // namespace plimsoll
