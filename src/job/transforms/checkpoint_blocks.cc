#include "job/transforms/checkpoint_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "base/suggest.h"
#include "base/text.h"
#include "job/transforms/shard_groups.h"

namespace plimsoll {
namespace {

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('.') + 1); }

/// Finds what can be wrapped from the calls of the forwards.
class ModuleFinder {
 public:
  ModuleFinder(const Job& job, const Variant& variant) : job_(job), variant_(variant) {
    for (const ModelTensor& tensor : variant.model_tensors) model_.insert(tensor.storage);
  }

  std::vector<std::string> Run() {
    Stage stage = Stage::kUnknown;
    for (const JobEvent& event : variant_.events) {
      if (event.kind == JobEvent::Kind::kStage) {
        stage = event.stage;
        if (stage == Stage::kForward) forward_begins_ = count_;
      }
      if (event.kind == JobEvent::Kind::kCall && stage == Stage::kForward) {
        Add(variant_.calls[event.index]);
      }
    }
    std::vector<std::string> found;
    for (const std::string_view path : order_) {
      const Seen& seen = seen_.at(path);
      if (IsModule(path, seen) && !seen.comes_again && !seen.writes_outside) {
        found.emplace_back(path);
      }
    }
    return found;
  }

 private:
  struct Seen {
    std::size_t last = 0;
    bool comes_again = false;
    bool writes_outside = false;
    bool calls = false;
    bool has_named_parts = false;
  };

  void Add(const CallRecord& call) {
    const std::string_view module = job_.strings[call.module];
    ++count_;
    ForEachModuleAround(module, [&](std::string_view path) {
      const auto [found, added] = seen_.try_emplace(path);
      if (added) order_.push_back(path);
      Seen& seen = found->second;
      seen.comes_again |= seen.last > forward_begins_ && seen.last + 1 < count_;
      seen.last = count_;
      seen.calls |= path == module;
      seen.has_named_parts |= path != module && !IsNumber(PartAfter(path, module));
    });
    if (const std::optional<Storage> written = WrittenBy(job_, call)) Written(module, *written);
    for (const NewStorage& fresh : call.fresh) maker_[fresh.storage] = module;
  }

  static std::string_view PartAfter(std::string_view path, std::string_view module) {
    const std::string_view rest = module.substr(path.size() + 1);
    return rest.substr(0, rest.find('.'));
  }

  void Written(std::string_view module, Storage storage) {
    if (model_.contains(storage)) return;  // statistics of batch norm
    const auto maker = maker_.find(storage);
    const std::string_view made_in = maker == maker_.end() ? std::string_view() : maker->second;
    ForEachModuleAround(module, [&](std::string_view path) {
      if (!IsPartOf(made_in, path)) seen_.at(path).writes_outside = true;
    });
  }

  /// A list of modules is none itself, and cannot be wrapped. A capture does not tell it from an
  /// nn.Sequential: so what has only numbered parts counts if it is itself a member of a list.
  static bool IsModule(std::string_view path, const Seen& seen) {
    return seen.calls || seen.has_named_parts || IsNumber(LastPart(path));
  }

  const Job& job_;
  const Variant& variant_;
  std::set<Storage> model_;
  std::map<std::string_view, Seen> seen_;
  std::vector<std::string_view> order_;
  std::map<Storage, std::string_view> maker_;
  /// Calls of forwards so far, and before the present one.
  std::size_t count_ = 0;
  std::size_t forward_begins_ = 0;
};

}  // namespace

void ForEachModuleAround(std::string_view path, const std::function<void(std::string_view)>& each) {
  for (std::size_t end = 0; end < path.size();) {
    end = std::min(path.find('.', end + 1), path.size());
    each(path.substr(0, end));
  }
}

bool IsPartOf(std::string_view path, std::string_view around) {
  return path.starts_with(around) && (path.size() == around.size() || path[around.size()] == '.');
}

std::optional<Storage> WrittenBy(const Job& job, const CallRecord& call) {
  const std::string_view op = job.strings[call.op];
  const std::string_view name = op.substr(0, op.rfind('.'));
  if (!name.ends_with('_') || call.args.empty()) return std::nullopt;
  const auto* tensor = std::get_if<TensorUse>(&call.args.front().is);
  if (tensor == nullptr || tensor->storage == kElsewhere) return std::nullopt;
  return tensor->storage;
}

std::vector<std::string> CheckpointModules(const Job& job, const Variant& variant) {
  return ModuleFinder(job, variant).Run();
}

std::vector<std::string> CheckpointBlocks(const Job& job, const Variant& variant) {
  std::vector<std::string> blocks;
  std::set<std::string_view> seen;
  Stage stage = Stage::kUnknown;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    if (event.kind != JobEvent::Kind::kCall || stage != Stage::kForward) continue;
    const std::string_view block = BlockOf(job.strings[variant.calls[event.index].module]);
    if (!block.empty() && seen.insert(block).second) blocks.emplace_back(block);
  }
  return blocks;
}

namespace {

/// Segments of consecutive blocks: of every `stride` the first `length`.
CheckpointSegments Regular(const std::vector<std::string>& blocks, std::size_t length,
                           std::size_t stride) {
  CheckpointSegments segments;
  for (std::size_t i = 0; i < blocks.size(); i += stride) {
    const std::size_t end = std::min(blocks.size(), i + length);
    segments.emplace_back(blocks.begin() + std::ptrdiff_t(i), blocks.begin() + std::ptrdiff_t(end));
  }
  return segments;
}

Result<CheckpointSegments> ResolveNames(const std::vector<std::string>& names,
                                        const std::vector<std::string_view>& known) {
  CheckpointSegments segments;
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Error{.message = fmt::format("'{}' is no block of this model", name),
                   .hint = SuggestOr(name, known,
                                     fmt::format("all, every:2, sqrt, or blocks from {} to {}",
                                                 known.front(), known.back()))};
    }
    for (const std::vector<std::string>& other : segments) {
      if (IsPartOf(name, other.front()) || IsPartOf(other.front(), name)) {
        return Error{
            .message = fmt::format("'{}' and '{}': one is part of the other", other.front(), name),
            .hint = "name one of them"};
      }
    }
    segments.push_back({name});
  }
  return segments;
}

/// "2" of "every:2"
Result<Checkpointing> ParseEvery(std::string_view text, std::string_view digits) {
  std::size_t every = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), every);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size() || every < 1) {
    return Error{.message = fmt::format("'{}' names no number of blocks", text),
                 .hint = "such as every:2"};
  }
  return Checkpointing{.every = every};
}

}  // namespace

Result<Checkpointing> ParseCheckpointing(std::string_view text) {
  constexpr std::string_view kEvery = "every:";
  if (text == "all") return Checkpointing{};
  if (text == "sqrt") return Checkpointing{.rule = Checkpointing::Rule::kRoot};
  if (text.starts_with(kEvery)) return ParseEvery(text, text.substr(kEvery.size()));
  Checkpointing named{.rule = Checkpointing::Rule::kNamed};
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    named.names.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(rest.size(), comma + 1));
  }
  if (named.names.empty() || std::ranges::find(named.names, "") != named.names.end()) {
    return Error{.message = fmt::format("'{}' leaves out the name of a module", text),
                 .hint = "all, every:2, sqrt, or names with one comma between them"};
  }
  return named;
}

std::string CheckpointingText(const Checkpointing& checkpointing) {
  switch (checkpointing.rule) {
    case Checkpointing::Rule::kEvery:
      return checkpointing.every == 1 ? "all" : fmt::format("every:{}", checkpointing.every);
    case Checkpointing::Rule::kRoot:
      return "sqrt";
    case Checkpointing::Rule::kNamed:
      return Joined(checkpointing.names, ",");
  }
  return "";
}

Result<CheckpointSegments> ResolveCheckpointing(const Checkpointing& checkpointing,
                                                const std::vector<std::string>& blocks,
                                                const std::vector<std::string>& modules) {
  const bool named = checkpointing.rule == Checkpointing::Rule::kNamed;
  if (blocks.empty() && (!named || modules.empty())) {
    return Error{.message = "no blocks to checkpoint: the model has no numbered list of modules",
                 .hint = "put its repeated layers into an nn.ModuleList or nn.Sequential"};
  }
  if (checkpointing.rule == Checkpointing::Rule::kRoot) {
    const auto root =
        static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(blocks.size()))));
    return Regular(blocks, root, root);
  }
  if (!named) return Regular(blocks, 1, checkpointing.every);
  std::vector<std::string_view> known(blocks.begin(), blocks.end());
  known.insert(known.end(), modules.begin(), modules.end());
  return ResolveNames(checkpointing.names, known);
}

}  // namespace plimsoll
