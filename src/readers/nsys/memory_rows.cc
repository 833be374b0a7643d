#include "readers/nsys/memory_rows.h"

#include <algorithm>

#include "files/read_budget.h"
#include "timeline/limits.h"
#include "timeline/stack_builder.h"

namespace plimsoll {
namespace {

constexpr const char* kRecordHint =
    "record with nsys profile --cuda-memory-usage=true, then nsys export --type=sqlite";
/// No real backtrace is deeper.
constexpr std::size_t kDeepestChain = 256;

std::int64_t WithoutThread(std::int64_t global_id) { return global_id & ~std::int64_t{0xffffff}; }

class ContentReader {
 public:
  ContentReader(Database& database, ReadBudget& budget) : database_(database), budget_(budget) {}

  void ReadEvents() {
    TableRows rows = database_.Rows(
        kMemoryTable, {"start", "globalPid", "deviceId", "address", "bytes", "memKind",
                       "memoryOperationType", "name", "correlationId", "streamId"});
    while (!budget_.spent() && rows.Next()) AddEvent(rows);
    std::stable_sort(
        content_.rows.begin(), content_.rows.end(),
        [](const MemoryRow& a, const MemoryRow& b) { return a.start_ns < b.start_ns; });
  }

  void ReadStart() {
    TableRows rows = database_.Rows("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs"});
    if (rows.Next()) content_.epoch_ns = rows.Integer(0).value_or(0);
  }

  /// Which API call made each allocation, and its backtrace (nsys profile --cudabacktrace).
  void ReadCalls() {
    for (const MemoryRow& row : content_.rows) {
      if (row.correlation >= 0) content_.calls.try_emplace({row.global_pid, row.correlation});
    }
    if (content_.calls.empty()) return;
    TableRows rows = database_.Rows("CUPTI_ACTIVITY_KIND_RUNTIME",
                                    {"globalTid", "correlationId", "nameId", "callchainId"});
    while (rows.Next()) {
      const auto thread = rows.Integer(0), correlation = rows.Integer(1);
      if (!thread || !correlation) continue;
      const auto found = content_.calls.find({WithoutThread(*thread), *correlation});
      if (found == content_.calls.end()) continue;
      found->second = {.name = rows.Integer(2).value_or(0), .chain = rows.Integer(3).value_or(-1)};
      Want(found->second.name);
      if (found->second.chain >= 0) content_.chains.try_emplace(found->second.chain);
    }
  }

  void ReadChains() {
    if (content_.chains.empty()) return;
    TableRows rows = database_.Rows("CUDA_CALLCHAINS", {"id", "stackDepth", "symbol", "module"});
    while (!budget_.spent() && rows.Next()) {
      const auto id = rows.Integer(0), symbol = rows.Integer(2);
      if (!id || !symbol) continue;
      const auto found = content_.chains.find(*id);
      if (found == content_.chains.end() || found->second.size() >= kDeepestChain) continue;
      if (!budget_.Take(sizeof(ChainFrame))) break;
      found->second.push_back({.depth = rows.Integer(1).value_or(0),
                               .symbol = *symbol,
                               .module = rows.Integer(3).value_or(0)});
      Want(*symbol);
      Want(found->second.back().module);
    }
    for (auto& [id, chain] : content_.chains) {
      std::stable_sort(chain.begin(), chain.end(),
                       [](const ChainFrame& a, const ChainFrame& b) { return a.depth < b.depth; });
    }
  }

  void ReadStrings() {
    if (content_.strings.empty()) return;
    TableRows rows = database_.Rows("StringIds", {"id", "value"});
    while (!budget_.spent() && rows.Next()) {
      const auto found = content_.strings.find(rows.Integer(0).value_or(-1));
      if (found == content_.strings.end()) continue;
      found->second = CutName(rows.Text(1), kLongestName);
      budget_.Take(found->second.size());
    }
  }

  NsysContent TakeContent() { return std::move(content_); }

 private:
  void Want(std::int64_t string) {
    constexpr std::size_t kEntry = 96;
    if (content_.strings.try_emplace(string).second) budget_.Take(kEntry);
  }

  void AddEvent(const TableRows& row) {
    const auto start = row.Integer(0), address = row.Integer(3), bytes = row.Integer(4);
    const auto operation = row.Integer(6);
    const std::int64_t device = row.Integer(2).value_or(0);
    const Bytes size = bytes.value_or(-1);
    if (!start || !address || size < 0 || size > kLargestSize || device < 0 || device > (1 << 20)) {
      ++content_.skipped["memory events without a usable time, address, size or device"];
      return;
    }
    if (operation != 0 && operation != 1) {
      ++content_.skipped["memory events that neither allocate nor free"];
      return;
    }
    // Older exports have no kinds: they knew device memory only.
    const std::int64_t kind = row.Integer(5).value_or(static_cast<int>(MemoryKind::kDevice));
    if (kind < 0 || kind > static_cast<int>(MemoryKind::kManagedStatic)) {
      ++content_.skipped["memory events of a kind that is not known"];
      return;
    }
    if (size > kMostInAll - in_all_) {
      ++content_.skipped["memory events beyond 256 pebibytes in all"];
      return;
    }
    // Each becomes up to three events, and may name a call.
    if (!budget_.Take(2 * sizeof(MemoryRow))) return;
    in_all_ += size;
    MemoryRow& out = content_.rows.emplace_back();
    out = {.start_ns = *start,
           .global_pid = WithoutThread(row.Integer(1).value_or(0)),
           .address = static_cast<std::uint64_t>(*address),
           .bytes = size,
           .correlation = row.Integer(8).value_or(-1),
           .stream = row.Integer(9).value_or(0),
           .device = static_cast<std::int32_t>(device),
           .kind = static_cast<MemoryKind>(kind),
           .freed = *operation == 1,
           .name = StringId()};
    if (const std::string_view name = row.Text(7); !name.empty()) {
      const std::size_t known = content_.names.size();
      const std::string cut = CutName(name, kLongestName);
      out.name = content_.names.Intern(cut);
      if (content_.names.size() > known) budget_.Take(cut.size() + 112);
    }
  }

  Database& database_;
  ReadBudget& budget_;
  NsysContent content_;
  Bytes in_all_ = 0;  // sizes so far
};

}  // namespace

Result<NsysContent> ReadContent(Database& database, const Input& input) {
  const bool has_table = database.HasTable(kMemoryTable);
  if (database.error()) return *database.error();
  if (!has_table) {
    return Error{.message =
                     "the database has no GPU memory events "
                     "(no table CUDA_GPU_MEMORY_USAGE_EVENTS)",
                 .file = input.name(),
                 .hint = kRecordHint};
  }
  ReadBudget budget(input);
  ContentReader reader(database, budget);
  reader.ReadEvents();
  if (database.error()) return *database.error();
  if (budget.spent()) return ReadBudget::Refusal();
  // From here on a damaged table costs names and times, not the answer.
  reader.ReadStart();
  reader.ReadCalls();
  reader.ReadChains();
  reader.ReadStrings();
  NsysContent content = reader.TakeContent();
  if (database.error()) ++content.skipped["tables of names that are damaged"];
  if (budget.spent()) ++content.skipped["tables of names that are too long"];
  if (content.rows.empty()) {
    return Error{.message = "the database holds no GPU memory events that can be used",
                 .file = input.name(),
                 .hint = kRecordHint};
  }
  return content;
}

}  // namespace plimsoll
