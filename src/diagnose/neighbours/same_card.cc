#include "diagnose/neighbours/same_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "diagnose/neighbours/presence.h"

namespace plimsoll {
namespace {

/// As many processes of one card are looked at together: each is read once more.
constexpr std::size_t kMostProcesses = 8;
/// Ranks hold at least this share of their memory at the same lines.
constexpr double kSameProgram = 0.5;

struct CardCandidate {
  const RankReport* rank = nullptr;
  std::string host;
};

/// Of each line its share of what is held; the lines that say nothing of a program are left out.
std::map<std::string, double> SharesOfLines(const RankReport& r) {
  std::map<std::string, double> shares;
  double all = 0;
  for (const Holder& h : r.holders) all += double(h.bytes);
  for (const Holder& h : r.holders) {
    const bool tells = h.others == 0 && !Contains(h.where, "no stack");
    if (tells && all > 0) shares[h.where] += double(h.bytes) / all;
  }
  return shares;
}

double SumOf(const std::map<std::string, double>& shares) {
  double sum = 0;
  for (const auto& [line, share] : shares) sum += share;
  return sum;
}

/// Without lines: as many steps, and as much memory.
bool AlikeInFigures(const RankReport& a, const RankReport& b) {
  const double one = double(a.peak_allocated.value_or(0));
  const double other = double(b.peak_allocated.value_or(0));
  return a.steps == b.steps && std::abs(one - other) <= 0.1 * std::max(one, other);
}

bool SameProgram(const RankReport& a, const RankReport& b) {
  const std::map<std::string, double> one = SharesOfLines(a);
  const std::map<std::string, double> other = SharesOfLines(b);
  const double known = std::min(SumOf(one), SumOf(other));
  constexpr double kTellsEnough = 0.1;
  if (known < kTellsEnough) return AlikeInFigures(a, b);
  double shared = 0;
  for (const auto& [line, share] : one) {
    const auto found = other.find(line);
    if (found != other.end()) shared += std::min(share, found->second);
  }
  return shared >= kSameProgram * known;
}

bool AreRanks(const RankReport& a, const RankReport& b) {
  return SameProgram(a, b) && WorkAtOnce(a.presence->busy, b.presence->busy);
}

/// The devices of one file are one process. Where two of several are ranks, nothing says which of
/// them shares a card with a third.
bool AnyAreRanks(const std::vector<CardCandidate>& group) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const RankReport& a = *group[j].rank;
      const RankReport& b = *group[i].rank;
      if (a.file == b.file || AreRanks(a, b)) return true;
    }
  }
  return false;
}

/// Those whose clocks overlap, be it through a third, in the order of time; each set in the order
/// in which the files were given.
std::vector<std::vector<CardCandidate>> ByClock(const std::vector<CardCandidate>& group) {
  std::vector<std::size_t> order(group.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto record = [&](std::size_t i) { return group[i].rank->presence->record; };
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return record(i).begin; });
  std::vector<std::vector<std::size_t>> sets;
  TimeUs last = 0;
  for (const std::size_t i : order) {
    if (sets.empty() || record(i).begin > last) sets.emplace_back();
    sets.back().push_back(i);
    last = std::max(last, record(i).end);
  }
  std::vector<std::vector<CardCandidate>> together;
  for (std::vector<std::size_t>& set : sets) {
    std::ranges::sort(set);
    together.emplace_back();
    for (const std::size_t i : set) together.back().push_back(group[i]);
  }
  return together;
}

/// The files' names without what they have in common at their ends: "trainer"; with as many folders
/// as it takes to tell them apart.
std::vector<std::string> NamesFor(const std::vector<CardCandidate>& group) {
  std::vector<std::string> names;
  for (std::size_t folders = 0; folders < 16; ++folders) {
    names.clear();
    for (const CardCandidate& c : group) {
      std::string path = c.rank->file;
      for (const std::string_view ending :
           {".xz", ".gz", ".zst", ".pickle", ".pkl", ".json", ".snapshot"}) {
        if (path.ends_with(ending)) path.resize(path.size() - ending.size());
      }
      std::size_t from = path.size();
      for (std::size_t i = 0; i <= folders && from != std::string::npos && from > 0; ++i) {
        from = path.rfind('/', from - 1);
      }
      names.push_back(from == std::string::npos || from == 0 ? path : path.substr(from + 1));
    }
    if (std::set(names.begin(), names.end()).size() == names.size()) break;
  }
  return names;
}

std::string SecondsText(TimeUs time) { return fmt::format("{:.1f} s", double(time) / 1e6); }

/// Why two records that could be of one card are not: the first ends before the second begins. Two
/// runs of one program at different times are compared as ranks are, without a word.
std::string WhyApart(const RankReport& first, const RankReport& second) {
  if (SameProgram(first, second)) return "";
  const TimeUs between = second.presence->record.begin - first.presence->record.end;
  return fmt::format(
      "{} and {} are not taken for processes of one card, although both have device {}: their "
      "clocks do not overlap, the one ends {} before the other begins",
      first.file, second.file, first.device.value_or(0), SecondsText(between));
}

/// The traces that could be of one card: the same device, rank and host.
std::vector<std::vector<CardCandidate>> Candidates(
    const std::vector<Explanation>& parts,
    const std::vector<std::pair<std::string, std::string>>& hosts) {
  using CardKey = std::tuple<int, int, std::string>;
  std::map<CardKey, std::vector<CardCandidate>> groups;
  for (const Explanation& part : parts) {
    for (const RankReport& r : part.ranks) {
      if (!r.peaks || !r.presence || !r.device || r.file == "-") continue;
      const auto known =
          std::ranges::find(hosts, r.file, &std::pair<std::string, std::string>::first);
      const std::string host = known != hosts.end() ? known->second : HostFromPath(r.file);
      groups[{*r.device, r.rank.value_or(-1), host}].push_back({&r, host});
    }
  }
  std::vector<std::vector<CardCandidate>> found;
  for (auto& [key, group] : groups) {
    if (group.size() > 1) found.push_back(std::move(group));
  }
  return found;
}

std::string KnownBy(const std::vector<CardCandidate>& group) {
  bool at_once = false;
  TimeUs first = group.front().rank->presence->record.begin;
  TimeUs last = group.front().rank->presence->record.end;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Presence& a = *group[i].rank->presence;
    first = std::max(first, a.record.begin);
    last = std::min(last, a.record.end);
    for (std::size_t j = 0; j < i; ++j) {
      at_once |= WorkAtOnce(a.busy, group[j].rank->presence->busy);
    }
  }
  std::string text = fmt::format("device {} in each record", *group.front().rank->device);
  if (!group.front().host.empty()) text += ", host " + group.front().host;
  if (first <= last)
    text += fmt::format(", {} of their clocks in common", SecondsText(last - first));
  return text + (at_once ? ", and other lines of code hold the memory: they are no ranks"
                         : ", and they work by turns: they are no ranks");
}

SharedCard CardOf(const std::vector<CardCandidate>& processes) {
  SharedCard card{
      .device = *processes.front().rank->device, .members = {}, .known_by = KnownBy(processes)};
  const std::vector<std::string> names = NamesFor(processes);
  for (std::size_t i = 0; i < processes.size(); ++i) {
    card.members.push_back({{names[i], processes[i].rank->file}, processes[i].host});
  }
  return card;
}

}  // namespace

std::string HostFromPath(const std::string& path) {
  const std::string lower = Lower(path);
  for (const std::string_view word : {"node", "host"}) {
    for (std::size_t at = lower.find(word); at != std::string::npos;
         at = lower.find(word, at + 1)) {
      if (at > 0 && (IsLetter(lower[at - 1]) || IsDigit(lower[at - 1]))) continue;
      std::size_t end = at + word.size();
      while (end < lower.size() && (lower[end] == '-' || lower[end] == '_')) ++end;
      const std::size_t name = end;
      while (end < lower.size() && (IsDigit(lower[end]) || IsLetter(lower[end]))) ++end;
      // "node3", "host-b", "hostname": a name of one letter or of digits, no word.
      const std::string_view rest = std::string_view(lower).substr(name, end - name);
      if (IsNumber(rest) || rest.size() == 1) return lower.substr(at, end - at);
    }
  }
  return "";
}

SharedCards FindSharedCards(const std::vector<Explanation>& parts,
                            const std::vector<std::pair<std::string, std::string>>& hosts) {
  SharedCards shared;
  for (const std::vector<CardCandidate>& group : Candidates(parts, hosts)) {
    if (group.size() > kMostProcesses || AnyAreRanks(group)) continue;
    const std::vector<std::vector<CardCandidate>> together = ByClock(group);
    for (const std::vector<CardCandidate>& processes : together) {
      if (processes.size() > 1) shared.cards.push_back(CardOf(processes));
    }
    if (together.size() < 2) continue;
    const std::string apart = WhyApart(*together[0].back().rank, *together[1].front().rank);
    if (!apart.empty()) shared.apart.push_back(apart);
  }
  return shared;
}

namespace {

/// The one figure that all error texts of a device agree on.
template <typename FigureOf>
std::optional<Bytes> TextsFigure(const std::vector<Explanation>& parts, int device, FigureOf of) {
  std::optional<Bytes> figure;
  for (const Explanation& part : parts) {
    for (const RankReport& r : part.ranks) {
      if (r.peaks || r.device.value_or(device) != device) continue;
      const std::optional<Bytes> one = of(r);
      if (!one) continue;
      if (figure && *figure != *one) return std::nullopt;
      figure = one;
    }
  }
  return figure;
}

}  // namespace

std::optional<Bytes> CapacityBeside(const std::vector<Explanation>& parts, int device) {
  return TextsFigure(parts, device, [](const RankReport& r) { return r.capacity; });
}

std::optional<Bytes> OthersBeside(const std::vector<Explanation>& parts, int device) {
  return TextsFigure(parts, device, [](const RankReport& r) -> std::optional<Bytes> {
    const Bytes others = BytesOf(r.account, AccountItem::kOtherProcesses);
    return others > 0 ? std::optional(others) : std::nullopt;
  });
}

}  // namespace plimsoll
