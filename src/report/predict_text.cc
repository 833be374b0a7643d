#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/epoch_text.h"
#include "report/format/stage_words.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/predict.h"
#include "report/predict_verdict.h"

namespace plimsoll {
namespace {

std::string_view LineName(AccountItem item) {
  switch (item) {
    case AccountItem::kParameters:
      return "parameters and buffers";
    case AccountItem::kWorkspaces:
      return "workspaces of libraries";
    case AccountItem::kCached:
      return "cached by PyTorch, not in use";
    case AccountItem::kNccl:
      return "NCCL, outside PyTorch, about";
    default:
      return AccountItemWords(item);
  }
}

std::string RangeText(const Range& range) {
  if (range.low == range.high) return FormatBytes(range.best);
  return fmt::format("{}  ({} to {})", FormatBytes(range.best), FormatBytes(range.low),
                     FormatBytes(range.high));
}

/// How the context's size is known is said beside it, unless it was measured on that card.
std::string_view ContextName(const Gpu& gpu) {
  switch (gpu.context.basis) {
    case FigureBasis::kMeasured:
      return "CUDA context, outside PyTorch";
    case FigureBasis::kMeasuredHere:
      return "CUDA context, measured here";
    case FigureBasis::kAlike:
      return "CUDA context, outside, as H200's";
    case FigureBasis::kScaled:
      return "CUDA context, outside, scaled";
    case FigureBasis::kAssumed:
      break;
  }
  return "HIP context, outside, assumed";
}

void WriteRow(Writer& w, std::string_view what, std::string_view value) {
  constexpr std::string_view kBelowValue = "                         ";
  w.Wrapped(value, fmt::format("  {:<22} ", what), kBelowValue);
}

/// Below this share of a step the GPU waits for the host, unless it waits for other GPUs; above
/// this one that is told.
constexpr double kBusy = 0.8;
constexpr double kWaits = 0.05;

std::string StepTimeText(const Prediction& p) {
  std::string text =
      fmt::format("about {} ({} to {})", Milliseconds(p.trial.step_us),
                  Milliseconds(p.trial.step_low_us), Milliseconds(p.trial.step_high_us));
  if (p.own_batches > 0) text += ", the middle one of its steps";
  if (p.passes > 1) {
    text += fmt::format(" for {} × {} = {} samples a step", p.batch, p.passes, p.batch * p.passes);
  }
  if (p.trial.waited_us > kWaits * p.trial.step_us) {
    text += fmt::format(", {} of it waiting for other GPUs, by the rates of their links",
                        Milliseconds(p.trial.waited_us));
  }
  if (p.trial.gpu_busy_us + p.trial.waited_us < kBusy * p.trial.step_us) {
    text +=
        fmt::format(": the GPU is busy for {} and waits for Python (as fast as where we measured)",
                    Milliseconds(p.trial.gpu_busy_us));
  }
  if (p.gpu.name == "H200") return text;
  text += "; measured on an H200, scaled to ";
  return text +
         (p.gpu.assumed
              ? fmt::format("the rates of the {}, since --gpu gives a size and no name", p.gpu.like)
              : "this card");
}

constexpr Bytes kWorthTelling = kMiB;

std::string WorkersText(std::int64_t count) {
  return count == 1 ? "a loader worker" : fmt::format("{} loader workers", count);
}

/// Engines are given a share of the whole card, which counts what lies outside their pools too.
std::string LeftText(const Prediction& p) {
  const Bytes left = p.LeftForOthers();
  const double share = std::floor(100.0 * double(left) / double(p.gpu.Total())) / 100;
  return fmt::format(
      "{}: an engine beside it may take {:.2f} of the card (vLLM's "
      "--gpu-memory-utilization)",
      FormatBytes(left), share);
}

/// "llama: 14.96 GiB of weights and 128.00 KiB a token leave room for 240,000 tokens …".
std::string EngineText(const Prediction& p, const ServedModel& model) {
  const Bytes left = p.LeftForOthers() - model.weights;
  const std::string needs =
      fmt::format("{}: {} of weights and {} a token of KV cache", Printable(model.name),
                  FormatBytes(model.weights), FormatBytes(model.token));
  if (left <= 0) return needs + "; the weights alone are too much";
  return fmt::format(
      "{}; {} tokens in all requests together, less what the engine takes for its context and its "
      "activations",
      needs, left / model.token);
}

/// "4.00 GiB between two tokens at most, 128.00 KiB a token and sample …". While a prompt runs its
/// keys and values may lie in one tensor with its queries, which is larger.
std::string CacheText(const Prediction& p) {
  std::string text = fmt::format("{} between two tokens at most", FormatBytes(p.cache->bytes));
  if (!p.cache->token) {
    return text + fmt::format(", {} a sequence, made before it is filled",
                              FormatBytes(p.cache->bytes / std::max<std::int64_t>(p.batch, 1)));
  }
  text += fmt::format(", {} a token and sample", FormatBytes(*p.cache->token));
  if (!p.cache->tokens) return text;
  return text + fmt::format(
                    "; beside the model there is room for {} tokens in all sequences together, "
                    "less what the activations take",
                    *p.cache->tokens);
}

/// The job beside the same with torch.compile, or without.
void WriteCompiled(Writer& w, const Compiled& compiled) {
  WriteRow(
      w, compiled.is ? "  not compiled" : "  compiled",
      fmt::format("{} allocated, {} reserved, about {} a step",
                  FormatBytes(compiled.other.allocated.best),
                  FormatBytes(compiled.other.reserved.best), Milliseconds(compiled.other_step_us)));
  if (compiled.is && compiled.timing > 0) {
    WriteRow(w, "  in the first step",
             fmt::format("the compiler times its kernels, and takes {} for each",
                         FormatBytes(compiled.timing)));
  }
}

void WriteFigures(Writer& w, const Answer& answer) {
  const Prediction& p = answer.prediction;
  WriteRow(w, "allocated at most", RangeText(p.trial.needs.allocated));
  WriteRow(w, "reserved at most", RangeText(p.trial.needs.reserved));
  WriteRow(w, "on the device", RangeText(p.trial.needs.device));
  if (p.trial.fits && p.trial.unlimited.device.best > p.trial.needs.device.best) {
    WriteRow(w, "  without limits", RangeText(p.trial.unlimited.device));
  }
  if (p.trial.step_us > 0) {
    WriteRow(w, p.trial.fits ? "a step takes" : "a step would take", StepTimeText(p));
  }
  if (answer.compiled) WriteCompiled(w, *answer.compiled);
  WriteRow(w, "peak", InstantText(p));
  if (p.cache) WriteRow(w, "KV cache", CacheText(p));
  if (p.host) WriteRow(w, "on the host", HostText(p));
  if (answer.share) WriteRow(w, "left for others", LeftText(p));
  if (answer.engine) WriteRow(w, "an engine's model", EngineText(p, *answer.engine));
}

void WriteStages(Writer& w, const Prediction& p) {
  if (p.stages.empty()) return;
  w.Heading("What each stage takes at most");
  std::vector<Column> columns = {{},
                                 {.heading = "allocated", .right = true},
                                 {.heading = "reserved", .right = true},
                                 {.heading = "device", .right = true}};
  if (p.host) columns.push_back({.heading = "host", .right = true});
  columns.push_back({.heading = "peak at", .wraps = true});
  Table table(std::move(columns));
  for (const StageNeeds& stage : p.stages) {
    std::vector<std::string> cells = {StageTitle(stage), FormatBytes(stage.allocated),
                                      FormatBytes(stage.reserved), FormatBytes(stage.device)};
    if (p.host) cells.push_back(stage.host ? FormatBytes(*stage.host) : "");
    cells.push_back(stage.where);
    table.Row(std::move(cells));
  }
  table.WriteTo(w);
}

/// "rank 3", "ranks 4 to 7".
std::string RanksText(const RankNeeds& needs) {
  if (needs.ranks == 1) return fmt::format("rank {}", needs.first);
  return fmt::format("ranks {} to {}", needs.first, needs.first + needs.ranks - 1);
}

void WriteRanks(Writer& w, const Prediction& p) {
  if (p.ranks.empty()) return;
  w.Heading("What each stage of the pipeline takes at most");
  Table table({{},
               {.heading = "allocated", .right = true},
               {.heading = "reserved", .right = true},
               {.heading = "device", .right = true},
               {}});
  for (const RankNeeds& needs : p.ranks) {
    table.Row({fmt::format("stage {}, {}", needs.stage, RanksText(needs)),
               FormatBytes(needs.allocated), FormatBytes(needs.reserved), FormatBytes(needs.device),
               needs.shown   ? "the fullest, shown above"
               : !needs.fits ? "does not fit"
                             : ""});
  }
  table.WriteTo(w);
}

/// The row of the rest has holders of any purpose.
std::string_view PurposeOf(const Holder& holder) {
  return holder.others > 0 ? "" : LineName(ItemOf(holder.category));
}

void WriteHolders(Writer& w, std::string_view heading, const std::vector<Holder>& holders) {
  w.Heading(heading);
  std::size_t counts = 0;
  std::size_t names = 0;
  for (const Holder& h : holders) {
    counts = std::max(counts, std::to_string(h.count).size());
    names = std::max(names, PurposeOf(h).size());
  }
  for (const Holder& h : holders) {
    const std::string first = fmt::format("  {:>10} {:>{}}×  {:<{}}  ", FormatBytes(h.bytes),
                                          h.count, counts, PurposeOf(h), names);
    // The sign is two bytes and one column.
    const std::string indent(first.size() - 1, ' ');
    w.Wrapped(
        h.module.empty() || !h.parts.empty() ? h.where : fmt::format("{} ({})", h.where, h.module),
        first, indent);
    constexpr std::size_t kShown = 3;
    for (std::size_t i = 0; i < h.parts.size() && i < kShown; ++i) {
      w.Wrapped(fmt::format("{}  {}", FormatBytes(h.parts[i].bytes),
                            h.parts[i].module.empty() ? "outside of modules" : h.parts[i].module),
                indent + "  ", indent + "  ");
    }
  }
}

std::string_view ChangeWords(EvaluationChange::Kind kind) {
  switch (kind) {
    case EvaluationChange::Kind::kNoGrad:
      return "under torch.no_grad()";
    case EvaluationChange::Kind::kOnHost:
      return "keeping its outputs on the host (output.cpu())";
    case EvaluationChange::Kind::kSmaller:
      return "in batches of a quarter";
  }
  return "";
}

void WriteEvaluation(Writer& w, const Prediction& p) {
  if (p.evaluation.empty()) return;
  w.Heading("With another evaluation the job needs");
  Table table({{},
               {.heading = "reserved", .right = true},
               {.heading = "device", .right = true},
               {.heading = ""}});
  for (const EvaluationChange& change : p.evaluation) {
    table.Row({std::string(ChangeWords(change.kind)), FormatBytes(change.trial.needs.reserved.best),
               FormatBytes(change.trial.needs.device.best),
               change.trial.fits ? "fits" : "does not fit"});
  }
  table.WriteTo(w);
}

std::string SizeChangeWords(const SizeChange& change) {
  switch (change.kind) {
    case SizeChange::Kind::kExpandable:
      return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    case SizeChange::Kind::kMultiples:
      return fmt::format("sizes padded to multiples of {}", change.multiple);
    case SizeChange::Kind::kLargest:
      return "every batch padded to the largest";
    case SizeChange::Kind::kHeaviestFirst:
      return "the heaviest of these batches first";
  }
  return "";
}

/// After how many steps what is reserved is told.
constexpr std::size_t kTold[] = {1, 2, 5, 10, 20, 60, 200, 1000};

void WriteSizeChanges(Writer& w, const Prediction& p) {
  if (p.own_batches == 0) return;
  w.Heading("What batches of changing sizes leave reserved");
  std::string after;
  std::size_t last = 0;
  for (std::size_t n : kTold) {
    n = std::min(n, p.reserved_after_step.size());
    if (n == last) break;
    last = n;
    after += fmt::format("{}{} after {}", after.empty() ? "" : ", ",
                         FormatBytes(p.reserved_after_step[n - 1]), n);
  }
  w.Wrapped(fmt::format("{} step{}.", after, p.reserved_after_step.size() == 1 ? "" : "s"), "  ",
            "  ");
  if (p.size_changes.empty()) return;
  w.Line();
  Table table({{.heading = "from the third step on, at most"},
               {.heading = "reserved", .right = true},
               {.heading = "device", .right = true},
               {.heading = ""}});
  const auto row = [&](const std::string& what, const TrialResult& trial) {
    table.Row({what, FormatBytes(trial.unlimited.reserved.best),
               FormatBytes(trial.unlimited.device.best), trial.fits ? "fits" : "does not fit"});
  };
  row("as they come", p.trial);
  for (const SizeChange& change : p.size_changes) row(SizeChangeWords(change), change.trial);
  table.WriteTo(w);
}

/// "Without that it needs 3.56 GiB on the device and fits", computed.
std::string WithoutText(const TrialResult& without) {
  return fmt::format(
      "Let go at the end of each step, the job needs {} on the device, {} of it reserved, and {}.",
      FormatBytes(without.needs.device.best), FormatBytes(without.needs.reserved.best),
      without.fits ? "goes on" : "does not fit");
}

/// At most so many lines of weights that are not quantized.
constexpr std::size_t kMostWeights = 5;

void WriteUnquantized(Writer& w, const Unquantized& found) {
  w.Heading("What is not quantized");
  w.Wrapped(fmt::format(
                "Weights are kept in {} bits ({}), but {:.0f} % of those that are not trained are "
                "whole: {}. In {} bits they would take {} less.",
                found.bits, FormatBytes(found.quantized), 100 * found.share,
                FormatBytes(found.bytes()), found.bits, FormatBytes(found.saves())),
            "  ", "  ");
  for (std::size_t i = 0; i < std::min(found.whole.size(), kMostWeights); ++i) {
    const WholeWeights& one = found.whole[i];
    w.Wrapped(Printable(one.name),
              fmt::format("  {:>10} {:>4}×  ", FormatBytes(one.bytes), one.count),
              "                    ");
  }
}

void WriteGrowth(Writer& w, const Growth& growth) {
  WriteHolders(w, growth.branch.empty() ? "What each step leaves behind" : "What is left each time",
               growth.holders);
  w.Wrapped(
      "Something keeps these tensors from step to step: a list, a dictionary, an attribute. Keep "
      "loss.item() of a loss, .detach().cpu() of outputs, or let go of what is kept.",
      "  - ", "    ");
  if (growth.without) w.Wrapped(WithoutText(*growth.without), "  - ", "    ");
}

void WriteFrontier(Writer& w, const Frontier& frontier) {
  const std::string name = Printable(frontier.name);
  const SampleUnit unit = frontier.Unit();
  w.Heading(fmt::format("The largest batch that fits for certain, by {}", name));
  // Of recorded runs no time is known.
  const bool timed = frontier.Fastest() != nullptr;
  std::vector<Column> columns = {
      {.heading = name, .right = true},
      {.heading = "batch", .right = true},
      {.heading = "may fit", .right = true},
      {.heading = fmt::format("{}: batch × {}{}", unit.name, name, unit.squared ? "²" : ""),
       .right = true}};
  if (timed) {
    columns.push_back({.heading = "a step", .right = true});
    columns.push_back({.heading = fmt::format("{} a second", unit.name), .right = true});
  }
  columns.push_back({.heading = ""});
  Table table(std::move(columns));
  for (const FrontierPoint& point : frontier.points) {
    std::string mark;
    if (&point == frontier.Fastest()) mark = "fastest";
    if (&point == frontier.Most()) mark += mark.empty() ? "most" : ", most";
    const bool none = point.sure.batch == 0;
    std::vector<std::string> row = {
        fmt::format("{}", point.length), none ? "none" : fmt::format("{}", point.sure.batch),
        fmt::format("{}", point.most), none ? "" : fmt::format("{:.0f}", point.InStep())};
    if (timed) {
      row.push_back(none ? "" : Milliseconds(point.sure.step_us));
      row.push_back(none ? "" : fmt::format("{:.0f}", point.PerSecond()));
    }
    row.push_back(mark);
    table.Row(std::move(row));
  }
  table.WriteTo(w);
}

}  // namespace

std::string HostText(const Prediction& p) {
  const HostPart& peak = p.host->peak();
  std::string text =
      fmt::format("about {} resident at most, {}: {} in tensors, ", FormatBytes(peak.resident()),
                  StageWords(p.host_stage), FormatBytes(peak.tensors));
  if (peak.pinned >= kWorthTelling) text += FormatBytes(peak.pinned) + " pinned, ";
  text += fmt::format("{} of PyTorch and CUDA, {} of the script's modules and data",
                      FormatBytes(peak.base), FormatBytes(peak.imports));
  if (peak.workers > 0) {
    text += fmt::format("; with {} and their batches in shared memory ({}) {}",
                        WorkersText(peak.workers), FormatBytes(peak.shared),
                        FormatBytes(peak.with_workers()));
  }
  if (p.host->ranks > 1) {
    text += fmt::format("; {} for the {} ranks of a machine", FormatBytes(p.host->of_machine()),
                        p.host->ranks);
  }
  return text;
}

std::string StageTitle(const StageNeeds& stage) {
  const std::string_view after = stage.heaviest     ? ", heaviest batch"
                                 : stage.after_load ? ", after loading"
                                                    : "";
  return fmt::format("{}{}", StageWords(stage.stage), after);
}

std::string InstantText(const Prediction& p) {
  if (p.peak_op == "recorded") {
    return p.peak_where.empty() ? std::string("a line that the record does not name")
                                : p.peak_where;
  }
  if (p.peak.step < 0 && p.peak.part == Moment::kSteps) return "building the model";
  std::string text = p.peak.part == Moment::kSteps
                         ? fmt::format("step {}, {}", p.peak.step + 1, StageName(p.peak.stage))
                     : p.peak_token
                         ? fmt::format("token {} of {}", p.peak_token->token, p.peak_token->of)
                     : !p.trains ? std::string(StageWords(p.peak.stage))
                                 : fmt::format("after the steps, {}", StageName(p.peak.stage));
  if (!p.peak_module.empty()) text += fmt::format(" of {}", p.peak_module);
  if (!p.peak_op.empty()) text += fmt::format(", {}", p.peak_op);
  if (!p.peak_where.empty()) text += fmt::format(" ({})", p.peak_where);
  return text;
}

std::string PredictText(const Answer& answer, const TextStyle& style) {
  const Prediction& p = answer.prediction;
  Writer w(style);
  if (answer.epoch) w.Headline(EpochHeadline(*answer.epoch));
  if (answer.longest) w.Headline(Longest(p, *answer.longest));
  for (const std::string& sentence : Headlines(p, answer.max_batch)) w.Headline(sentence);
  w.Line();
  WriteFigures(w, answer);
  if (answer.frontier) WriteFrontier(w, *answer.frontier);
  if (answer.epoch) WriteEpoch(w, *answer.epoch);
  WriteStages(w, p);
  WriteRanks(w, p);
  WriteEvaluation(w, p);
  WriteSizeChanges(w, p);
  w.Heading(fmt::format("Where it is at the peak: {}", FormatBytes(p.trial.needs.device.best)));
  for (const AccountLine& line : p.account) {
    const std::string_view name =
        line.what == AccountItem::kOutside ? ContextName(p.gpu) : LineName(line.what);
    w.Line(fmt::format("  {:<32} {:>12}  {:>5.1f} %", name, FormatBytes(line.bytes),
                       100.0 * double(line.bytes) / double(p.trial.needs.device.best)));
  }
  if (p.growth && p.growth->EndsTheJob()) WriteGrowth(w, *p.growth);
  if (p.unquantized) WriteUnquantized(w, *p.unquantized);
  WriteHolders(w, "What holds it at the peak", p.holders);
  if (answer.earlier_frees) {
    w.Heading("Held, though nothing uses it again");
    for (const std::string& text : EarlierFreeTexts(*answer.earlier_frees, p)) {
      w.Wrapped(text, "  - ", "    ");
    }
  }
  if (!p.assumptions.empty()) w.Heading("Assumed");
  for (const std::string& text : p.assumptions) w.Wrapped(text, "  - ", "    ");
  return w.Take();
}

}  // namespace plimsoll
