// Programs that serve models: llama.cpp with its ggml, vLLM, SGLang, Ollama.
#include <cstdlib>

#include "readers/wordings/wordings.h"

namespace plimsoll {
namespace {

/// The line below gives the same request in bytes: "failed to allocate CUDA0 buffer of size N".
void ReadExactSize(Scanner& scanner, OomMessage& message) {
  Scanner ahead = scanner;
  if (!ahead.SkipPast("buffer of size", 160)) return;
  const std::optional<std::int64_t> exact = ahead.Integer();
  if (!exact || !message.requested) return;
  if (std::abs(*exact - *message.requested) > kMiB) return;
  message.requested = exact;
  scanner = ahead;
}

}  // namespace

/// "allocating 9866.00 MiB on device 1: cudaMalloc failed: out of memory".
bool ReadGgmlCuda(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Size(message.requested)) return scanner.ended();
  if (!scanner.Literal("on device")) return false;
  if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  if (!scanner.AnyOf({": cudaMalloc failed", ": hipMalloc failed", ": musaMalloc failed"})) {
    return scanner.ended();
  }
  scanner.SkipPast("out of memory", 24);
  ReadExactSize(scanner, message);
  return true;
}

/// "failed to allocate CUDA0 buffer of size N", "… CPU buffer of size N", "unable to allocate CUDA0
/// buffer".
bool ReadGgmlBuffer(Scanner& scanner, std::string_view, OomMessage& message) {
  const std::string name = scanner.Until("b", 16);
  if (!scanner.Literal("buffer")) return false;
  if (name.starts_with("CPU") || name.empty()) {
    message.source = MessageSource::kHostMemory;
    message.host = HostEvent::kRequest;
    message.program = Program::kLlamaCpp;
  } else if (const std::size_t digit = name.find_first_of("0123456789");
             digit != std::string::npos) {
    message.device = name[digit] - '0';
  } else if (name.find("Metal") == std::string::npos && name.find("Vulkan") == std::string::npos) {
    return false;
  }
  if (scanner.AnyOf({"of size", ", size ="})) {
    if (!scanner.Size(message.requested)) message.requested = scanner.Integer();
  }
  return message.requested || message.device || message.host == HostEvent::kRequest;
}

/// "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv
/// cache".
bool ReadGgmlCache(Scanner&, std::string_view, OomMessage& message) {
  message.subject = "the KV cache";
  return true;
}

/// "failed to allocate compute buffers", "failed to allocate compute pp buffers".
bool ReadGgmlCompute(Scanner& scanner, std::string_view, OomMessage& message) {
  message.subject = "the compute buffer";
  return scanner.SkipPast("buffers", 4);
}

/// "Device memory allocation of size N failed." of Vulkan.
bool ReadGgmlVulkan(Scanner& scanner, std::string_view, OomMessage& message) {
  message.requested = scanner.Integer();
  return message.requested && scanner.Literal("failed");
}

/// vLLM's "Free memory on device [cuda:0 ](F/C GiB) on startup is less than desired GPU memory
/// utilization (U, D GiB)".
bool ReadVllmStartup(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kVllm;
  if (scanner.Literal("cuda:")) {
    if (auto device = scanner.Integer()) message.device = static_cast<int>(*device & 0xffff);
  }
  if (!scanner.Literal("(")) return false;
  const std::string free = scanner.Until("/", 16);
  if (!scanner.Literal("/") || !scanner.Size(message.capacity)) return scanner.ended();
  // The first figure has no unit of its own.
  message.free = static_cast<Bytes>(std::atof(free.c_str()) * static_cast<double>(kGiB));
  message.cut_off = true;
  if (!scanner.SkipPast("desired GPU memory utilization (", 40)) return true;
  scanner.Until(",", 12);
  scanner.Literal(",");
  message.cut_off = !scanner.Size(message.requested);
  return true;
}

/// "No available memory for the cache blocks."
bool ReadVllmNoBlocks(Scanner&, std::string_view, OomMessage& message) {
  message.program = Program::kVllm;
  message.subject = "the KV cache";
  return true;
}

/// "(X GiB KV cache is needed, which is larger than the available KV cache memory (Y GiB)".
bool ReadVllmCacheNeeded(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.program = Program::kVllm;
  message.subject = "the KV cache";
  const std::size_t open = before.rfind('(');
  if (open != std::string_view::npos) {
    const std::string needed(before.substr(open + 1));
    Scanner size(needed, 0);
    size.Size(message.requested);
  }
  if (scanner.SkipPast("available KV cache memory (", 40)) scanner.Size(message.free);
  if (scanner.SkipPast("estimated maximum model length is", 60)) {
    message.tokens_that_fit = scanner.Integer();
  }
  return true;
}

/// "The model's max seq len (N) is larger than the maximum number of tokens that can be stored in
/// KV cache (M)".
bool ReadVllmTokens(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kVllm;
  if (scanner.Literal("(")) message.tokens_that_fit = scanner.Integer();
  message.subject = "the KV cache";
  return true;
}

/// SGLang's "Not enough memory. Please try to increase --mem-fraction-static."
bool ReadSglang(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kSglang;
  message.subject = "the KV cache";
  return scanner.SkipPast("--mem-fraction-static", 60);
}

/// SGLang's "Prefill out of memory. Try to lower your batch size.", "Decode out of memory happened.
/// #retracted_reqs: 1", "KV cache pool is full. Retract requests.": it takes the requests back and
/// goes on.
bool ReadSglangPool(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kSglang;
  message.subject = "the KV cache";
  message.stage = Stage::kGeneration;
  message.survived = scanner.SkipPast("retract", 40);
  message.called_harmless = message.survived;
  return true;
}

/// text-generation-inference's "Not enough memory to handle N prefill tokens."
bool ReadTextGeneration(Scanner& scanner, std::string_view, OomMessage& message) {
  message.program = Program::kTextGenerationInference;
  return scanner.Integer().has_value();
}

/// Ollama's "model requires more system memory (11.9 GiB) than is available (8.2 GiB)".
bool ReadOllamaSystem(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRequest;
  message.program = Program::kLlamaCpp;
  message.cut_off = !scanner.Literal("(") || !scanner.Size(message.requested);
  if (scanner.SkipPast("than is available (", 8)) scanner.Size(message.free);
  return true;
}

/// Ollama's "model request too large for system" requested="21.5 GiB" available=16509091840.
bool ReadOllamaTooLarge(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRequest;
  message.program = Program::kLlamaCpp;
  if (scanner.SkipPast("requested=", 8)) {
    scanner.Literal("\"");
    scanner.Size(message.requested);
  }
  if (scanner.SkipPast("available=", 8)) message.free = scanner.Integer();
  return true;
}

/// vLLM's "Too large swap space. S out of the S total CPU memory is allocated for the swap space."
bool ReadVllmSwap(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRequest;
  message.program = Program::kVllm;
  message.subject = "the swap space";
  message.cut_off = !scanner.Size(message.requested);
  if (scanner.Literal("out of the")) scanner.Size(message.capacity);
  return true;
}

}  // namespace plimsoll
