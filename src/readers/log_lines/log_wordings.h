// Every line in which a program tells memory while it runs: who prints it, words that no other line
// has, and what reads it. A new one is a row in log_wordings.cc and one small function.
#pragma once

#include <span>
#include <string_view>

#include "readers/log_lines/figure_line.h"
#include "readers/log_lines/figure_sink.h"

namespace plimsoll {

using LogWordingReader = void(const FigureLine& line, FigureSink& sink);

struct LogWording {
  std::string_view program;
  /// Found anywhere in a line; neither blanks nor case matter.
  std::string_view phrase;
  LogWordingReader* read;
  /// A line of it, with the lines that it needs around it.
  std::string_view sample;
};

std::span<const LogWording> LogWordings();

/// Words with which a line of the user's own program may tell memory: asked last, where no other
/// row has read a figure.
std::span<const std::string_view> OwnWords();
LogWordingReader ReadOwnLine;

/// A figure behind a key.
struct FieldWording {
  std::string_view key;
  /// Behind the number; without one, the number must be whole by what follows it.
  std::string_view unit;
  double factor;
  FigureField field;
  /// Something stands behind it on every whole line.
  bool more = false;
};
/// Those of the fields that stand in the line, in their order.
void ReadFields(const FigureLine& line, std::span<const FieldWording> fields, FigureSink& sink,
                const FigurePlace& place = {}, std::size_t from = 0);

// wordings_trainers.cc
LogWordingReader ReadTitan, ReadTitanModel, ReadTitanCapacity, ReadTitanRetries, ReadTitanOoms,
    ReadTitanBatch, ReadDeepSpeedMemory, ReadDeepSpeedThroughput, ReadDeepSpeedTimer,
    ReadDeepSpeedHost, ReadMegatron, ReadMegatronTheory, ReadMegatronSaver, ReadBridge,
    ReadNemoCallback, ReadTorchtunePhase, ReadTorchtuneStep, ReadAcceleratePeak, ReadXtuner,
    ReadPrimeRl, ReadOlmo, ReadLitgpt, ReadNanochat, ReadModdedNanogpt, ReadMlx, ReadTorchRec,
    ReadBatchFact, ReadLengthFact;

// wordings_hugging_face.cc
LogWordingReader ReadHfDelta, ReadHabana, ReadAxolotlStep, ReadAxolotlPhase, ReadSwift,
    ReadUnslothCard, ReadUnslothReserved, ReadUnslothPeak, ReadLlamaFactory;

// wordings_vision.cc
LogWordingReader ReadDetectron, ReadDetectronStats, ReadMmengine, ReadMmengineJson, ReadYoloCard,
    ReadFairseqFree, ReadFairseqTotal;

// wordings_rl.cc
LogWordingReader ReadVerlPhase, ReadVerlStep, ReadVerlUsage, ReadEasyR1, ReadNemoRlOffload,
    ReadNemoRlGpumem, ReadSlime;

// wordings_engines.cc
LogWordingReader ReadVllmWeights, ReadVllmProfile, ReadVllmShare, ReadVllmAccount, ReadVllmCache,
    ReadVllmTokens, ReadVllmGraphs, ReadVllmGraphPool, ReadVllmInitial, ReadVllmFreeAfter,
    ReadVllmNonCache, ReadVllmSleep, ReadVllmAllocatorSleep, ReadSglangMemory, ReadSglangCache,
    ReadSglangLast;

// wordings_systems.cc
LogWordingReader ReadSmiCard, ReadSmiProcess, ReadSeff;

}  // namespace plimsoll
