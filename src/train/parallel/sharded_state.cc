#include "train/parallel/sharded_state.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <iomanip>
#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "base/output.h"
#include "base/printable.h"
#include "train/optimizers/optimizer_state.h"
#include "train/parallel/sharded_saved_parts.h"
#include "train/state/layout.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;
using torch::optim::Optimizer;

std::string PartName(std::size_t group) { return "part " + std::to_string(group); }
std::string PrefixOf(std::size_t optimizer) { return c10::str("optimizer ", optimizer, " "); }
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

/// Does it, and throws on all ranks if it threw on one: that error there, and elsewhere one that
/// names the rank. Before that comes `undo`, when it is certain that all will throw.
void OnAll(
    Ranks& ranks, const char* what, const std::function<void()>& function,
    const std::function<void()>& undo = [] {}) {
  std::exception_ptr error;
  try {
    function();
  } catch (const RankError&) {
    throw;
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  at::Tensor failed = at::zeros({ranks.size()}, at::kInt);
  failed[ranks.rank()] = error ? 1 : 0;
  ranks.Sum(failed);
  if (failed.sum().item<std::int64_t>() == 0) return;
  undo();
  if (error) std::rethrow_exception(error);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    TORCH_CHECK(failed[rank].item<int>() == 0, "rank ", rank, " of ", ranks.size(), " could not ",
                what, "; its own error says why");
  }
}

/// A name for a save that no other has, the same on all ranks.
std::string NewSave(Ranks& ranks) {
  std::random_device random;
  const auto word = [&] { return static_cast<std::int64_t>(random()); };
  const at::Tensor words = at::tensor({word(), word()});
  ranks.Broadcast({words});
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (int i = 0; i < 2; ++i) text << std::setw(8) << words[i].item<std::int64_t>();
  return text.str();
}

std::string PartBytes(const Sharded& sharded, const std::vector<const Optimizer*>& optimizers,
                      const std::string& save, int rank) {
  StateSaver saver;
  saver.AddValue(kShardedSave, save);
  const std::vector<at::Tensor> parts = sharded.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) saver.AddTensor(PartName(i), parts[i]);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    AddOptimizer(saver, PrefixOf(i), *optimizers[i]);
    std::int64_t index = 0;
    for (const std::size_t group : GroupsOf(*optimizers[i], sharded)) {
      saver.AddValue(PlaceName(PrefixOf(i), group), index++);
    }
  }
  if (rank == 0) {
    for (const auto& [name, tensor] : WholeTensors(sharded)) saver.AddTensor(name, tensor);
  }
  return saver.Bytes();
}

/// On disk when it returns.
WrittenPart WritePart(const fs::path& file, const std::string& bytes) {
  std::error_code ignored;  // WriteFile says that there is no folder
  fs::create_directories(file.parent_path(), ignored);
  const std::optional<Error> error = WriteFile(file.string(), bytes);
  TORCH_CHECK(!error.has_value(), Printable(error->ToLine()));
  return {static_cast<std::int64_t>(bytes.size()), layout::Checksum(bytes)};
}

/// What all ranks have written.
std::vector<WrittenPart> WriteParts(const fs::path& path, const std::string& save,
                                    const Sharded& sharded,
                                    const std::vector<const Optimizer*>& optimizers, Ranks& ranks) {
  at::Tensor all = at::zeros({ranks.size(), 2}, at::kLong);
  const fs::path file = PartFile(path, save, ranks.rank());
  const auto write = [&] {
    const WrittenPart own = WritePart(file, PartBytes(sharded, optimizers, save, ranks.rank()));
    all[ranks.rank()].copy_(at::tensor({own.bytes, own.checksum}));
  };
  const auto remove = [&] {
    std::error_code ignored;
    fs::remove(file, ignored);
  };
  OnAll(ranks, "write its part of the save", write, remove);
  ranks.Sum(all);
  std::vector<WrittenPart> parts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    parts.push_back({all[rank][0].item<std::int64_t>(), all[rank][1].item<std::int64_t>()});
  }
  return parts;
}

/// That all are where it will be said that they are.
void CheckThatPartsAreThere(const fs::path& path, const std::string& save,
                            const std::vector<WrittenPart>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const fs::path file = PartFile(path, save, static_cast<int>(i));
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    TORCH_CHECK(!error && static_cast<std::int64_t>(bytes) == parts[i].bytes,
                Printable(file.string()), ": rank ", i,
                " has written it, but rank 0 does not see it; all ranks must save to one place");
  }
}

/// What makes the parts a save.
void WriteManifest(const fs::path& path, const std::string& save, const ShardedLayout& layout,
                   const std::vector<WrittenPart>& parts, std::size_t optimizers,
                   const std::string& extra) {
  StateSaver saver;
  saver.AddValue(kShardedSave, save);
  layout.Add(saver);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    saver.AddValue(c10::str("file ", i, " bytes"), parts[i].bytes);
    saver.AddValue(c10::str("file ", i, " checksum"), parts[i].checksum);
  }
  saver.AddValue("optimizers", static_cast<std::int64_t>(optimizers));
  saver.AddBytes("extra", extra);
  saver.Write(path);
}

/// Those of the save, or all others: of former saves, and of those that were never completed. What
/// cannot be removed harms nobody.
void RemoveParts(const fs::path& path, const std::string& save, bool of_save) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(PartsFolder(path), ignored)) {
    if (entry.path().filename().string().starts_with(save + ".") == of_save) {
      fs::remove(entry.path(), ignored);
    }
  }
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
struct Loaded {
  std::vector<at::Tensor> parts;
  std::vector<std::pair<at::Tensor, at::Tensor>> whole;
  std::vector<std::function<void()>> put_optimizers;
};

void TakeParts(SavedParts& saved, const Sharded& sharded, Loaded& loaded) {
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
                    const std::vector<Optimizer*>& optimizers, Loaded& loaded) {
  if (saved.optimizers() != static_cast<std::int64_t>(optimizers.size())) {
    saved.Fail(
        c10::str("it has ", saved.optimizers(), " optimizers, and here are ", optimizers.size()));
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const std::vector<std::size_t> groups = GroupsOf(*optimizers[i], sharded);
    StateLoader file = JoinedOptimizer(saved, PrefixOf(i)).Make(*optimizers[i], groups);
    loaded.put_optimizers.push_back(TakeOptimizer(file, PrefixOf(i), *optimizers[i]));
    file.CheckThatNothingIsLeft();
  }
}

/// Rank 0 reads them for all.
void TakeWhole(SavedParts& saved, const Sharded& sharded, Loaded& loaded) {
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
  const std::string save = NewSave(ranks);
  const std::vector<WrittenPart> parts = WriteParts(path, save, sharded, optimizers, ranks);
  const auto complete = [&] {
    if (ranks.rank() != 0) return;
    CheckThatPartsAreThere(path, save, parts);
    WriteManifest(path, save, ShardedLayout::Of(sharded, ranks.size()), parts, optimizers.size(),
                  extra);
  };
  OnAll(ranks, "complete the save", complete, [&] {
    if (ranks.rank() == 0) RemoveParts(path, save, /*of_save=*/true);
  });
  if (ranks.rank() == 0) RemoveParts(path, save, /*of_save=*/false);
}

std::string LoadSharded(const fs::path& path, Sharded& sharded,
                        const std::vector<Optimizer*>& optimizers, Ranks& ranks) {
  const at::NoGradGuard no_grad;
  std::optional<SavedParts> saved;
  Loaded loaded;
  OnAll(ranks, "load the save", [&] {
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
