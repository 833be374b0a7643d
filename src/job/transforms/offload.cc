#include "job/transforms/offload.h"

#include <algorithm>
#include <map>
#include <set>

#include "job/transforms/held_by_variables.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr std::size_t kNoEvent = static_cast<std::size_t>(-1);
/// Calls of one node of the autograd graph follow each other and come from one line of one module:
/// a weight or an activation that is read again so within so many events is still there.
constexpr std::size_t kSameNode = 8;

/// Calls of the backward that read a tensor for one node of the graph, which saved it for itself.
struct Node {
  std::size_t first = 0;
  std::size_t last = 0;
  /// Where that backward begins.
  std::size_t backward = 0;
  StringId where, module;

  bool Has(const CallRecord& call, std::size_t i) const {
    return i - last <= kSameNode && call.where == where && call.module == module;
  }
};

struct Life {
  std::size_t last_forward = kNoEvent;
  std::size_t freed = kNoEvent;
  std::vector<Node> nodes;
  TensorUse use;
  /// A parameter, a buffer or an input, which somebody else holds.
  bool held = false;
  /// The backward writes into it: a result that waits there, and nothing that autograd saved.
  bool written = false;
};

/// When what is saved is made, last read by the forward, and read by the backward.
class SavedLives {
 public:
  explicit SavedLives(const Variant& variant) : variant_(variant), lives_(variant.storages) {
    for (const ModelTensor& tensor : variant.model_tensors) lives_[tensor.storage].held = true;
    for (std::size_t i = 0; i < variant.events.size(); ++i) See(i);
    const std::vector<std::size_t> held = HeldByVariables(variant);
    for (Storage storage = 1; storage < variant.storages; ++storage) {
      std::size_t& last = lives_[storage].last_forward;
      if (last != kNoEvent) last = std::max(last, held[storage]);
    }
  }

  const Life& Of(Storage storage) const { return lives_[storage]; }
  /// It waits for the backward and nothing else holds it.
  bool IsSaved(Storage storage) const {
    const Life& life = lives_[storage];
    return !life.held && !life.written && life.last_forward != kNoEvent && !life.nodes.empty() &&
           life.freed != kNoEvent && life.freed > life.nodes.front().first;
  }

 private:
  void See(std::size_t i) {
    const JobEvent& event = variant_.events[i];
    if (event.kind == JobEvent::Kind::kStage) {
      stage_ = event.stage;
      if (stage_ == Stage::kBackward) backward_ = i;
    }
    if (event.kind == JobEvent::Kind::kFree) lives_[event.index].freed = i;
    if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kInputs) {
      lives_[event.index].held = true;
    }
    if (event.kind != JobEvent::Kind::kCall) return;
    const CallRecord& call = variant_.calls[event.index];
    ForEachArgument(call, [&](const TensorUse& tensor) { Use(tensor, call, i); });
    if (stage_ == Stage::kBackward && call.fresh.empty()) {
      for (const TensorUse& result : call.results) lives_[result.storage].written = true;
    }
    if (stage_ != Stage::kForward) return;
    for (const NewStorage& fresh : call.fresh) lives_[fresh.storage].last_forward = i;
  }

  void Use(const TensorUse& tensor, const CallRecord& call, std::size_t i) {
    if (tensor.storage == kElsewhere) return;
    Life& life = lives_[tensor.storage];
    life.use = tensor;
    if (stage_ == Stage::kForward) life.last_forward = i;
    // What the backward makes itself is not saved.
    if (stage_ != Stage::kBackward || (!life.held && life.last_forward == kNoEvent)) return;
    if (!life.nodes.empty() && life.nodes.back().Has(call, i)) {
      life.nodes.back().last = i;
    } else {
      life.nodes.push_back({.first = i,
                            .last = i,
                            .backward = backward_,
                            .where = call.where,
                            .module = call.module});
    }
  }

  const Variant& variant_;
  Stage stage_ = Stage::kUnknown;
  std::size_t backward_ = 0;
  std::vector<Life> lives_;
};

class Offloader {
 public:
  Offloader(Job& job, const Variant& old)
      : job_(job), old_(old), lives_(old), edit_(job, old, "plimsoll.offload") {
    for (Storage storage = 1; storage < old.storages; ++storage) {
      const Life& life = lives_.Of(storage);
      const bool leaves = lives_.IsSaved(storage);
      if (leaves) leaves_[life.last_forward].push_back(storage);
      // Each node saves what it needs by itself, weights too.
      for (std::size_t i = leaves ? 1 : 0; i < life.nodes.size(); ++i) {
        if (leaves || life.held) saved_again_[life.nodes[i].backward].push_back(life.use);
      }
    }
  }

  Variant Run() {
    Stage stage = Stage::kUnknown;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      Return(i);
      if (const auto at = saved_again_.find(i); at != saved_again_.end()) {
        for (const TensorUse& use : at->second) Copy("plimsoll.to_host_", use);
      }
      if (event.kind == JobEvent::Kind::kCall && stage == Stage::kBackward) {
        Backward(i);
      } else if (event.kind != JobEvent::Kind::kFree || gone_.erase(event.index) == 0) {
        edit_.Copy(event);
      }
      if (const auto at = leaves_.find(i); at != leaves_.end()) {
        for (const Storage storage : at->second) Leave(storage);
      }
    }
    return edit_.Take();
  }

 private:
  void Leave(Storage storage) {
    Copy("plimsoll.to_host_", lives_.Of(storage).use);
    edit_.Free(storage);
    gone_.insert(storage);
  }

  void Copy(std::string_view op, const TensorUse& of) {
    CallRecord call{.op = job_.strings.Intern(op)};
    call.args = {{Argument::List{{of}}}};
    edit_.Call(std::move(call));
  }

  /// What the call reads that was saved is brought back first.
  void Backward(std::size_t i) {
    CallRecord call = old_.calls[old_.events[i].index];
    bool changed = false;
    ForEachArgument(call, [&](TensorUse& tensor) {
      const Storage storage = tensor.storage;
      if (storage == kElsewhere || !WasSaved(storage)) return;
      changed = true;
      if (!back_.contains(storage)) BringBack(tensor, i);
      tensor.storage = back_.at(storage);
    });
    for (TensorUse& result : call.results) {
      if (const auto found = back_.find(result.storage); found != back_.end()) {
        result.storage = found->second;
      }
    }
    if (changed) {
      edit_.Call(std::move(call));
    } else {
      edit_.Copy(old_.events[i]);
    }
  }

  bool WasSaved(Storage storage) const {
    return gone_.contains(storage) || lives_.Of(storage).held;
  }

  void BringBack(const TensorUse& of, std::size_t i) {
    const LayoutRecord& layout = job_.layouts[of.layout];
    Number bytes = Number::Always(ElementSize(layout.dtype));
    for (const Number& size : layout.sizes) {
      bytes = Number::Each(BoundedProduct, bytes, size);
    }
    CallRecord call{.op = job_.strings.Intern("plimsoll.to_device")};
    TensorUse back = of;
    back.storage = edit_.NewStorageNumber();
    back.parameter = false;
    call.args = {{Argument::List{{TensorUse{.layout = of.layout}}}}};
    call.results = {back};
    call.fresh.push_back({.storage = back.storage, .bytes = bytes});
    edit_.Call(std::move(call));
    back_[of.storage] = back.storage;
    for (const Node& node : lives_.Of(of.storage).nodes) {
      if (node.first <= i && i <= node.last) returns_[node.last + 1].push_back(of.storage);
    }
  }

  void Return(std::size_t i) {
    const auto at = returns_.find(i);
    if (at == returns_.end()) return;
    for (const Storage storage : at->second) {
      edit_.Free(back_.at(storage));
      back_.erase(storage);
    }
  }

  Job& job_;
  const Variant& old_;
  SavedLives lives_;
  JobEditor edit_;
  /// After which event each leaves the device.
  std::map<std::size_t, std::vector<Storage>> leaves_;
  /// What is copied to the host for further nodes, by the backward that they belong to.
  std::map<std::size_t, std::vector<TensorUse>> saved_again_;
  std::set<Storage> gone_;
  std::map<Storage, Storage> back_;
  std::map<std::size_t, std::vector<Storage>> returns_;
};

}  // namespace

Variant AddActivationOffload(Job& job, const Variant& variant) {
  return Offloader(job, variant).Run();
}

}  // namespace plimsoll
