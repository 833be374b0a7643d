#include "train/program/program.h"

int main(int argc, char** argv) { return plimsoll::train::TrainProgram(argc, argv); }
