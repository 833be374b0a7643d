// Blocks whose activations are computed again in the backward instead of being kept.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "job/transforms/block_offload.h"
#include "job/transforms/checkpoint.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

LeverValue CheckpointingValue(Checkpointing checkpointing) {
  std::string text = CheckpointingText(checkpointing);
  return {std::move(text), std::move(checkpointing)};
}

Result<CheckpointSegments> SegmentsOf(const Job& job, const Variant& variant,
                                      const LeverValue& value) {
  const auto& checkpointing = value.As<Checkpointing>();
  // By name first: else it is said not to be there.
  if (std::optional<Error> error = CannotRepeat(job, checkpointing.named)) return *error;
  Result<CheckpointSegments> segments = ResolveCheckpointing(
      checkpointing, CheckpointBlocks(job, variant), CheckpointModules(job, variant));
  if (!segments) return segments;
  if (std::optional<Error> error = CannotRepeat(job, *segments)) return *error;
  return segments;
}

/// As Python writes it: a name comes from a file, and the lines are for people to copy.
std::string Quoted(std::string_view name) {
  std::string quoted = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < ' ') {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

/// What is checkpointed of the job as captured; nothing where the value does not fit it.
CheckpointSegments Checkpointed(const Job& job, const LeverValue& value) {
  Result<CheckpointSegments> segments = SegmentsOf(job, job.variants.front(), value);
  return segments ? std::move(*segments) : CheckpointSegments();
}

bool IsSelective(const CheckpointSegment& segment) { return !segment.kept.empty(); }
bool IsOnHost(const CheckpointSegment& segment) { return segment.on_host(); }

/// "checkpoint 3 of 12 blocks", "…, 2 of them in part"
std::string DescribeComputed(const Job& job, const CheckpointSegments& segments) {
  const std::vector<std::string> blocks = CheckpointBlocks(job, job.variants.front());
  std::size_t names = 0;
  bool only_blocks = true;
  for (const CheckpointSegment& segment : segments) {
    names += segment.modules.size();
    only_blocks &= std::ranges::all_of(segment.modules, [&](const std::string& name) {
      return std::find(blocks.begin(), blocks.end(), name) != blocks.end();
    });
  }
  std::string text = only_blocks
                         ? fmt::format("checkpoint {} of {} blocks", names, blocks.size())
                         : fmt::format("checkpoint {} module{}", names, names > 1 ? "s" : "");
  const auto in_part = std::size_t(std::ranges::count_if(segments, IsSelective));
  if (in_part == segments.size() && in_part > 0) {
    text += " in part";
  } else if (in_part > 0) {
    text += fmt::format(", {} of them in part", in_part);
  }
  return text;
}

std::string DescribeCheckpointing(const Job& job, const Choice&, const LeverValue& value) {
  CheckpointSegments segments = Checkpointed(job, value);
  const auto on_host = std::size_t(std::ranges::count_if(segments, IsOnHost));
  std::erase_if(segments, IsOnHost);
  const std::string waiting =
      fmt::format("results of {} block{} on the host", on_host, on_host == 1 ? "" : "s");
  if (segments.empty()) return waiting;
  const std::string computed = DescribeComputed(job, segments);
  return on_host == 0 ? computed : fmt::format("{}, {}", computed, waiting);
}

LeverFields CheckpointingFields(const Job& job, const LeverValue& value) {
  std::vector<std::string> names;
  std::vector<std::string> kept;
  const CheckpointSegments segments = Checkpointed(job, value);
  for (const CheckpointSegment& segment : segments) {
    names.insert(names.end(), segment.modules.begin(), segment.modules.end());
    kept.resize(names.size(), segment.KeptText());
  }
  LeverFields fields = {{"modules", names}};
  const bool any = std::ranges::any_of(kept, [](const std::string& text) { return !text.empty(); });
  if (any) fields.push_back({"keep", kept});
  return fields;
}

std::string QuotedList(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(Quoted(name));
  return Joined(quoted, ", ");
}

/// As a policy function is asked about it: "aten.addmm.default", or "aten.mm.default@1".
std::vector<std::string> AsAsked(const std::vector<KeptCall>& kept) {
  std::vector<std::string> asked;
  for (const KeptCall& call : kept) {
    std::vector<std::string> ops = {call.op};
    if (call.op == "plimsoll.attention") {
      ops.clear();
      for (const char* kernel : {"flash", "efficient", "cudnn"}) {
        ops.push_back(fmt::format("aten._scaled_dot_product_{}_attention.default", kernel));
      }
    }
    for (const std::string& op : ops) {
      asked.push_back(call.nth ? fmt::format("{}@{}", op, *call.nth) : op);
    }
  }
  return asked;
}

/// Segments that keep the same together.
std::vector<CheckpointSegment> Alike(const CheckpointSegments& segments) {
  std::vector<CheckpointSegment> groups;
  for (const CheckpointSegment& segment : segments) {
    const auto same = std::ranges::find(groups, segment.kept, &CheckpointSegment::kept);
    if (same == groups.end()) {
      groups.push_back(segment);
    } else {
      same->modules.insert(same->modules.end(), segment.modules.begin(), segment.modules.end());
    }
  }
  return groups;
}

std::vector<std::string> SelectiveCode(const CheckpointSegments& segments) {
  std::vector<std::string> lines = {
      "import collections, functools",
      "import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper",
      "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts",
      "def keeping(kept):  # what these calls make is kept; all others are repeated",
      "    def contexts():",
      "        seen = collections.Counter()",
      "        def policy(ctx, op, *args, **kwargs):",
      "            nth = seen[op, ctx.is_recompute]",
      "            seen[op, ctx.is_recompute] += 1",
      "            keep = str(op) in kept or f\"{op}@{nth}\" in kept",
      "            return CheckpointPolicy.MUST_SAVE if keep else "
      "CheckpointPolicy.PREFER_RECOMPUTE",
      "        return create_selective_checkpoint_contexts(policy)",
      "    return contexts"};
  for (const CheckpointSegment& group : Alike(segments)) {
    lines.push_back(fmt::format("blocks = {{model.get_submodule(n) for n in [{}]}}",
                                QuotedList(group.modules)));
    std::string wrap = "wrapper.checkpoint_wrapper";
    if (IsSelective(group)) {
      lines.push_back(fmt::format("kept = {{{}}}", QuotedList(AsAsked(group.kept))));
      wrap = fmt::format("functools.partial({}, context_fn=keeping(kept))", wrap);
    }
    lines.push_back(fmt::format("wrap = {}", wrap));
    lines.emplace_back(
        "wrapper.apply_activation_checkpointing(model, wrap, check_fn=lambda m: m in blocks)");
  }
  return lines;
}

std::vector<std::string> ComputedCode(const CheckpointSegments& segments) {
  if (segments.empty()) return {};
  if (std::ranges::any_of(segments, IsSelective)) return SelectiveCode(segments);
  std::vector<std::string> names;
  for (const CheckpointSegment& segment : segments) {
    names.insert(names.end(), segment.modules.begin(), segment.modules.end());
  }
  return {"import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper",
          fmt::format("blocks = {{model.get_submodule(n) for n in [{}]}}", QuotedList(names)),
          "wrapper.apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)"};
}

/// What is appended to a list once a module has run, a checkpoint would give to its repetition.
std::vector<std::string> ListsAsTheyAre(const Job& job, const CheckpointSegments& segments) {
  std::vector<std::string> given;
  for (const CheckpointSegment& segment : segments) {
    std::ranges::copy_if(segment.modules, std::back_inserter(given),
                         [&](const auto& module) { return job.lists->to.contains(module); });
  }
  if (given.empty()) return {};
  return {"from torch.utils._pytree import tree_map",
          "def as_they_are(module, args, kwargs):  # copies of lists, which others may append to",
          "    return tree_map(lambda x: x, (args, kwargs))",
          fmt::format("for n in [{}]:", QuotedList(given)),
          "    model.get_submodule(n).register_forward_pre_hook(as_they_are, with_kwargs=True)"};
}

std::vector<std::string> CheckpointingCode(const Job& job, const Choice&, const LeverValue& value) {
  CheckpointSegments segments = Checkpointed(job, value);
  std::vector<std::string> waiting;
  for (const CheckpointSegment& segment : segments) {
    if (!segment.on_host()) continue;
    waiting.push_back(
        fmt::format("{}: {}", Quoted(segment.modules.front()), Quoted(segment.waits_for)));
  }
  std::erase_if(segments, IsOnHost);
  std::vector<std::string> lines = ComputedCode(segments);
  std::ranges::move(ListsAsTheyAre(job, segments), std::back_inserter(lines));
  if (!waiting.empty()) {
    lines.emplace_back("# results on the host from the end of one module to the other's backward");
    lines.push_back(fmt::format("plimsoll.wait_on_host(model, {{{}}})", Joined(waiting, ", ")));
  }
  return lines;
}

}  // namespace

LeverValue ModulesValue(const std::vector<std::string>& modules) {
  Checkpointing checkpointing{.rule = Checkpointing::Rule::kNamed};
  for (const std::string& module : modules) {
    Result<CheckpointSegment> segment = ParseCheckpointSegment(module);
    checkpointing.named.push_back(segment ? std::move(*segment)
                                          : CheckpointSegment{.modules = {module}});
  }
  return CheckpointingValue(std::move(checkpointing));
}

const PlanLever kCheckpointingLever = {
    .name = "checkpointing",
    .values =
        "all blocks, every:2, sqrt, or names of modules (transformer.h.0,transformer.h.1); "
        "behind each in brackets what is kept of it (all[addmm+attention]), or that it waits on "
        "the host (h.0[host])",
    .parse = [](std::string_view text) -> Result<LeverValue> {
      Result<Checkpointing> parsed = ParseCheckpointing(text);
      if (!parsed) return parsed.error();
      return CheckpointingValue(std::move(*parsed));
    },
    .numerics = SameResults,
    .describe = DescribeCheckpointing,
    .fields = CheckpointingFields,
    .code = CheckpointingCode,
    .rewrite = [](Job& job, Variant& variant, const LeverValue& value) -> std::optional<Error> {
      Result<CheckpointSegments> segments = SegmentsOf(job, variant, value);
      if (!segments) return segments.error();
      if (std::optional<Error> error = CannotKeep(job, variant, *segments)) return error;
      CheckpointSegments waiting;
      std::ranges::copy_if(*segments, std::back_inserter(waiting), IsOnHost);
      std::erase_if(*segments, IsOnHost);
      if (!segments->empty()) variant = AddCheckpointing(job, variant, *segments);
      if (!waiting.empty()) variant = OffloadBlocks(job, variant, waiting);
      return std::nullopt;
    },
};

}  // namespace plimsoll
