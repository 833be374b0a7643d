// Which of how many processes this one is, as the launchers that people have tell it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace plimsoll::train {

/// One rank's place among all, and where they meet.
struct Launch {
  int rank = 0;
  int size = 1;
  /// Among the ranks of this machine; not known if the launcher does not say.
  std::optional<int> local_rank;
  std::optional<int> local_size;
  /// Of the store through which ranks find one another.
  std::string address = "127.0.0.1";
  std::uint16_t port = 29500;
  /// The launcher keeps that store, as torchrun does; else rank 0 does.
  bool store_is_kept = false;
  /// Stands before all names in the store. Each attempt of a launcher that starts anew has its own,
  /// so that none meets what the last one left.
  std::string attempt;
};

/// The value of a variable, or null: as std::getenv.
using Environment = std::function<const char*(const char*)>;

/// From the variables of torchrun (RANK, WORLD_SIZE, …), Open MPI (OMPI_COMM_WORLD_RANK, …), MPICH
/// and what speaks PMI (PMI_RANK, …) or Slurm's srun (SLURM_PROCID, …), the first of these that are
/// there. MASTER_ADDR and MASTER_PORT hold with each. One rank alone where there are none. Throws
/// c10::Error that names the variable.
Launch LaunchFromEnvironment(const Environment& environment);
Launch LaunchFromEnvironment();

}  // namespace plimsoll::train
