#include "job/parallel/collective.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

using Kind = Collective::Kind;

constexpr std::string_view kWait = "plimsoll.wait";
constexpr std::array kKinds = {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllReduce,
                               Kind::kAllToAll, Kind::kSend};
constexpr std::size_t kArguments = 4;

}  // namespace

std::optional<Backend> ParseBackend(std::string_view form) {
  if (form == ":gloo") return Backend::kGloo;
  if (form == ":nccl") return Backend::kNccl;
  return std::nullopt;
}

std::string_view BackendText(std::optional<Backend> backend) {
  if (!backend) return "";
  return *backend == Backend::kGloo ? ":gloo" : ":nccl";
}

std::string_view OpOf(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return "plimsoll.all_gather";
    case Kind::kReduceScatter:
      return "plimsoll.reduce_scatter";
    case Kind::kAllReduce:
      return "plimsoll.all_reduce";
    case Kind::kAllToAll:
      return "plimsoll.all_to_all";
    case Kind::kSend:
      return "plimsoll.send";
  }
  return "plimsoll.send";
}

CallRecord CallOf(Job& job, const Collective& collective, bool early) {
  CallRecord call{.op = job.strings.Intern(OpOf(collective.kind))};
  call.args = {{collective.bytes},
               {Number::Always(collective.ranks)},
               {early},
               {Number::Always(collective.apart)}};
  return call;
}

CallRecord WaitCall(Job& job, Storage made) {
  CallRecord call{.op = job.strings.Intern(kWait)};
  if (made != kElsewhere) call.args = {{TensorUse{.storage = made}}};
  return call;
}

std::optional<Collective> CollectiveOf(const Job& job, const CallRecord& call) {
  const std::string_view op = job.strings[call.op];
  if (!op.starts_with("plimsoll.") || call.args.size() != kArguments) return std::nullopt;
  const auto* kind = std::ranges::find_if(kKinds, [&](Kind k) { return OpOf(k) == op; });
  const auto* bytes = std::get_if<Number>(&call.args[0].is);
  const auto* ranks = std::get_if<Number>(&call.args[1].is);
  const auto* apart = std::get_if<Number>(&call.args[3].is);
  const bool whole = bytes != nullptr && ranks != nullptr && apart != nullptr;
  if (kind == kKinds.end() || !whole) return std::nullopt;
  return Collective{
      .kind = *kind, .bytes = *bytes, .ranks = ranks->least(), .apart = apart->least()};
}

std::vector<Communicator> CommunicatorsOf(const Job& job, const Variant& variant) {
  std::vector<Communicator> found;
  for (const CallRecord& call : variant.calls) {
    const auto collective = CollectiveOf(job, call);
    if (!collective) continue;
    const auto same = std::ranges::find_if(found, [&](const Communicator& one) {
      return one.ranks == collective->ranks && one.apart == collective->apart;
    });
    Communicator& communicator = same != found.end()
                                     ? *same
                                     : found.emplace_back(Communicator{.ranks = collective->ranks,
                                                                       .apart = collective->apart});
    communicator.all_to_all |= collective->kind == Kind::kAllToAll;
  }
  return found;
}

std::int64_t RanksOf(const Job& job, const Variant& variant) {
  std::int64_t most = 0;
  for (const Communicator& one : CommunicatorsOf(job, variant)) {
    most = std::max(most, one.ranks * one.apart);
  }
  return most;
}

bool BeginsEarly(const CallRecord& call) {
  const bool* early =
      call.args.size() == kArguments ? std::get_if<bool>(&call.args[2].is) : nullptr;
  return early != nullptr && *early;
}

std::optional<Storage> WaitsFor(const Job& job, const CallRecord& call) {
  if (job.strings[call.op] != kWait) return std::nullopt;
  const auto* made = call.args.empty() ? nullptr : std::get_if<TensorUse>(&call.args[0].is);
  return made == nullptr ? kElsewhere : made->storage;
}

}  // namespace plimsoll
