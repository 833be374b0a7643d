#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/printable.h"
#include "report/writer.h"

namespace plimsoll {
namespace {

std::string Bar(double share, std::size_t width) {
  const auto eighths = static_cast<std::size_t>(share * double(width) * 8 + 0.5);
  std::string bar;
  for (std::size_t i = 0; i < eighths / 8; ++i) bar += "█";
  constexpr std::string_view kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  return bar + std::string(kParts[eighths % 8]);
}

/// Pads by what is seen, not by bytes: the bars are three bytes a cell.
std::string PadBar(const std::string& bar, std::size_t width) {
  std::size_t cells = 0;
  for (char c : bar) cells += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return bar + std::string(width > cells ? width - cells : 0, ' ');
}

/// "optimizer_state" as people write it.
std::string Words(std::string_view name) {
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string InstantTitle(const RankReport& r) {
  std::string title = r.instant.kind == InstantKind::kOutOfMemory ? "Account at the out-of-memory"
                      : r.instant.kind == InstantKind::kEvent     ? "Account"
                      : !r.events                                 ? "Account"
                                                                  : "Account at the peak";
  std::string where;
  if (r.instant.event) where = fmt::format("event {} of {}", *r.instant.event, r.events);
  if (!r.phase.empty()) where += (where.empty() ? "" : ", ") + r.phase;
  return where.empty() ? title : title + " (" + where + ")";
}

void WriteAccount(Writer& w, const RankReport& r) {
  if (r.account.empty()) return;
  w.Heading(InstantTitle(r));
  // The bars compare what the process holds; what is free on the device is another scale.
  Bytes held = 0;
  for (const AccountLine& line : r.account)
    held += line.what == AccountItem::kFree ? 0 : line.bytes;
  const Bytes total = r.capacity.value_or(held);
  constexpr std::size_t kBar = 10;
  for (const AccountLine& line : r.account) {
    if (line.bytes == 0) continue;
    const double share = total > 0 ? std::clamp(double(line.bytes) / double(total), 0.0, 1.0) : 0;
    const bool scaled = line.what != AccountItem::kFree || r.capacity;
    const std::string what = Words(AccountItemName(line.what));
    // What does not fit on the line is in the JSON document.
    constexpr std::size_t kColumns = 57;
    const auto width = static_cast<std::size_t>(w.width());  // at least 60
    std::string because = Printable(line.because);
    if (because.size() > width - kColumns) because.resize(width - kColumns);
    w.Line(fmt::format("  {:<16} {:>11} {:>6}  {} {:<7}{}", what, FormatBytes(line.bytes),
                       scaled ? fmt::format("{:.1f} %", 100 * share) : "",
                       PadBar(scaled ? Bar(share, kBar) : "", kBar),
                       ConfidenceName(line.confidence), w.Dim(because)));
  }
  std::string sum;
  if (r.instant.allocated) sum = FormatBytes(*r.instant.allocated) + " allocated";
  if (r.instant.reserved)
    sum += (sum.empty() ? "" : ", ") + FormatBytes(*r.instant.reserved) + " reserved";
  if (r.capacity) sum += (sum.empty() ? "" : ", ") + FormatBytes(*r.capacity) + " capacity";
  if (r.limit) sum += ", " + FormatBytes(*r.limit) + " allowed";
  if (!sum.empty()) w.Line("  = " + sum);
}

void WriteHolders(Writer& w, const RankReport& r) {
  if (r.holders.empty()) return;
  constexpr std::size_t kShown = 10;
  w.Heading("Who holds it");
  for (std::size_t i = 0; i < r.holders.size() && i < kShown; ++i) {
    const Holder& h = r.holders[i];
    w.Line(fmt::format("  {:>11} {:>6}  {:<15} {}{}", FormatBytes(h.bytes),
                       fmt::format("{}×", h.count),
                       h.others > 0 ? "" : Words(CategoryName(h.category)), Printable(h.where),
                       h.module.empty() ? "" : w.Dim("  in " + Printable(h.module))));
  }
  if (r.holders.size() > kShown) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", r.holders.size() - kShown)));
  }
}

void WriteSteps(Writer& w, const RankReport& r) {
  if (r.step_table.size() < 2) return;
  constexpr std::size_t kShown = 8;
  w.Heading("Steps");
  w.Line(w.Dim(fmt::format("  {:>4} {:>14} {:>14} {:>14} {:>14}", "step", "allocated", "reserved",
                           "activations", "left at end")));
  for (std::size_t i = 0; i < r.step_table.size(); ++i) {
    if (r.step_table.size() > kShown && i == kShown - 2) {
      w.Line(fmt::format("  {:>4}", "…"));
      i = r.step_table.size() - 2;
    }
    const StepReport& s = r.step_table[i];
    w.Line(
        fmt::format("  {:>4} {:>14} {:>14} {:>14} {:>14}{}", i + 1, FormatBytes(s.peak_allocated),
                    s.peak_reserved > 0 ? FormatBytes(s.peak_reserved) : "–",
                    FormatBytes(s.activations), FormatBytes(s.end_allocated),
                    s.micro_batches > 1 ? fmt::format("  {} micro-batches", s.micro_batches) : ""));
  }
}

void WriteRank(Writer& w, const RankReport& r) {
  WriteAccount(w, r);
  WriteHolders(w, r);
  WriteSteps(w, r);
  if (r.notes.empty()) return;
  w.Heading("Notes");
  for (const std::string& note : r.notes) w.Wrapped(note, "  - ", "    ");
}

std::string NameOf(const RankReport& r) {
  if (r.rank) return fmt::format("rank {}", *r.rank);
  if (r.device) return fmt::format("device {}", *r.device);
  return Printable(r.file);
}

/// One row a rank; of very many only the extremes.
void WriteRankTable(Writer& w, const Explanation& e) {
  w.Heading(fmt::format("{} ranks", e.ranks.size()));
  w.Line(w.Dim(fmt::format("  {:<10} {:>14} {:>14} {:>7} {:>6}  {}", "", "peak allocated",
                           "peak reserved", "steps", "end", "file")));
  std::vector<const RankReport*> rows;
  for (const RankReport& r : e.ranks) rows.push_back(&r);
  constexpr std::size_t kShown = 16;
  if (rows.size() > kShown) {
    std::stable_sort(rows.begin(), rows.end(), [](const RankReport* a, const RankReport* b) {
      return a->peak_allocated.value_or(0) > b->peak_allocated.value_or(0);
    });
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows.size() > kShown && i == kShown / 2) {
      w.Line(w.Dim(fmt::format("  … {} ranks between", rows.size() - kShown)));
      i = rows.size() - kShown / 2;
    }
    const RankReport& r = *rows[i];
    const auto size = [](const std::optional<Bytes>& n) { return n ? FormatBytes(*n) : "–"; };
    w.Line(fmt::format("  {:<10} {:>14} {:>14} {:>7} {:>6}  {}", NameOf(r), size(r.peak_allocated),
                       size(r.peak_reserved), r.steps ? fmt::format("{}", *r.steps) : "–",
                       r.instant.kind == InstantKind::kOutOfMemory ? "oom" : "ok",
                       Printable(r.file)));
  }
}

void WriteFindings(Writer& w, const Explanation& e) {
  if (e.findings.empty()) return;
  w.Heading("Findings");
  for (const Finding& f : e.findings) {
    const std::string_view code = f.severity == Severity::kHigh     ? "1;31"
                                  : f.severity == Severity::kMedium ? "1;33"
                                                                    : "1;36";
    const bool named = f.id == FindingId::kRankImbalance;  // its title names the rank
    const std::string rank =
        f.rank && !named && e.ranks.size() > 1 ? fmt::format("rank {}: ", *f.rank) : "";
    w.Wrapped(rank + f.title,
              fmt::format("  {} ", w.Paint(fmt::format("{:<6}", SeverityName(f.severity)), code)),
              "         ");
    for (const std::string& line : f.evidence) w.Wrapped(line, "         - ", "           ");
    for (const Remedy& r : f.remedies) {
      std::string text = (r.avoid ? "not " : "") + r.change;
      if (r.saves) {
        text +=
            *r.saves < 0
                ? fmt::format(" (holds {} more, {})", FormatBytes(-*r.saves), BasisName(r.basis))
                : fmt::format(" (saves {}, {})", FormatBytes(*r.saves), BasisName(r.basis));
      }
      if (!r.costs.empty()) text += "; " + r.costs;
      w.Wrapped(text, "         → ", "           ");
    }
  }
}

void WriteList(Writer& w, std::string_view heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  w.Heading(heading);
  for (const std::string& line : lines) w.Wrapped(line, "  - ", "    ");
}

std::string Growth(Bytes n) { return (n > 0 ? "+" : "") + FormatBytes(n); }

}  // namespace

std::string DifferenceText(const Difference& d, const TextStyle& style) {
  Writer w(style);
  w.Wrapped(d.verdict, "", "");
  if (!d.categories.empty()) {
    w.Heading("By category");
    for (const Change& c : d.categories) {
      w.Line(fmt::format("  {:>12}  {:<16} {} → {}", Growth(c.growth()), Words(c.what),
                         FormatBytes(c.before), FormatBytes(c.after)));
    }
  }
  if (!d.holders.empty()) {
    constexpr std::size_t kShown = 12;
    w.Heading("By source line");
    for (std::size_t i = 0; i < d.holders.size() && i < kShown; ++i) {
      const Change& c = d.holders[i];
      w.Line(fmt::format("  {:>12}  {:<16} {}  ({}× → {}×)", Growth(c.growth()),
                         Words(CategoryName(c.category)), Printable(c.what), c.count_before,
                         c.count_after));
    }
    if (d.holders.size() > kShown) {
      w.Line(w.Dim(fmt::format("  … {} more with --json", d.holders.size() - kShown)));
    }
  }
  return w.Take();
}

std::string ExplanationText(const Explanation& e, const TextStyle& style) {
  Writer w(style);
  w.Wrapped(e.verdict, "", "");
  if (e.ranks.size() > 1) WriteRankTable(w, e);
  if (e.ranks.size() == 1) WriteRank(w, e.ranks.front());
  // Of several, the one that a finding names, else the first, is shown whole.
  if (e.ranks.size() > 1) {
    const RankReport* shown = &e.ranks.front();
    for (const Finding& f : e.findings) {
      if (!f.rank || f.severity == Severity::kInfo) continue;
      for (const RankReport& r : e.ranks) {
        if (r.rank == f.rank) shown = &r;
      }
      break;
    }
    w.Heading(NameOf(*shown));
    WriteRank(w, *shown);
  }
  WriteList(w, "The arithmetic", e.arithmetic);
  WriteFindings(w, e);
  std::vector<std::string> ruled_out;
  for (const RuledOut& excluded : e.ruled_out) ruled_out.push_back(excluded.because);
  WriteList(w, "Ruled out", ruled_out);
  if (!e.record_next.empty()) {
    w.Heading("To see what the memory is used for, record this next");
    for (const std::string& line : e.record_next) w.Line("  " + line);
  }
  return w.Take();
}

}  // namespace plimsoll
