// The examples of the guides in one program: examples NAME [WORDS...]. Each is a whole program, as
// people copy it.
#include <cstdio>
#include <string_view>

#define main TrainPieces
#include "train/examples/train_pieces/main.cc"
#undef main
#define main Parallel
#include "train/examples/parallel/main.cc"
#undef main

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "train_pieces") return TrainPieces();
  if (name == "parallel") return Parallel(argc - 1, argv + 1);
  std::fprintf(stderr, "usage: train_examples train_pieces|parallel [WORDS...]\n");
  return 2;
}
