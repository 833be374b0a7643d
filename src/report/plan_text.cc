#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "plan/lever.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/growth_text.h"
#include "report/plan.h"
#include "report/predict_verdict.h"

namespace plimsoll {
namespace {

std::string WholeMilliseconds(double us) { return fmt::format("{:.0f} ms", us / 1e3); }

std::string LeverList(const PlanRequest& request, const Choice& choice) {
  std::vector<std::string> used;
  for (const auto& [lever, value] : LeversOf(choice))
    used.push_back(lever->describe(request.job, choice, *value));
  return used.empty() ? "as it was captured" : Joined(used, ", ");
}

std::string Cards(const PlanRequest& request) {
  if (request.gpus == 1) return request.gpu.name;
  if (request.nodes == 1) return fmt::format("{} × {}", request.gpus, request.gpu.name);
  return fmt::format("{} × {} × {}", request.nodes, request.gpus / request.nodes, request.gpu.name);
}

/// What a way is measured by: memory that PyTorch reserves under a budget, else the card's.
const Range& Counted(const PlanRequest& request, const Way& way) {
  const Needs& needs = way.trial.needs;
  return request.options.limit ? needs.reserved : needs.device;
}
std::string_view CountedName(const PlanRequest& request) {
  return request.options.limit ? "reserved" : "memory";
}

/// What would come of the job as it was captured, where that is no way to train it.
std::string Unchanged(const PlanRequest& request, const Way& captured) {
  if (captured.SurelyFits()) return "";
  if (request.options.limit) {
    return fmt::format("; unchanged, the job {} within {} of reserved memory",
                       captured.trial.fits ? "may not fit" : "does not fit",
                       FormatBytes(*request.options.limit));
  }
  if (captured.trial.fits) {
    return fmt::format("; unchanged, the job may not fit: it may need up to {}",
                       FormatBytes(captured.trial.needs.device.high));
  }
  return fmt::format("; unchanged, the job does not fit: it would need {}",
                     FormatBytes(captured.trial.needs.device.best));
}

/// "an RTX 4090, assumed since the card has about as much memory", where only that was given.
std::string WhoseTimes(const Gpu& gpu) {
  return gpu.assumed ? fmt::format("the {}, since --gpu gives a size and no name", gpu.like)
                     : "this card";
}

/// "runs out after 6 steps"
std::string RunsOut(const Growth& leak) {
  return fmt::format("runs out after {}{} step{}", leak.every > 1 ? "about " : "", leak.steps,
                     leak.steps == 1 ? "" : "s");
}

std::string NoneLasts(const std::string& what, const Growth& leak) {
  return fmt::format("{}: no configuration lasts. The first {}: {}. Mend that leak first.", what,
                     RunsOut(leak), GrowthText(leak));
}

/// What to change, and that it does not last.
std::string ChangesOf(const PlanRequest& request, const Way& way) {
  const std::string levers = LeverList(request, way.choice);
  return way.leak ? fmt::format("{} ({})", levers, RunsOut(*way.leak)) : levers;
}

std::string Verdict(const PlanRequest& request, const Plan& plan) {
  const std::string what = fmt::format("{} sample{} a step on {}", request.samples,
                                       request.samples == 1 ? "" : "s", Cards(request));
  if (plan.ways.empty()) {
    std::string text =
        fmt::format("Nothing that was tried fits {} for certain: what comes closest takes up to {}",
                    what, FormatBytes(Counted(request, *plan.closest).high));
    if (request.options.limit) {
      return text + fmt::format(" of reserved memory, and PyTorch may hold {}.",
                                FormatBytes(*request.options.limit));
    }
    text += fmt::format(" on the device, which has {}", FormatBytes(request.gpu.memory));
    if (plan.smallest_card) {
      text += fmt::format("; {} ({}) would hold it", plan.smallest_card->name,
                          FormatBytes(plan.smallest_card->memory));
    }
    return text + ".";
  }
  const Way& best = plan.ways.front();
  if (best.leak) return NoneLasts(what, *best.leak);
  if (plan.as_captured.SurelyFits() && best.choice == plan.as_captured.choice) {
    return fmt::format("{}: it fits as it is, and nothing that was tried is faster.", what);
  }
  return fmt::format("{}: {} samples a second with {}{}.", what,
                     std::lround(best.SamplesPerSecond()), LeverList(request, best.choice),
                     Unchanged(request, plan.as_captured));
}

void WriteWays(Writer& w, const PlanRequest& request, const Plan& plan) {
  Table table({{.heading = "", .right = true},
               {.heading = "samples/s", .right = true},
               {.heading = "step", .right = true},
               {.heading = "between", .right = true, .may_go = true},
               {.heading = std::string(CountedName(request)), .right = true},
               {.heading = "at most", .right = true, .may_go = true},
               {.heading = "results", .may_go = true},
               {.heading = "what to change", .wraps = true}});
  for (std::size_t i = 0; i < plan.ways.size(); ++i) {
    const Way& way = plan.ways[i];
    table.Row({std::to_string(i + 1), fmt::format("{:.1f}", way.SamplesPerSecond()),
               WholeMilliseconds(way.trial.step_us),
               fmt::format("{:.0f} and {:.0f} ms", way.trial.step_low_us / 1e3,
                           way.trial.step_high_us / 1e3),
               FormatBytes(Counted(request, way).best), FormatBytes(Counted(request, way).high),
               std::string(NumericsName(NumericsOf(request.job, way.choice))),
               ChangesOf(request, way)});
  }
  table.WriteTo(w);
}

/// Beside the ways, which train as the job does.
void WriteOtherwise(Writer& w, const PlanRequest& request, const Way& way) {
  w.Line();
  w.Wrapped(fmt::format("Faster, but it trains otherwise: {:.1f} samples/s ({}, up to {}) with {}.",
                        way.SamplesPerSecond(), WholeMilliseconds(way.trial.step_us),
                        FormatBytes(Counted(request, way).high), LeverList(request, way.choice)),
            "  ", "  ");
  for (const auto& [lever, value] : LeversOf(way.choice)) {
    if (lever->numerics(request.job, *value) != Numerics::kOther) continue;
    w.Code(lever->code(request.job, way.choice, *value), "      ");
  }
}

/// What --keep-numerics does without.
std::string LeftOut(const PlanRequest& request) {
  if (!request.keep_numerics) return "";
  std::vector<std::string> left_out;
  for (const PlanLever* lever : Levers()) {
    if (lever == &kAccumulationLever && !PassesKeepResults(request.job)) {
      left_out.emplace_back(lever->name);
    }
    if (lever->worth_trying == nullptr) continue;
    for (const LeverValue& value : lever->worth_trying(request, request.job.variants.front())) {
      if (lever->numerics(request.job, value) == Numerics::kSame) continue;
      left_out.push_back(lever->describe(request.job, Choice{}.With(lever->name, value), value));
    }
  }
  return Joined(left_out, ", ");
}

void WriteHow(Writer& w, const PlanRequest& request, const Way& way, std::string_view heading) {
  w.Heading(heading);
  w.Line(fmt::format("  batch_size={}", way.choice.batch));
  for (const auto& [lever, value] : LeversOf(way.choice)) {
    w.Line(fmt::format("  {}:", lever->describe(request.job, way.choice, *value)));
    w.Code(lever->code(request.job, way.choice, *value), "      ");
  }
}

std::string FitWord(const Way& outcome) {
  return outcome.SurelyFits() ? "yes" : outcome.trial.fits ? "likely" : "no";
}

std::string AsCaptured(const PlanRequest& request) {
  const int passes = CapturedPasses(request.job);
  if (passes == 1) return fmt::format("{} samples in one pass", request.samples);
  return fmt::format("{} samples in {} passes", request.samples, passes);
}

/// What each lever of the first way does by itself, and what the way would be without it.
void WriteWorth(Writer& w, const PlanRequest& request, const Plan& plan) {
  w.Heading("What each lever is worth");
  Table table({{.heading = ""},
               {.heading = "step", .right = true},
               {.heading = std::string(CountedName(request)), .right = true},
               {.heading = "fits"},
               {.heading = "how", .wraps = true}});
  const auto row = [&](const Way& outcome, std::string what, std::string how) {
    table.Row({std::move(what), WholeMilliseconds(outcome.trial.step_us),
               FormatBytes(Counted(request, outcome).best), FitWord(outcome), std::move(how)});
  };
  row(plan.as_captured, "as captured", AsCaptured(request));
  const Choice& first_choice = plan.ways.front().choice;
  for (const LeverWorth& worth : plan.worth) {
    const LeverValue* const value = first_choice.Find(worth.lever->name);
    if (value == nullptr) continue;
    const std::string lever = worth.lever->describe(request.job, first_choice, *value);
    if (plan.worth.size() > 1) row(worth.alone, "alone", lever);
    if (worth.without.choice != plan.as_captured.choice) row(worth.without, "without", lever);
  }
  row(plan.ways.front(), "together", "the first way");
  table.WriteTo(w);
  if (plan.ways.size() < 2) return;
  const Way& first = plan.ways[0];
  const Way& second = plan.ways[1];
  const double more_us = second.trial.step_us - first.trial.step_us;
  const Bytes more = Counted(request, second).best - Counted(request, first).best;
  w.Line();
  w.Wrapped(
      fmt::format("The second way ({}) takes {:.1f} ms more for a step, {:.0f} %, and {} {} {}.",
                  LeverList(request, second.choice), more_us / 1e3,
                  100 * more_us / first.trial.step_us, FormatBytes(std::abs(more)),
                  more > 0 ? "more" : "less",
                  request.options.limit ? "of reserved memory" : "on the device"),
      "  ", "  ");
}

}  // namespace

std::string PlanText(const PlanRequest& request, const Plan& plan, bool explain,
                     const TextStyle& style) {
  Writer w(style);
  w.Headline(Verdict(request, plan));
  if (plan.Lasts() && !request.job.not_followed.empty()) {
    w.Wrapped(fmt::format("Unknown whether it fits: {}.", TextOf(request.job.not_followed.front())),
              "", "");
  }
  if (!plan.ways.empty()) {
    w.Line();
    WriteWays(w, request, plan);
    if (plan.otherwise) WriteOtherwise(w, request, *plan.otherwise);
    WriteHow(w, request, plan.ways.front(), "How to do the first by hand");
    if (explain) WriteWorth(w, request, plan);
  } else {
    WriteHow(w, request, *plan.closest, "What comes closest");
  }
  w.List("Notes", PlanNotes(request, plan, "the ways shown"));
  return w.Take();
}

std::string PlanVerdict(const PlanRequest& request, const Plan& plan) {
  return Verdict(request, plan);
}

std::vector<std::string> PlanNotes(const PlanRequest& request, const Plan& plan,
                                   std::string_view fitting) {
  std::vector<std::string> notes = {fmt::format(
      "{} ways to train were predicted, each by simulating PyTorch's allocator", plan.evaluations)};
  if (!plan.ways.empty()) {
    notes.back() += fmt::format(
        "; {} fit even if every workspace of cuDNN and cuBLAS is as large as it can be", fitting);
  }
  if (plan.left_out > 0) {
    notes.push_back(fmt::format(
        "the step is long ({} calls), and the search ended before {} of {} combinations of levers "
        "were looked through: a faster way may have been missed",
        request.job.variants.front().calls.size(), plan.left_out, plan.combinations));
  }
  if (request.samples_of_script) {
    notes.push_back(
        fmt::format("no --global-batch was given: the script's own loader gives batches of {}{}",
                    *request.job.own_batch, request.gpus > 1 ? " to each GPU" : ""));
  }
  if (request.samples_by_default) {
    notes.push_back(fmt::format(
        "no --global-batch was given: {} is the largest power of two that is certain to fit in one "
        "pass, in the captured precision that needs least{}",
        request.samples / CapturedPasses(request.job),
        CapturedPasses(request.job) > 1
            ? fmt::format("; the captured step has {} passes", CapturedPasses(request.job))
            : std::string()));
  }
  const bool other_passes = std::any_of(plan.ways.begin(), plan.ways.end(), [&](const Way& way) {
    return PassesOf(way.choice) > 1 && NumericsOf(request.job, way.choice) == Numerics::kOther;
  });
  if (other_passes) {
    notes.push_back(
        "batch norm averages over the samples of one pass, so that several passes give other "
        "results than one (--keep-numerics leaves them out)");
  }
  if (const std::string left_out = LeftOut(request); !left_out.empty()) {
    notes.push_back("left out, since results would differ: " + left_out);
  }
  for (const std::string& reason : plan.refused) notes.push_back("left out: " + reason);
  const auto is_half = [](const LayoutRecord& layout) { return IsHalf(layout.dtype); };
  const Job& job = request.job;
  const bool lacks_autocast = job.variants.size() == 1 || !job.no_autocast.empty();
  if (lacks_autocast && !request.keep_numerics && std::ranges::none_of(job.layouts, is_half)) {
    const std::string only_written =
        fmt::format("only the precision as written was captured. {} captures it too",
                    job.names_root ? "plimsoll plan --run on the script"
                                   : "plimsoll.capture(..., precisions=[\"amp_bf16\"]) in Python");
    notes.push_back(fmt::format("autocast in bf16 is not among the ways: {}",
                                job.no_autocast.empty() ? only_written : job.no_autocast));
  }
  if (request.gpu.name != "H200") {
    notes.push_back(
        fmt::format("times were measured on an H200 and scaled, by arithmetic rates and memory "
                    "bandwidth, to {}",
                    WhoseTimes(request.gpu)));
  }
  for (const std::string& note : request.job.notes) notes.push_back("assumed: " + note);
  return notes;
}

}  // namespace plimsoll
