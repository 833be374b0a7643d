#include <fmt/format.h>

#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/text.h"

namespace plimsoll {
namespace {

std::string Named(const std::string& settings) {
  return settings.empty() ? "the defaults" : Printable(settings);
}

std::string Grouped(std::int64_t n) {
  std::string digits = fmt::format("{}", n);
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

/// "(-3.55 GiB, -23.3 %)"
std::string Change(Bytes from, Bytes to) {
  if (from == to) return "(as recorded)";
  const double share = from > 0 ? 100.0 * double(to - from) / double(from) : 0;
  return fmt::format("({}{}, {:+.1f} %)", to > from ? "+" : "", FormatBytes(to - from), share);
}

std::string LimitText(const DeviceLimits& limits) {
  std::string text;
  if (limits.limit) text = "a limit of " + FormatBytes(*limits.limit);
  if (limits.capacity) {
    text += (text.empty() ? "" : ", ") + FormatBytes(*limits.capacity) + " from the driver";
  }
  return text.empty() ? "no limit" : text;
}

void WriteVerification(Writer& w, const ReplayReport& r) {
  w.Wrapped(fmt::format("{}: {} events, PyTorch {}, {}", r.file, Grouped(r.events),
                        r.torch.ToText(), Named(r.recorded_settings)),
            "", "  ");
  Table table({{}, {.right = true}, {.wraps = true}});
  const auto compare = [&](std::string what, Bytes got, Bytes want) {
    table.Row({std::move(what), FormatBytes(got),
               got == want ? "as recorded" : "recorded: " + FormatBytes(want)});
  };
  table.Row({"addresses", Grouped(r.address_mismatches),
             fmt::format("of {} differ", Grouped(r.allocations))});
  table.Row({"driver calls", Grouped(r.segment_mismatches),
             fmt::format("of {} differ", Grouped(r.segment_events))});
  if (r.refusal_mismatches > 0) table.Row({"refusals", Grouped(r.refusal_mismatches), "differ"});
  compare("reserved, peak", r.replayed.counters.peak_reserved, r.recorded_peak_reserved);
  compare("reserved, end", r.replayed.counters.reserved, r.recorded_final_reserved);
  table.Row({"blocks at the end", Grouped(r.final_block_differences), "differ"});
  table.WriteTo(w);
  if (r.first_mismatch) {
    w.Wrapped(fmt::format("first difference, at event {}: {}", r.first_mismatch->event,
                          r.first_mismatch->what),
              "  ", "    ");
  }
}

std::string_view WasteText(Waste waste) {
  switch (waste) {
    case Waste::kRounding:
      return "rounding of requests";
    case Waste::kTails:
      return "remainders kept with a block";
    case Waste::kPending:
      return "freed, waiting for another stream";
    case Waste::kSmallSegments:
      return "free parts of segments for up to 1 MiB";
    case Waste::kSharedSegments:
      return "free parts of segments for 1 to 10 MiB";
    case Waste::kPinned:
      return "free, but pinned by a block in use";
    case Waste::kOtherStreams:
      return "free, but for another stream";
    case Waste::kOtherPools:
      return "free, but in another memory pool";
    case Waste::kCached:
      return "whole segments in the cache";
  }
  return "";
}

void WriteFragmentation(Writer& w, const ReplayReport& r) {
  const Fragmentation& f = r.fragmentation;
  if (f.reserved == f.requested) return;
  w.Heading(fmt::format("Held and not used, {} (event {}): {} of {}",
                        r.replayed.oom_event ? "where it runs out" : "at the peak",
                        r.fragmentation_event, FormatBytes(f.reserved - f.requested),
                        FormatBytes(f.reserved)));
  Table table({{}, {.right = true}, {.right = true}});
  for (std::size_t i = 0; i < kWastes; ++i) {
    if (f.waste[i] == 0) continue;
    table.Row({std::string(WasteText(static_cast<Waste>(i))), FormatBytes(f.waste[i]),
               fmt::format("{:.1f} %", 100.0 * double(f.waste[i]) / double(f.reserved))});
  }
  table.WriteTo(w);
  if (r.pinned.empty()) return;
  w.Heading("What pins most");
  for (const PinnedReport& p : r.pinned) {
    const std::string life =
        p.released ? fmt::format("until event {}", *p.released) : std::string("to the end");
    w.Wrapped(
        fmt::format("{} free in a segment of {}: {} from {} stays {}", FormatBytes(p.pinned.free),
                    FormatBytes(p.pinned.segment_size), FormatBytes(p.requested),
                    p.where.empty() ? std::string("an unknown line") : p.where, life),
        "  ", "    ");
  }
}

void WriteOutcome(Writer& w, const ReplayReport& r) {
  const AllocatorCounters& c = r.replayed.counters;
  Table table({{}, {.right = true}, {.wraps = true}});
  const auto row = [&](std::string what, std::string value, std::string note) {
    table.Row({std::move(what), std::move(value), std::move(note)});
  };
  if (r.replayed.oom_event) {
    row("reserved until then", FormatBytes(c.peak_reserved), "");
  } else {
    row("reserved at most", FormatBytes(c.peak_reserved),
        Change(r.recorded_peak_reserved, c.peak_reserved));
  }
  row("in blocks at most", FormatBytes(c.peak_allocated), "");
  row("alive at most", FormatBytes(r.lower_bound), "no allocator can do with less");
  row("packed with foresight", FormatBytes(r.packed),
      r.packed_is_least ? "the least possible" : "the least found");
  if (r.smallest_capacity) {
    row("smallest capacity", FormatBytes(*r.smallest_capacity),
        r.complete ? "at which it still fits, by bisection"
                   : "at which it gets as far as the record, by bisection");
  }
  row("calls to the driver", Grouped(c.driver_allocations + c.driver_frees),
      fmt::format("(recorded {}), about {:.1f} ms as timed on an H200",
                  Grouped(r.recorded_driver_calls), c.driver_us / 1000));
  row("cache emptied to retry", Grouped(c.retries), "");
  row("given back", FormatBytes(c.given_back), "");
  table.WriteTo(w);
}

std::string Verdict(const ReplayReport& r) {
  const bool limited = r.limits.limit || r.limits.capacity;
  std::string setting = "With " + Named(r.settings);
  if (r.torch != r.recorded_torch) setting += ", in PyTorch " + r.torch.ToText();
  if (r.empty_cache_every == 1) setting += ", emptying the cache after every step";
  if (r.empty_cache_every > 1) {
    setting += fmt::format(", emptying the cache after every {} steps", r.empty_cache_every);
  }
  if (limited) setting += " and " + LimitText(r.limits);
  if (!r.replayed.oom_event && !limited) {
    return fmt::format("{} it holds {} at most.", setting,
                       FormatBytes(r.replayed.counters.peak_reserved));
  }
  if (!r.replayed.oom_event) {
    return r.complete ? fmt::format("{} it fits.", setting)
                      : fmt::format(
                            "{} it gets past the request that failed; the record ends before "
                            "the first step is complete, so whether the job fits is not known.",
                            setting);
  }
  return fmt::format("{} it runs out at event {}, asking for {}{}.", setting, *r.replayed.oom_event,
                     FormatBytes(r.replayed.oom_requested),
                     r.oom_where.empty() ? "" : " in " + r.oom_where);
}

}  // namespace

std::string ReplayText(const ReplayReport& r, bool verify, const TextStyle& style) {
  Writer w(style);
  if (verify) {
    WriteVerification(w, r);
  } else {
    w.Headline(Verdict(r));
    WriteOutcome(w, r);
    WriteFragmentation(w, r);
  }
  if (r.fault) w.Wrapped("the checker found a fault: " + *r.fault, "  ", "    ");
  w.List("Assumed", r.assumed);
  w.List("Inferred from the record", r.inferred);
  if (!verify) w.List("What this does not tell", r.caveats);
  return w.Take();
}

namespace {

constexpr std::size_t kMostRows = 12;

/// With blanks after the commas, where a long line can be broken.
std::string Readable(const std::string& settings) {
  std::string text;
  for (const char c : settings) text += c == ',' ? std::string(", ") : std::string(1, c);
  return text;
}

std::vector<std::string> RowOf(const TuneRow& row, const TuneReport& r) {
  const AllocatorCounters& c = row.replayed.counters;
  const std::string settings = FormatSettings(row.settings);
  return {FormatBytes(c.peak_reserved),
          row.replayed.fits
              ? Change(r.recorded_peak_reserved, c.peak_reserved)
              : fmt::format("runs out at event {}", row.replayed.oom_event.value_or(0)),
          fmt::format("{}", row.DriverCalls()),
          fmt::format("{:.1f} ms", c.driver_us / 1000),
          fmt::format("{}", c.retries),
          settings.empty() ? "(the defaults)" : Readable(settings)};
}

void WriteRows(Writer& w, const TuneReport& r) {
  const std::vector<TuneRow>& rows = r.result.rows;
  Table table({{.heading = "reserved", .right = true},
               {.heading = "against the record"},
               {.heading = "calls", .right = true},
               {.heading = "driver", .right = true},
               {.heading = "retries", .right = true},
               {.heading = "settings", .wraps = true}});
  for (std::size_t i = 1; i < rows.size() && i <= kMostRows; ++i) table.Row(RowOf(rows[i], r));
  if (r.result.defaults > kMostRows) table.Row(RowOf(rows[r.result.defaults], r));
  if (rows.size() > kMostRows + 1) {
    table.Remark(fmt::format("… and worst, of {} more:", rows.size() - kMostRows - 1));
    table.Row(RowOf(rows.back(), r));
  }
  table.WriteTo(w);
}

bool IsRecorded(const TuneReport& r, std::size_t row) {
  return r.result.rows[row].settings == r.result.rows.front().settings;
}

/// Whether the best settings are worth a change.
bool Improves(const TuneReport& r) {
  const ReplayResult& recorded = r.result.rows.front().replayed;
  const ReplayResult& best = r.result.rows[r.result.best].replayed;
  if (!best.fits || IsRecorded(r, r.result.best)) return false;
  return !recorded.fits || recorded.counters.peak_reserved != best.counters.peak_reserved;
}

std::string Advice(const TuneReport& r) {
  const TuneRow& best = r.result.rows[r.result.best];
  const TuneRow& recorded = r.result.rows.front();
  if (!best.replayed.fits) {
    return fmt::format(
        "No settings make it fit ({}): with the best it gets as far as event {}. At one moment {} "
        "are in use, whatever the settings.",
        LimitText(r.limits), best.replayed.oom_event.value_or(0), FormatBytes(r.lower_bound));
  }
  const bool defaults = r.result.rows.front().settings == AllocatorSettings{};
  const std::string now = defaults ? "The defaults" : "The recorded settings";
  if (!recorded.replayed.fits) {
    return now +
           (r.complete
                ? " run out of memory; with these settings the recorded part fits:"
                : " run out of memory; with these settings the request that failed succeeds. "
                  "The record ends within the first step: whether the job fits is not known.");
  }
  const Bytes saved =
      recorded.replayed.counters.peak_reserved - best.replayed.counters.peak_reserved;
  if (!r.complete) {
    return "The record ends within the first step: up to there these settings hold least; what "
           "the whole job needs is not known.";
  }
  if (!Improves(r)) return now + " are best: no others hold less.";
  if (saved < 0) return now + " fit too, but have to empty the cache more often than these:";
  if (double(saved) < 0.01 * double(recorded.replayed.counters.peak_reserved)) {
    return fmt::format("{} are nearly best: these hold {} less, under 1 %:", now,
                       FormatBytes(saved));
  }
  return fmt::format("These settings hold {} less than {}:", FormatBytes(saved),
                     defaults ? "the defaults" : "the recorded ones");
}

void WriteSetting(Writer& w, const TuneReport& r, std::size_t row, std::string_view note) {
  const std::string settings = FormatSettings(r.result.rows[row].settings);
  w.Line(fmt::format("  PYTORCH_CUDA_ALLOC_CONF={}{}", settings, note));
}

}  // namespace

std::string TuneText(const TuneReport& r, const TextStyle& style) {
  Writer w(style);
  w.Headline(Advice(r));
  if (Improves(r)) {
    w.Line();
    WriteSetting(w, r, r.result.best, "");
    const bool simpler = r.result.simplest != r.result.best && !IsRecorded(r, r.result.simplest);
    if (simpler) WriteSetting(w, r, r.result.simplest, "   (simpler, within 1 % of it)");
  }
  w.Heading(fmt::format("{} settings replayed ({}; {} alive at most)", r.result.rows.size(),
                        LimitText(r.limits), FormatBytes(r.lower_bound)));
  WriteRows(w, r);
  w.Line();
  w.Wrapped(fmt::format("{}  as recorded, with {}", FormatBytes(r.recorded_peak_reserved),
                        Named(FormatSettings(r.result.rows.front().settings))),
            "  ", "    ");
  for (const TuneRow& row : r.result.rows) {
    if (row.fault) w.Wrapped("the checker found a fault: " + *row.fault, "  ", "    ");
  }
  w.List("Assumed", r.assumed);
  w.List("Inferred from the record", r.inferred);
  w.List("What this does not tell", r.caveats);
  return w.Take();
}

}  // namespace plimsoll
