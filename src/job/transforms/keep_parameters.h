// An optimizer that has only some of the parameters: its calls, without what belongs to the others.
#pragma once

#include <set>

#include "job/file/job.h"

namespace plimsoll {

class KeepParameters {
 public:
  /// `kept` are storages of parameters. Looks at every call outside of forward and backward.
  KeepParameters(const Job& job, const Variant& variant, const std::set<Storage>& kept);

  /// Takes what belongs to other parameters out of the call. False if nothing is left of it.
  bool Cut(CallRecord& call) const;

 private:
  void Join(const CallRecord& call);
  Storage RootOf(Storage storage) const;
  void Unite(Storage a, Storage b);
  bool IsOthers(const TensorUse& tensor) const;

  /// By storage: another of the same parameter, up to the parameter itself.
  std::vector<Storage> parent_;
  std::set<Storage> others_;
  std::set<std::uint32_t> parameter_layouts_;
};

}  // namespace plimsoll
