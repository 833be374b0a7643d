#include "train/parallel/ranks/gloo.h"

#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <sstream>
#include <string>

namespace plimsoll::train {
namespace {

/// As Python's: the interfaces of GLOO_SOCKET_IFNAME, else the one of the machine's own name.
void AddDevices(c10d::ProcessGroupGloo::Options& options) {
  const char* names = std::getenv("GLOO_SOCKET_IFNAME");
  if (names == nullptr || *names == '\0') {
    options.devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  } else {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      options.devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
  }
  options.threads = static_cast<int>(options.devices.size()) * 2;
}

/// gloo writes to connections that the other rank has closed. That is to be an error of this rank,
/// not its end; Python's programs ignore the signal too.
void IgnoreBrokenPipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

bool HasGloo() { return true; }

c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, std::chrono::milliseconds time_limit) {
  IgnoreBrokenPipes();
  auto options = c10d::ProcessGroupGloo::Options::create(time_limit);
  AddDevices(*options);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace plimsoll::train
