// For the tests of rules: calls written by hand, and an emitter that writes down what happens.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "job/rules/rules.h"

namespace plimsoll {

/// Contiguous strides for these sizes, with the dimensions in this order in memory, or as they are.
inline std::vector<std::int64_t> StridesInOrder(const std::vector<std::int64_t>& sizes,
                                                std::vector<std::size_t> order = {}) {
  if (order.empty()) {
    order.resize(sizes.size());
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = step;
    step *= std::max<std::int64_t>(sizes[*d], 1);
  }
  return strides;
}

/// Makes the calls of a step, one by one.
class CallMaker {
 public:
  TensorUse MakeTensor(DType dtype, const std::vector<std::int64_t>& sizes,
                       std::vector<std::int64_t> strides = {}, bool needs_grad = false) {
    if (strides.empty()) strides = StridesInOrder(sizes);
    LayoutRecord layout{.dtype = dtype};
    for (const std::int64_t n : sizes) layout.sizes.push_back({n, n});
    for (const std::int64_t n : strides) layout.strides.push_back({n, n});
    job_.layouts.push_back(std::move(layout));
    return {.storage = ++storages_,
            .layout = static_cast<std::uint32_t>(job_.layouts.size() - 1),
            .needs_grad = needs_grad};
  }

  /// Every result is in new memory.
  CallRecord MakeCall(std::string_view op, std::vector<Argument> args,
                      const std::vector<TensorUse>& results) {
    CallRecord call;
    call.op = job_.strings.Intern(op);
    call.args = std::move(args);
    call.results = results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const LayoutRecord& layout = job_.layouts[results[i].layout];
      Bytes bytes = ElementSize(layout.dtype);
      for (const Number& size : layout.sizes) bytes *= size.least();
      call.fresh.push_back({.storage = results[i].storage,
                            .bytes = {bytes, bytes},
                            .result = static_cast<std::uint32_t>(i)});
    }
    return call;
  }

  void AddKeyword(CallRecord& call, std::string_view name, Argument value) {
    call.kwargs.emplace_back(job_.strings.Intern(name), std::move(value));
  }

  const Job& job() const { return job_; }

 private:
  Job job_;
  Storage storages_ = 0;
};

inline Argument Arg(TensorUse tensor) { return {.is = tensor}; }
inline Argument Arg(bool value) { return {.is = value}; }
inline Argument Arg(double value) { return {.is = value}; }
inline Argument Arg(std::int64_t value) { return {.is = Number{value, value}}; }
template <typename T>
Argument ListArg(const std::vector<T>& values) {
  Argument::List list;
  for (const T value : values) list.push_back(Arg(value));
  return {.is = std::move(list)};
}

/// +n for an allocation of n bytes, -n for its release, in order.
class RecordingEmitter final : public Emitter {
 public:
  explicit RecordingEmitter(Gpu gpu, TorchVersion torch = {})
      : gpu_(std::move(gpu)), torch_(torch) {}

  std::vector<Bytes> Run(const Job& step, const CallRecord& record, Stage stage) {
    const AtBatch at(step, step.batches[0]);
    const Call call(record, at, stage);
    call_ = &call;
    made_.assign(record.fresh.size(), false);
    const OperatorFacts facts = FactsOf(call.op());
    if (facts.rule != nullptr) facts.rule(call, *this);
    for (std::size_t i = 0; i < record.fresh.size(); ++i) Make(i);
    call_ = nullptr;
    return std::exchange(log_, {});
  }
  std::vector<Bytes> Free(Storage storage) {
    std::map<int, Bytes> held = std::exchange(held_[storage], {});
    const auto own = held.lower_bound(0);
    for (auto h = held.begin(); h != own; ++h) log_.push_back(-h->second);
    if (sizes_[storage] > 0) log_.push_back(-sizes_[storage]);
    sizes_.erase(storage);
    for (auto h = own; h != held.end(); ++h) log_.push_back(-h->second);
    return std::exchange(log_, {});
  }
  const std::map<std::string, Bytes>& kept() const { return kept_; }
  void SayItDiesSoon(Storage storage) { dies_soon_ = storage; }

  const Gpu& gpu() const override { return gpu_; }
  TorchVersion torch() const override { return torch_; }
  WorkspaceSources sources() const override { return {}; }
  Slot Take(Bytes bytes) override {
    if (bytes <= 0) return {};
    log_.push_back(bytes);
    slots_.push_back(bytes);
    return {static_cast<std::uint32_t>(slots_.size() - 1)};
  }
  Slot Take(const Workspace& workspace) override { return Take(workspace.likely); }
  void Give(Slot slot) override {
    if (slot.valid()) log_.push_back(-std::exchange(slots_[slot.value], 0));
  }
  void Borrow(const Workspace& workspace) override { Give(Take(workspace)); }
  void Search(std::string_view, int, const Workspace&) override {}
  void Make(std::size_t fresh) override { Make(fresh, call_->FreshBytes(fresh)); }
  void Make(std::size_t fresh, Bytes bytes) override {
    if (std::exchange(made_[fresh], 1) != 0) return;
    sizes_[call_->FreshStorage(fresh)] = bytes;
    if (bytes > 0) log_.push_back(bytes);
  }
  void Reuse(std::size_t fresh, Storage argument) override {
    made_[fresh] = true;
    sizes_[call_->FreshStorage(fresh)] = std::exchange(sizes_[argument], 0);
  }
  void Hold(Storage storage, int name, Bytes bytes) override {
    if (bytes <= 0) return;
    log_.push_back(bytes);
    held_[storage][name] = bytes;
  }
  void GiveHeld(Storage storage, int name) override {
    if (const auto found = held_[storage].find(name); found != held_[storage].end()) {
      log_.push_back(-found->second);
      held_[storage].erase(found);
    }
  }
  /// Not written down: the measured calls come after others, which had made it.
  void Keep(std::string_view name, int, Bytes bytes) override { kept_[std::string(name)] = bytes; }
  void UseGraph(const GraphRegion*) override {}
  bool DiesSoon(Storage storage) const override { return storage == dies_soon_; }

 private:
  Gpu gpu_;
  TorchVersion torch_;
  const Call* call_ = nullptr;
  std::vector<char> made_;
  std::vector<Bytes> slots_;
  std::map<Storage, Bytes> sizes_;
  std::map<Storage, std::map<int, Bytes>> held_;
  std::map<std::string, Bytes> kept_;
  Storage dies_soon_ = kElsewhere;
  std::vector<Bytes> log_;
};

}  // namespace plimsoll
