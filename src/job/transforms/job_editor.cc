#include "job/transforms/job_editor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "job/transforms/optimizer.h"

namespace plimsoll {

JobEditor::JobEditor(Job& job, const Variant& old, std::string_view op)
    : job_(job), op_(job.strings.Intern(op)) {
  new_ = {.precision = old.precision,
          .model_tensors = old.model_tensors,
          .calls = old.calls,
          .events = {},
          .storages = old.storages,
          .passes = old.passes,
          .gradients_used = old.gradients_used};
  // What follows the steps finds the parameters and the state that they have now. Further steps
  // among it would still be as they were captured; the ones that are written anew stand for them.
  std::ranges::copy_if(old.later, std::back_inserter(new_.later),
                       [](const Part& part) { return part.stage != Stage::kStep; });
  if (new_.later.size() != old.later.size() && TrainsOtherwiseLater(job, old)) {
    job_.not_followed.push_back(
        {.what = "later steps train other parameters or with another optimizer, and what they take "
                 "with this change is not known"});
  }
}

Storage JobEditor::Make(std::string_view where, Bytes bytes, std::optional<Category> category,
                        std::uint8_t stream) {
  if (bytes <= 0) return kElsewhere;
  const Storage storage = NewStorageNumber();
  CallRecord call{.op = op_, .where = job_.strings.Intern(where), .stream = stream};
  call.fresh.push_back({.storage = storage, .bytes = {bytes, bytes}});
  Call(std::move(call));
  if (category) Label(storage, *category);
  return storage;
}

void JobEditor::Call(CallRecord call) {
  if (!made_.empty()) {
    for (const TensorUse& result : call.results) made_[result.storage] = result;
  }
  new_.calls.push_back(std::move(call));
  new_.events.push_back(
      {.kind = JobEvent::Kind::kCall, .index = static_cast<std::uint32_t>(new_.calls.size() - 1)});
}

TensorUse JobEditor::UseOf(Storage storage) {
  if (made_.empty()) {
    for (const CallRecord& call : new_.calls) {
      for (const TensorUse& result : call.results) made_[result.storage] = result;
    }
  }
  const auto found = made_.find(storage);
  return found == made_.end() ? TensorUse{.storage = storage} : found->second;
}

void JobEditor::AddInto(Storage sum, Storage part) {
  const TensorUse to = UseOf(sum);
  CallRecord call{.op = job_.strings.Intern("aten.add_.Tensor")};
  call.args = {{to}, {UseOf(part)}};
  call.results = {to};
  Call(std::move(call));
}

void JobEditor::Label(Storage storage, Category category) {
  if (storage == kElsewhere) return;
  new_.events.push_back({.kind = JobEvent::Kind::kLabel, .category = category, .index = storage});
}

void JobEditor::EndRound(int repeats) {
  new_.events.push_back(
      {.kind = JobEvent::Kind::kRound, .index = static_cast<std::uint32_t>(repeats)});
}

void JobEditor::Free(Storage storage) {
  if (storage == kElsewhere) return;
  new_.events.push_back({.kind = JobEvent::Kind::kFree, .index = storage});
}

void JobEditor::FreeNow(Storage& storage) { Free(std::exchange(storage, kElsewhere)); }

void JobEditor::LeaveOutLater() {
  if (new_.later.empty()) return;
  new_.later.clear();
  job_.notes.emplace_back(
      "an evaluation, a save or a load after the steps is not counted where the model is divided "
      "among GPUs");
}

std::int64_t BoundedProduct(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return kLargestTensor;
  return std::clamp<std::int64_t>(product, 0, kLargestTensor);
}

Bytes BytesOf(const LayoutRecord& layout) {
  Bytes bytes = ElementSize(layout.dtype);
  for (const Number& size : layout.sizes) bytes *= size.least();
  return std::min(bytes, kLargestTensor);
}

Bytes BytesOf(const Job& job, const ModelTensor& tensor) {
  return BytesOf(job.layouts[tensor.layout]);
}

}  // namespace plimsoll
