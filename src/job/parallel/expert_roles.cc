#include "job/parallel/expert_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

std::string_view ParentOf(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

bool Chooses(std::string_view name) {
  return name == "topk" || name == "max" || name == "argmax" || name == "multinomial" ||
         name == "sort";
}

/// A member of a numbered list of modules: "experts.3" and "w1.weight" of "experts.3.w1.weight".
struct ListMember {
  std::string list;
  std::string number;
  std::string parameter;
};

std::vector<ListMember> MembersOf(std::string_view name) {
  std::vector<ListMember> members;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (begin > 0 && end < name.size() && IsNumber(part)) {
      members.push_back({.list = std::string(name.substr(0, begin - 1)),
                         .number = std::string(part),
                         .parameter = std::string(name.substr(end + 1))});
    }
    begin = end + 1;
  }
  return members;
}

class ExpertFinder {
 public:
  ExpertFinder(const Job& job, const Variant& variant) : job_(job), variant_(variant) {
    for (const CallRecord& call : variant.calls) Look(call);
  }

  ExpertRoles Run() {
    for (const ModelTensor& tensor : variant_.model_tensors) AddStacked(tensor);
    if (found_.weights.empty()) {
      AddLists();
    } else {
      for (const ModelTensor& tensor : variant_.model_tensors) AddBias(tensor);
    }
    return std::move(found_);
  }

 private:
  void Look(const CallRecord& call) {
    const std::string_view name = BaseName(job_.strings[call.op]);
    const bool product = name == "mm" || name == "addmm";
    const bool convolution = name.starts_with("convolution");
    bool first = true;
    ForEachArgument(call, [&](const TensorUse& use) {
      const LayoutRecord& layout = job_.layouts[use.layout];
      const bool has_choices = first && !layout.sizes.empty() && !layout.sizes.back().depends();
      if (Chooses(name) && has_choices) choices_.insert(layout.sizes.back().least());
      if (product && layout.sizes.size() == 2) multiplied_.insert(use.storage);
      if (convolution) convolved_.insert(use.storage);
      first = false;
    });
  }

  /// The experts that a tensor of so many dimensions has in its first one; 0 where it has none.
  std::int64_t ExpertsIn(const ModelTensor& tensor, std::size_t dimensions) const {
    const LayoutRecord& layout = job_.layouts[tensor.layout];
    if (tensor.buffer || layout.sizes.size() != dimensions) return 0;
    const std::int64_t experts = layout.sizes.front().least();
    return experts > 1 && choices_.contains(experts) ? experts : 0;
  }
  void Add(const ModelTensor& tensor, std::int64_t experts, bool stacked) {
    found_.weights[tensor.storage] = {
        .experts = experts, .stacked = stacked, .layout = tensor.layout};
  }

  void AddStacked(const ModelTensor& tensor) {
    const std::int64_t experts = ExpertsIn(tensor, 3);
    if (experts == 0 || convolved_.contains(tensor.storage)) return;
    Add(tensor, experts, true);
    modules_.emplace(ParentOf(job_.strings[tensor.name]));
  }
  /// A router that lies beside its experts is a factor of a product, their biases are not.
  void AddBias(const ModelTensor& tensor) {
    const std::int64_t experts = ExpertsIn(tensor, 2);
    const std::string module(ParentOf(job_.strings[tensor.name]));
    if (experts == 0 || !modules_.contains(module) || multiplied_.contains(tensor.storage)) return;
    Add(tensor, experts, true);
  }

  /// Lists of as many members as are chosen among, all with the same parameters; of lists inside of
  /// each other the innermost: a model may have as many layers as experts.
  void AddLists() {
    using Parameters = std::map<std::string, std::vector<Number>>;
    std::map<std::string, std::map<std::string, Parameters>> lists;
    for (const ModelTensor& tensor : variant_.model_tensors) {
      if (tensor.buffer) continue;
      for (const ListMember& one : MembersOf(job_.strings[tensor.name])) {
        lists[one.list][one.number][one.parameter] = job_.layouts[tensor.layout].sizes;
      }
    }
    std::erase_if(lists, [&](const auto& list) {
      const auto& members = list.second;
      return members.size() < 2 || !choices_.contains(static_cast<std::int64_t>(members.size())) ||
             std::ranges::any_of(members, [&](const auto& member) {
               return member.second != members.begin()->second;
             });
    });
    for (const ModelTensor& tensor : variant_.model_tensors) {
      if (tensor.buffer) continue;
      for (const ListMember& one : MembersOf(job_.strings[tensor.name])) {
        const auto list = lists.find(one.list);
        const bool innermost =
            list != lists.end() && std::ranges::none_of(lists, [&](const auto& other) {
              return other.first.starts_with(one.list + ".");
            });
        if (innermost) Add(tensor, static_cast<std::int64_t>(list->second.size()), false);
      }
    }
  }

  const Job& job_;
  const Variant& variant_;
  /// Among how many something is chosen.
  std::set<std::int64_t> choices_;
  std::set<Storage> multiplied_;
  std::set<Storage> convolved_;
  /// Those that have stacked weights.
  std::set<std::string> modules_;
  ExpertRoles found_;
};

}  // namespace

Result<ExpertRoles> FindExpertRoles(const Job& job, const Variant& variant, std::int64_t ranks) {
  ExpertRoles roles = ExpertFinder(job, variant).Run();
  if (roles.weights.empty()) {
    return Error{.message = "the model has no experts that something chooses among",
                 .file = job.file,
                 .hint = "leave expert= out"};
  }
  for (const auto& [storage, weight] : roles.weights) {
    if (weight.experts % ranks == 0) continue;
    return Error{
        .message = fmt::format("{} experts cannot be divided by {}", weight.experts, ranks),
        .file = job.file,
        .hint = "take a number of ranks that divides them"};
  }
  return roles;
}

}  // namespace plimsoll
