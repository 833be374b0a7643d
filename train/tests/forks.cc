// plimsoll-train for tests that start it often. LibTorch takes a third of a second to load and to
// be taken apart again, more than most of what they do: here it is loaded once. Each line that
// comes, "PROCESS FILE", is for a process of its own with the words of the file, each ended by a
// zero, that writes where PROCESS does; its exit code is the answer. With words of its own it is
// plimsoll-train itself, as its ranks are.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "train/program/program.h"

namespace {

[[noreturn]] void BeProgram(int argc, char** argv) {
  const int code = plimsoll::train::TrainProgram(argc, argv);
  std::fflush(nullptr);
  std::_Exit(code);
}

void Become(int file, const std::string& path, int how) {
  const int opened = open(path.c_str(), how);
  if (opened < 0 || dup2(opened, file) < 0) std::_Exit(126);
  close(opened);
}

[[noreturn]] void BeForked(const std::string& process, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  std::string name = "plimsoll-train";
  std::vector<char*> words{name.data()};
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\0', begin) + 1) {
    words.push_back(text.data() + begin);
  }
  const int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  Become(STDIN_FILENO, "/dev/null", O_RDONLY);
  for (const int one : {STDOUT_FILENO, STDERR_FILENO}) {
    Become(one, "/proc/" + process + "/fd/" + std::to_string(one), O_WRONLY | O_APPEND);
  }
  BeProgram(count, words.data());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) BeProgram(argc, argv);
  std::string process;
  std::string file;
  while (std::cin >> process && std::getline(std::cin >> std::ws, file)) {
    const pid_t child = fork();
    if (child == 0) BeForked(process, file);
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << (WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)) << std::endl;
  }
}
