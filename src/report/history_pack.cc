#include "report/history_pack.h"

#include <fmt/format.h>

#include <algorithm>

#include "files/encode.h"
#include "report/format/json_values.h"
#include "report/format/stage_words.h"

namespace plimsoll {
namespace {

/// Columns one after the other. Differences from the row before, where rows resemble one another.
class Columns {
 public:
  template <typename Rows, typename Get>
  void Plain(const Rows& rows, Get get) {
    for (const auto& row : rows) AppendVarint(out_, static_cast<std::uint64_t>(get(row)));
  }
  template <typename Rows, typename Get>
  void Differences(const Rows& rows, Get get) {
    std::uint64_t before = 0;
    for (const auto& row : rows) {
      const auto value = static_cast<std::uint64_t>(get(row));
      AppendSignedVarint(out_, static_cast<std::int64_t>(value - before));
      before = value;
    }
  }
  void Append(std::string_view text) {
    AppendVarint(out_, text.size());
    out_ += text;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

/// 0 for never, else how much later than `from`, plus one.
std::int64_t Later(Position when, Position from) {
  return when == kNotYet ? 0 : std::int64_t{when} - from + 1;
}

/// Offsets are exact in the page's numbers (53 bits), addresses need not be.
Address LowestAddress(const History& h) {
  Address lowest = ~Address{0};
  for (const HistoryBlock& b : h.blocks) lowest = std::min(lowest, b.address);
  for (const HistorySpan& s : h.spans) lowest = std::min(lowest, s.address);
  return lowest == ~Address{0} ? 0 : lowest;
}

Json Header(const History& h, Address base) {
  Json marks = Json::array();
  for (const HistoryMark& mark : h.marks) {
    marks.push_back({StageName(mark.stage), mark.first, mark.last, mark.step});
  }
  Json stretches = Json::array();
  for (const HistoryStretch& s : h.stretches) {
    stretches.push_back({StageName(s.stage), s.first, s.last, s.depth,
                         s.name.empty() ? std::string(StageWords(s.stage)) : s.name,
                         OrNull(s.part)});
  }
  return {{"device", h.device},
          {"events", h.times.size()},
          {"blocks", h.blocks.size()},
          {"spans", h.spans.size()},
          {"nodes", h.nodes.size()},
          {"reserved", h.reserved.size()},
          {"has_spans", h.has_spans},
          {"base", fmt::format("{:#x}", base)},
          {"categories", h.categories},
          {"names", h.names},
          {"marks", marks},
          {"stretches", stretches},
          {"stretches_left_out", h.stretches_left_out}};
}

void AddBlocks(const History& h, Address base, Columns& columns) {
  using Block = HistoryBlock;
  const auto& blocks = h.blocks;
  columns.Differences(blocks, [](const Block& b) { return b.made; });
  columns.Plain(blocks, [](const Block& b) { return Later(b.released, b.made); });
  // A block that was never released was never freed either.
  columns.Plain(blocks, [](const Block& b) {
    return b.released == kNotYet ? 0 : Later(b.freed, b.released);
  });
  columns.Plain(blocks, [&](const Block& b) { return b.address - base; });
  columns.Plain(blocks, [](const Block& b) { return b.requested; });
  columns.Plain(blocks, [](const Block& b) { return b.size - b.requested; });
  columns.Plain(blocks, [](const Block& b) { return b.category; });
  columns.Differences(blocks, [](const Block& b) { return b.node; });
  columns.Differences(blocks, [](const Block& b) { return b.place; });
  columns.Differences(blocks, [](const Block& b) { return b.module; });
}

void AddSpans(const History& h, Address base, Columns& columns) {
  using Span = HistorySpan;
  const auto& spans = h.spans;
  columns.Differences(spans, [](const Span& s) { return s.from; });
  columns.Plain(spans, [](const Span& s) { return Later(s.to, s.from); });
  columns.Plain(spans, [&](const Span& s) { return s.address - base; });
  columns.Plain(spans, [](const Span& s) { return s.size; });
  columns.Plain(spans, [](const Span& s) { return s.expandable ? 1 : 0; });
  columns.Plain(spans, [](const Span& s) { return s.stream; });
  columns.Plain(spans, [](const Span& s) { return s.pool; });
}

void AddNodes(const History& h, Columns& columns) {
  using Node = HistoryNode;
  columns.Differences(h.nodes, [](const Node& n) { return n.parent; });
  columns.Differences(h.nodes, [](const Node& n) { return n.function; });
  columns.Differences(h.nodes, [](const Node& n) { return n.file; });
  columns.Differences(h.nodes, [](const Node& n) { return n.line; });
}

}  // namespace

std::string PackHistory(const History& h) {
  const Address base = LowestAddress(h);
  Columns columns;
  columns.Append(Dump(Shown(Header(h, base)), kOneLine));
  columns.Differences(h.times, [](TimeUs t) { return t; });
  AddBlocks(h, base, columns);
  AddSpans(h, base, columns);
  AddNodes(h, columns);
  columns.Differences(h.reserved, [](const HistoryReserved& r) { return r.from; });
  columns.Plain(h.reserved, [](const HistoryReserved& r) { return r.reserved; });
  return Deflated(columns.Take());
}

}  // namespace plimsoll
