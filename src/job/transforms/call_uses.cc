#include "job/transforms/call_uses.h"

#include <limits>

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
      parameter_(variant.storages, false),
      kept_(variant.storages, false) {
  Stage stage = Stage::kUnknown;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    in_backward_[i] = stage == Stage::kBackward;
    trains_ = trains_ || in_backward_[i];
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
  FindKept();
}

void CallUses::FindKept() {
  constexpr int kNever = std::numeric_limits<int>::max();
  // By storage, the number of the step.
  std::vector<int> made(kept_.size(), kNever);
  std::vector<int> freed(kept_.size(), kNever);
  int step = 0;
  for (const JobEvent& event : variant_.events) {
    if (event.kind == JobEvent::Kind::kStep) ++step;
    if (event.kind == JobEvent::Kind::kFree) freed[event.index] = step;
    if (event.kind != JobEvent::Kind::kCall) continue;
    for (const NewStorage& fresh : variant_.calls[event.index].fresh) made[fresh.storage] = step;
  }
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    kept_[i] = made[i] < step && freed[i] > made[i] + 1;
  }
  for (const Part& part : variant_.later) {
    for (const JobEvent& event : part.events) {
      if (event.kind != JobEvent::Kind::kCall) continue;
      ForEachArgument(variant_.calls[event.index], [&](const TensorUse& use) {
        if (made[use.storage] != kNever) kept_[use.storage] = true;
      });
    }
  }
}

/// A call in the parameter's own module has its path: what is before that in its name is the
/// model's.
CallUses::Name CallUses::NameOf(Storage parameter) const {
  Name name;
  for (const ModelTensor& tensor : variant_.model_tensors) {
    if (tensor.storage == parameter) name.parameter = job_.strings[tensor.name];
  }
  const std::size_t dot = name.parameter.rfind('.');
  const std::string_view owner = name.parameter.substr(0, dot == std::string_view::npos ? 0 : dot);
  name.model = owner;
  for (const std::size_t reader : readers_[parameter]) {
    const std::string_view module = job_.strings[CallAt(reader).module];
    if (module.empty() || !owner.ends_with(module)) continue;
    const std::string_view before = owner.substr(0, owner.size() - module.size());
    const bool whole = before.empty() || before.ends_with('.');
    if (whole && before.size() < name.model.size()) name.model = before;
  }
  return name;
}

bool CallUses::InOneModel(Storage a, Storage b) const {
  if (a == b) return true;
  const Name first = NameOf(a);
  const Name second = NameOf(b);
  // Of two models of one class all names are the same.
  return first.model == second.model && first.parameter != second.parameter;
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
