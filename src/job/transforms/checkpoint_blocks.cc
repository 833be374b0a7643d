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
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('.') + 1); }

/// Of what the forward writes into a model, what no result depends on.
constexpr std::string_view kCountOfBatchNorm = "num_batches_tracked";

/// Finds what can be wrapped from the calls of the forwards.
class ModuleFinder {
 public:
  ModuleFinder(const Job& job, const Variant& variant) : job_(job), variant_(variant) {
    for (const ModelTensor& tensor : variant.model_tensors) {
      if (LastPart(job.strings[tensor.name]) == kCountOfBatchNorm) counts_.insert(tensor.storage);
    }
  }

  std::vector<std::string> Run() {
    Stage stage = Stage::kUnknown;
    for (const JobEvent& event : variant_.events) {
      if (event.kind == JobEvent::Kind::kStage) {
        stage = event.stage;
        if (stage == Stage::kForward) {
          forward_begins_ = count_;
          FindChangedInputs();
        }
      }
      if (event.kind == JobEvent::Kind::kCall && stage == Stage::kForward) {
        Add(variant_.calls[event.index]);
      }
    }
    FindChangedInputs();
    std::vector<std::string> found;
    for (const std::string_view path : order_) {
      const Seen& seen = seen_.at(path);
      if (IsModule(path, seen) && !seen.comes_again && !seen.writes_outside &&
          !seen.input_changes && !job_.lists->changed_by.contains(path)) {
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
    bool input_changes = false;
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
    forward_.push_back(&call);
  }

  static std::string_view PartAfter(std::string_view path, std::string_view module) {
    const std::string_view rest = module.substr(path.size() + 1);
    return rest.substr(0, rest.find('.'));
  }

  void Written(std::string_view module, Storage storage) {
    if (counts_.contains(storage)) return;
    const std::string_view made_in = MakerOf(storage);
    ForEachModuleAround(module, [&](std::string_view path) {
      if (!IsPartOf(made_in, path)) seen_.at(path).writes_outside = true;
    });
  }

  std::string_view MakerOf(Storage storage) const {
    const auto maker = maker_.find(storage);
    return maker == maker_.end() ? std::string_view() : maker->second;
  }

  /// What a module was given and others write into once it has run: `x += self.mlp(x)`.
  void FindChangedInputs() {
    std::map<Storage, std::string_view> written_in;  // later in the forward: around all who do
    for (auto call = forward_.rbegin(); call != forward_.rend(); ++call) {
      const std::string_view module = job_.strings[(*call)->module];
      ForEachArgument(**call, [&](const TensorUse& tensor) {
        const auto written = written_in.find(tensor.storage);
        if (written == written_in.end()) return;
        const std::string_view made_in = MakerOf(tensor.storage);
        ForEachModuleAround(module, [&](std::string_view path) {
          if (IsPartOf(made_in, path) || IsPartOf(written->second, path)) return;
          seen_.at(path).input_changes = true;
        });
      });
      const std::optional<Storage> storage = WrittenBy(job_, **call);
      if (!storage || counts_.contains(*storage)) continue;
      const auto [written, first] = written_in.try_emplace(*storage, module);
      if (!first) written->second = Around(written->second, module);
    }
    forward_.clear();
  }

  /// The innermost module that both are part of.
  static std::string_view Around(std::string_view one, std::string_view other) {
    std::string_view around;
    ForEachModuleAround(one, [&](std::string_view path) {
      if (IsPartOf(other, path)) around = path;
    });
    return around;
  }

  /// A list of modules is none itself, and cannot be wrapped. A capture does not tell it from an
  /// nn.Sequential: so what has only numbered parts counts if it is itself a member of a list.
  static bool IsModule(std::string_view path, const Seen& seen) {
    return seen.calls || seen.has_named_parts || IsNumber(LastPart(path));
  }

  const Job& job_;
  const Variant& variant_;
  std::set<Storage> counts_;
  std::map<std::string_view, Seen> seen_;
  std::vector<std::string_view> order_;
  std::map<Storage, std::string_view> maker_;
  /// Calls of the present one.
  std::vector<const CallRecord*> forward_;
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
  const Argument* written = nullptr;
  if (op.substr(0, op.rfind('.')).ends_with('_') && !call.args.empty()) {
    written = &call.args.front();
  }
  for (const auto& [name, argument] : call.kwargs) {
    if (job.strings[name] == "out") written = &argument;
  }
  if (written == nullptr) return std::nullopt;
  const auto* tensor = std::get_if<TensorUse>(&written->is);
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
                           std::size_t stride, const Checkpointing& as) {
  CheckpointSegments segments;
  for (std::size_t i = 0; i < blocks.size(); i += stride) {
    const std::size_t end = std::min(blocks.size(), i + length);
    segments.push_back(
        {.modules = {blocks.begin() + std::ptrdiff_t(i), blocks.begin() + std::ptrdiff_t(end)},
         .kept = as.kept});
  }
  return segments;
}

std::optional<Error> CheckNames(const CheckpointSegments& named,
                                const std::vector<std::string_view>& known) {
  std::vector<std::string_view> before;
  for (const CheckpointSegment& segment : named) {
    const std::string& name = segment.modules.front();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Error{.message = fmt::format("'{}' is no block of this model", name),
                   .hint = SuggestOr(name, known,
                                     fmt::format("all, every:2, sqrt, or blocks from {} to {}",
                                                 known.front(), known.back()))};
    }
    for (const std::string_view other : before) {
      if (IsPartOf(name, other) || IsPartOf(other, name)) {
        return Error{.message = fmt::format("'{}' and '{}': one is part of the other", other, name),
                     .hint = "name one of them"};
      }
    }
    before.push_back(name);
    if (segment.on_host() && std::ranges::find(known, segment.waits_for) == known.end()) {
      return Error{.message = fmt::format("'{}' is no module of this model", segment.waits_for),
                   .hint = SuggestOr(segment.waits_for, known, "name one that comes after it")};
    }
  }
  return std::nullopt;
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

constexpr std::string_view kHost = "host:";

std::string WithKept(std::string_view what, std::string_view kept) {
  return kept.empty() ? std::string(what) : fmt::format("{}[{}]", what, kept);
}

/// What stands behind a module in brackets.
struct Kept {
  std::vector<KeptCall> calls;
  std::string waits_for;
};

/// Takes "[addmm+mm]" off the end of "h.0[addmm+mm]".
Result<Kept> TakeKept(std::string_view& text) {
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos) return Kept();
  if (!text.ends_with(']')) {
    return Error{.message = fmt::format("'{}' has no ] at its end", text),
                 .hint = "such as h.0[addmm+attention]"};
  }
  const std::string_view kept = text.substr(open + 1, text.size() - open - 2);
  text = text.substr(0, open);
  if (kept.starts_with(kHost)) {
    const std::string_view other = kept.substr(kHost.size());
    if (!other.empty()) return Kept{.waits_for = std::string(other)};
    return Error{.message = fmt::format("'{}' does not say for which module", text),
                 .hint = "such as h.0[host:h.3]: until h.3 is done, and back for its backward"};
  }
  Result<std::vector<KeptCall>> calls = ParseKeptCalls(kept);
  if (!calls) return calls.error();
  return Kept{.calls = std::move(*calls)};
}

Result<Checkpointing> ParseNames(std::string_view text) {
  Checkpointing named{.rule = Checkpointing::Rule::kNamed};
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    Result<CheckpointSegment> segment = ParseCheckpointSegment(rest.substr(0, comma));
    if (!segment) return segment.error();
    named.named.push_back(std::move(*segment));
    rest.remove_prefix(std::min(rest.size(), comma + 1));
  }
  const bool left_out = std::ranges::any_of(
      named.named, [](const auto& segment) { return segment.modules.front().empty(); });
  if (named.named.empty() || left_out) {
    return Error{.message = fmt::format("'{}' leaves out the name of a module", text),
                 .hint = "all, every:2, sqrt, or names with one comma between them"};
  }
  return named;
}

/// "all", "every:2", "sqrt"; nothing where these are names.
std::optional<Result<Checkpointing>> ParseRule(std::string_view text) {
  constexpr std::string_view kEvery = "every:";
  if (text == "all") return Checkpointing{};
  if (text == "sqrt") return Checkpointing{.rule = Checkpointing::Rule::kRoot};
  if (text.starts_with(kEvery)) return ParseEvery(text, text.substr(kEvery.size()));
  return std::nullopt;
}

/// The calls of each segment's first forward.
std::vector<std::vector<std::size_t>> FirstForwards(const Job& job, const Variant& variant,
                                                    const CheckpointSegments& segments) {
  std::map<std::string_view, std::size_t> of_module;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for (const std::string& module : segments[i].modules) of_module[module] = i;
  }
  std::vector<std::vector<std::size_t>> calls(segments.size());
  Stage stage = Stage::kUnknown;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    const JobEvent& event = variant.events[i];
    if (event.kind == JobEvent::Kind::kStage) {
      if (stage == Stage::kForward) break;
      stage = event.stage;
    }
    if (event.kind != JobEvent::Kind::kCall || stage != Stage::kForward) continue;
    ForEachModuleAround(job.strings[variant.calls[event.index].module],
                        [&](std::string_view module) {
                          const auto found = of_module.find(module);
                          if (found != of_module.end()) calls[found->second].push_back(i);
                        });
  }
  return calls;
}

/// The kept calls of one segment.
class KeptCheck {
 public:
  KeptCheck(const Job& job, const Variant& variant, const CheckpointSegment& segment,
            const std::vector<std::size_t>& calls)
      : job_(job), variant_(variant), segment_(segment), calls_(calls) {}

  std::optional<Error> Run() const {
    for (const KeptCall& kept : segment_.kept) {
      if (FindKept(job_, variant_, calls_, {kept}).empty()) return NotCalled(kept);
    }
    const std::set<std::size_t> kept = FindKept(job_, variant_, calls_, segment_.kept);
    const std::set<std::size_t> keepable = FindKeepable(job_, variant_, calls_);
    std::string_view random;
    for (const std::size_t event : calls_) {
      const std::string op = ShortOp(OpAt(event));
      if (kept.contains(event) && !keepable.contains(event)) {
        return Error{.message = fmt::format("{}: what {} makes cannot be kept: it is written in "
                                            "place",
                                            segment_.modules.front(), op),
                     .hint = "leave it out"};
      }
      if (!IsRandom(job_, variant_.calls[variant_.events[event].index])) continue;
      if (kept.contains(event)) {
        random = OpAt(event);
      } else if (!random.empty()) {
        return Error{.message = fmt::format("{}: with {} kept, {} would get other random numbers "
                                            "when it is repeated",
                                            segment_.modules.front(), ShortOp(random), op),
                     .hint = fmt::format("keep {} too, or neither", op)};
      }
    }
    return std::nullopt;
  }

 private:
  std::string_view OpAt(std::size_t event) const {
    return job_.strings[variant_.calls[variant_.events[event].index].op];
  }

  Error NotCalled(const KeptCall& kept) const {
    std::set<std::string> ops;
    for (const std::size_t event : calls_) ops.insert(ShortOp(OpAt(event)));
    const std::vector<std::string_view> known(ops.begin(), ops.end());
    const std::string text = KeptCallsText({kept});
    return {.message = fmt::format("{} makes no call of {}", segment_.modules.front(), text),
            .hint = SuggestOr(text, known, fmt::format("it calls {}", Joined(known, ", ")))};
  }

  const Job& job_;
  const Variant& variant_;
  const CheckpointSegment& segment_;
  const std::vector<std::size_t>& calls_;
};

}  // namespace

std::string CheckpointSegment::KeptText() const {
  if (on_host()) return fmt::format("{}{}", kHost, waits_for);
  return kept.empty() ? std::string() : KeptCallsText(kept);
}

std::string CheckpointSegment::Text() const { return WithKept(modules.front(), KeptText()); }

Result<CheckpointSegment> ParseCheckpointSegment(std::string_view text) {
  Result<Kept> kept = TakeKept(text);
  if (!kept) return kept.error();
  return CheckpointSegment{.modules = {std::string(text)},
                           .kept = std::move(kept->calls),
                           .waits_for = std::move(kept->waits_for)};
}

Result<Checkpointing> ParseCheckpointing(std::string_view text) {
  std::string_view rule = text;
  Result<Kept> kept = TakeKept(rule);
  std::optional<Result<Checkpointing>> parsed = kept ? ParseRule(rule) : std::nullopt;
  if (parsed && kept->waits_for.empty()) {
    if (*parsed) (*parsed)->kept = std::move(kept->calls);
    return std::move(*parsed);
  }
  return ParseNames(text);
}

std::string CheckpointingText(const Checkpointing& checkpointing) {
  const std::string kept =
      checkpointing.kept.empty() ? std::string() : KeptCallsText(checkpointing.kept);
  std::vector<std::string> names;
  switch (checkpointing.rule) {
    case Checkpointing::Rule::kEvery:
      return WithKept(
          checkpointing.every == 1 ? "all" : fmt::format("every:{}", checkpointing.every), kept);
    case Checkpointing::Rule::kRoot:
      return WithKept("sqrt", kept);
    case Checkpointing::Rule::kNamed:
      for (const CheckpointSegment& segment : checkpointing.named) names.push_back(segment.Text());
      return Joined(names, ",");
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
    return Regular(blocks, root, root, checkpointing);
  }
  if (!named) return Regular(blocks, 1, checkpointing.every, checkpointing);
  std::vector<std::string_view> known(blocks.begin(), blocks.end());
  known.insert(known.end(), modules.begin(), modules.end());
  if (std::optional<Error> error = CheckNames(checkpointing.named, known)) return *error;
  return checkpointing.named;
}

std::optional<Error> CannotRepeat(const Job& job, const CheckpointSegments& segments) {
  for (const CheckpointSegment& segment : segments) {
    if (segment.on_host()) continue;
    for (const std::string& module : segment.modules) {
      if (!job.lists->changed_by.contains(module)) continue;
      return Error{.message = fmt::format("'{}' changes a list or a dictionary that it is given: "
                                          "computed again, it would be given another one",
                                          module),
                   .hint = "leave it out"};
    }
  }
  return std::nullopt;
}

std::optional<Error> CannotKeep(const Job& job, const Variant& variant,
                                const CheckpointSegments& segments) {
  const bool any = std::ranges::any_of(segments, [](const auto& one) { return !one.kept.empty(); });
  if (!any) return std::nullopt;
  const std::vector<std::vector<std::size_t>> calls = FirstForwards(job, variant, segments);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].kept.empty()) continue;
    if (auto error = KeptCheck(job, variant, segments[i], calls[i]).Run()) return error;
  }
  return std::nullopt;
}

}  // namespace plimsoll
