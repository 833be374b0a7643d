// The words of the vocabulary, each list in the order of its enumeration.
#include <algorithm>
#include <array>

#include "answer/explanation.h"
#include "base/check.h"

namespace plimsoll {
namespace {

template <typename Enum, std::size_t count>
std::string_view Named(const std::array<std::string_view, count>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  PLIMSOLL_CHECK(index < count && !names[index].empty());
  return names[index];
}

constexpr std::array<std::string_view, kAccountItemCount> kItemNames = {
    "parameters",   "gradients",       "optimizer_state",
    "activations",  "inputs",          "kv_cache",
    "temporaries",  "workspaces",      "kept",
    "unattributed", "rounding",        "pending",
    "fragmented",   "cached",          "outside",
    "nccl",         "other_processes", "free",
    "unnamed",      "unknown"};

constexpr std::array<std::string_view, kAccountItemCount> kItemLabels = {
    "parameters",   "gradients",       "optimizer state",
    "activations",  "inputs",          "KV cache",
    "temporaries",  "workspaces",      "kept",
    "unattributed", "rounding",        "pending",
    "fragmented",   "cached",          "outside",
    "NCCL",         "other processes", "free",
    "unnamed",      "unknown"};

constexpr std::array<std::string_view, kAccountItemCount> kItemWords = {
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "KV cache",
    "temporaries",
    "workspaces",
    "tensors that are kept and pile up",
    "tensors of unknown use",
    "rounding of block sizes",
    "blocks that wait for another stream",
    "free pieces inside segments in use",
    "free cached segments",
    "memory outside PyTorch's allocator",
    "memory of NCCL",
    "memory of other processes",
    "free memory",
    "memory that the text names no owner of",
    "memory that the text says nothing of"};

}  // namespace

std::string_view CategoryName(Category category) { return Named(kItemNames, ItemOf(category)); }

std::string_view CategoryLabel(Category category) { return Named(kItemLabels, ItemOf(category)); }

std::string_view AccountItemName(AccountItem item) { return Named(kItemNames, item); }

std::string_view AccountItemLabel(AccountItem item) { return Named(kItemLabels, item); }

std::string_view AccountItemWords(AccountItem item) { return Named(kItemWords, item); }

bool IsReserved(AccountItem item) { return item < AccountItem::kOutside; }

Bytes BytesOf(const std::vector<AccountLine>& account, AccountItem what) {
  Bytes sum = 0;
  for (const AccountLine& line : account) sum += line.what == what ? line.bytes : 0;
  return sum;
}

std::string_view ConfidenceName(Confidence confidence) {
  static constexpr std::array<std::string_view, 3> kNames = {"high", "medium", "low"};
  return Named(kNames, confidence);
}

std::string_view FindingName(FindingId id) {
  static constexpr std::array<std::string_view, 27> kNames = {"capacity",
                                                              "fragmentation",
                                                              "limit",
                                                              "leak",
                                                              "crumbs",
                                                              "warm_up",
                                                              "longest_batch",
                                                              "eval_spike",
                                                              "workspace_refused",
                                                              "rank_imbalance",
                                                              "device_imbalance",
                                                              "stray_context",
                                                              "other_process",
                                                              "outside_pytorch",
                                                              "host_memory",
                                                              "rounding_loss",
                                                              "private_pools",
                                                              "kv_cache",
                                                              "unused_graph",
                                                              "savings",
                                                              "neighbours",
                                                              "recompiles",
                                                              "pending_free",
                                                              "pinned_rounding",
                                                              "allocator_retries",
                                                              "nearly_full",
                                                              "none"};
  return Named(kNames, id);
}

std::string_view SeverityName(Severity severity) {
  static constexpr std::array<std::string_view, 4> kNames = {"high", "medium", "low", "info"};
  return Named(kNames, severity);
}

std::string_view LeverName(Lever lever) {
  static constexpr std::array<std::string_view, 19> kNames = {
      "other",          "smaller_batch",     "checkpointing", "mixed_precision", "optimizer",
      "sharding",       "allocator_setting", "memory_limit",  "other_processes", "release_tensors",
      "server_setting", "quantization",      "offload",       "loader_workers",  "host_limit",
      "shared_memory",  "check_size",        "evaluation",    "chunked_loss"};
  return Named(kNames, lever);
}

std::string_view BasisName(Basis basis) {
  static constexpr std::array<std::string_view, 5> kNames = {"recorded", "replayed", "measured",
                                                             "estimated", "rule"};
  return Named(kNames, basis);
}

std::string_view InstantName(InstantKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"peak", "oom", "event"};
  return Named(kNames, kind);
}

std::string_view OomCauseName(OomCause cause) {
  static constexpr std::array<std::string_view, 10> kNames = {
      "unknown",   "capacity", "fragmentation", "limit",         "too_large",
      "neighbour", "outside",  "host",          "address_space", "bug_in_size"};
  return Named(kNames, cause);
}

Bytes CardReport::MostKept() const {
  Bytes most = 0;
  for (const HandOver& h : hand_overs) most = std::max(most, h.not_given_back);
  return most;
}

std::vector<std::string> RecordAdvice::Lines() const {
  std::vector<std::string> all;
  if (by_run) {
    all = {run, "# or from inside the script, before the model is built:",
           "import plimsoll; plimsoll.record()"};
  }
  all.insert(all.end(), lines.begin(), lines.end());
  return all;
}

}  // namespace plimsoll
