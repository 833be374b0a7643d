// Writes a variant of a step anew: what was captured is copied over event by event, or left out,
// and what a transform adds is made, labelled and freed here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "job/file/job.h"

namespace plimsoll {

class JobEditor {
 public:
  /// Everything of the old variant but its events. `op` is the name of the calls that are added.
  JobEditor(Job& job, const Variant& old, std::string_view op);

  void Copy(const JobEvent& event) { new_.events.push_back(event); }

  /// Makes a storage, at any batch of the same size; kElsewhere for 0 bytes. `where` is who holds
  /// it.
  Storage Make(std::string_view where, Bytes bytes, std::optional<Category> category = {},
               std::uint8_t stream = 0);
  /// A call as it is; its new storages have numbers of their own.
  void Call(CallRecord call);
  /// One storage added to another, in place.
  void AddInto(Storage sum, Storage part);
  Storage NewStorageNumber() { return new_.storages++; }
  void Label(Storage storage, Category category);
  /// A micro-batch ends here, and is repeated so often.
  void EndRound(int repeats);
  /// No harm for kElsewhere.
  void Free(Storage storage);
  /// The same, and forgets it.
  void FreeNow(Storage& storage);

  /// What follows the steps was captured as it is on one GPU with the whole model: it is left out,
  /// and the job says so.
  void LeaveOutLater();

  Variant& variant() { return new_; }
  Variant Take() { return std::move(new_); }

 private:
  /// As whoever made it last has it.
  TensorUse UseOf(Storage storage);

  Job& job_;
  StringId op_;
  Variant new_;
  /// Empty until something is asked for.
  std::unordered_map<Storage, TensorUse> made_;
};

/// No parameter is as large; sums of such sizes do not overflow.
inline constexpr Bytes kLargestTensor = Bytes{1} << 42;

/// Sizes in a file may contradict one another: what is larger than any tensor is as large as one.
std::int64_t BoundedProduct(std::int64_t a, std::int64_t b);

/// At the first batch size; the second of a parameter or a buffer.
Bytes BytesOf(const LayoutRecord& layout);
Bytes BytesOf(const Job& job, const ModelTensor& tensor);

}  // namespace plimsoll
