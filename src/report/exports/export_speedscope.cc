#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "report/exports/export_run.h"
#include "report/exports/exports.h"

namespace plimsoll {
namespace {

/// Blocks that one stack holds; those without a stack are told by their place.
struct Held {
  std::uint32_t node = 0;
  std::uint32_t place = 0;
  Bytes bytes = 0;
};

std::vector<Held> HeldByStack(const History& history, Position at) {
  // Blocks that are never released are alive at any instant, kNotYet itself too.
  at = std::min(at, kNotYet - 1);
  std::map<std::pair<std::uint32_t, std::uint32_t>, Bytes> bytes;
  for (const HistoryBlock& block : history.blocks) {
    if (block.made > at) break;
    if (block.released <= at) continue;
    bytes[{block.node, block.node == 0 ? block.place : 0}] += block.size;
  }
  std::vector<Held> held;
  held.reserve(bytes.size());
  for (const auto& [key, sum] : bytes) held.push_back({key.first, key.second, sum});
  std::stable_sort(held.begin(), held.end(),
                   [](const Held& a, const Held& b) { return a.bytes > b.bytes; });
  return held;
}

/// Every distinct frame once, as JSON, in the order in which they are first needed.
class FrameList {
 public:
  explicit FrameList(const History& history) : history_(history) {}

  /// Outermost first, as speedscope wants them.
  std::vector<std::size_t> StackOf(const Held& held) {
    if (held.node == 0) return {OfPlace(held.place)};
    std::vector<std::size_t> frames;
    for (std::uint32_t node = held.node; node != 0; node = history_.nodes[node].parent) {
      frames.push_back(OfNode(history_.nodes[node]));
    }
    std::reverse(frames.begin(), frames.end());
    return frames;
  }
  const std::string& json() const { return json_; }

 private:
  std::size_t OfNode(const HistoryNode& node) {
    const auto [found, added] =
        nodes_.try_emplace({node.function, node.file, node.line}, nodes_.size() + places_.size());
    if (!added) return found->second;
    const std::string& function = history_.names[node.function];
    const std::string& file = history_.names[node.file];
    const std::string without_name = file.empty() ? "??" : fmt::format("{}:{}", file, node.line);
    Append(function.empty() ? without_name : function);
    if (!file.empty()) json_ += fmt::format(",\"file\":{}", JsonText(file));
    if (node.line > 0) json_ += fmt::format(",\"line\":{}", node.line);
    json_ += '}';
    return found->second;
  }
  std::size_t OfPlace(std::uint32_t place) {
    const auto [found, added] = places_.try_emplace(place, nodes_.size() + places_.size());
    if (!added) return found->second;
    const std::string& name = history_.names[place];
    Append(name.empty() ? "(no stack)" : name);
    json_ += '}';
    return found->second;
  }
  void Append(const std::string& name) {
    json_ += fmt::format("{}{{\"name\":{}", json_.empty() ? "" : ",\n", JsonText(name));
  }

  const History& history_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::int32_t>, std::size_t> nodes_;
  std::map<std::uint32_t, std::size_t> places_;
  std::string json_;
};

/// "after event 812, out of memory".
std::string InstantText(const ExportedRun& run, Position at) {
  if (at < 0) return "before the first event";
  if (static_cast<std::size_t>(at) >= run.history->times.size()) return "at the end of the record";
  std::string text = fmt::format("after event {}", at);
  if (run.rank != nullptr && run.rank->instant.event == at) {
    if (run.rank->RanOut()) text += ", out of memory";
    if (run.rank->instant.kind == InstantKind::kPeak) text += ", the peak";
  }
  return text;
}

}  // namespace

std::string SpeedscopeJson(const ExportedRun& run, Position at) {
  FrameList frames(*run.history);
  std::string samples;
  std::string weights;
  Bytes total = 0;
  for (const Held& held : HeldByStack(*run.history, at)) {
    samples += samples.empty() ? "[" : ",\n[";
    for (bool first = true; const std::size_t frame : frames.StackOf(held)) {
      samples += fmt::format("{}{}", std::exchange(first, false) ? "" : ",", frame);
    }
    samples += ']';
    weights += fmt::format("{}{}", weights.empty() ? "" : ",", held.bytes);
    total += held.bytes;
  }
  const std::string name =
      fmt::format("{}: {} allocated {}", RunName(run), FormatBytes(total), InstantText(run, at));
  const std::string file = run.rank == nullptr ? RunName(run) : run.rank->file;
  return fmt::format(
      "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\n"
      "\"exporter\":\"plimsoll\",\"name\":{},\"activeProfileIndex\":0,\n"
      "\"shared\":{{\"frames\":[\n{}\n]}},\n"
      "\"profiles\":[{{\"type\":\"sampled\",\"name\":{},\"unit\":\"bytes\","
      "\"startValue\":0,\"endValue\":{},\n\"samples\":[\n{}\n],\n\"weights\":[{}]}}]}}\n",
      JsonText(file), frames.json(), JsonText(name), total, samples, weights);
}

}  // namespace plimsoll
