#include "train/parallel/ranks/launch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace plimsoll::train {
namespace {

/// The names that one launcher gives to the same four numbers.
struct LauncherNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  /// Must be set too, or what is set is not of this launcher. Empty: no such variable.
  const char* sign = "";

  bool slurm() const { return *sign != '\0'; }
};

/// torchrun within anything, and MPI within Slurm, know better than what is around them.
constexpr LauncherNames kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // A batch script has the first two as well, though it is one process; only srun numbers steps.
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_STEP_ID"},
};

std::optional<std::int64_t> Number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
  TORCH_CHECK(error == std::errc() && end == digits.end() && !digits.empty(), "the variable ", name,
              " should be a number, but is \"", text, "\".");
  return value;
}

std::optional<int> LocalNumber(const Environment& environment, const char* name, std::int64_t least,
                               std::int64_t most) {
  const auto value = Number(environment, name);
  if (!value) return std::nullopt;
  TORCH_CHECK(*value >= least && *value <= most, "the variable ", name, " is ", *value,
              ", but should be from ", least, " to ", most, ".");
  return static_cast<int>(*value);
}

/// Of "gpu[003-006,9],login1" the first name, "gpu003".
std::string FirstHost(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t close = std::min(list.find(']', i), list.size() - 1);
    const std::string_view inside = list.substr(i + 1, close - i - 1);
    host += inside.substr(0, inside.find_first_of(",-"));
    i = close;
  }
  return host;
}

/// The tasks of each node may differ; of one node they are all.
std::optional<int> SlurmLocalSize(const Environment& environment, int size) {
  const bool one_node = Number(environment, "SLURM_STEP_NUM_NODES") == 1;
  return one_node ? std::optional(size) : std::nullopt;
}

/// Where srun's ranks meet if nobody says: on the machine of the first, at a port of the job's own.
void MeetAsSlurmJob(const Environment& environment, Launch& launch) {
  const char* hosts = environment("SLURM_STEP_NODELIST");
  if (hosts == nullptr) hosts = environment("SLURM_JOB_NODELIST");
  if (hosts != nullptr) launch.address = FirstHost(hosts);
  const std::int64_t job = Number(environment, "SLURM_JOB_ID").value_or(0);
  const std::int64_t step = Number(environment, "SLURM_STEP_ID").value_or(0);
  constexpr std::int64_t kFirstPort = 15000;
  constexpr std::int64_t kPorts = 15000;
  launch.port = static_cast<std::uint16_t>(kFirstPort + (job * 16 + step) % kPorts);
}

void ReadMeetingPlace(const Environment& environment, const LauncherNames& names, Launch& launch) {
  const bool one_machine = launch.local_size == launch.size;
  if (names.slurm() && !one_machine) MeetAsSlurmJob(environment, launch);
  const char* address = environment("MASTER_ADDR");
  TORCH_CHECK(address != nullptr || names.slurm() || one_machine || launch.size == 1,
              "this is rank ", launch.rank, " of ", launch.size,
              ", but the variable MASTER_ADDR, the machine of rank 0, is not set.");
  if (address != nullptr) launch.address = address;
  constexpr std::int64_t kLastPort = 65535;
  const auto port = LocalNumber(environment, "MASTER_PORT", 1, kLastPort);
  if (port) launch.port = static_cast<std::uint16_t>(*port);
  const char* kept = environment("TORCHELASTIC_USE_AGENT_STORE");
  launch.store_is_kept = kept != nullptr && std::string_view(kept) == "True";
  const char* attempt = environment("TORCHELASTIC_RESTART_COUNT");
  if (attempt != nullptr) launch.attempt = std::string("attempt ") + attempt;
}

Launch Read(const Environment& environment, const LauncherNames& names) {
  const auto rank = Number(environment, names.rank);
  const auto size = Number(environment, names.size);
  TORCH_CHECK(rank.has_value(), "the variable ", names.size, " is set, but ", names.rank,
              " is not.");
  TORCH_CHECK(size.has_value(), "the variable ", names.rank, " is set, but ", names.size,
              " is not.");
  constexpr std::int64_t kMostRanks = 1'000'000;
  TORCH_CHECK(*size >= 1 && *size <= kMostRanks, "the variable ", names.size, " is ", *size,
              ", which is no number of ranks.");
  TORCH_CHECK(*rank >= 0 && *rank < *size, "the variable ", names.rank, " is ", *rank, ", but ",
              names.size, " is ", *size, ": ranks are numbered from 0 to ", *size - 1, ".");
  Launch launch{.rank = static_cast<int>(*rank), .size = static_cast<int>(*size)};
  launch.local_size = names.slurm() ? SlurmLocalSize(environment, launch.size)
                                    : LocalNumber(environment, names.local_size, 1, *size);
  launch.local_rank =
      LocalNumber(environment, names.local_rank, 0, launch.local_size.value_or(launch.size) - 1);
  ReadMeetingPlace(environment, names, launch);
  return launch;
}

}  // namespace

Launch LaunchFromEnvironment(const Environment& environment) {
  for (const LauncherNames& names : kLaunchers) {
    if (names.slurm() && environment(names.sign) == nullptr) continue;
    // Slurm sets SLURM_NTASKS for all that it starts.
    const bool there = environment(names.rank) != nullptr ||
                       (!names.slurm() && environment(names.size) != nullptr);
    if (there) return Read(environment, names);
  }
  return {.local_rank = 0, .local_size = 1};
}

Launch LaunchFromEnvironment() {
  return LaunchFromEnvironment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace plimsoll::train
