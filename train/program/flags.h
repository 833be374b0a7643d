// What plimsoll-train is told on its command line.
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "train/models/model.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train {

struct Flags {
  std::string model;
  ModelSizes sizes;
  std::int64_t image = 0;
  std::string data;

  std::int64_t steps = 100;
  std::int64_t batch = 32;
  /// In place of `batch`: as many samples as have so many tokens or pixels at most.
  std::int64_t batch_tokens = 0;
  std::int64_t batch_pixels = 0;
  bool skip_broken = false;
  double learning_rate = 1e-3;
  std::string schedule = "constant";
  std::int64_t warm_up = 0;
  double ema = 0;
  std::string optimizer = "adamw";
  /// Of the adapters that are trained in place of the model; 0: none.
  std::int64_t lora = 0;
  std::uint64_t seed = 0;
  int workers = 2;
  /// Processes to start on this machine; 0: as the launcher says that started this one.
  int ranks = 0;
  /// Ranks that share the layers of the model: with different layers each (and so many parts of
  /// them), or with parts of the same.
  int pipeline = 1;
  int chunks = 1;
  int tensor = 1;
  /// Of a plan, which says what is not given otherwise.
  std::string plan;
  int way = 0;
  /// What of it is not done.
  std::vector<std::string> left_out;
  /// Of a rank that waits for others, in seconds.
  int rank_limit = 600;

  TrainerOptions trainer;
  std::string log;
  std::string snapshot;
  std::string save;
  /// As safetensors: what to begin with, and what to write at the end.
  std::string initial_weights;
  std::string weights;
  std::int64_t save_every = 0;
  bool resume = false;
  bool allow_changes = false;

  /// Which of them were given.
  std::set<std::string> given;
};

void AddFlags(CLI::App& app, Flags& flags);

/// All that a run depends on, by the name of its flag, for the state to hold.
std::map<std::string, std::string> RunSettings(const Flags& flags);

}  // namespace plimsoll::train
