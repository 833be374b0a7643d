// Messages that do not come from PyTorch's allocators: what each of them means, a row each.
#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "base/text.h"
#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/causes.h"
#include "diagnose/error_texts/xla.h"

namespace plimsoll {
namespace {

struct Meaning {
  MessageSource source;
  OomCause why;
  FindingId finding;
  Severity severity;
  std::string_view title;
  std::string_view evidence;
};
using enum MessageSource;

/// For people who take every such text for a full GPU.
constexpr auto kMeanings = std::to_array<Meaning>({
    {kVirtualAddress, OomCause::kAddressSpace, FindingId::kNone, Severity::kHigh,
     "Addresses are short, not memory: the driver had no range for an expandable segment",
     "address space is limited by the platform, by ulimit -v or by very many segments"},
    {kTorchNvml, OomCause::kUnknown, FindingId::kNone, Severity::kMedium,
     "PyTorch ran out of memory, and the assertion that it shows failed while it asked the driver "
     "for the figures of its message",
     "NVML does not answer on Jetson boards, on some MIG slices and in some containers"},
    {kBrokenSegment, OomCause::kUnknown, FindingId::kNone, Severity::kHigh,
     "An earlier lack of memory left an expandable segment half mapped, and since then every "
     "allocation in this process fails",
     "the assertion is of PyTorch's own allocator; the program cannot go on from it, whatever is "
     "free now"},
    {kDriverNotReady, OomCause::kUnknown, FindingId::kNone, Severity::kLow,
     "The driver called the device not ready, which can follow a lack of memory with expandable "
     "segments",
     "the text alone does not prove it: look for an out-of-memory error above it"},
    {kHipInUse, OomCause::kUnknown, FindingId::kNone, Severity::kInfo,
     "This is no lack of memory: ROCm was to give memory back that the device still used",
     "\"Reason: Memory in use\" names a fault of the program or of the driver, not a full device"},
    {kCudaRuntime, OomCause::kUnknown, FindingId::kOutsidePytorch, Severity::kMedium,
     "A call into CUDA itself found no memory, outside PyTorch's allocator",
     "the error comes from the runtime, which gives no figures: the device was full of this "
     "process "
     "or of others, or pinned host memory could not be had"},
    {kHipRuntime, OomCause::kUnknown, FindingId::kOutsidePytorch, Severity::kMedium,
     "A call into HIP itself found no memory, outside PyTorch's allocator",
     "the error comes from the runtime, which gives no figures"},
    {kCublas, OomCause::kOutside, FindingId::kOutsidePytorch, Severity::kMedium,
     "No memory was left for cuBLAS, which takes its handle and workspace outside PyTorch's "
     "allocator",
     "a few megabytes suffice, so the device is full; an index that is out of range can end in the "
     "same error"},
    {kCudnn, OomCause::kOutside, FindingId::kWorkspaceRefused, Severity::kMedium,
     "cuDNN could not run an operation, as a rule because there was no memory for a workspace",
     "the status alone does not prove it: a smaller batch once tells"},
    {kNccl, OomCause::kOutside, FindingId::kOutsidePytorch, Severity::kHigh,
     "No memory was left for NCCL's buffers, which lie outside PyTorch's allocator",
     "NCCL allocates with cudaMalloc, beside PyTorch"},
    {kHabana, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "The Gaudi device's memory is full", "PT_DEVMEM could not serve the request"},
    {kGgml, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "The device had no room for one of llama.cpp's buffers",
     "weights, KV cache and compute buffer are one large buffer each"},
    {kPaddle, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "The device had too little left for Paddle's request", "as Paddle's allocator counts"},
    {kCupy, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "The device had too little left for CuPy's pool", "as CuPy's pool counts"},
    {kRmm, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "The device had too little left for RMM's pool", "RMM asks the driver for more as it grows"},
    {kOnnxRuntime, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "ONNX Runtime's arena could not grow by what an operator asked for",
     "the arena never gives back what it took; the text does not say what else is on the device"},
    {kTensorRt, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "TensorRT could not get the memory for an engine or its workspace",
     "it allocates outside other frameworks, which may hold the device"},
    {kDirectMl, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "DirectML found no video memory for a tensor",
     "the text has neither the device's size nor what fills it"},
    {kMlx, OomCause::kCapacity, FindingId::kCapacity, Severity::kHigh,
     "The memory that an Apple GPU may use of the host's is full",
     "macOS lets the GPU use about two thirds to three quarters of the memory"},
    {kBitsandbytes, OomCause::kUnknown, FindingId::kOutsidePytorch, Severity::kMedium,
     "bitsandbytes found no memory, which it takes outside PyTorch's allocator",
     "it allocates with CUDA itself; paged optimizers also need the host's memory"},
    {kServer, OomCause::kCapacity, FindingId::kKvCache, Severity::kHigh,
     "What is left beside the weights is too little for the KV cache",
     "the server found that before it began to serve"},
    {kUnknown, OomCause::kUnknown, FindingId::kNone, Severity::kInfo,
     "The text says that memory ran out, and not whose or how much",
     "no message with figures is in it"},
});

/// The levers of a few sources that are not a matter of a smaller job.
std::vector<Remedy> OwnRemedies(const OomMessage& m) {
  const bool library = m.source == kCublas || m.source == kCudnn || m.source == kNccl;
  if (library && RunnerOf(m) == Runner::kTensorFlow) return {PoolSetting(m)};
  if (library && !IsTorchScript(RunnerOf(m))) {
    return {SeeWhoUsesIt(m, "look who is on the device")};
  }
  switch (m.source) {
    case kVirtualAddress:
      return {Rule("lift the limit on virtual memory, of the container too", Lever::kHostLimit,
                   {"ulimit -v unlimited"}),
              Rule("without expandable segments", Lever::kAllocatorSetting,
                   {"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"})};
    case kBrokenSegment:
      return {Rule("start the process anew: to catch the error and try again cannot help",
                   Lever::kOther),
              Rule("without expandable segments an out-of-memory error can be survived",
                   Lever::kAllocatorSetting,
                   {"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"})};
    case kDriverNotReady:
      return {Rule("start the process anew, once without expandable segments",
                   Lever::kAllocatorSetting,
                   {"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"})};
    case kHipInUse:
      return {Rule("look for the kernel: run it once with every call waited for", Lever::kOther,
                   {"AMD_SERIALIZE_KERNEL=3 python train.py", "sudo dmesg -T | tail -50"})};
    case kCublas:
      return {Rule("make the handle early, while there is room", Lever::kOther,
                   {"torch.cuda.current_blas_handle()"}),
              Rule("look for the real error: run once on the CPU, or with CUDA_LAUNCH_BLOCKING=1",
                   Lever::kCheckSize, {"CUDA_LAUNCH_BLOCKING=1 python train.py"})};
    case kCudnn:
      return {Rule("workspaces that are tried out need most", Lever::kOther,
                   {"torch.backends.cudnn.benchmark = False"})};
    case kNccl:
      return {Rule("make the communicators early: one small all_reduce before the model is built",
                   Lever::kOther, {"dist.all_reduce(torch.zeros(1, device=\"cuda\"))"}),
              Rule("fewer channels", Lever::kOther, {"export NCCL_MAX_NCHANNELS=8"})};
    case kMlx:
      return {};
    case kCudaRuntime:
    case kHipRuntime:
    case kBitsandbytes:
    case kTensorRt:
      return {SeeWhoUsesIt(m, "look who is on the device")};
    default:
      return {};
  }
}

void AddRequest(const Figures& f, Finding& finding) {
  const OomMessage& m = f.message;
  if (m.requested && m.free) {
    finding.evidence.push_back(
        fmt::format("{} asked for, {} available", FormatBytes(*m.requested), FormatBytes(*m.free)));
  }
  if (m.allocated) {
    finding.evidence.push_back(fmt::format("{} allocated before", FormatBytes(*m.allocated)));
  }
  if (m.source == kGgml && !m.subject.empty()) {
    finding.evidence.push_back("the text names " + m.subject);
  }
}

/// Only PyTorch has an allocator that a call into CUDA goes past.
void NameTheProgram(const OomMessage& m, Finding& finding) {
  const Runner runner = RunnerOf(m);
  const bool runtime = m.source == kCudaRuntime || m.source == kHipRuntime;
  if (IsTorchScript(runner) || (!runtime && m.source != kUnknown)) return;
  if (m.source == kUnknown && runner == Runner::kUnknown) return;
  finding.id = FindingId::kCapacity;
  finding.title = fmt::format("The device had no memory left for {}", NameOf(runner));
  finding.evidence = {"the text does not say how much was asked for or what fills the device"};
}

/// Where the text names a limit, that is the cause.
void JudgeLimit(const Figures& f, Opinion& opinion) {
  const OomMessage& m = f.message;
  const bool buffer = m.subject == "one buffer";
  const Bytes held = buffer ? 0 : m.allocated.value_or(0);
  const bool beyond = m.allowed && m.requested && held + *m.requested > *m.allowed;
  const bool said = m.subject == "the pool's limit" || m.subject == "the arena's limit";
  if (!beyond && !said) return;
  Finding& finding = *opinion.found;
  finding.id = FindingId::kLimit;
  opinion.why = OomCause::kLimit;
  const std::string much = m.allowed ? " of " + FormatBytes(*m.allowed) : "";
  finding.title = buffer ? fmt::format(
                               "One buffer may have {} at most on this machine, and the request is "
                               "larger",
                               FormatBytes(*m.allowed))
                         : fmt::format("A limit{} is set for {}, and the request goes beyond it",
                                       much, NameOf(RunnerOf(m)));
  if (m.source == kOnnxRuntime && m.other) {
    finding.evidence.push_back(fmt::format("{} was left below the limit", FormatBytes(*m.other)));
  }
  if (!buffer) {
    finding.remedies.insert(
        finding.remedies.begin(),
        Rule("raise the limit", Lever::kMemoryLimit,
             m.source == kCupy ? std::vector<std::string>{"cupy.get_default_memory_pool()."
                                                          "set_limit(fraction=0.9)"}
             : m.source == kOnnxRuntime
                 ? std::vector<std::string>{"{\"gpu_mem_limit\": 8 * 1024**3}   # provider option"}
                 : std::vector<std::string>{"rmm.reinitialize(pool_allocator=True, "
                                            "maximum_pool_size=2**34)"}));
  }
}

/// Requests that a server runs fill its KV cache: what it had at the start sufficed.
void JudgeServing(const OomMessage& m, Finding& finding) {
  if (m.source == kServer && m.program == Program::kTextGenerationInference) {
    finding.title = "What is left beside the weights is too little for so many prefill tokens";
  }
  if (m.source != kServer || m.stage != Stage::kGeneration) return;
  finding.title = "The KV cache has no room left beside the requests that run";
  finding.evidence = {"the server was serving; its KV cache has a fixed size"};
}

/// The weights of a model in 16 bits, or in as few as its name says, by the parameters in its name:
/// "Qwen/Qwen3-8B", "TheBloke/Llama-2-7B-AWQ". Empty where the name has no such number.
std::optional<Bytes> WeightsByName(std::string_view model) {
  const std::string name = Lower(model.substr(model.rfind('/') + 1));
  double billions = 0;
  for (std::size_t b = name.find('b'); b != std::string::npos; b = name.find('b', b + 1)) {
    const bool ends = b + 1 == name.size() || name[b + 1] == '-' || name[b + 1] == '_';
    std::size_t first = b;
    while (first > 0 && (IsDigit(name[first - 1]) || name[first - 1] == '.')) --first;
    if (!ends || first == b) continue;
    const bool experts = first >= 2 && name[first - 1] == 'x' && IsDigit(name[first - 2]);
    billions = std::strtod(name.c_str() + first, nullptr) * (experts ? name[first - 2] - '0' : 1);
    break;
  }
  if (!(billions > 0) || billions > 1e4) return {};
  double bytes = 2;
  for (std::string_view four : {"awq", "gptq", "int4", "4bit", "w4a16", "nvfp4", "mxfp4"}) {
    if (Contains(name, four)) bytes = 0.5;
  }
  for (std::string_view eight : {"fp8", "int8", "8bit", "w8a8"}) {
    if (Contains(name, eight)) bytes = 1;
  }
  return static_cast<Bytes>(billions * 1e9 * bytes);
}

/// vLLM names what it wanted and what was there: the largest share that would start follows.
void JudgeServer(const Figures& f, Opinion& opinion) {
  const OomMessage& m = f.message;
  // What it says is free for the KV cache is not what was free on the device.
  if (m.subject == "the KV cache") return;
  if (!m.capacity || !m.free || !m.requested || *m.capacity <= 0) return;
  Finding& finding = *opinion.found;
  finding.id = FindingId::kOtherProcess;
  opinion.why = OomCause::kNeighbour;
  const Bytes used = *m.capacity - *m.free;
  finding.title =
      fmt::format("{} of the device was in use before the server began", FormatBytes(used));
  finding.evidence = {fmt::format("{} of {} was free, {} was wanted", FormatBytes(*m.free),
                                  FormatBytes(*m.capacity), FormatBytes(*m.requested))};
  const double share = double(*m.free) / double(*m.capacity);
  finding.remedies = {SeeWhoUsesIt(m, "stop what else runs on the device, an earlier server too")};
  // Below that, hardly a model and its cache fit.
  const std::optional<Bytes> weights = WeightsByName(m.model);
  if (share < 0.2) return;
  if (weights && *weights > *m.free / 10 * 9) {
    finding.evidence.push_back(
        fmt::format("the weights of {} alone take about {}: no share of what is free suffices",
                    m.model, FormatBytes(*weights)));
    return;
  }
  finding.remedies.push_back(Rule(
      fmt::format("with the device as it is: a gpu_memory_utilization of {:.2f} at most",
                  int(share * 100) / 100.0),
      Lever::kServerSetting,
      {fmt::format("vllm serve MODEL --gpu-memory-utilization {:.2f}", int(share * 100) / 100.0)}));
}

/// A GPU without a memory of its own: what is free is the host's matter.
void JudgeOneMemory(const OomMessage& m, Finding& finding) {
  if (m.source != kTorchNvml || !m.signs.integrated) return;
  finding.title =
      "PyTorch ran out of memory on an integrated GPU, which shares the host's memory, and failed "
      "while it asked the driver for the figures of its message";
  finding.evidence = {
      "the log shows an integrated GPU (Jetson, GB10): NVML does not answer there, and every "
      "program of the machine, its file cache too, takes from the same memory"};
  finding.remedies.insert(finding.remedies.begin(),
                          Rule("see what else is in the one memory", Lever::kOtherProcesses,
                               {"free -h", "tegrastats   # Jetson"}));
}

/// vLLM's engine gave its memory back to sleep, and somebody else had it when it woke up.
void JudgeWakingUp(const Figures& f, Finding& finding) {
  const OomMessage& m = f.message;
  if (m.subject != "waking up") return;
  finding.id = FindingId::kOtherProcess;
  finding.title = "vLLM could not have its memory back: others had taken it while its engine slept";
  finding.evidence = {
      "cumem_allocator is what vLLM allocates with where an engine can sleep; it maps its memory "
      "again when the engine wakes up"};
  if (m.engine_sleep) {
    finding.evidence.push_back(
        fmt::format("it had freed {} when it went to sleep", FormatBytes(m.engine_sleep->freed)));
  }
  finding.remedies.insert(
      finding.remedies.begin(),
      Rule("let the trainer give back what it caches before the engine wakes up",
           Lever::kReleaseTensors, {"torch.cuda.empty_cache()   # before llm.wake_up()"}));
}

/// Whatever the library went on with.
void JudgeSurvived(const Figures& f, Opinion& opinion) {
  if (!f.message.survived || f.message.signs.went_on) return;
  Finding& finding = *opinion.found;
  const std::string_view who = NameOf(RunnerOf(f.message));
  finding.id = FindingId::kWorkspaceRefused;
  finding.severity = Severity::kLow;
  opinion.why = OomCause::kUnknown;
  if (f.message.called_harmless) {
    finding.title = fmt::format("A request was refused, and {} went on without it", who);
    finding.evidence = {"the text itself says so: it costs speed at most"};
  } else {
    finding.title = fmt::format("A request was refused, and {} tries again with less", who);
    finding.evidence = {"the text does not say how that ended"};
  }
  finding.remedies = {SeeWhoUsesIt(f.message, "if the run ended there: look who is on the device")};
}

}  // namespace

Opinion OfLibrary(const Figures& f) {
  const OomMessage& m = f.message;
  if (m.source == kTensorFlow || m.source == kJax) {
    Opinion opinion = OfXla(f);
    JudgeSurvived(f, opinion);
    return opinion;
  }
  for (const Meaning& meaning : kMeanings) {
    if (meaning.source != m.source) continue;
    Opinion opinion{.found = Finding{.id = meaning.finding,
                                     .severity = meaning.severity,
                                     .title = std::string(meaning.title),
                                     .evidence = {std::string(meaning.evidence)}},
                    .why = meaning.why};
    opinion.found->remedies = OwnRemedies(m);
    const bool needs_less = m.source != kVirtualAddress && m.source != kHipInUse &&
                            m.source != kDriverNotReady && m.source != kBrokenSegment;
    if (needs_less) {
      for (Remedy& remedy : NeedLess(m)) opinion.found->remedies.push_back(std::move(remedy));
    }
    AddRequest(f, *opinion.found);
    JudgeLimit(f, opinion);
    JudgeServing(m, *opinion.found);
    if (m.source == kServer) JudgeServer(f, opinion);
    if (m.source == kCublas && m.subject == "cublasCreate") {
      opinion.found->title =
          "cuBLAS could not make its handle, as a rule because the device has no memory left";
    }
    JudgeOneMemory(m, *opinion.found);
    NameTheProgram(m, *opinion.found);
    JudgeWakingUp(f, *opinion.found);
    if (m.source == kUnknown && m.requested) {
      opinion.found->title =
          fmt::format("The device had no room for {}", FormatBytes(*m.requested));
      opinion.found->evidence = {m.free ? fmt::format("{} was free", FormatBytes(*m.free))
                                        : std::string("the text does not say what fills it")};
      if (m.free) opinion.found->severity = Severity::kHigh;
      if (m.free) opinion.why = OomCause::kCapacity;
    }
    JudgeSurvived(f, opinion);
    return opinion;
  }
  return {};
}

}  // namespace plimsoll
