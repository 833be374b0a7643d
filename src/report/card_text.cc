#include "report/card_text.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "base/text.h"
#include "report/format/table.h"

namespace plimsoll {
namespace {

/// Of more rows the first and the last ones are shown.
constexpr std::size_t kMostCardRows = 12;

std::string TimeText(const CardReport& card, TimeUs time) {
  return fmt::format("{:.2f} s", card.Seconds(time));
}

/// Calls `row` for those that are shown.
template <typename Row>
void EachShown(std::size_t count, Table& table, Row row) {
  for (std::size_t i = 0; i < count; ++i) {
    if (count > kMostCardRows && i == kMostCardRows / 2) {
      i = count - kMostCardRows / 2;
      table.Remark(fmt::format("… {} more with --json", count - kMostCardRows));
    }
    row(i);
  }
}

/// "96.73 GiB of 139.80 GiB"
std::string OfTheCard(const CardReport& card, Bytes bytes) {
  if (!card.capacity) return FormatBytes(bytes);
  return fmt::format("{} of {}", FormatBytes(bytes), FormatBytes(*card.capacity));
}

void WriteTurns(Writer& w, const CardReport& card) {
  std::vector<Column> columns = {{.heading = "from", .right = true}, {.heading = "at work"}};
  for (const CardProcess& p : card.processes) {
    columns.push_back({.heading = Printable(p.name), .right = true});
  }
  columns.push_back({.heading = "together", .right = true});
  columns.push_back({.heading = "marks", .wraps = true});
  Table table(columns);
  EachShown(card.turns.size(), table, [&](std::size_t i) {
    const Turn& turn = card.turns[i];
    std::vector<std::string> row = {TimeText(card, turn.time.begin),
                                    Printable(card.processes[turn.process].name)};
    for (const Bytes held : turn.held) row.push_back(FormatBytes(held));
    row.push_back(FormatBytes(turn.peak));
    row.push_back(Printable(Joined(turn.marks, ", ")));
    table.Row(row);
  });
  table.WriteTo(w);
}

void WriteHandOvers(Writer& w, const CardReport& card) {
  if (card.hand_overs.empty()) return;
  w.Heading("Hand-overs");
  Table table({{.heading = "at", .right = true},
               {.heading = "waits"},
               {.heading = "held", .right = true},
               {.heading = "in tensors", .right = true},
               {.heading = "not given back", .right = true},
               {.heading = "from, to", .wraps = true}});
  EachShown(card.hand_overs.size(), table, [&](std::size_t i) {
    const HandOver& h = card.hand_overs[i];
    const auto named = [&](std::size_t p, const std::string& doing) {
      return Printable(card.processes[p].name + (doing.empty() ? "" : " (" + doing + ")"));
    };
    bool first = true;
    for (std::size_t p = 0; p < h.held.size(); ++p) {
      const CardShare& held = h.held[p];
      if (p == h.to || (held.reserved == 0 && p != h.from)) continue;
      table.Row({first ? TimeText(card, h.time_us) : "", Printable(card.processes[p].name),
                 FormatBytes(held.reserved), FormatBytes(held.allocated), FormatBytes(held.cached),
                 first ? named(h.from, h.after) + " → " + named(h.to, h.before) : ""});
      first = false;
    }
  });
  table.WriteTo(w);
}

}  // namespace

void WriteCard(Writer& w, const CardReport& card) {
  w.Heading(fmt::format("Device {}, shared by {} processes", card.device, card.processes.size()));
  WriteTurns(w, card);
  std::string sum = fmt::format("at most {} together, after {}", OfTheCard(card, card.peak),
                                TimeText(card, card.peak_at));
  if (card.room) sum += fmt::format("; there are {} for all of them", FormatBytes(*card.room));
  if (!card.capacity && !card.room)
    sum += "; the records do not say how much the card has (--capacity does)";
  w.Wrapped(sum, "  = ", "    ");
  w.Wrapped("one card: " + Printable(card.known_by), "  ", "    ");
  WriteHandOvers(w, card);
}

}  // namespace plimsoll
