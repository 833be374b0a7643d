#include "step/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

void ForEachTensor(Argument& argument, const EachTensor& each) {
  if (auto* tensor = std::get_if<TensorUse>(&argument.is)) each(*tensor);
  if (auto* list = std::get_if<Argument::List>(&argument.is)) {
    for (Argument& element : *list) ForEachTensor(element, each);
  }
}

}  // namespace

void ForEachArgument(CallRecord& call, const EachTensor& each) {
  for (Argument& argument : call.args) ForEachTensor(argument, each);
  for (auto& [name, argument] : call.kwargs) ForEachTensor(argument, each);
}

}  // namespace plimsoll
