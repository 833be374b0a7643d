#include <fmt/format.h>

#include <algorithm>

#include "plan/lever.h"
#include "report/plan.h"
#include "report/table.h"
#include "report/writer.h"

namespace plimsoll {
namespace {

std::string Milliseconds(double us) { return fmt::format("{:.0f} ms", us / 1e3); }

std::string LeverList(const PlanJob& job, const Choice& choice) {
  std::vector<std::string> used;
  for (const PlanLever* lever : LeversOf(job, choice)) used.push_back(lever->describe(job, choice));
  return used.empty() ? "as it was captured" : fmt::format("{}", fmt::join(used, ", "));
}

Numerics NumericsOf(const PlanJob& job, const Choice& choice) {
  Numerics most = Numerics::kSame;
  for (const PlanLever* lever : LeversOf(job, choice)) most = std::max(most, lever->numerics(job));
  return most;
}

std::string Verdict(const PlanJob& job, const Plan& plan) {
  const std::string what = fmt::format("{} samples a step on {}", job.samples, job.gpu.name);
  if (plan.ways.empty()) {
    std::string text = fmt::format(
        "Nothing that was tried fits {} for certain: what comes closest takes up to {} on the "
        "device",
        what, FormatBytes(plan.closest->high));
    if (job.options.limit) {
      return text + fmt::format(", and PyTorch may hold {}.", FormatBytes(*job.options.limit));
    }
    text += fmt::format(", which has {}", FormatBytes(job.gpu.memory));
    if (plan.smallest_card) {
      text += fmt::format("; {} ({}) would hold it", plan.smallest_card->name,
                          FormatBytes(plan.smallest_card->memory));
    }
    return text + ".";
  }
  const Outcome& best = plan.ways.front();
  if (plan.as_captured.surely_fits && best.choice == plan.as_captured.choice) {
    return fmt::format("{}: it fits as it is, and nothing that was tried is faster.", what);
  }
  return fmt::format("{}: {} samples a second with {}{}.", what,
                     std::lround(best.SamplesPerSecond()), LeverList(job, best.choice),
                     plan.as_captured.surely_fits ? "" : "; as it is, it does not surely fit");
}

void WriteWays(Writer& w, const PlanJob& job, const Plan& plan) {
  Table table({{.heading = "", .right = true},
               {.heading = "samples/s", .right = true},
               {.heading = "step", .right = true},
               {.heading = "memory", .right = true},
               {.heading = "at most", .right = true, .may_go = true},
               {.heading = "results", .may_go = true},
               {.heading = "what to change", .wraps = true}});
  for (std::size_t i = 0; i < plan.ways.size(); ++i) {
    const Outcome& way = plan.ways[i];
    table.Row({std::to_string(i + 1), fmt::format("{:.1f}", way.SamplesPerSecond()),
               Milliseconds(way.step_us), FormatBytes(way.peak), FormatBytes(way.high),
               std::string(NumericsName(NumericsOf(job, way.choice))), LeverList(job, way.choice)});
  }
  table.WriteTo(w);
}

/// What --keep-numerics does without.
std::string LeftOut(const PlanJob& job) {
  std::vector<std::string_view> names;
  for (const PlanLever* lever : PlanLevers()) {
    if (job.keep_numerics && lever->numerics(job) != Numerics::kSame) names.push_back(lever->name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void WriteHow(Writer& w, const PlanJob& job, const Outcome& way, std::string_view heading) {
  w.Heading(heading);
  w.Line(fmt::format("  batch_size={}", way.choice.batch));
  for (const PlanLever* lever : LeversOf(job, way.choice)) {
    w.Line(fmt::format("  {}:", lever->describe(job, way.choice)));
    w.Code(lever->code(job, way.choice), "      ");
  }
}

}  // namespace

std::string PlanText(const PlanJob& job, const Plan& plan, const TextStyle& style) {
  Writer w(style);
  w.Headline(Verdict(job, plan));
  if (!plan.ways.empty()) {
    w.Line();
    WriteWays(w, job, plan);
    WriteHow(w, job, plan.ways.front(), "How to do the first");
  } else {
    WriteHow(w, job, *plan.closest, "What comes closest");
  }
  std::vector<std::string> notes = {
      fmt::format("{} ways were lowered and run through the allocator", plan.evaluations)};
  if (!plan.ways.empty()) {
    notes.back() += "; those shown fit even if each workspace takes as much as it may";
  }
  if (const std::string left_out = LeftOut(job); !left_out.empty()) {
    notes.push_back("left out, since results would differ: " + left_out);
  }
  if (job.step.variants.size() == 1 && !job.keep_numerics) {
    notes.push_back(
        "only the precision as written was captured; with precisions=[\"amp_bf16\"] autocast is "
        "considered too");
  }
  if (job.gpu.name != "H200") {
    notes.push_back("times are of an H200, scaled to this card by its rates and bandwidth");
  }
  w.List("Notes", notes);
  return w.Take();
}

}  // namespace plimsoll
