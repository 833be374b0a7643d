// What an out-of-memory message says, whoever wrote it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "timeline/framework.h"
#include "timeline/stage.h"
#include "timeline/versions.h"

namespace plimsoll {

/// Which allocator or library gave up.
enum class MessageSource : std::uint8_t {
  kTorchCuda,         // the caching allocator on NVIDIA GPUs
  kTorchHip,          // the same on AMD GPUs
  kTorchXpu,          // on Intel GPUs
  kTorchMps,          // on Apple GPUs
  kTorchNpu,          // on Ascend NPUs
  kTorchOtherDevice,  // on devices of other makers: MUSA, MLU, GCU
  kTorchAsync,        // the cudaMallocAsync backend
  kTorchRejected,     // refused beforehand by per_process_memory_fraction
  kTorchAbsurd,       // more than an exabyte was asked for: a bug in a size
  kTorchNvml,         // PyTorch ran out and then failed to ask the driver for its message
  kBrokenSegment,     // an earlier lack of memory left an expandable segment half mapped
  kDriverNotReady,    // "CUDA driver error: device not ready": may be of the same family
  kCudaRuntime,       // "CUDA error: out of memory" without figures
  kHipRuntime,        // the same of AMD's
  kHipInUse,          // AMD's "Reason: Memory in use": not a lack of memory
  kCublas,            // CUBLAS_STATUS_ALLOC_FAILED
  kCudnn,             // CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_ALLOC_FAILED
  kNccl,              // NCCL could not get its buffers
  kHostMemory,        // the memory of the host; HostEvent says who noticed
  kHabana,            // Gaudi's device memory
  kVirtualAddress,    // no address range for an expandable segment: not a lack of memory
  kTensorFlow,
  kJax,
  kGgml,  // llama.cpp and what is built on it
  kPaddle,
  kCupy,
  kOnnxRuntime,
  kTensorRt,
  kDirectMl,
  kMlx,
  kRmm,
  kBitsandbytes,
  kServer,   // an inference server that found too little room before it began
  kUnknown,  // "out of memory", and nothing that tells whose
};

/// Who noticed that the host had no memory left.
enum class HostEvent : std::uint8_t {
  kNone,          // the message is not about the host
  kRequest,       // a request failed: PyTorch's CPU allocator, NumPy, malloc
  kPinned,        // page-locked memory could not be had
  kDriver,        // NVIDIA's driver found none for itself, as on machines with one memory
  kPageFile,      // Windows could commit no more
  kSharedMemory,  // /dev/shm is full
  kWorkerKilled,  // a DataLoader's worker was killed
  kWorkerLost,    // a DataLoader's worker ended, and the text does not say why
  kJavaHeap,      // the heap of a Java virtual machine
  kKernelKill,    // the kernel killed: the whole machine was full
  kCgroupKill,    // the kernel killed: the limit of a container or job was reached
  kSlurmKill,
  kBatchKill,  // PBS, LSF and other batch systems
  kKubernetesKill,
  kNodePressure,  // Kubernetes evicted a pod because the node had too little left
  kSystemdKill,   // systemd-oomd killed because memory pressure or its use was high
  kRayKill,
  kEarlyOomKill,  // earlyoom, a program that watches the machine
  kDaskKill,      // Dask's nanny restarted a worker
  kKilled,        // signal 9 from somebody; the text does not say that it was for memory
};

/// The program around the library, as far as the lines near a message show it.
enum class Program : std::uint8_t {
  kUnknown,
  kVllm,
  kSglang,
  kTextGenerationInference,
  kLlamaCpp,  // and Ollama, which runs it
  kComfyUi,
  kImageUi,  // the other programs for making images
  kDiffusers,
  kTextGenerationUi,  // text-generation-webui
  kLmdeploy,
  kTensorRtLlm,
  kXgboost,
  kCudaJl,    // CUDA.jl of Julia
  kTorchXla,  // PyTorch on XLA's devices
  kTensorFlow,
  kJax,
  kOther,  // a call into CUDA in words that PyTorch does not use
};

/// What the lines near a message tell about the machine and the job.
struct Signs {
  bool windows = false;
  bool wsl = false;
  bool communicates = false;   // NCCL, a launcher of several processes
  bool data_parallel = false;  // torch.nn.DataParallel
  bool pins_memory = false;    // a thread or a call that page-locks memory
  bool tpu = false;
  bool went_on = false;             // the log shows that the program caught the error
  bool transformers = false;        // models of that library
  bool offloads_optimizer = false;  // its state is in the host's memory already
  bool autocast = false;            // it runs in bf16 or fp16 already
  bool checkpoints = false;         // activations are checkpointed already
  bool stepped_before = false;      // the log shows that steps were done before the message
  bool joins_predictions = false;   // an evaluation puts the predictions of its batches together
  bool attention_scores = false;    // the innermost lines compute the scores of attention
  bool deep_copy = false;           // a model is copied as a whole
  bool integrated = false;          // the GPU has no memory but the host's (Jetson, GB10)
  FrameworkSet frameworks = {};     // what runs the loop

  Signs& operator|=(const Signs& other);
};

/// What a program does within a stage, where its functions tell more than a stage does and other
/// switches help than in the rest of it.
enum class Activity : std::uint8_t {
  kNone,
  kProfileRun,     // an engine tries its largest batch before it serves
  kSamplerWarmUp,  // it samples for as many requests as it may have
  kGraphCapture,   // it records CUDA graphs
  kCacheMade,      // it takes the memory of its KV cache
  kWakeUp,         // it takes back what it gave away while it slept
  kVaeDecode,      // images are made of latents
  kVaeEncode,      // latents are made of images
  kPromptEncoded,  // the text encoders of a pipeline run
  kLogProbs,       // log-probabilities of what was generated, or of a reference model
  kAdapterMerged,  // an adapter is added to the weights
};

/// One "Process 1234 has 3.21 GiB memory in use." of PyTorch 2.1 and newer.
struct ProcessUse {
  std::optional<std::int64_t> pid;  // none: "this process"
  std::optional<Bytes> bytes;       // none: the driver would not say (Windows, WSL)
};

/// Of the host's memory, before it was full: a trainer prints it from time to time.
struct HostUse {
  Bytes used = 0;
  double percent = 0;
};

/// What an engine that shares its card prints when it goes to sleep.
struct EngineSleep {
  Bytes freed = 0;
  /// Of the card, by it and by all others.
  Bytes still_in_use = 0;
};

/// All processes of one name, by the kernel's table of tasks.
struct TaskUse {
  std::string name;
  int processes = 0;
  Bytes bytes = 0;
};

/// Every field is what the text says; what it does not say is empty. Sizes printed with two
/// decimals are exact only to half a unit of the last digit.
struct OomMessage {
  MessageSource source = MessageSource::kTorchCuda;
  HostEvent host = HostEvent::kNone;
  Program program = Program::kUnknown;
  /// What the job was doing, by the functions in the traceback.
  Stage stage = Stage::kUnknown;
  Activity activity = Activity::kNone;
  Signs signs = {};
  /// The releases of PyTorch that write these words, as narrow as they allow.
  std::optional<TorchVersions> torch;
  std::optional<int> device;
  std::optional<int> rank;
  std::optional<Bytes> requested;
  std::optional<Bytes> capacity;       // total capacity of the device, or of the host
  std::optional<Bytes> free;           // free according to the driver
  std::optional<Bytes> allocated;      // in tensors; in use of a pool or of the host
  std::optional<Bytes> active;         // in tensors or awaited by a stream
  std::optional<Bytes> reserved;       // held by the caching allocator, in all
  std::optional<Bytes> reserved_free;  // reserved but not allocated
  std::optional<Bytes> allowed;        // a limit: set by the user, or of a pool, a buffer, a job
  std::optional<Bytes> private_pools;  // free lists of CUDA graphs' pools (mislabelled upstream)
  std::vector<ProcessUse> processes;
  /// The first and the last that was printed above the message.
  std::optional<std::pair<HostUse, HostUse>> host_use;
  /// The last that was printed above the message.
  std::optional<EngineSleep> engine_sleep;
  /// What a server printed above the message that its CUDA graphs would take; below 0 where its
  /// profile went wrong.
  std::optional<Bytes> graph_estimate;
  /// The message shows that expandable segments were on when it was written: newer releases then
  /// leave their hint out.
  bool expandable_on = false;
  /// Those with most first.
  std::vector<TaskUse> tasks;
  /// MPS: memory of other kinds in the same budget. XLA: what the program needs in all.
  std::optional<Bytes> other;
  /// A server's KV cache: the tokens that it has room for, or the longest context that would fit.
  std::optional<std::int64_t> tokens_that_fit;
  /// A server's share of the device, where the text or the lines near it tell.
  std::optional<double> share;
  /// The stage of DeepSpeed's ZeRO; where a traceback alone tells that it is 1 or 2, it is 2.
  std::optional<int> zero_stage;
  /// Samples in one pass on one device, and passes for one step of the optimizer, where a trainer
  /// prints them.
  std::optional<std::int64_t> device_batch;
  std::optional<std::int64_t> accumulation;
  /// Parameters that are trained, where a trainer prints how many.
  std::optional<std::int64_t> trained;
  /// The model that a server was told to load, as its command line names it.
  std::string model;
  /// The control group whose limit was reached: "/slurm/uid_1000/job_77".
  std::string cgroup;
  /// The tensor, operator, call, process or job step that the text names.
  std::string subject;
  /// XLA prints its largest buffers with their source: "1.50 GiB train.py:12 dot_general".
  struct Buffer {
    std::optional<Bytes> size;
    std::string where;
    std::string what;
    /// Of the size, what the layout of the device adds (TPU).
    std::optional<Bytes> padding = {};
  };
  std::vector<Buffer> buffers;
  /// The source line of the user's program in the traceback of the message, if there is one.
  std::string where;
  /// The text ends in the middle of the message.
  bool cut_off = false;
  /// The library went on, or tries again with less: not what ended the run.
  bool survived = false;
  /// The text itself says that it is no failure.
  bool called_harmless = false;
  /// Where in the input the message begins: line from 1, and byte offset.
  std::size_t line = 0;
  std::size_t offset = 0;
};

}  // namespace plimsoll
