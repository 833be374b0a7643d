#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// Of an argument that may be changed, or of one that may not.
template <typename ArgumentType, typename Each>
void ForEachTensor(ArgumentType& argument, const Each& each) {
  if (auto* tensor = std::get_if<TensorUse>(&argument.is)) each(*tensor);
  if (auto* list = std::get_if<Argument::List>(&argument.is)) {
    for (auto& element : *list) ForEachTensor(element, each);
  }
}

template <typename Record, typename Each>
void ForEachTensorOf(Record& call, const Each& each) {
  for (auto& argument : call.args) ForEachTensor(argument, each);
  for (auto& [name, argument] : call.kwargs) ForEachTensor(argument, each);
}

}  // namespace

void ForEachArgument(CallRecord& call, const EachTensor& each) { ForEachTensorOf(call, each); }

void ForEachArgument(const CallRecord& call, const EachReadTensor& each) {
  ForEachTensorOf(call, each);
}

}  // namespace plimsoll
