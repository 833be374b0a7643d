#include "job/transforms/call_uses.h"

#include "job/transforms/tensors_of_call.h"

namespace plimsoll {

const TensorUse* TensorArg(const CallRecord& call, std::size_t i) {
  const auto* use = i < call.args.size() ? std::get_if<TensorUse>(&call.args[i].is) : nullptr;
  return use != nullptr && use->storage != kElsewhere ? use : nullptr;
}

CallUses::CallUses(const Job& job, const Variant& variant)
    : job_(job),
      variant_(variant),
      maker_(variant.storages, kNoCall),
      readers_(variant.storages),
      in_backward_(variant.events.size(), false),
      parameter_(variant.storages, false) {
  Stage stage = Stage::kUnknown;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    in_backward_[i] = stage == Stage::kBackward;
    if (event.kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = variant.calls[event.index];
    ForEachArgument(call, [&](const TensorUse& use) {
      std::vector<std::size_t>& readers = readers_[use.storage];
      if (readers.empty() || readers.back() != i) readers.push_back(i);
    });
    for (const NewStorage& fresh : call.fresh) maker_[fresh.storage] = i;
    if (stage == Stage::kForward) forward_.push_back(i);
  }
  for (const ModelTensor& tensor : variant.model_tensors) {
    if (!tensor.buffer) parameter_[tensor.storage] = true;
  }
}

const LayoutRecord* CallUses::LayoutOf(Storage storage) const {
  if (maker_[storage] == kNoCall) return nullptr;
  const CallRecord& call = CallAt(maker_[storage]);
  for (const NewStorage& fresh : call.fresh) {
    if (fresh.storage == storage && fresh.result < call.results.size()) {
      return &LayoutOf(call.results[fresh.result]);
    }
  }
  return nullptr;
}

}  // namespace plimsoll
