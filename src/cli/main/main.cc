#include "cli/run.h"

int main(int argc, char** argv) {
  return plimsoll::Run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
                       PLIMSOLL_VERSION);
}
