// Messages that do not come from PyTorch's allocators: what each of them means.
#include <fmt/format.h>

#include "diagnose/error_texts/causes.h"

namespace plimsoll {
namespace {

struct Meaning {
  MessageSource source;
  OomCause why;
  const char* reason;
  FindingId finding;
  Severity severity;
  const char* title;
  const char* evidence;
  std::vector<const char*> remedies;
};

/// One row for each source. The reasons are for people who take every such text for a full GPU.
const std::vector<Meaning>& Meanings() {
  using enum MessageSource;
  static const auto* const kMeanings = new std::vector<Meaning>{
      {kTorchAbsurd,
       OomCause::kBugInSize,
       "More than an exabyte was asked for: no device has that. A size was computed wrongly "
       "(negative, overflowed, or read from uninitialised memory); memory is not the problem.",
       FindingId::kNone,
       Severity::kHigh,
       "A size is wrong, memory is not short",
       "more than 1 EB was asked for",
       {"print the shapes at the failing line; look for a negative or overflowed dimension"}},
      {kVirtualAddress,
       OomCause::kAddressSpace,
       "The driver had no range of addresses for an expandable segment. That is not a lack of "
       "memory: address space is limited by the platform, by ulimit -v or by very many segments.",
       FindingId::kNone,
       Severity::kHigh,
       "Address space is short, not memory",
       "the message is about virtual addresses",
       {"lift ulimit -v (and the container's limit on virtual memory)",
        "lower expandable_segments_reserve, or set expandable_segments:False"}},
      {kHostMemory,
       OomCause::kHost,
       "This is the memory of the host (RAM), not of the GPU. Batch size on the GPU matters little "
       "here; the DataLoader's workers, the dataset in memory, offloaded states and pinned buffers "
       "do.",
       FindingId::kHostMemory,
       Severity::kHigh,
       "The host's memory ran out, not the GPU's",
       "the text comes from the CPU allocator, the kernel or the job's memory limit",
       {"fewer DataLoader workers, smaller prefetch_factor, datasets that are mapped from disk",
        "ask the scheduler for more memory (Slurm --mem, Kubernetes resources.limits.memory)"}},
      {kCudaRuntime,
       OomCause::kUnknown,
       "A call into CUDA itself failed for lack of memory, outside PyTorch's allocator, so no "
       "figures are printed. Either the device was full (of this process or of others), or pinned "
       "host memory could not be had, as often under WSL.",
       FindingId::kOutsidePytorch,
       Severity::kMedium,
       "CUDA itself could not get memory",
       "the error comes from the CUDA runtime, without figures",
       {"look who is on the device: nvidia-smi", "under WSL: pin_memory=False in the DataLoader"}},
      {kCublas,
       OomCause::kOutside,
       "cuBLAS could not make its handle: the device is so full that not even its few megabytes "
       "outside PyTorch's allocator are left.",
       FindingId::kOutsidePytorch,
       Severity::kMedium,
       "No memory was left for cuBLAS",
       "CUBLAS_STATUS_ALLOC_FAILED",
       {"leave room: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.95)",
        "call torch.cuda.current_blas_handle() early, while there is room"}},
      {kCudnn,
       OomCause::kOutside,
       "cuDNN refused an operation. Where memory is short that is often a workspace that could not "
       "be had; the status alone does not prove it.",
       FindingId::kWorkspaceRefused,
       Severity::kMedium,
       "cuDNN could not run an operation",
       "the status that cuDNN gave",
       {"try a smaller batch once: if the error goes, it was memory",
        "torch.backends.cudnn.benchmark = False asks for smaller workspaces"}},
      {kNccl,
       OomCause::kOutside,
       "NCCL could not get its communication buffers. They lie outside PyTorch's allocator, which "
       "had left too little of the device.",
       FindingId::kOutsidePytorch,
       Severity::kHigh,
       "No memory was left for NCCL's buffers",
       "NCCL allocates with cudaMalloc, beside PyTorch",
       {"make the communicators early: one small all_reduce before the model is built",
        "leave room: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9)",
        "fewer channels: NCCL_MAX_NCHANNELS=8"}},
      {kHabana,
       OomCause::kCapacity,
       "The memory of the Gaudi device is full.",
       FindingId::kCapacity,
       Severity::kHigh,
       "The Gaudi device is full",
       "PT_DEVMEM could not serve the request",
       {"smaller batch, or more devices (tensor parallelism)"}},
      {kTensorFlow,
       OomCause::kCapacity,
       "TensorFlow's allocator (BFC) had no piece of that size left on the device.",
       FindingId::kCapacity,
       Severity::kHigh,
       "TensorFlow's pool on the device is full",
       "the BFC allocator could not serve the request",
       {"smaller batch", "TF_GPU_ALLOCATOR=cuda_malloc_async where the pool is in pieces",
        "tf.config.experimental.set_memory_growth if other programs share the device"}},
      {kJax,
       OomCause::kCapacity,
       "The program that XLA compiled needs more than the device could give.",
       FindingId::kCapacity,
       Severity::kHigh,
       "The compiled program does not fit",
       "XLA could not allocate what the program needs",
       {"smaller batch, or jax.checkpoint (remat) around the layers",
        "donate buffers that are overwritten: jax.jit(f, donate_argnums=…)",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=.95 (JAX takes 75 % by default)"}},
  };
  return *kMeanings;
}

/// What XLA's own figures add.
void AddXla(const Figures& figures, Judgement& judgement) {
  const OomMessage& m = figures.message;
  Finding& finding = judgement.findings.front();
  if (m.other && m.capacity && *m.other > *m.capacity) {
    finding.evidence.push_back(fmt::format("{} needed in all, {} on the device: {} too much",
                                           FormatBytes(*m.other), FormatBytes(*m.capacity),
                                           FormatBytes(*m.other - *m.capacity)));
    judgement.reason = fmt::format("The compiled program needs {}, the device has {}.",
                                   FormatBytes(*m.other), FormatBytes(*m.capacity));
  } else if (m.other) {
    finding.evidence.push_back(fmt::format("the program needs {} in all", FormatBytes(*m.other)));
  }
  for (std::size_t i = 0; i < m.buffers.size() && i < 5; ++i) {
    const OomMessage::Buffer& buffer = m.buffers[i];
    finding.evidence.push_back(
        fmt::format("{} {}{}{}", buffer.size ? FormatBytes(*buffer.size) : std::string("?"),
                    buffer.what, buffer.where.empty() ? "" : " from ", buffer.where));
  }
  if (!m.buffers.empty() && m.buffers.front().size) {
    judgement.reason +=
        fmt::format(" Its largest buffer is {} ({}{}{}).", FormatBytes(*m.buffers.front().size),
                    m.buffers.front().what, m.buffers.front().where.empty() ? "" : ", ",
                    m.buffers.front().where);
  }
}

}  // namespace

Judgement JudgeLibrary(const Figures& figures) {
  Judgement judgement;
  for (const Meaning& meaning : Meanings()) {
    if (meaning.source != figures.message.source) continue;
    judgement.why = meaning.why;
    judgement.reason = meaning.reason;
    Finding finding;
    finding.id = meaning.finding;
    finding.severity = figures.message.survived ? Severity::kLow : meaning.severity;
    finding.rank = figures.message.rank;
    finding.title = meaning.title;
    finding.evidence = {meaning.evidence};
    for (const char* remedy : meaning.remedies) finding.remedies.push_back(Rule(remedy));
    judgement.findings.push_back(std::move(finding));
  }
  if (figures.message.survived) {
    judgement.findings.front().id = FindingId::kWorkspaceRefused;
    judgement.findings.front().title = "A request was refused and the library went on with less";
    judgement.findings.front().evidence = {
        "the library says that this is not a failure; it costs "
        "speed at most"};
    judgement.reason = "The library said so only as a warning and went on with less memory.";
  }
  if (figures.message.source == MessageSource::kJax) AddXla(figures, judgement);
  const OomCause why = judgement.why;
  if (why == OomCause::kHost || why == OomCause::kAddressSpace || why == OomCause::kBugInSize) {
    judgement.ruled_out.push_back(
        {FindingId::kCapacity, "A full GPU: the text is not about the device's memory."});
  }
  return judgement;
}

}  // namespace plimsoll
