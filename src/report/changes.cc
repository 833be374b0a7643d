#include "report/changes.h"

#include <fmt/format.h>

#include "report/format/table.h"

namespace plimsoll {

std::string SignedBytes(Bytes n) { return (n > 0 ? "+" : "") + FormatBytes(n); }

void WriteChanges(Writer& w, const std::vector<Change>& categories,
                  const std::vector<Change>& holders) {
  if (!categories.empty()) {
    w.Heading("By category");
    Table table({{.right = true}, {}, {.wraps = true}});
    for (const Change& c : categories) {
      table.Row({SignedBytes(c.growth()), std::string(AccountItemLabel(c.item)),
                 fmt::format("{} → {}", FormatBytes(c.before), FormatBytes(c.after))});
    }
    table.WriteTo(w);
  }
  if (!holders.empty()) {
    constexpr std::size_t kShown = 12;
    w.Heading("By source line");
    Table table({{.right = true}, {}, {.wraps = true}});
    for (std::size_t i = 0; i < holders.size() && i < kShown; ++i) {
      const Change& c = holders[i];
      table.Row({SignedBytes(c.growth()), std::string(AccountItemLabel(c.item)),
                 fmt::format("{} ({}× → {}×)", Printable(c.where), c.count_before, c.count_after)});
    }
    table.WriteTo(w);
    if (holders.size() > kShown) {
      w.Line(w.Dim(fmt::format("  … {} more with --json", holders.size() - kShown)));
    }
  }
}

Json PeakJson(const Change& peak) {
  return {{"before", peak.before}, {"after", peak.after}, {"growth", peak.growth()}};
}

Json CategoriesJson(const std::vector<Change>& categories) {
  Json rows = Json::array();
  for (const Change& c : categories) {
    Json row = PeakJson(c);
    row["what"] = AccountItemName(c.item);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json HoldersJson(const std::vector<Change>& holders) {
  Json rows = Json::array();
  for (const Change& c : holders) {
    rows.push_back({{"what", c.where},
                    {"category", AccountItemName(c.item)},
                    {"before", c.before},
                    {"after", c.after},
                    {"growth", c.growth()},
                    {"count_before", c.count_before},
                    {"count_after", c.count_after}});
  }
  return rows;
}

}  // namespace plimsoll
