// What can be advised, by the maker of the device and by the program: one table for each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer/finding.h"
#include "diagnose/ways/torch_ways.h"
#include "timeline/message.h"

namespace plimsoll {

enum class Vendor : std::uint8_t { kNvidia, kAmd, kIntel, kApple, kAscend, kGaudi, kTpu, kOther };

struct VendorFacts {
  Vendor vendor;
  /// What people call one device.
  std::string_view device;
  /// Shows who uses the device; "" where there is no such command.
  std::string_view watch;
  /// The variable with the settings of PyTorch's allocator; "" where it has none.
  std::string_view variable;
  /// torch.cuda, torch.xpu, …
  std::string_view module;
  /// What a process holds on such a device besides the allocator's memory.
  std::string_view context;
};

Vendor VendorOf(const OomMessage& message);
const VendorFacts& FactsOf(const OomMessage& message);

/// Who runs: decides what a smaller job is.
enum class Runner : std::uint8_t {
  kTorch,  // a script of PyTorch's: what it was doing decides further
  kVllm,
  kSglang,
  kTextGenerationInference,
  kLlamaCpp,
  kComfyUi,
  kImageUi,
  kDiffusers,
  kTextGenerationUi,
  kLmdeploy,
  kTensorRtLlm,
  kXgboost,
  kCudaJl,
  kTorchXla,
  kTensorFlow,
  kJax,
  kPaddle,
  kCupy,
  kRmm,
  kOnnxRuntime,
  kTensorRt,
  kDirectMl,
  kMlx,
  kUnknown,
};
Runner RunnerOf(const OomMessage& message);
/// Whether a script of PyTorch's runs, which can be changed.
bool IsTorchScript(Runner runner);
/// Whether its ways are rows of the table of frameworks, though it is no script of the user's.
bool IsOfFramework(Runner runner);
/// "PyTorch", "vLLM"; what a sentence calls the program.
std::string_view NameOf(Runner runner);

/// Ways to need less memory, what helps most and costs least first.
std::vector<Remedy> NeedLess(const OomMessage& message);
/// The same for a script of PyTorch's, by the stage that its traceback shows (stage_ways.cc).
std::vector<Remedy> StageWays(const OomMessage& message);
/// Those that are about that stage alone: told first, whatever else is found.
std::vector<Remedy> OwnWaysOfStage(const OomMessage& message);
/// Remedies in flags of vLLM's, as the framework around it has them typed.
std::vector<Remedy> InWordsOfJob(const OomMessage& message, std::vector<Remedy> remedies);
/// The model that the log names in the place of MODEL.
std::vector<Remedy> WithModel(const OomMessage& message, std::vector<Remedy> remedies);
/// Whether a smaller batch can help at all: not before the first one, nor where state is made.
bool BatchMatters(const OomMessage& message);
/// Room for the KV cache that vLLM asks for: what can suffice first (vllm_cache.cc).
std::vector<Remedy> RoomForVllmCache(const OomMessage& message);
/// The same for the host's memory, where a program that serves a model ran out of it.
std::vector<Remedy> NeedLessOnHost(const OomMessage& message);
/// The setting of the allocator that keeps its pieces together, with the lines that say where it
/// goes; none where the release, the backend or the platform has none.
std::optional<Remedy> KeepTogether(const OomMessage& message);
/// Lines for CUDA as they are typed for the message's device: torch.cuda becomes torch.xpu.
void AdaptToDevice(const OomMessage& message, std::vector<std::string>& lines);
/// Whether the process that was killed may run a script of PyTorch's, as far as its name tells
/// (host.cc).
bool MayBePython(const OomMessage& message);
/// How to see who uses the device.
Remedy SeeWhoUsesIt(const OomMessage& message, std::string change);

}  // namespace plimsoll
