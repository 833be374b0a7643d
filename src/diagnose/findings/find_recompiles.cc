// What torch.compile compiled more than once.
#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// "0" and "1" of "Torch-Compiled Region: 0/1": which region, and its how many-th compilation.
bool SplitContext(std::string_view text, std::string& region, std::string& round) {
  const std::size_t slash = text.rfind('/');
  if (slash == std::string_view::npos) return false;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t begin = slash;
  while (begin > 0 && digit(text[begin - 1])) --begin;
  std::size_t end = slash + 1;
  while (end < text.size() && digit(text[end])) ++end;
  if (begin == slash || end == slash + 1) return false;
  region = text.substr(begin, slash - begin);
  round = text.substr(slash + 1, end - slash - 1);
  return true;
}

}  // namespace

std::vector<Finding> FindRecompiles(const Evidence& e) {
  const Timeline& t = e.trace.timeline;
  std::map<std::string, std::set<std::string>> rounds;
  Bytes made = 0;
  std::int64_t requests = 0;
  for (const EventNote& context : t.compile_contexts) {
    std::string region;
    std::string round;
    if (!SplitContext(t.stacks.strings[context.text], region, round)) continue;
    rounds[region].insert(round);
    if (t.events[context.event].action != Action::kAlloc) continue;
    made += t.events[context.event].size;
    ++requests;
  }
  std::size_t most = 0;
  std::size_t again = 0;
  std::string of;
  for (const auto& [region, each] : rounds) {
    again += each.size() > 1 ? 1 : 0;
    if (each.size() <= most) continue;
    most = each.size();
    of = region;
  }
  if (most < 2) return {};
  Finding finding{.id = FindingId::kRecompiles, .severity = Severity::kInfo};
  finding.title =
      fmt::format("torch.compile compiled region {} {} times within this record", of, most);
  finding.evidence.push_back(
      fmt::format("{} of {} regions {} compiled again; {} requests, {} in all, were made while it "
                  "compiled",
                  again, rounds.size(), again == 1 ? "was" : "were", requests, FormatBytes(made)));
  finding.evidence.push_back(
      "each compilation may try kernels out on the device, which takes memory that the step itself "
      "does not need");
  finding.remedies.push_back(
      {.change = "see why it compiles again, and let the sizes that change be dynamic",
       .basis = Basis::kRule,
       .code = {"TORCH_LOGS=recompiles python train.py", "torch.compile(model, dynamic=True)"}});
  return {finding};
}

}  // namespace plimsoll
