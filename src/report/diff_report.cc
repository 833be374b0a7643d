#include <fmt/format.h>

#include "base/printable.h"
#include "diagnose/diff.h"
#include "report/changes.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/text.h"

namespace plimsoll {
namespace {

/// As code, in which nothing is Markdown. A record's own backticks, and bars, which would end a
/// cell, become other signs.
std::string Code(const std::string& text) {
  std::string plain = Printable(text);
  for (char& c : plain) {
    if (c == '`') c = '\'';
    if (c == '|') c = '/';
  }
  return "`" + plain + "`";
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : Printable(text)) {
    if (std::string_view("\\`*_{}[]<>()#+!|~@").find(c) != std::string_view::npos) out += '\\';
    out += c;
    // Escaped or not, a name behind it would be called.
    if (c == '@') out += "\u200b";
  }
  return out;
}

std::string RanOutWords(const RankDifference& r) {
  if (r.ran_out_before && r.ran_out_after) return "ran out of memory both times";
  if (r.ran_out_after) return "runs out of memory now";
  return r.ran_out_before ? "ran out of memory before" : "";
}

std::string PeakRow(const std::string& name, const Change& peak) {
  const double percent =
      peak.before > 0 ? 100.0 * double(peak.growth()) / double(peak.before) : 0.0;
  return fmt::format("| {} | {} | {} | {} ({:+.1f} %) |\n", name, FormatBytes(peak.before),
                     FormatBytes(peak.after), SignedBytes(peak.growth()), percent);
}

/// Every pair where there are several; what ran out is said, since its peak is cut off.
void WriteRankDifferences(Writer& w, const Difference& d) {
  if (d.ranks.size() < 2) return;
  w.Heading("By rank");
  Table table({{},
               {.heading = "allocated", .right = true},
               {.heading = "", .right = true},
               {.heading = "reserved", .right = true},
               {.heading = "", .right = true},
               {.wraps = true}});
  for (const RankDifference& r : d.ranks) {
    table.Row({r.name, FormatBytes(r.allocated.after), SignedBytes(r.allocated.growth()),
               FormatBytes(r.reserved.after), SignedBytes(r.reserved.growth()), RanOutWords(r)});
  }
  table.WriteTo(w);
}

}  // namespace

std::string DifferenceText(const Difference& d, const TextStyle& style) {
  Writer w(style);
  w.Headline(d.verdict);
  for (const std::string& note : d.notes) w.Wrapped(note, "", "");
  WriteRankDifferences(w, d);
  WriteChanges(w, d.categories, d.holders);
  return w.Take();
}

std::string DifferenceMarkdown(const Difference& d) {
  std::string out = fmt::format("### GPU memory\n\n{}\n", Escaped(d.verdict));
  for (const std::string& note : d.notes) out += "\n" + Escaped(note) + "\n";
  out += "\n| peak | before | after | change |\n|---|---|---|---|\n";
  if (d.ranks.size() < 2) {
    out += PeakRow("allocated", d.allocated) + PeakRow("reserved", d.reserved);
  }
  for (const RankDifference& r : d.ranks) {
    if (d.ranks.size() < 2) break;
    const std::string ran_out = RanOutWords(r);
    const std::string name = r.name + (ran_out.empty() ? "" : " (" + ran_out + ")");
    out += PeakRow(name + " allocated", r.allocated) + PeakRow(name + " reserved", r.reserved);
  }
  if (d.holders.empty()) return out;
  constexpr std::size_t kShown = 12;
  out +=
      "\n<details><summary>By source line</summary>\n\n| change | what | where |\n|---|---|---|\n";
  for (std::size_t i = 0; i < d.holders.size() && i < kShown; ++i) {
    const Change& c = d.holders[i];
    out += fmt::format("| {} | {} | {} ({}× → {}×) |\n", SignedBytes(c.growth()),
                       AccountItemLabel(c.item), Code(c.where), c.count_before, c.count_after);
  }
  if (d.holders.size() > kShown)
    out += fmt::format("\n{} more with `--json`\n", d.holders.size() - kShown);
  return out + "\n</details>\n";
}

}  // namespace plimsoll
