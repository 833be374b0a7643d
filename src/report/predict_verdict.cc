#include "report/predict_verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format/stage_words.h"
#include "report/growth_text.h"

namespace plimsoll {
namespace {

/// "on RTX 4090", "on H200 within 7.00 GiB", "on GB10 beside 19.94 GiB of the system"
std::string Place(const Prediction& p) {
  std::string beside;
  if (p.gpu.system > 0) beside += " beside " + FormatBytes(p.gpu.system) + " of the system";
  if (p.gpu.taken > 0) {
    beside += (beside.empty() ? " beside " : " and ") + FormatBytes(p.gpu.taken) + " of others";
  }
  return "on " + p.gpu.name + beside + (p.limit ? " within " + FormatBytes(*p.limit) : "");
}

/// " at length 4096"
std::string AtLengthText(const Prediction& p) {
  return p.length ? fmt::format(" at {} {}", Printable(p.length_name), *p.length) : "";
}

/// What the verdict is about: memory that PyTorch reserves under a limit, else the card's.
struct Compared {
  const Range& figure;
  const Range& unlimited;
  std::string of;
};

Compared CompareIn(const Prediction& p) {
  // The smaller of the two decides.
  if (p.limit && *p.limit <= p.trial.room) {
    return {p.trial.needs.reserved, p.trial.unlimited.reserved,
            FormatBytes(*p.limit) + " reserved"};
  }
  return {p.trial.needs.device, p.trial.unlimited.device, FormatBytes(p.gpu.memory)};
}

/// Empty where it never meets the limit.
std::string IfUnlimited(const Prediction& p, const Compared& c) {
  if (c.unlimited.best <= c.figure.best) return "";
  return fmt::format(" With more room it would use {}: here PyTorch gives cached memory back{}.",
                     FormatBytes(c.unlimited.best),
                     p.trial.refused_in_a_step > 0 ? ", and cuDNN does without workspaces" : "");
}

std::string Refused(const Prediction& p) {
  std::string text = fmt::format(
      "{} convolution{} of each step get{} no workspace and take{} a slower way",
      p.trial.refused_in_a_step, p.trial.refused_in_a_step == 1 ? "" : "s",
      p.trial.refused_in_a_step == 1 ? "s" : "", p.trial.refused_in_a_step == 1 ? "s" : "");
  if (p.trial.step_us > p.unlimited_step_us) {
    text += fmt::format(" (a step about {} instead of {})", Milliseconds(p.trial.step_us),
                        Milliseconds(p.unlimited_step_us));
  }
  return text;
}

/// Where a job that trains dies: "saving", "a later step".
std::string_view DiesIn(const Prediction& p) {
  if (p.fails_with_heaviest) return "the heaviest batch of its data";
  return *p.fails_in == Stage::kStep ? "a later step" : StageWords(*p.fails_in);
}

std::string WhoNeeds(const HostNeeds& host) {
  if (host.ranks > 1) return fmt::format("the {} ranks of a machine need", host.ranks);
  return host.peak().workers > 0 ? "the process and its loaders' workers need"
                                 : "the process needs";
}

/// "Batch 8 at length 4096 on RTX 4090", after "Fits: ".
std::string What(const Prediction& p) {
  return fmt::format("batch {}{} {}", p.batch, AtLengthText(p), Place(p));
}

std::string InBrackets(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

/// Why the GPU has no room for it.
std::string NoRoom(const Prediction& p) {
  const Compared c = CompareIn(p);
  const std::string needs =
      fmt::format("needs {}, and there is {}", FormatBytes(c.unlimited.best), c.of);
  if (p.trial.beyond_count) return What(p) + " asks for more than 1 PiB.";
  if (!p.trains) {
    return fmt::format("{} {}. It runs out in {}{}.", What(p), needs,
                       p.fails_in ? StageWords(*p.fails_in) : "its first stage",
                       InBrackets(p.fails_at));
  }
  if (p.fails_later) {
    return fmt::format("{} trains and then runs out in {}{}: it {}.", What(p), DiesIn(p),
                       InBrackets(p.fails_at), needs);
  }
  return fmt::format("{} {}.", What(p), needs);
}

std::string DoesNotFit(const Prediction& p) {
  const Compared c = CompareIn(p);
  const std::string used = fmt::format("{} of {}", FormatBytes(c.figure.best), c.of);
  if (!p.trial.fits) return "Does not fit: " + NoRoom(p);
  if (!p.FitsHost()) {
    const std::string where = Printable(p.host->peak().where);
    return fmt::format(
        "Does not fit: {} needs {} and the host has too little: {} {} there, {}{}, "
        "and there is {}.",
        What(p), used, WhoNeeds(*p.host), FormatBytes(p.host->of_machine()),
        StageWords(p.host_stage), InBrackets(where), FormatBytes(*p.host_room));
  }
  return fmt::format("Does not fit: {} needs {} and runs out after {}{} step{}: {}.", What(p), used,
                     p.growth->every > 1 ? "about " : "", p.growth->steps,
                     p.growth->steps == 1 ? "" : "s", GrowthText(*p.growth));
}

/// What keeps it unknown: the first part that was not followed, or the figure.
std::string Unknown(const Prediction& p, const FitVerdict& verdict) {
  const Compared c = CompareIn(p);
  if (p.not_followed.empty() && !p.trial.fits) {
    return fmt::format("Unknown: {} needs between {} and {}, and there is {}.", What(p),
                       FormatBytes(c.unlimited.low), FormatBytes(c.unlimited.high), c.of);
  }
  std::string text =
      fmt::format("Unknown: {} needs {} of {}, ", What(p),
                  FormatBytes(p.trial.fits ? c.figure.best : c.unlimited.best), c.of);
  if (p.not_followed.empty()) {
    text += p.trial.refused_in_a_step > 0
                ? "and " + Refused(p)
                : fmt::format("and may need up to {}", FormatBytes(c.figure.high));
    return text + "." + IfUnlimited(p, c);
  }
  text += "but " + TextOf(p.not_followed.front());
  const std::size_t more = verdict.unknown.size() - 1;
  if (more > 0) text += fmt::format(", and {} more reason{}", more, more == 1 ? "" : "s");
  return text + ".";
}

std::string VerdictOfSeen(const Prediction& p) {
  const FitVerdict verdict = VerdictOf(p);
  if (verdict.decision == FitDecision::kDoesNotFit) return DoesNotFit(p);
  if (verdict.decision == FitDecision::kUnknown) return Unknown(p, verdict);
  const Compared c = CompareIn(p);
  return fmt::format("Fits: {} needs {} of {}.", What(p), FormatBytes(c.figure.best), c.of) +
         IfUnlimited(p, c);
}

/// What the job does not do, or the capture does not show.
std::string NotSeen(const Prediction& p) {
  if (!p.trial.fits || !p.not_followed.empty()) return "";
  if (!p.trains) return " It trains nothing.";
  const bool more = std::ranges::any_of(p.stages, [](const StageNeeds& row) {
    return row.stage != Stage::kBuild && row.stage != Stage::kStep;
  });
  if (!more) return " Only training steps were seen.";
  const bool evaluates =
      std::ranges::find(p.stages, Stage::kEvaluation, &StageNeeds::stage) != p.stages.end();
  return evaluates ? "" : " No evaluation was seen.";
}

/// Where the data decide the sizes of batches: which batches the answer is for.
std::string WhichBatches(const Prediction& p) {
  if (p.fails_with_heaviest) return "";
  if (p.own_batches > 0) {
    return fmt::format(" This is for its first {} steps, with the batches that its data make.",
                       p.own_batches);
  }
  if (p.heaviest == Heaviest::kOfAll) return " The heaviest batch of its data is counted.";
  return "";
}

std::string Verdict(const Prediction& p) { return VerdictOfSeen(p) + NotSeen(p) + WhichBatches(p); }

std::string LargestFound(const Prediction& p, const MaxBatch& m) {
  const std::string place = Place(p) + AtLengthText(p);
  const std::string_view surely = p.sizes_change ? "fits" : "fits for certain";
  if (m.most.batch == 0) return fmt::format("Not even a batch of 1 fits {}.", place);
  if (m.sure.batch == m.most.batch) {
    return fmt::format("The largest batch that fits {} is {}.", place, m.most.batch);
  }
  if (m.sure.batch == 0) {
    return fmt::format("Not even a batch of 1 fits for certain {}; up to {} may fit.", place,
                       m.most.batch);
  }
  if (m.tried_every == 1) {
    return fmt::format("Every batch up to {} {} {}; up to {} may fit.", m.sure.batch, surely, place,
                       m.most.batch);
  }
  return fmt::format("The largest batch found that {} {} is {}; up to {} may fit.", surely, place,
                     m.sure.batch, m.most.batch);
}

std::string Largest(const Prediction& p, const MaxBatch& m) {
  if (m.untried_below == 0) return LargestFound(p, m);
  return fmt::format(
      "{} The step is long, and the search ended before every batch was tried: up to {} may fit "
      "too.",
      LargestFound(p, m), m.untried_below - 1);
}

/// Only where it is news: where the largest batches are slower.
std::string Fastest(const MaxBatch& m) {
  const bool slower = m.most.SamplesPerSecond() < m.fastest.SamplesPerSecond() * 0.99;
  if (m.fastest.batch == 0 || (m.fastest.batch == m.sure.batch && !slower)) return "";
  std::string text = fmt::format("Fastest, by estimate: batch {}, about {:.0f} samples a second",
                                 m.fastest.batch, m.fastest.SamplesPerSecond());
  if (!slower) return text + ".";
  text += fmt::format("; batch {} about {:.0f}", m.most.batch, m.most.SamplesPerSecond());
  return text + (m.most.refused > 0 ? ", since convolutions get no workspace there." : ".");
}

/// Of a job that leaks: how large batches may be while it lasts.
std::string FirstSteps(const Prediction& p, const MaxBatch& m) {
  const std::string text = fmt::format("Batches up to {} fit {} in their first steps; ",
                                       std::max(m.first_steps, m.most.batch), Place(p));
  if (m.most.batch == 0) return text + "none goes on for good while each step leaves more.";
  return text + fmt::format("batches up to {} go on for good.", m.most.batch);
}

}  // namespace

std::string TextOf(const NotFollowed& part) {
  if (part.file.empty()) return Printable(part.what);
  return fmt::format("{} ({}:{})", Printable(part.what), Printable(part.file), part.line);
}

std::string Milliseconds(double us) { return fmt::format("{:.1f} ms", us / 1000); }

std::vector<std::string> Headlines(const Prediction& p, const std::optional<MaxBatch>& max_batch) {
  if (!max_batch) return {Verdict(p)};
  const MaxBatch& m = *max_batch;
  if (p.growth && p.growth->EndsTheJob()) return {Verdict(p), FirstSteps(p, m)};
  std::vector<std::string> lines = {Largest(p, m)};
  if (std::string fastest = Fastest(m); !fastest.empty()) lines.push_back(std::move(fastest));
  const bool is_largest = p.batch == std::max<std::int64_t>(1, m.Shown());
  lines.insert(is_largest ? lines.end() : lines.begin(), Verdict(p));
  return lines;
}

std::string PredictVerdict(const Prediction& p, const std::optional<MaxBatch>& max_batch) {
  return fmt::format("{}", fmt::join(Headlines(p, max_batch), " "));
}

std::string Longest(const Prediction& p, const MaxLength& m) {
  const std::string name = Printable(p.length_name);
  if (m.most == 0) return fmt::format("No {} fits {} at batch {}.", name, Place(p), p.batch);
  std::string text =
      m.sure == 0 ? fmt::format("No {} fits for certain {} at batch {}", name, Place(p), p.batch)
                  : fmt::format("The largest {} that fits for certain {} at batch {} is {}", name,
                                Place(p), p.batch, m.sure);
  if (m.most > m.sure) text += fmt::format("; up to {} may fit", m.most);
  return text + (m.apart > 1 ? fmt::format(" (every {} was tried).", m.apart) : ".");
}

}  // namespace plimsoll
