#include "job/transforms/kept_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "base/text.h"
#include "job/transforms/checkpoint_blocks.h"

namespace plimsoll {
namespace {

constexpr std::string_view kNamespace = "aten.";
constexpr std::string_view kUsualOverload = ".default";
constexpr std::string_view kAttention = "plimsoll.attention";
/// Where `plimsoll.attention` has the chance of a dropout.
constexpr std::size_t kDropoutOfAttention = 4;

std::string FullOp(std::string_view text) {
  if (text == "attention") return std::string(kAttention);
  const bool has_overload = text.find('.') != std::string_view::npos;
  return fmt::format("{}{}{}", kNamespace, text, has_overload ? "" : kUsualOverload);
}

Result<KeptCall> ParseKeptCall(std::string_view text) {
  const std::size_t at = std::min(text.find('@'), text.size());
  KeptCall kept{.op = FullOp(text.substr(0, at))};
  if (at == 0) {
    return Error{.message = "the name of an operator that is kept is missing",
                 .hint = "such as h.0[addmm+attention]"};
  }
  if (at == text.size()) return kept;
  const std::string_view digits = text.substr(at + 1);
  std::size_t nth = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), nth);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) {
    return Error{.message = fmt::format("'{}' names no call of an operator", text),
                 .hint = "such as mm@1, the second call of mm"};
  }
  kept.nth = nth;
  return kept;
}

std::string KeptCallText(const KeptCall& kept) {
  return kept.nth ? fmt::format("{}@{}", ShortOp(kept.op), *kept.nth) : ShortOp(kept.op);
}

const CallRecord& CallAt(const Variant& variant, std::size_t event) {
  return variant.calls[variant.events[event].index];
}

}  // namespace

std::string ShortOp(std::string_view op) {
  if (op == kAttention) return "attention";
  if (op.starts_with(kNamespace)) op.remove_prefix(kNamespace.size());
  if (op.ends_with(kUsualOverload)) op.remove_suffix(kUsualOverload.size());
  return std::string(op);
}

Result<std::vector<KeptCall>> ParseKeptCalls(std::string_view text) {
  std::vector<KeptCall> all;
  for (;;) {
    const std::size_t plus = std::min(text.find('+'), text.size());
    Result<KeptCall> kept = ParseKeptCall(text.substr(0, plus));
    if (!kept) return kept.error();
    all.push_back(std::move(*kept));
    if (plus == text.size()) return all;
    text.remove_prefix(plus + 1);
  }
}

std::string KeptCallsText(const std::vector<KeptCall>& kept) {
  std::vector<std::string> texts;
  for (const KeptCall& one : kept) texts.push_back(KeptCallText(one));
  return Joined(texts, "+");
}

std::set<std::size_t> FindKept(const Job& job, const Variant& variant,
                               const std::vector<std::size_t>& calls,
                               const std::vector<KeptCall>& kept) {
  std::set<std::size_t> found;
  if (kept.empty()) return found;
  std::map<StringId, std::size_t> seen;
  for (const std::size_t event : calls) {
    const StringId op = CallAt(variant, event).op;
    const std::size_t nth = seen[op]++;
    const bool is_kept = std::any_of(kept.begin(), kept.end(), [&](const KeptCall& one) {
      return job.strings[op] == one.op && (!one.nth || *one.nth == nth);
    });
    if (is_kept) found.insert(event);
  }
  return found;
}

std::set<std::size_t> FindKeepable(const Job& job, const Variant& variant,
                                   const std::vector<std::size_t>& calls) {
  std::set<Storage> written;
  for (const std::size_t event : calls) {
    if (const auto storage = WrittenBy(job, CallAt(variant, event))) written.insert(*storage);
  }
  std::set<std::size_t> found;
  for (const std::size_t event : calls) {
    const CallRecord& call = CallAt(variant, event);
    const bool stays = std::none_of(call.fresh.begin(), call.fresh.end(), [&](const auto& fresh) {
      return written.contains(fresh.storage);
    });
    if (!call.fresh.empty() && stays && !WrittenBy(job, call)) found.insert(event);
  }
  return found;
}

bool IsRandom(const Job& job, const CallRecord& call) {
  static constexpr std::array<std::string_view, 9> kRandom = {
      "native_dropout", "bernoulli",   "rand",   "normal",     "uniform",
      "multinomial",    "exponential", "rrelu_", "_fused_drop"};
  const std::string_view op = job.strings[call.op];
  if (op == kAttention) {
    if (call.args.size() <= kDropoutOfAttention) return false;
    const auto* chance = std::get_if<double>(&call.args[kDropoutOfAttention].is);
    return chance != nullptr && *chance > 0;
  }
  if (!op.starts_with(kNamespace)) return false;
  const std::string_view name = op.substr(kNamespace.size());
  return std::any_of(kRandom.begin(), kRandom.end(),
                     [&](std::string_view start) { return name.starts_with(start); });
}

}  // namespace plimsoll
