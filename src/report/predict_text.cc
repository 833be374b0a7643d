#include <fmt/format.h>

#include <algorithm>

#include "report/predict.h"
#include "report/writer.h"

namespace plimsoll {
namespace {

std::string LineName(const std::string& what) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"parameters", "parameters and buffers"},
      {"optimizer_state", "optimizer state"},
      {"temporaries", "temporaries"},
      {"workspaces", "workspaces of libraries"},
      {"rounding", "rounding to blocks"},
      {"cached", "held by PyTorch, not used then"},
      {"outside", "CUDA context, outside PyTorch"},
  };
  for (const auto& [key, name] : kNames) {
    if (key == what) return std::string(name);
  }
  return what;
}

std::string RangeText(const Range& range) {
  if (range.low == range.high) return FormatBytes(range.best);
  return fmt::format("{}  ({} to {})", FormatBytes(range.best), FormatBytes(range.low),
                     FormatBytes(range.high));
}

/// "on RTX 4090", "on H200 within 7.00 GiB"
std::string Place(const Prediction& p) {
  return "on " + p.gpu.name + (p.limit ? " within " + FormatBytes(*p.limit) : "");
}

std::string Verdict(const Prediction& p) {
  const std::string job = fmt::format("Batch {}", p.batch);
  const std::string need =
      p.limit ? fmt::format("{} reserved", FormatBytes(p.reserved.best))
              : fmt::format("{} of {}", FormatBytes(p.device.best), FormatBytes(p.gpu.memory));
  const Bytes most = p.limit ? p.reserved.high : p.device.high;
  if (!p.fits) return fmt::format("{} does not fit {}: it would take {}.", job, Place(p), need);
  if (p.workspaces_refused > 0) {
    return fmt::format(
        "{} just fits {}: {} workspaces of convolutions are refused, and cuDNN does without, more "
        "slowly.",
        job, Place(p), p.workspaces_refused);
  }
  if (p.surely_fits) return fmt::format("{} fits {}: {}.", job, Place(p), need);
  return fmt::format("{} should fit {} ({}), but not surely: it may take up to {}.", job, Place(p),
                     need, FormatBytes(most));
}

std::string Largest(const Prediction& p, const MaxBatch& max_batch) {
  if (max_batch.batch == 0) return fmt::format("Not even a batch of 1 fits {}.", Place(p));
  return fmt::format("The largest batch that fits {} is {} ({} to be sure).", Place(p),
                     max_batch.batch, max_batch.safe_batch);
}

void WriteHolders(Writer& w, const Prediction& p) {
  w.Heading("Who holds it then");
  for (const Holder& h : p.holders) {
    w.Line(fmt::format("  {:>12} {:>6}×  {:<23} {}{}{}", FormatBytes(h.bytes), h.count,
                       LineName(std::string(CategoryName(h.category))), Printable(h.where),
                       h.module.empty() ? "" : "  ", Printable(h.module)));
  }
}

}  // namespace

std::string InstantText(const Prediction& p) {
  if (p.peak_op == "recorded") {
    return p.peak_where.empty() ? std::string("a line that the record does not name")
                                : p.peak_where;
  }
  if (p.peak.step < 0) return "building the model";
  std::string text = fmt::format("step {}, {}", p.peak.step + 1, PhaseName(p.peak.phase));
  if (!p.peak_module.empty()) text += fmt::format(" of {}", p.peak_module);
  if (!p.peak_op.empty()) text += fmt::format(", {}", p.peak_op);
  if (!p.peak_where.empty()) text += fmt::format(" ({})", p.peak_where);
  return text;
}

std::string PredictVerdict(const Prediction& p, const std::optional<MaxBatch>& max_batch) {
  return max_batch ? Largest(p, *max_batch) + " " + Verdict(p) : Verdict(p);
}

std::string PredictText(const Prediction& p, const std::optional<MaxBatch>& max_batch,
                        const TextStyle& style) {
  Writer w(style);
  if (max_batch) w.Headline(Largest(p, *max_batch));
  w.Headline(Verdict(p));
  w.Line();
  const auto row = [&](std::string_view what, const std::string& value) {
    w.Line(fmt::format("  {:<22} {}", what, value));
  };
  row("allocated at most", RangeText(p.allocated));
  row("reserved at most", RangeText(p.reserved));
  row("on the device", RangeText(p.device));
  if (p.step_us > 0)
    row("a step takes",
        fmt::format("about {:.1f} ms, reckoned from arithmetic and traffic", p.step_us / 1000));
  row("peak", Printable(InstantText(p)));
  w.Heading(fmt::format("Where it is at the peak: {}", FormatBytes(p.device.best)));
  for (const AccountLine& line : p.account) {
    w.Line(fmt::format("  {:<32} {:>12}  {:>5.1f} %",
                       LineName(std::string(AccountItemName(line.what))), FormatBytes(line.bytes),
                       100.0 * double(line.bytes) / double(p.device.best)));
  }
  WriteHolders(w, p);
  if (!p.assumptions.empty()) w.Heading("Assumed");
  for (const std::string& text : p.assumptions) w.Wrapped(text, "  - ", "    ");
  return w.Take();
}

}  // namespace plimsoll
