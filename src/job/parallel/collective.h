// What ranks do together, as calls of a step: they take no memory by themselves, but time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// More than any job has.
inline constexpr std::int64_t kMostRanks = 1 << 20;

struct Collective {
  enum class Kind : std::uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSend };

  Kind kind = Kind::kAllReduce;
  /// Of the whole: what is gathered, what is reduced, what is sent.
  Number bytes;
  std::int64_t ranks = 2;
  /// How far neighbours are apart in the order of all ranks: 1 where they follow each other.
  std::int64_t apart = 1;
};

/// ":gloo", ":nccl"
std::optional<Backend> ParseBackend(std::string_view form);
/// As ParseBackend takes it; empty for none.
std::string_view BackendText(std::optional<Backend> backend);

/// "plimsoll.all_gather" and so on.
std::string_view OpOf(Collective::Kind kind);

/// It begins when what was issued before it on the computing stream is done, unless `early`: then
/// when the one before it is done.
CallRecord CallOf(Job& job, const Collective& collective, bool early = false);
/// The computing stream waits for the collective that made this storage; for all of them so far
/// without one.
CallRecord WaitCall(Job& job, Storage made = kElsewhere);

std::optional<Collective> CollectiveOf(const Job& job, const CallRecord& call);
/// Ranks that exchange something in one dimension of a mesh: NCCL has a communicator for them.
struct Communicator {
  std::int64_t ranks = 1;
  std::int64_t apart = 1;
  /// Each sends something to each.
  bool all_to_all = false;
};
std::vector<Communicator> CommunicatorsOf(const Job& job, const Variant& variant);
/// Over how many ranks the collectives of a variant reach; 0 if there is none.
std::int64_t RanksOf(const Job& job, const Variant& variant);
bool BeginsEarly(const CallRecord& call);
/// What a wait is for; nothing if the call is none.
std::optional<Storage> WaitsFor(const Job& job, const CallRecord& call);

}  // namespace plimsoll
