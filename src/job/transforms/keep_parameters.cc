// Which state, gradient or temporary belongs to which parameter follows from the calls: the members
// of lists go together by their place, and what one call of single tensors works on goes together
// if it has a parameter's shape.
#include "job/transforms/keep_parameters.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace plimsoll {
namespace {

const Argument::List* ListIn(const Argument& argument) {
  const auto* list = std::get_if<Argument::List>(&argument.is);
  const bool of_tensors =
      list != nullptr && !list->empty() && std::ranges::all_of(*list, [](const Argument& member) {
        return std::holds_alternative<TensorUse>(member.is);
      });
  return of_tensors ? list : nullptr;
}

/// The lists of tensors that a call is given.
std::vector<const Argument::List*> ListsOf(const CallRecord& call) {
  std::vector<const Argument::List*> lists;
  for (const Argument& argument : call.args) {
    if (const auto* list = ListIn(argument)) lists.push_back(list);
  }
  return lists;
}

}  // namespace

KeepParameters::KeepParameters(const Job& job, const Variant& variant,
                               const std::set<Storage>& kept)
    : parent_(variant.storages) {
  std::iota(parent_.begin(), parent_.end(), 0);
  std::set<std::vector<Number>> shapes;
  for (const ModelTensor& tensor : variant.model_tensors) {
    if (tensor.trainable) shapes.insert(job.layouts[tensor.layout].sizes);
  }
  for (std::uint32_t layout = 0; layout < job.layouts.size(); ++layout) {
    if (shapes.contains(job.layouts[layout].sizes)) parameter_layouts_.insert(layout);
  }
  Stage stage = Stage::kBuild;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    if (event.kind == JobEvent::Kind::kCall && stage == Stage::kOptimizer) {
      Join(variant.calls[event.index]);
    }
  }
  for (const ModelTensor& tensor : variant.model_tensors) {
    if (!kept.contains(tensor.storage)) others_.insert(RootOf(tensor.storage));
  }
}

void KeepParameters::Join(const CallRecord& call) {
  const std::vector<const Argument::List*> lists = ListsOf(call);
  const auto use = [](const Argument& member) { return std::get<TensorUse>(member.is).storage; };
  for (const Argument::List* list : lists) {
    if (list->size() != lists.front()->size()) continue;
    for (std::size_t i = 0; i < list->size(); ++i) Unite(use((*lists.front())[i]), use((*list)[i]));
  }
  if (!lists.empty()) {
    if (call.results.size() != lists.front()->size()) return;
    for (std::size_t i = 0; i < call.results.size(); ++i) {
      Unite(use((*lists.front())[i]), call.results[i].storage);
    }
    return;
  }
  Storage first = kElsewhere;
  const auto join = [&](const TensorUse& tensor) {
    if (tensor.storage == kElsewhere || !parameter_layouts_.contains(tensor.layout)) return;
    if (first != kElsewhere) Unite(first, tensor.storage);
    first = tensor.storage;
  };
  for (const Argument& argument : call.args) {
    if (const auto* tensor = std::get_if<TensorUse>(&argument.is)) join(*tensor);
  }
  for (const TensorUse& tensor : call.results) join(tensor);
}

bool KeepParameters::Cut(CallRecord& call) const {
  const std::vector<const Argument::List*> lists = ListsOf(call);
  if (lists.empty()) {
    return std::ranges::none_of(call.args, [&](const Argument& argument) {
      const auto* tensor = std::get_if<TensorUse>(&argument.is);
      return tensor != nullptr && IsOthers(*tensor);
    });
  }
  const std::size_t size = lists.front()->size();
  std::vector<char> goes(size, 0);
  for (const Argument::List* list : lists) {
    for (std::size_t i = 0; i < size && list->size() == size; ++i) {
      goes[i] |= IsOthers(std::get<TensorUse>((*list)[i].is));
    }
  }
  std::size_t left = size;
  const bool results_too = call.results.size() == size;
  // From the end, so that places stay what they are.
  for (std::size_t i = size; i-- > 0;) {
    if (!goes[i]) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    for (Argument& argument : call.args) {
      auto* list = std::get_if<Argument::List>(&argument.is);
      // Those of the same length are as short by now.
      if (list != nullptr && list->size() == left) list->erase(list->begin() + at);
    }
    --left;
    if (!results_too) continue;
    call.results.erase(call.results.begin() + at);
    std::erase_if(call.fresh, [&](const NewStorage& fresh) { return fresh.result == i; });
    for (NewStorage& fresh : call.fresh) fresh.result -= fresh.result > i;
  }
  return std::ranges::find(goes, 0) != goes.end();
}

Storage KeepParameters::RootOf(Storage storage) const {
  while (parent_[storage] != storage) storage = parent_[storage];
  return storage;
}

void KeepParameters::Unite(Storage a, Storage b) {
  if (a == kElsewhere || b == kElsewhere) return;
  const Storage root = RootOf(a);
  parent_[RootOf(b)] = root;
  parent_[a] = parent_[b] = root;  // keeps the ways short
}

bool KeepParameters::IsOthers(const TensorUse& tensor) const {
  return tensor.storage != kElsewhere && tensor.storage < parent_.size() &&
         others_.contains(RootOf(tensor.storage));
}

}  // namespace plimsoll
