#include "job/parallel/tensor_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// A product with a weight in the first forward.
struct Linear {
  enum class Role : std::uint8_t { kNone, kByOutputs, kByInputs, kHead };
  Storage weight = kElsewhere;
  Storage bias = kElsewhere;
  /// As the product gets it: [.., inputs, outputs].
  std::uint32_t layout = 0;
  /// Of attention, where its outputs go there; else 1.
  std::int64_t head = 1;
  Role role = Role::kNone;
};

class RoleFinder {
 public:
  RoleFinder(const Job& job, const Variant& variant, std::int64_t ranks)
      : job_(job), variant_(variant), ranks_(ranks) {
    for (const ModelTensor& tensor : variant.model_tensors) {
      layout_of_.emplace(tensor.storage, tensor.layout);
      if (!tensor.buffer) weight_of_[tensor.storage] = tensor.storage;
    }
  }

  Result<TensorRoles> Run() {
    Look();
    return Take();
  }
  std::int64_t Positions() {
    Look();
    return positions_;
  }

 private:
  void Look() {
    bool forward = false;
    for (const JobEvent& event : variant_.events) {
      if (event.kind == JobEvent::Kind::kStage) {
        if (event.stage == Stage::kBackward) break;
        forward = event.stage == Stage::kForward;
      }
      if (event.kind == JobEvent::Kind::kCall && forward) RunCall(variant_.calls[event.index]);
    }
  }

  using Tag = std::set<std::size_t>;

  void RunCall(const CallRecord& call) {
    const std::string_view name = BaseName(job_.strings[call.op]);
    std::vector<TensorUse> uses;
    ForEachArgument(call, [&](const TensorUse& use) { uses.push_back(use); });
    if (name == "embedding" && uses.size() >= 2) return RunEmbedding(call, uses);
    const bool product = name == "mm" || name == "addmm" || name == "bmm" || name == "baddbmm";
    if (product && uses.size() >= 2 && weight_of_.contains(uses.back().storage) &&
        job_.layouts[uses.back().layout].sizes.size() >= 2) {
      return RunLinear(call, uses);
    }
    if (uses.size() == 1 && weight_of_.contains(uses[0].storage)) {
      // A copy in another type, as autocast makes it.
      for (const NewStorage& fresh : call.fresh) {
        weight_of_[fresh.storage] = weight_of_.at(uses[0].storage);
      }
      return;
    }
    RunOther(call, uses, name);
  }

  void RunEmbedding(const CallRecord& call, const std::vector<TensorUse>& uses) {
    for (const NewStorage& fresh : call.fresh) of_model_.insert(fresh.storage);
    const auto weight = weight_of_.find(uses[0].storage);
    if (weight == weight_of_.end()) return;
    const LayoutRecord& table = job_.layouts[uses[0].layout];
    if (table.sizes.size() != 2 || table.sizes[0].least() <= words_) return;
    words_ = table.sizes[0].least();
    embedding_ = weight->second;
    embedding_layout_ = uses[0].layout;
    const LayoutRecord& indices = job_.layouts[uses[1].layout];
    positions_ =
        indices.sizes.size() == 2 && !indices.sizes[1].depends() ? indices.sizes[1].least() : 0;
  }

  void RunLinear(const CallRecord& call, const std::vector<TensorUse>& uses) {
    for (const NewStorage& fresh : call.fresh) of_model_.insert(fresh.storage);
    Linear linear{.weight = weight_of_.at(uses.back().storage), .layout = uses.back().layout};
    const TensorUse& input = uses[uses.size() - 2];
    if (uses.size() == 3) {
      const auto bias = weight_of_.find(uses[0].storage);
      if (bias != weight_of_.end()) linear.bias = bias->second;
    }
    const auto tag = tags_.find(input.storage);
    if (tag != tags_.end()) {
      for (const std::size_t l : tag->second) linears_[l].role = Linear::Role::kByOutputs;
      linear.role = Linear::Role::kByInputs;
      linears_.push_back(linear);
      return;
    }
    linears_.push_back(linear);
    for (const NewStorage& fresh : call.fresh) tags_[fresh.storage] = {linears_.size() - 1};
  }

  /// What works on results of linear layers alone hands them on.
  void RunOther(const CallRecord& call, const std::vector<TensorUse>& uses, std::string_view name) {
    Tag tag;
    bool of_model = false;
    bool mixed = false;
    for (const TensorUse& use : uses) {
      if (weight_of_.contains(use.storage) || !of_model_.contains(use.storage)) continue;
      of_model = true;
      const auto found = tags_.find(use.storage);
      if (found == tags_.end()) {
        mixed = true;
      } else {
        tag.insert(found->second.begin(), found->second.end());
      }
    }
    if (IsAttention(name, uses)) NoteHeads(uses, tag);
    if (name == "_log_softmax" && !mixed) {
      for (const std::size_t l : tag) linears_[l].role = Linear::Role::kHead;
    }
    const bool ends = mixed || name == "_log_softmax" || NormalizesAll(call, name, tag);
    for (const NewStorage& fresh : call.fresh) {
      if (of_model) of_model_.insert(fresh.storage);
      if (!ends && !tag.empty()) tags_[fresh.storage] = tag;
    }
  }

  /// As one call, or as the product of queries and keys.
  static bool IsAttention(std::string_view name, const std::vector<TensorUse>& uses) {
    return !uses.empty() && (name == "attention" || name == "bmm" || name == "baddbmm");
  }
  void NoteHeads(const std::vector<TensorUse>& uses, const Tag& tag) {
    const LayoutRecord& query = job_.layouts[uses.front().layout];
    for (const std::size_t l : tag) {
      const bool known = linears_[l].head > 1 || query.sizes.empty();
      if (!known) linears_[l].head = std::max<std::int64_t>(1, query.sizes.back().least());
    }
  }

  /// A norm over all outputs of a layer wants them whole; one over a head does not.
  bool NormalizesAll(const CallRecord& call, std::string_view name, const Tag& tag) const {
    if (name != "native_layer_norm" && name != "_fused_rms_norm") return false;
    const auto* over =
        call.args.size() < 2 ? nullptr : std::get_if<Argument::List>(&call.args[1].is);
    if (over == nullptr || over->empty()) return true;
    const auto* last = std::get_if<Number>(&over->back().is);
    return last == nullptr || std::ranges::any_of(tag, [&](std::size_t l) {
             return job_.layouts[linears_[l].layout].sizes.back().least() <= last->least();
           });
  }

  // What was found.

  Result<TensorRoles> Take() {
    for (const Linear& linear : linears_) {
      if (std::optional<Error> error = AddLinear(linear)) return *error;
    }
    if (found_.by_inputs == 0) {
      return Error{.message =
                       "tensor parallelism found no two layers of the model in a row that "
                       "it could divide",
                   .file = job_.file,
                   .hint = "leave tensor= out"};
    }
    if (embedding_ != kElsewhere && Add(embedding_, embedding_layout_, 0)) ++found_.by_words;
    found_.positions = positions_;
    return found_;
  }

  std::optional<Error> AddLinear(const Linear& linear) {
    if (linear.role == Linear::Role::kNone) return std::nullopt;
    const LayoutRecord& layout = job_.layouts[linear.layout];
    const std::size_t outputs = layout.sizes.size() - 1;
    if (layout.sizes.size() > 2) {
      return Error{.message =
                       "weights of several experts in one tensor: how tensor parallelism "
                       "divides them is not modelled",
                   .file = job_.file,
                   .hint = "leave tensor= out"};
    }
    const bool by_inputs = linear.role == Linear::Role::kByInputs;
    const std::size_t dimension = by_inputs ? outputs - 1 : outputs;
    const std::int64_t size = layout.sizes[dimension].least();
    if (linear.role == Linear::Role::kHead) {
      if (Add(linear.weight, linear.layout, dimension)) ++found_.by_words;
      found_.heads.insert(linear.weight);
      AddBias(linear);
      return std::nullopt;
    }
    if (linear.head > 1 && !by_inputs && size / linear.head % ranks_ != 0) {
      return Error{.message = fmt::format("{} heads of attention cannot be divided by {}",
                                          size / linear.head, ranks_),
                   .file = job_.file,
                   .hint = "take a number of tensor-parallel ranks that divides them"};
    }
    if (size % ranks_ != 0) {
      return Error{
          .message = fmt::format("a layer of {} features cannot be divided by {}", size, ranks_),
          .file = job_.file,
          .hint = "take a number of tensor-parallel ranks that divides them"};
    }
    if (!Add(linear.weight, linear.layout, dimension)) return std::nullopt;
    ++(by_inputs ? found_.by_inputs : found_.by_outputs);
    if (!by_inputs) AddBias(linear);
    return std::nullopt;
  }
  void AddBias(const Linear& linear) {
    if (linear.bias == kElsewhere) return;
    const auto layout = layout_of_.find(linear.bias);
    if (layout != layout_of_.end()) Add(linear.bias, layout->second, 0);
  }
  /// Once; a weight that two layers share is divided as the first has it.
  bool Add(Storage weight, std::uint32_t layout, std::size_t dimension) {
    return found_.weights.emplace(weight, CutOf(job_.layouts[layout], dimension)).second;
  }

  const Job& job_;
  const Variant& variant_;
  const std::int64_t ranks_;
  TensorRoles found_;
  std::vector<Linear> linears_;
  /// Of what the model has.
  std::map<Storage, std::uint32_t> layout_of_;
  /// Weights, and copies of them.
  std::map<Storage, Storage> weight_of_;
  /// What is made of weights.
  std::set<Storage> of_model_;
  /// Of which layers alone a storage is made.
  std::map<Storage, Tag> tags_;
  Storage embedding_ = kElsewhere;
  std::uint32_t embedding_layout_ = 0;
  std::int64_t words_ = 0;
  std::int64_t positions_ = 0;
};

}  // namespace

Result<TensorRoles> FindTensorRoles(const Job& job, const Variant& variant, std::int64_t ranks) {
  return RoleFinder(job, variant, ranks).Run();
}

std::int64_t PositionsOf(const Job& job, const Variant& variant) {
  return RoleFinder(job, variant, 1).Positions();
}

}  // namespace plimsoll
