// What a selective checkpoint keeps: the results of single calls, which a plain one would make
// again like all others.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct KeptCall {
  /// "aten.addmm.default"; "plimsoll.attention" for whichever kernel scaled_dot_product_attention
  /// takes.
  std::string op;
  /// Which of the operator's calls in one forward of the module; all of them where it is not said.
  std::optional<std::size_t> nth = {};

  bool operator==(const KeptCall&) const = default;
};

/// "addmm+mm@1+attention": without the namespace and the overload where these are the usual ones,
/// calls counted from 0.
Result<std::vector<KeptCall>> ParseKeptCalls(std::string_view text);
std::string KeptCallsText(const std::vector<KeptCall>& kept);

/// "addmm" of "aten.addmm.default".
std::string ShortOp(std::string_view op);

/// Of the calls of one forward of a module, by their events: those that are kept.
std::set<std::size_t> FindKept(const Job& job, const Variant& variant,
                               const std::vector<std::size_t>& calls,
                               const std::vector<KeptCall>& kept);

/// Of the same calls: those whose results can be kept. They make something, and nothing writes into
/// it in place, which PyTorch refuses for what it keeps.
std::set<std::size_t> FindKeepable(const Job& job, const Variant& variant,
                                   const std::vector<std::size_t>& calls);

/// Whether it draws random numbers. A checkpoint sets their state back to what it was when the
/// module began, and what is kept draws none: what comes after it and is repeated would get others.
bool IsRandom(const Job& job, const CallRecord& call);

}  // namespace plimsoll
