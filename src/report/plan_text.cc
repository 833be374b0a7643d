#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "plan/family.h"
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
  return used.empty() ? "no change" : Joined(used, ", ");
}

}  // namespace

std::string SamplesAStep(const Job& job, const Choice& choice) {
  const std::int64_t samples = SamplesOf(job, choice);
  const int micro_batches = MicroBatchesOf(job, choice);
  const std::int64_t ranks = samples / choice.batch / micro_batches;
  const std::string plural = samples == 1 ? "sample" : "samples";
  if (micro_batches == 1 && ranks == 1) return fmt::format("{} {} a step", samples, plural);
  std::string formula = std::to_string(choice.batch);
  if (micro_batches > 1) formula += fmt::format(" × {}", micro_batches);
  if (ranks > 1) formula += fmt::format(" × {}{}", ranks, RanksOf(choice) == ranks ? " GPUs" : "");
  return fmt::format("{} = {} {} a step", formula, samples, plural);
}

namespace {

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

/// What would come of the job as it was captured, where that surely fits not.
std::string Unchanged(const PlanRequest& request, const Way& captured) {
  if (captured.SurelyFits()) return "";
  if (captured.FitsForCertain()) {
    return " Unchanged, the job fits, but it gives cached memory back to ask for it again, which "
           "holds it up.";
  }
  if (request.options.limit) {
    return fmt::format(" Unchanged, the job {} within {} of reserved memory.",
                       captured.trial.fits ? "may not fit" : "does not fit",
                       FormatBytes(*request.options.limit));
  }
  if (captured.trial.fits) {
    return fmt::format(" Unchanged, the job may not fit: it may need up to {}.",
                       FormatBytes(captured.trial.needs.device.high));
  }
  return fmt::format(" Unchanged, the job does not fit: it would need {}.",
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

/// What to change, and that it does not last.
std::string ChangesOf(const PlanRequest& request, const Way& way) {
  const std::string levers = LeverList(request, way.choice);
  return way.leak ? fmt::format("{} ({})", levers, RunsOut(*way.leak)) : levers;
}

/// The script's own number of samples, where another one was asked for.
std::string OtherSamples(const PlanRequest& request) {
  const Job& job = request.job;
  if (!job.own_batch || request.samples_of_script) return "";
  Choice own = StartOf(request);
  own = WithMicroBatches(job, own, CapturedPasses(job));
  own.batch = *job.own_batch;
  if (SamplesOf(job, own) == request.samples) return "";
  return fmt::format(" The script has {}: --global-batch {} changes that.", SamplesAStep(job, own),
                     request.samples);
}

/// "Nothing fits on an RTX 3060: ... what comes closest takes up to"
std::string Closest(const PlanRequest& request, const Plan& plan) {
  const Way& closest = *plan.closest;
  const std::string cards = Cards(request);
  const std::string samples = SamplesAStep(request.job, closest.choice);
  switch (plan.Verdict().decision) {
    case FitDecision::kFits:
      return fmt::format(
          "Fits on {} only by giving cached memory back while it trains: with {}, "
          "it would reserve up to",
          cards, samples);
    case FitDecision::kUnknown:
      return fmt::format(
          "Unknown whether anything fits on {}{}: with {}, what comes closest takes up to", cards,
          closest.not_followed.empty() ? "" : ", since " + TextOf(closest.not_followed.front()),
          samples);
    case FitDecision::kDoesNotFit:
      break;
  }
  return fmt::format("Nothing fits on {}: with {}, what comes closest takes up to", cards, samples);
}

std::string NothingFits(const PlanRequest& request, const Plan& plan) {
  const std::optional<Gpu>& smallest_card = plan.smallest_card;
  std::string text = fmt::format("{} {}", Closest(request, plan),
                                 FormatBytes(Counted(request, *plan.closest).high));
  if (request.options.limit) {
    return text + fmt::format(" of reserved memory, and PyTorch may hold {}.",
                              FormatBytes(*request.options.limit));
  }
  text += fmt::format(" on the device, which has {}", FormatBytes(request.gpu.memory));
  if (smallest_card) {
    text += fmt::format("; {} ({}) would hold it", smallest_card->name,
                        FormatBytes(smallest_card->memory));
  }
  return text + ".";
}

std::string Decision(const PlanRequest& request, const Plan& plan) {
  if (plan.ways.empty()) return NothingFits(request, plan);
  const Way& best = plan.ways.front();
  const std::string cards = Cards(request);
  const std::string samples = SamplesAStep(request.job, best.choice);
  if (best.leak) {
    return fmt::format(
        "No configuration lasts on {} with {}: the first {}. There, {}. Mend that "
        "leak first.",
        cards, samples, RunsOut(*best.leak), GrowthText(*best.leak));
  }
  const bool all_of_it = plan.Verdict().decision == FitDecision::kFits;
  const std::string_view fits = all_of_it ? "Fits" : "What was followed fits";
  if (best.choice == plan.as_captured.choice) {
    return fmt::format("{} on {} as it is: {}. Nothing that was tried is faster.", fits, cards,
                       samples);
  }
  return fmt::format("{} on {} with {}: {}, {} samples a second.{}",
                     plan.as_captured.SurelyFits() ? "Faster" : fits, cards,
                     LeverList(request, best.choice), samples, std::lround(best.SamplesPerSecond()),
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
    if (lever == &kAccumulationLever && !AccumulationKeepsResults(request.job)) {
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
  w.Line(fmt::format("  batch_size={}  # {}", way.choice.batch,
                     SamplesAStep(request.job, way.choice)));
  for (const auto& [lever, value] : LeversOf(way.choice)) {
    w.Line(fmt::format("  {}:", lever->describe(request.job, way.choice, *value)));
    w.Code(lever->code(request.job, way.choice, *value), "      ");
  }
}

std::string FitWord(const Way& outcome) {
  return outcome.SurelyFits() ? "yes" : outcome.trial.fits ? "likely" : "no";
}

/// What each lever of the first way does by itself, and what the way would be without it.
void WriteWorth(Writer& w, const PlanRequest& request, const Plan& plan) {
  w.Heading("What each change is worth");
  Table table({{.heading = ""},
               {.heading = "step", .right = true},
               {.heading = std::string(CountedName(request)), .right = true},
               {.heading = "fits"},
               {.heading = "how", .wraps = true}});
  const auto row = [&](const Way& outcome, std::string what, std::string how) {
    table.Row({std::move(what), WholeMilliseconds(outcome.trial.step_us),
               FormatBytes(Counted(request, outcome).best), FitWord(outcome), std::move(how)});
  };
  row(plan.as_captured, "as captured", SamplesAStep(request.job, plan.as_captured.choice));
  const Choice& first_choice = plan.ways.front().choice;
  for (const LeverWorth& worth : plan.worth) {
    const LeverValue* const value = first_choice.Find(worth.lever->name);
    if (value == nullptr) continue;
    const std::string lever = worth.lever->describe(request.job, first_choice, *value);
    if (plan.worth.size() > 1) row(worth.alone, "alone", lever);
    if (worth.without.choice != plan.as_captured.choice) row(worth.without, "without", lever);
  }
  row(plan.ways.front(), "together", "the first configuration");
  table.WriteTo(w);
  if (plan.ways.size() < 2) return;
  const Way& first = plan.ways[0];
  const Way& second = plan.ways[1];
  const double more_us = second.trial.step_us - first.trial.step_us;
  const Bytes more = Counted(request, second).best - Counted(request, first).best;
  w.Line();
  w.Wrapped(
      fmt::format(
          "The second configuration ({}) takes {:.1f} ms more for a step, {:.0f} %, and {} {} {}.",
          LeverList(request, second.choice), more_us / 1e3, 100 * more_us / first.trial.step_us,
          FormatBytes(std::abs(more)), more > 0 ? "more" : "less",
          request.options.limit ? "of reserved memory" : "on the device"),
      "  ", "  ");
}

}  // namespace

std::string PlanText(const PlanRequest& request, const Plan& plan, bool explain,
                     const TextStyle& style) {
  Writer w(style);
  w.Headline(PlanVerdict(request, plan));
  const FitVerdict verdict = plan.Verdict();
  if (plan.Lasts() && !verdict.unknown.empty()) {
    w.Wrapped(fmt::format("Unknown whether all of it fits: {}.", TextOf(verdict.unknown.front())),
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
  w.List("Notes", PlanNotes(request, plan, "those shown"));
  return w.Take();
}

std::string PlanVerdict(const PlanRequest& request, const Plan& plan) {
  return Decision(request, plan) + OtherSamples(request);
}

std::vector<std::string> PlanNotes(const PlanRequest& request, const Plan& plan,
                                   std::string_view fitting) {
  std::vector<std::string> notes = {
      fmt::format("{} configurations were predicted, each by simulating PyTorch's allocator",
                  plan.evaluations)};
  if (!plan.ways.empty()) {
    notes.back() += fmt::format(
        "; {} fit even if every workspace of cuDNN and cuBLAS is as large as it can be", fitting);
  }
  if (plan.left_out > 0) {
    notes.push_back(
        fmt::format("the search ended {} with {} of {} combinations of changes looked through: a "
                    "faster one may "
                    "have been missed",
                    plan.out_of_time ? std::string("by --seconds")
                                     : fmt::format("early, since the step is long ({} calls),",
                                                   request.job.variants.front().calls.size()),
                    plan.combinations - plan.left_out, plan.combinations));
  }
  if (request.samples_of_script) {
    notes.push_back(fmt::format("no --global-batch was given: the script has {}",
                                SamplesAStep(request.job, StartOf(request))));
  }
  if (request.samples_by_default) {
    notes.push_back(fmt::format(
        "no --global-batch was given: a micro-batch of {} is the largest power of two that is "
        "certain to fit without accumulation, in the captured precision that needs least",
        request.samples / CapturedPasses(request.job) / request.gpus));
  }
  const bool accumulates = std::ranges::any_of(
      plan.ways, [](const Way& way) { return way.choice.Sets(kAccumulationLever.name); });
  const MicroBatchNumerics& numerics = NumericsOfAccumulation(request.job);
  if (accumulates && !numerics.why.empty()) {
    notes.push_back(
        fmt::format("{}, so that another number of micro-batches gives other results "
                    "(--keep-numerics leaves them out)",
                    numerics.why));
  } else if (accumulates && !numerics.unknown.empty()) {
    notes.push_back(
        fmt::format("another number of micro-batches gives the same results if no "
                    "targets are ignored (ignore_index): those of {} were not seen",
                    numerics.unknown));
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
    notes.push_back(fmt::format("autocast in bf16 is not among the configurations: {}",
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
