#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "report/bisect.h"
#include "report/changes.h"
#include "report/format/json_values.h"
#include "report/format/table.h"
#include "report/format/writer.h"

namespace plimsoll {
namespace {

constexpr int kShortHash = 12;

/// "3fa2b1c09d4e"; a Python as it was given.
std::string ShortName(const BisectAnswer& a, std::size_t which) {
  const std::string& name = a.candidates[which].name;
  if (a.thing == BisectedThing::kCommit) return name.substr(0, kShortHash);
  return Printable(name);
}

/// "commit 3fa2b1c09d4e", "PyTorch 2.13.0 (/opt/b/bin/python)"
std::string Named(const BisectAnswer& a, std::size_t which) {
  if (a.thing == BisectedThing::kCommit) return "commit " + ShortName(a, which);
  const std::string& release = a.candidates[which].title;
  return release.empty() ? ShortName(a, which)
                         : fmt::format("PyTorch {} ({})", Printable(release), ShortName(a, which));
}

std::string Capital(std::string text) {
  if (!text.empty() && text.front() >= 'a' && text.front() <= 'z') text.front() -= 'a' - 'A';
  return text;
}

/// "from 4.21 GiB to 6.02 GiB reserved (+1.81 GiB) and from … allocated (…), at batch 8 on L4"
std::string Figures(const BisectAnswer& a) {
  std::string text = fmt::format("from {} to {} reserved ({}) and from {} to {} allocated ({}), ",
                                 FormatBytes(a.reserved.before), FormatBytes(a.reserved.after),
                                 SignedBytes(a.reserved.growth()), FormatBytes(a.allocated.before),
                                 FormatBytes(a.allocated.after), SignedBytes(a.allocated.growth()));
  text += a.batch_before == a.batch_after
              ? fmt::format("at batch {}", a.batch_after)
              : fmt::format("with batch {} and then {}", a.batch_before, a.batch_after);
  return text + " on " + a.gpu;
}

std::string_view Plural(BisectedThing thing) {
  return thing == BisectedThing::kCommit ? "commits" : "releases";
}

/// The one that grew, in full.
void WriteFound(Writer& w, const BisectAnswer& a) {
  if (a.thing != BisectedThing::kCommit) return;
  w.Line();
  Table table({{}, {.wraps = true}});
  for (std::size_t i = a.last_before + 1; i <= a.first_after; ++i) {
    const BisectCandidate& one = a.candidates[i];
    table.Row({"  " + one.name, Printable(one.title)});
    table.Under(fmt::format("{}, {}", Printable(one.author), Printable(one.date)));
  }
  table.WriteTo(w);
}

void WriteTries(Writer& w, const BisectAnswer& a) {
  w.Heading(fmt::format("Tried: {} of {}", a.tries.size(), a.candidates.size()));
  Table table({{},
               {.heading = "reserved", .right = true},
               {.heading = "allocated", .right = true},
               {.wraps = true}});
  std::vector<const BisectTry*> in_order;
  for (const BisectTry& one : a.tries) in_order.push_back(&one);
  std::ranges::sort(in_order, {}, [](const BisectTry* one) { return one->candidate; });
  for (const BisectTry* one : in_order) {
    const std::string title = Printable(a.candidates[one->candidate].title);
    const std::string name = ShortName(a, one->candidate);
    if (!one->figures) {
      table.Row({name, "skipped", "", title});
      table.Under(Printable(one->refused));
      continue;
    }
    const bool is_first = a.found && one->candidate == a.first_after;
    table.Row(
        {name, FormatBytes(one->figures->reserved), FormatBytes(one->figures->allocated),
         title + (one->figures->fits ? "" : " (does not fit)") + (is_first ? " ← grew" : "")});
  }
  table.WriteTo(w);
}

Json CandidateJson(const BisectAnswer& a, std::size_t which) {
  const BisectCandidate& one = a.candidates[which];
  if (a.thing == BisectedThing::kRelease) return {{"python", one.name}, {"torch", one.title}};
  return {{"commit", one.name},
          {"subject", one.title},
          {"author", one.author},
          {"date", one.date},
          {"parents", one.parents}};
}

Json TryJson(const BisectAnswer& a, const BisectTry& one) {
  Json row = CandidateJson(a, one.candidate);
  if (!one.figures) {
    row["skipped"] = one.refused;
    return row;
  }
  row["skipped"] = nullptr;
  row["allocated"] = one.figures->allocated;
  row["reserved"] = one.figures->reserved;
  row["device"] = one.figures->device;
  row["batch"] = one.figures->batch;
  row["fits"] = one.figures->fits;
  return row;
}

}  // namespace

std::string BisectVerdict(const BisectAnswer& a) {
  if (!a.found) {
    const std::string_view one = a.thing == BisectedThing::kCommit ? "commit" : "release";
    return fmt::format("No {} between {} and {} made it grow by more than {}: {}.", one,
                       ShortName(a, 0), ShortName(a, a.candidates.size() - 1), a.allowed,
                       Figures(a));
  }
  const std::size_t several = a.first_after - a.last_before;
  if (several > 1) {
    return fmt::format("One of {} {} made it grow, {}. {} could not be tried.", several,
                       Plural(a.thing), Figures(a),
                       several == 2 ? "The first of them" : "All but the last of them");
  }
  std::string text =
      fmt::format("{} made it grow: {}.", Capital(Named(a, a.first_after)), Figures(a));
  const Bytes rest = a.reserved_in_all.growth() - a.reserved.growth();
  if (rest > 0) {
    text += fmt::format(" From the first to the last it grew by {}, {} of it elsewhere.",
                        FormatBytes(a.reserved_in_all.growth()), FormatBytes(rest));
  }
  return text;
}

std::string BisectText(const BisectAnswer& a, const TextStyle& style) {
  Writer w(style);
  w.Headline(BisectVerdict(a));
  if (a.found) WriteFound(w, a);
  WriteChanges(w, a.categories, a.holders);
  WriteTries(w, a);
  return w.Take();
}

std::string BisectJson(const BisectAnswer& a) {
  Json possible = Json::array();
  for (std::size_t i = a.last_before + 1; a.found && i <= a.first_after; ++i) {
    possible.push_back(CandidateJson(a, i));
  }
  Json tries = Json::array();
  for (const BisectTry& one : a.tries) tries.push_back(TryJson(a, one));
  return Dump({{"schema", "plimsoll.bisect/1"},
               {"verdict", BisectVerdict(a)},
               {"of", Plural(a.thing)},
               {"gpu", a.gpu},
               {"fail_above", a.allowed},
               {"grew", a.found},
               {"last_before", a.found ? CandidateJson(a, a.last_before) : Json(nullptr)},
               {"first_after", a.found ? CandidateJson(a, a.first_after) : Json(nullptr)},
               {"possible", std::move(possible)},
               {"peak_allocated", PeakJson(a.allocated)},
               {"peak_reserved", PeakJson(a.reserved)},
               {"peak_reserved_in_all", PeakJson(a.reserved_in_all)},
               {"batch_before", a.batch_before},
               {"batch_after", a.batch_after},
               {"categories", CategoriesJson(a.categories)},
               {"holders", HoldersJson(a.holders)},
               {"candidates", a.candidates.size()},
               {"tried", std::move(tries)}});
}

}  // namespace plimsoll
