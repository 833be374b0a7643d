#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "answer/shares.h"
#include "base/printable.h"
#include "base/text.h"
#include "report/card_text.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/host_text.h"
#include "report/log_text.h"

namespace plimsoll {
namespace {

std::string Bar(double share, std::size_t width) {
  const auto eighths = static_cast<std::size_t>(share * double(width) * 8 + 0.5);
  std::string bar;
  for (std::size_t i = 0; i < eighths / 8; ++i) bar += "█";
  constexpr std::string_view kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  return bar + std::string(kParts[eighths % 8]);
}

std::string InstantTitle(const RankReport& r) {
  std::string title = r.RanOut()                              ? "Account at the out-of-memory"
                      : r.instant.kind == InstantKind::kEvent ? "Account"
                      : !r.events                             ? "Account"
                                                              : "Account at the peak";
  std::string where;
  if (r.instant.event) where = fmt::format("event {} of {}", *r.instant.event, r.events);
  if (!r.phase.empty()) where += (where.empty() ? "" : ", ") + r.phase;
  return where.empty() ? title : title + " (" + where + ")";
}

/// The last line of an account: "8.86 GiB allocated, 9.67 GiB reserved".
std::string SumText(const RankReport& r) {
  std::string sum;
  const auto add = [&](const std::optional<Bytes>& bytes, std::string_view what) {
    if (bytes) sum += fmt::format("{}{} {}", sum.empty() ? "" : ", ", FormatBytes(*bytes), what);
  };
  add(r.instant.allocated, "allocated");
  add(r.instant.reserved, "reserved");
  add(r.capacity, "capacity");
  add(r.budget ? std::nullopt : r.limit, "allowed");
  // Of a card's whole memory it goes without saying.
  const Whole whole = WholeOf(r);
  const bool says = !sum.empty() && whole.basis != ShareBasis::kCapacity;
  return says ? sum + "; " + WhatSharesAreOf(whole) : sum;
}

void WriteAccount(Writer& w, const RankReport& r) {
  if (r.account.empty()) return;
  w.Heading(InstantTitle(r));
  constexpr std::size_t kBar = 10;
  Table table({{.heading = "what"},
               {.heading = "size", .right = true},
               {.heading = "share", .right = true},
               {.may_go = true},
               {.heading = "confidence", .may_go = true},
               {.heading = "how it is known", .wraps = true, .dim = true}});
  for (const AccountLine& line : r.account) {
    if (line.bytes == 0) continue;
    const std::optional<double> share = ShareOf(r, line);
    table.Row({std::string(AccountItemLabel(line.what)), FormatBytes(line.bytes),
               share ? fmt::format("{:.1f} %", 100 * *share) : "",
               share ? PadRight(Bar(*share, kBar), kBar) : "",
               std::string(ConfidenceName(line.confidence)), Printable(line.because)});
  }
  table.WriteTo(w);
  if (const std::string sum = SumText(r); !sum.empty()) w.Wrapped(sum, "  = ", "    ");
}

/// The modules of a line below it, a few of them.
void WriteParts(const Holder& holder, Table& table) {
  constexpr std::size_t kShown = 3;
  if (holder.parts.empty() && !holder.module.empty()) {
    table.Under("in " + Printable(holder.module));
  }
  for (std::size_t i = 0; i < holder.parts.size() && i < kShown; ++i) {
    const HolderPart& part = holder.parts[i];
    const std::string where = part.module.empty() ? "outside of modules" : "in " + part.module;
    table.Under(fmt::format("{} {}", FormatBytes(part.bytes), Printable(where)));
  }
  if (holder.parts.size() <= kShown) return;
  Bytes rest = holder.bytes;
  for (std::size_t i = 0; i < kShown; ++i) rest -= holder.parts[i].bytes;
  table.Under(fmt::format("{} in {} more", FormatBytes(rest), holder.parts.size() - kShown));
}

/// The variables that keep it below a line, the largest ones.
void WriteOwners(const Holder& holder, Table& table) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = std::min(holder.owners.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    table.Under(Printable(OwnerText(holder.owners[i], holder.bytes)));
  }
  if (holder.owners.size() <= shown) return;
  Bytes rest = 0;
  for (std::size_t i = shown; i < holder.owners.size(); ++i) rest += holder.owners[i].bytes;
  table.Under(fmt::format("{} held by {} more", FormatBytes(rest), holder.owners.size() - shown));
}

void WriteHolders(Writer& w, const RankReport& r) {
  if (r.holders.empty()) return;
  constexpr std::size_t kMostShown = 10;
  // Less than a thousandth is not worth a row.
  const Bytes least = r.instant.allocated.value_or(0) / 1000;
  std::size_t shown = 1;
  while (shown < r.holders.size() && shown < kMostShown && r.holders[shown].bytes >= least) ++shown;
  w.Heading("Who holds it");
  Table table({{.right = true}, {.right = true}, {}, {.wraps = true}});
  for (std::size_t i = 0; i < shown; ++i) {
    const Holder& h = r.holders[i];
    table.Row({FormatBytes(h.bytes), fmt::format("{}×", h.count),
               h.others > 0 ? "" : std::string(CategoryLabel(h.category)), Printable(h.where)});
    WriteParts(h, table);
    if (!h.labels.empty()) table.Under("said of it: " + Printable(Joined(h.labels, ", ")));
    WriteOwners(h, table);
  }
  table.WriteTo(w);
  if (r.holders.size() > shown) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", r.holders.size() - shown)));
  }
}

void WriteGroups(Writer& w, const RankReport& r) {
  if (r.group_by.empty()) return;
  constexpr std::size_t kMostGroups = 20;
  w.Heading("By " + Printable(r.group_by));
  const Bytes all = std::max<Bytes>(1, r.instant.allocated.value_or(1));
  Table table({{.right = true}, {.right = true}, {.right = true}, {.wraps = true}});
  for (std::size_t i = 0; i < r.groups.size() && i < kMostGroups; ++i) {
    const HolderGroup& g = r.groups[i];
    table.Row({FormatBytes(g.bytes), fmt::format("{:.1f} %", 100 * double(g.bytes) / double(all)),
               fmt::format("{}×", g.count),
               g.name.empty() ? "nothing in it matches" : Printable(g.name)});
  }
  table.WriteTo(w);
  if (r.groups.size() > kMostGroups) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", r.groups.size() - kMostGroups)));
  }
}

/// "(0, 3)", as PyTorch names a pool.
std::string PoolName(const PoolId& id) { return fmt::format("({}, {})", id.first, id.second); }

void WritePools(Writer& w, const RankReport& r) {
  const PoolsReport& p = r.pools;
  if (p.pools.empty()) return;
  constexpr std::size_t kMostPools = 12;
  w.Heading("Private pools");
  Table table({{.heading = "pool"},
               {.heading = "held at most", .right = true},
               {.heading = "in use at most", .right = true},
               {.heading = "held", .right = true},
               {.heading = "free in it", .right = true},
               {.heading = "made for", .wraps = true}});
  for (std::size_t i = 0; i < p.pools.size() && i < kMostPools; ++i) {
    const PoolReport& pool = p.pools[i];
    table.Row({PoolName(pool.id), FormatBytes(pool.peak_reserved), FormatBytes(pool.peak_allocated),
               FormatBytes(pool.reserved), FormatBytes(pool.reserved - pool.allocated),
               pool.made_by.empty() ? "no stack recorded" : Printable(pool.made_by)});
  }
  table.WriteTo(w);
  if (p.pools.size() > kMostPools) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", p.pools.size() - kMostPools)));
  }
  if (p.pools.size() < 2) return;
  w.Wrapped(
      fmt::format("held at most together: {}; in use at most: {} added up, {} at once; one shared "
                  "pool would need {} less at most (computed from the record)",
                  FormatBytes(p.peak_reserved), FormatBytes(p.sum_of_peaks),
                  FormatBytes(p.peak_of_sum), FormatBytes(p.SavedByOne())),
      "  = ", "    ");
}

void WritePinned(Writer& w, const RankReport& r) {
  if (!r.pinned) return;
  constexpr std::size_t kMostPlaces = 5;
  const HostPinnedReport& p = *r.pinned;
  w.Heading("Pinned host memory");
  Table table({{.right = true}, {.right = true}, {.wraps = true}});
  for (std::size_t i = 0; i < p.places.size() && i < kMostPlaces; ++i) {
    table.Row({FormatBytes(p.places[i].bytes), fmt::format("{}×", p.places[i].count),
               Printable(p.places[i].where)});
  }
  table.WriteTo(w);
  std::string sum = fmt::format("{} in use, {} held; at most {} in use, {} held",
                                FormatBytes(p.allocated), FormatBytes(p.reserved),
                                FormatBytes(p.peak_allocated), FormatBytes(p.peak_reserved));
  if (p.requested) sum += fmt::format("; asked for: {}", FormatBytes(*p.requested));
  w.Wrapped(sum, "  = ", "    ");
}

void WriteMarks(Writer& w, const RankReport& r) {
  if (r.marks.empty()) return;
  constexpr std::size_t kMostMarks = 12;
  w.Heading("Marks");
  Table table({{.heading = "times", .right = true},
               {.heading = "allocated", .right = true},
               {.heading = "reserved", .right = true},
               {.heading = "left by the last", .right = true},
               {.heading = "name", .wraps = true}});
  for (std::size_t i = 0; i < r.marks.size() && i < kMostMarks; ++i) {
    const MarkReport& m = r.marks[i];
    table.Row(
        {fmt::format("{}", m.times), FormatBytes(m.peak_allocated), FormatBytes(m.peak_reserved),
         FormatBytes(m.left),
         std::string(static_cast<std::size_t>(2 * std::min(m.depth, 8)), ' ') + Printable(m.name)});
  }
  table.WriteTo(w);
  if (r.marks.size() > kMostMarks) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", r.marks.size() - kMostMarks)));
  }
}

/// "4 micro-batches, ran out of memory"; mostly nothing.
std::string StepRemark(const StepReport& s, bool cut_short) {
  std::string remark =
      s.micro_batches > 1 ? fmt::format("{} micro-batches", s.micro_batches) : std::string();
  if (cut_short) remark += remark.empty() ? "ran out of memory" : ", ran out of memory";
  return remark;
}

void WriteSteps(Writer& w, const RankReport& r) {
  if (r.step_table.size() < 2) return;
  constexpr std::size_t kShown = 8;
  w.Heading("Steps");
  Table table({{.heading = "step", .right = true},
               {.heading = "allocated", .right = true},
               {.heading = "reserved", .right = true},
               {.heading = "activations", .right = true},
               {.heading = "left at end", .right = true},
               {.wraps = true}});
  for (std::size_t i = 0; i < r.step_table.size(); ++i) {
    if (r.step_table.size() > kShown && i == kShown - 2) {
      table.Remark(fmt::format("{:>4}", "…"));
      i = r.step_table.size() - 2;
    }
    const StepReport& s = r.step_table[i];
    const bool cut_short = r.RanOut() && static_cast<std::int64_t>(i) >= r.complete_steps;
    table.Row({fmt::format("{}", i + 1), FormatBytes(s.peak_allocated),
               s.peak_reserved > 0 ? FormatBytes(s.peak_reserved) : "–", FormatBytes(s.activations),
               cut_short ? "–" : FormatBytes(s.end_allocated), StepRemark(s, cut_short)});
  }
  table.WriteTo(w);
}

void WriteRank(Writer& w, const RankReport& r) {
  WriteAccount(w, r);
  WriteHolders(w, r);
  WriteGroups(w, r);
  WritePools(w, r);
  WritePinned(w, r);
  WriteSteps(w, r);
  WriteMarks(w, r);
  w.List("Notes", r.notes);
}

std::string NameOf(const RankReport& r) {
  if (!r.process.empty()) return Printable(r.process);
  if (r.rank) return fmt::format("rank {}", *r.rank);
  if (r.device) return fmt::format("device {}", *r.device);
  return Printable(r.file);
}

/// One row a rank; of very many only the extremes.
void WriteRankTable(Writer& w, const Explanation& e) {
  const bool one_file = std::all_of(e.ranks.begin(), e.ranks.end(), [&](const RankReport& r) {
    return r.file == e.ranks.front().file;
  });
  const bool told =
      std::ranges::any_of(e.ranks, [](const RankReport& r) { return r.rank.has_value(); });
  const bool processes =
      std::ranges::all_of(e.ranks, [](const RankReport& r) { return !r.process.empty(); });
  const bool of_log =
      std::ranges::all_of(e.ranks, [](const RankReport& r) { return r.format == "log"; });
  const char* const what = one_file && !(of_log && (told || processes)) ? "devices"
                           : processes                                  ? "processes"
                           : told                                       ? "ranks"
                                                                        : "files";
  w.Heading(fmt::format("{} {}", e.ranks.size(), what));
  // Without a history nobody knows how much more there was before.
  const bool states = std::ranges::all_of(e.ranks, [](const RankReport& r) {
    return r.events == 0 && r.format.starts_with("PyTorch memory snapshot");
  });
  Table table({{},
               {.heading = states ? "allocated" : "peak allocated", .right = true},
               {.heading = states ? "reserved" : "peak reserved", .right = true},
               {.heading = "steps", .right = true},
               {.heading = "end"},
               {.heading = "file", .wraps = true}});
  std::vector<const RankReport*> rows;
  for (const RankReport& r : e.ranks) rows.push_back(&r);
  constexpr std::size_t kShown = 16;
  if (rows.size() > kShown) {
    std::stable_sort(rows.begin(), rows.end(), [](const RankReport* a, const RankReport* b) {
      return a->peak_allocated.value_or(0) > b->peak_allocated.value_or(0);
    });
  }
  const auto size = [](const std::optional<Bytes>& n) { return n ? FormatBytes(*n) : "–"; };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows.size() > kShown && i == kShown / 2) {
      table.Remark(fmt::format("… {} ranks between", rows.size() - kShown));
      i = rows.size() - kShown / 2;
    }
    const RankReport& r = *rows[i];
    table.Row({NameOf(r), size(r.peak_allocated), size(r.peak_reserved),
               r.steps ? fmt::format("{}", *r.steps) : "–", r.RanOut() ? "oom" : "ok",
               Printable(r.file)});
  }
  table.WriteTo(w);
}

/// "half the batch (saves 4.35 GiB, estimated); costs: about the same time"
std::string RemedyText(const Remedy& r) {
  const bool setting = r.change.starts_with("PYTORCH_");
  std::string text = r.avoid ? (setting ? "Do not set " : "Do not ") + r.change : r.change;
  if (r.saves) {
    const std::string effect =
        *r.saves < 0 ? "holds " + FormatBytes(-*r.saves) + " more"
                     : (r.at_most ? "saves at most " : "saves ") + FormatBytes(*r.saves);
    text += fmt::format(" ({}, {})", effect, BasisName(r.basis));
  }
  if (!r.costs.empty()) text += "; costs: " + r.costs;
  if (!r.remark.empty()) text += "; " + r.remark;
  return text;
}

void WriteFindings(Writer& w, const Explanation& e) {
  if (e.findings.empty()) return;
  w.Heading("Findings");
  const std::string indent(9, ' ');
  std::set<std::string> told;  // a remedy that helps against several causes is told once
  for (const Finding& f : e.findings) {
    const std::string_view code = f.severity == Severity::kHigh     ? "1;31"
                                  : f.severity == Severity::kMedium ? "1;33"
                                                                    : "1;36";
    const bool named = f.id == FindingId::kRankImbalance;  // its title names the rank
    std::string rank =
        f.rank && !named && e.ranks.size() > 1 ? fmt::format("rank {}: ", *f.rank) : "";
    if (!f.process.empty()) rank = Printable(f.process) + ": ";
    w.Wrapped(rank + f.title,
              fmt::format("  {} ", w.Paint(fmt::format("{:<6}", SeverityName(f.severity)), code)),
              indent);
    for (const std::string& line : f.evidence) w.Wrapped(line, indent + "- ", indent + "  ");
    for (const Remedy& r : f.remedies) {
      if (!told.insert(r.change).second) continue;
      w.Wrapped(RemedyText(r), indent + "→ ", indent + "  ");
      w.Code(r.code, indent + "      ");
    }
  }
  if (!e.savings.empty()) w.Wrapped(e.savings + ".", "  ", "  ");
}

}  // namespace

std::string ExplanationText(const Explanation& e, const TextStyle& style) {
  Writer w(style);
  w.Wrapped(e.verdict, "", "");
  for (const CardReport& card : e.cards) WriteCard(w, card);
  if (e.ranks.size() > 1) {
    WriteRankTable(w, e);
    const RankReport& shown = e.ranks[e.shown];
    // Of the ranks of a log nothing else is known.
    if (!shown.account.empty() || !shown.notes.empty()) w.Heading(NameOf(shown));
  }
  if (!e.ranks.empty()) WriteRank(w, e.ranks[e.shown]);
  w.List("The arithmetic", e.arithmetic);
  if (e.host) WriteHost(w, *e.host);
  if (e.log) WriteLog(w, *e.log);
  WriteFindings(w, e);
  std::vector<std::string> ruled_out;
  for (const RuledOut& excluded : e.ruled_out) ruled_out.push_back(excluded.because);
  w.List("Ruled out", ruled_out);
  if (!e.record_next.empty()) {
    w.Heading("To see what the memory is used for, record this next");
    w.Code(e.record_next.Lines(), "  ");
  }
  return w.Take();
}

}  // namespace plimsoll
