#include "train/parallel/sharded/sharded_state.h"

#include <c10/util/Exception.h>

#include <functional>
#include <map>
#include <optional>

#include "train/optimizers/optimizer_state.h"
#include "train/parallel/ranks/agreement.h"
#include "train/parallel/sharded/sharded_saved_parts.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;
using torch::optim::Optimizer;

std::string PartName(std::size_t group) { return "part " + std::to_string(group); }
std::string PartPrefix(std::size_t optimizer) { return c10::str("optimizer ", optimizer, " "); }
/// As AddOptimizer names what belongs to its parameters, and to its groups of them.
std::string ParameterPrefix(const std::string& optimizer, std::int64_t index) {
  return c10::str(optimizer, "parameter ", index, " ");
}
std::string CountName(const std::string& optimizer, std::size_t group) {
  return c10::str(optimizer, "group ", group, " parameters");
}
/// The value of which is the index of the part among the optimizer's parameters.
std::string PlaceName(const std::string& optimizer, std::size_t group) {
  return c10::str(optimizer, "has part ", group);
}

/// What all ranks have whole: buffers, and parameters that are not trained.
std::vector<std::pair<std::string, at::Tensor>> WholeTensors(const Sharded& sharded) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : sharded.model().named_parameters()) {
    if (!item.value().requires_grad()) tensors.emplace_back("whole " + item.key(), item.value());
  }
  for (const auto& item : sharded.model().named_buffers()) {
    tensors.emplace_back("buffer " + item.key(), item.value());
  }
  return tensors;
}

/// The group that each parameter of the optimizer is the part of, in its order.
std::vector<std::size_t> GroupsOf(const Optimizer& optimizer, const Sharded& sharded) {
  std::map<const void*, std::size_t> groups;
  for (const at::Tensor& part : sharded.parts()) {
    groups.emplace(part.unsafeGetTensorImpl(), groups.size());
  }
  std::vector<std::size_t> found;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto part = groups.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK(part != groups.end(),
                  "an optimizer has a parameter that is not one of Sharded::parts()");
      found.push_back(part->second);
    }
  }
  return found;
}

void AddPart(StateSaver& saver, const Sharded& sharded,
             const std::vector<const Optimizer*>& optimizers, int rank) {
  const std::vector<at::Tensor> parts = sharded.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) saver.AddTensor(PartName(i), parts[i]);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    AddOptimizer(saver, PartPrefix(i), *optimizers[i]);
    std::int64_t index = 0;
    for (const std::size_t group : GroupsOf(*optimizers[i], sharded)) {
      saver.AddValue(PlaceName(PartPrefix(i), group), index++);
    }
  }
  if (rank != 0) return;
  for (const auto& [name, tensor] : WholeTensors(sharded)) saver.AddTensor(name, tensor);
}

/// What a rank makes of a save for one optimizer: as AddOptimizer would have written it.
class JoinedOptimizer {
 public:
  JoinedOptimizer(SavedParts& saved, std::string prefix)
      : saved_(saved), prefix_(std::move(prefix)) {}

  StateLoader Make(const Optimizer& optimizer, const std::vector<std::size_t>& groups) {
    AddOptions(optimizer);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      AddParameter(groups[i], ParameterPrefix(prefix_, static_cast<std::int64_t>(i)));
    }
    return StateLoader::FromBytes(saver_.Bytes());
  }

 private:
  /// They are the same in all files.
  void AddOptions(const Optimizer& optimizer) {
    std::map<std::string, StateValue> values;
    for (const auto& [name, value] : saved_.OfRank(0).state().values) {
      const bool option = name.starts_with(prefix_) && !name.starts_with(prefix_ + "parameter ") &&
                          !name.starts_with(prefix_ + "has part ");
      if (option) values[name] = value;
    }
    // Other groups of parameters make other numbers of parts.
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      const auto found = values.find(CountName(prefix_, i));
      if (found == values.end()) continue;
      found->second = static_cast<std::int64_t>(optimizer.param_groups()[i].params().size());
    }
    for (const auto& [name, value] : values) saver_.AddValue(name, value);
  }

  /// How the names of what a rank's file has about a part begin.
  std::string PrefixIn(const SavedPart& part, std::size_t group) const {
    const StateValue& index = part.Value(PlaceName(prefix_, group));
    const auto* number = std::get_if<std::int64_t>(&index);
    if (number == nullptr) part.Fail("'" + PlaceName(prefix_, group) + "' is not a whole number");
    return ParameterPrefix(prefix_, *number);
  }

  void AddParameter(std::size_t group, const std::string& name) {
    const auto sources = saved_.SourcesOf(group);
    const SavedPart& first = saved_.OfRank(sources.begin()->first);
    const std::string prefix = PrefixIn(first, sources.begin()->second);
    for (const auto& [key, value] : first.state().values) {
      if (!key.starts_with(prefix)) continue;
      const std::string field = key.substr(prefix.size());
      for (const auto& [rank, from] : sources) {
        const SavedPart& part = saved_.OfRank(rank);
        if (part.Value(PrefixIn(part, from) + field) != value) {
          part.Fail("'" + field +
                    "' of its optimizer is not the same for all parameters that come "
                    "together here; load it with the ShardedOptions it was saved with");
        }
      }
      saver_.AddValue(name + field, value);
    }
    for (const auto& [key, tensor] : first.state().tensors) {
      if (key.starts_with(prefix))
        AddTensor(group, first.Tensor(key), key.substr(prefix.size()), name);
    }
  }

  void AddTensor(std::size_t group, const at::Tensor& first, const std::string& field,
                 const std::string& name) {
    if (saved_.same_layout()) {
      saver_.AddTensor(name + field, first);
      return;
    }
    const auto of = [&](int rank, std::size_t from) {
      const SavedPart& part = saved_.OfRank(rank);
      const at::Tensor tensor = part.Tensor(PrefixIn(part, from) + field);
      if (tensor.numel() != saved_.SavedPartSize(from)) {
        part.Fail("'" + field +
                  "' of its optimizer cannot be split otherwise; load it with the "
                  "ranks and ShardedOptions it was saved with");
      }
      return tensor;
    };
    saver_.AddTensor(name + field, saved_.Joined(group, first.scalar_type(), of));
  }

  SavedParts& saved_;
  std::string prefix_;
  StateSaver saver_;
};

/// All that a load puts in place, once no rank has an error.
struct LoadedParts {
  std::vector<at::Tensor> parts;
  std::vector<std::pair<at::Tensor, at::Tensor>> whole;
  std::vector<std::function<void()>> put_optimizers;
};

void TakeParts(SavedParts& saved, const Sharded& sharded, LoadedParts& loaded) {
  const std::vector<at::Tensor> parts = sharded.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto of = [&](int rank, std::size_t group) {
      const SavedPart& part = saved.OfRank(rank);
      const at::Tensor tensor = part.Tensor(PartName(group));
      if (tensor.numel() != saved.SavedPartSize(group)) part.Fail("its parts have other sizes");
      return tensor;
    };
    loaded.parts.push_back(saved.Joined(i, parts[i].scalar_type(), of));
  }
}

void TakeOptimizers(SavedParts& saved, const Sharded& sharded,
                    const std::vector<Optimizer*>& optimizers, LoadedParts& loaded) {
  if (saved.optimizers() != static_cast<std::int64_t>(optimizers.size())) {
    saved.Fail(
        c10::str("it has ", saved.optimizers(), " optimizers, and here are ", optimizers.size()));
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const std::vector<std::size_t> groups = GroupsOf(*optimizers[i], sharded);
    StateLoader file = JoinedOptimizer(saved, PartPrefix(i)).Make(*optimizers[i], groups);
    loaded.put_optimizers.push_back(TakeOptimizer(file, PartPrefix(i), *optimizers[i]));
    file.CheckThatNothingIsLeft();
  }
}

/// Rank 0 reads them for all.
void TakeWhole(SavedParts& saved, const Sharded& sharded, LoadedParts& loaded) {
  const SavedPart& part = saved.OfRank(0);
  for (const auto& [name, tensor] : WholeTensors(sharded)) {
    const at::Tensor there = part.Tensor(name);
    if (there.sizes() != tensor.sizes() || there.scalar_type() != tensor.scalar_type()) {
      part.Fail(c10::str("'", name, "' is ", there.sizes(), " in it, and ", tensor.sizes(),
                         " here; it is the state of another model"));
    }
    loaded.whole.emplace_back(tensor, there);
  }
}

}  // namespace

void SaveSharded(const fs::path& path, const Sharded& sharded,
                 const std::vector<const Optimizer*>& optimizers, Ranks& ranks,
                 const std::string& extra) {
  SaveInParts(
      path, ranks, ranks.size(), ranks.rank(),
      [&](StateSaver& part) { AddPart(part, sharded, optimizers, ranks.rank()); },
      [&](StateSaver& main) {
        ShardedLayout::Of(sharded, ranks.size()).Add(main);
        main.AddValue("optimizers", static_cast<std::int64_t>(optimizers.size()));
        main.AddBytes("extra", extra);
      });
}

std::string LoadSharded(const fs::path& path, Sharded& sharded,
                        const std::vector<Optimizer*>& optimizers, Ranks& ranks) {
  const at::NoGradGuard no_grad;
  std::optional<SavedParts> saved;
  LoadedParts loaded;
  DoEach(ranks, [&] {
    saved.emplace(path, ShardedLayout::Of(sharded, ranks.size()), ranks.rank());
    TakeParts(*saved, sharded, loaded);
    TakeOptimizers(*saved, sharded, optimizers, loaded);
    if (ranks.rank() == 0) TakeWhole(*saved, sharded, loaded);
  });
  const std::vector<at::Tensor> parts = sharded.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].detach().copy_(loaded.parts[i]);
  for (const auto& put : loaded.put_optimizers) put();
  for (const auto& [to, from] : loaded.whole) to.detach().copy_(from);
  std::vector<at::Tensor> whole;
  for (const auto& [name, tensor] : WholeTensors(sharded)) whole.push_back(tensor.detach());
  ranks.Broadcast(whole);
  sharded.PartsChanged();
  return saved->extra();
}

std::string ExtraOfSharded(const fs::path& path) { return StateLoader::Open(path).Bytes("extra"); }

}  // namespace plimsoll::train
