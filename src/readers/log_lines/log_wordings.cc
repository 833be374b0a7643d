#include "readers/log_lines/log_wordings.h"

#include <array>

namespace plimsoll {
namespace {

// Samples are ours, with invented figures. docs/formats/log_lines.md has each of them.
constexpr auto kLogWordings = std::to_array<LogWording>({
    {"torchtitan", "GiB(", ReadTitan,
     "[rank3]:[titan] 2026-03-02 10:11:12,131 - root - INFO - step: 40  loss:  6.21734  "
     "grad_norm:  1.1043  memory: 71.90GiB(90.80%)  tps: 4,310  tflops: 250.10  mfu: 25.29%"},
    {"torchtitan", "memory usage for model:", ReadTitanModel,
     "CUDA memory usage for model: 3.77GiB(4.77%)"},
    {"torchtitan", "GiB memory", ReadTitanCapacity,
     "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.18GiB memory"},
    {"torchtitan", "memory allocation retries", ReadTitanRetries,
     "[titan] 2026-03-02 10:11:12,131 - root - WARNING - 4 CUDA memory allocation retries."},
    {"torchtitan", "OOM errors thrown", ReadTitanOoms,
     "[titan] 2026-03-02 10:11:12,131 - root - WARNING - 1 CUDA OOM errors thrown."},
    {"torchtitan", "local batch size", ReadTitanBatch,
     "Training starts at step 1, with local batch size 8, global batch size 64, gradient "
     "accumulation steps 1, sequence length 8192, total steps 1000"},
    {"DeepSpeed", "GB Max_MA", ReadDeepSpeedMemory,
     "after initializing group 0\n"
     "MA 11.21 GB         Max_MA 14.03 GB         CA 15.5 GB         Max_CA 16 GB "},
    {"DeepSpeed", "MemAllocated=", ReadDeepSpeedThroughput,
     "epoch=0/micro_step=64/global_step=16, RunningAvgSamplesPerSec=10.4, CurrSamplesPerSec=10.6, "
     "MemAllocated=21.4GB, MaxMemAllocated=55.02GB"},
    {"DeepSpeed", "| mem_allocated:", ReadDeepSpeedTimer,
     " | mem_allocated: 11.2100 GB | max_mem_allocated: 14.0300 GB | cache_allocated: 15.5000 GB | "
     "max_cache_allocated: 16.0000 GB"},
    {"DeepSpeed", "CPU Virtual Memory:", ReadDeepSpeedHost,
     "CPU Virtual Memory:  used = 489.03 GB, percent = 97.1%"},
    {"Megatron-LM", "memory (MB) |", ReadMegatron,
     "[Rank 24] (after 2 iterations) memory (MB) | allocated: 40112.06 | max allocated: 62890.11 | "
     "reserved: 66304.00 | max reserved: 66304.00"},
    {"Megatron-LM", "Theoretical memory footprints:", ReadMegatronTheory,
     "Theoretical memory footprints: weight and optimizer=14025.12 MB, activation=22110.50 MB, "
     "total=36135.62 MB"},
    {"Megatron-LM", "resv-alloc=", ReadMegatronSaver,
     "alloc=812MiB private=12MiB resv-alloc=120MiB resv=932MiB dev_mem=2210MiB"},
    {"Megatron-Bridge", "memory (GB) |", ReadBridge,
     "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 31.204 | "
     "mem-reserved-gigabytes: 52.118 | mem-max-allocated-gigabytes: 48.77 | mem-alloc-retires: 0"},
    {"NeMo", "_end rank:", ReadNemoCallback, "on_train_batch_end rank: 3 mem: 12.5 / 40.25"},
    {"NeMo", "_start rank:", ReadNemoCallback, "on_train_batch_start rank: 3 mem: 11.5 / 40.25"},
    {"torchtune", "peak memory active:", ReadTorchtunePhase,
     "Memory stats after model init:\n\tGPU peak memory active: 15.20 GiB"},
    {"torchtune", "peak memory alloc:", ReadTorchtunePhase, "\tGPU peak memory alloc: 15.11 GiB"},
    {"torchtune", "peak memory reserved:", ReadTorchtunePhase,
     "\tGPU peak memory reserved: 16.41 GiB"},
    {"torchtune", "peak_memory_", ReadTorchtuneStep,
     "Step 12 | loss:1.204 lr:2e-05 tokens_per_second_per_gpu:3110.2 peak_memory_active:21.93 "
     "peak_memory_alloc:21.70 peak_memory_reserved:24.08 "},
    {"transformers", "_mem_gpu", ReadHfDelta, "  train_mem_gpu_peaked_delta =    10311MB"},
    {"transformers", "_mem_cpu", ReadHfDelta, "  train_mem_cpu_alloc_delta  =      311MB"},
    {"optimum-habana", "memory_allocated (GB)", ReadHabana,
     "{'loss': 1.2, 'step': 10, 'memory_allocated (GB)': 12.5, 'max_memory_allocated (GB)': 30.12, "
     "'total_memory_available (GB)': 94.62}"},
    {"axolotl", "'memory/", ReadAxolotlStep,
     "{'loss': 1.02, 'memory/max_active (GiB)': 21.5, 'memory/max_allocated (GiB)': 21.25, "
     "'memory/device_reserved (GiB)': 24.0, 'epoch': 0.1}"},
    {"axolotl", "\"memory/", ReadAxolotlStep,
     "{\"loss\": 1.02, \"memory/max_mem_active(gib)\": 21.5, \"epoch\": 0.1}"},
    {"axolotl", "GB (+", ReadAxolotlPhase,
     "[2024-05-05 09:00:00,000] [INFO] [axolotl.callbacks.on_step_end:126] [PID:77] [RANK:0] GPU "
     "memory usage while training: 9.310GB (+6.004GB cache, +0.744GB misc)"},
    {"ms-swift", "memory(GiB)", ReadSwift,
     "{'loss': 1.02, 'memory(GiB)': 61.25, 'train_speed(s/it)': 3.1, 'global_step/max_steps': "
     "'20/900'}"},
    {"unsloth", "Max memory", ReadUnslothCard, "GPU = Tesla T4. Max memory = 14.563 GB."},
    {"unsloth", "GB of memory reserved.", ReadUnslothReserved, "5.125 GB of memory reserved."},
    {"unsloth", "Peak reserved memory", ReadUnslothPeak, "Peak reserved memory = 9.887 GB."},
    {"LLaMA-Factory", "vram_allocated", ReadLlamaFactory,
     "{\"current_steps\": 20, \"total_steps\": 900, \"vram_allocated\": 12.5, \"vram_reserved\": "
     "15.25}"},
    {"accelerate, PEFT", "Memory before entering the", ReadAcceleratePeak,
     "GPU Memory before entering the train : 4096"},
    {"accelerate, PEFT", "Memory consumed at the end of the", ReadAcceleratePeak,
     "GPU Memory consumed at the end of the train (end-begin): 512"},
    {"accelerate, PEFT", "Peak Memory consumed during the", ReadAcceleratePeak,
     "GPU Total Peak Memory consumed during the train (max): 12345"},
    {"xtuner", "reserved_memory:", ReadXtuner,
     "Epoch 1 Step 12/500 loss: 1.2 grad_norm: 0.9 max_memory: 41.20 GB reserved_memory: 48.55 GB "
     "tgs: 3110.2"},
    {"prime-rl", "Peak Mem.", ReadPrimeRl,
     "Step 12 | Time: 3.20s | Loss: 1.2043 | Peak Mem. 61.2/79.1 GiB (77.4%)"},
    {"OLMo-core", "GPU active mem (GiB)", ReadOlmo,
     "[step=12/500,epoch=1,eta=1:02:03]\n    gpu_memory/GPU active mem (GiB)=41.02"},
    {"OLMo-core", "GPU reserved mem (GiB)", ReadOlmo,
     "[step=12/500,epoch=1,eta=1:02:03]\n    gpu_memory/GPU reserved mem (GiB)=48.12"},
    {"litgpt", "Memory used:", ReadLitgpt, "Memory used: 31.20 GB"},
    {"nanochat", "Peak memory usage:", ReadNanochat, "Peak memory usage: 61234.50MiB"},
    {"modded-nanogpt", "peak memory allocated:", ReadModdedNanogpt,
     "peak memory allocated: 31234 MiB reserved: 40112 MiB"},
    {"mlx-lm", "Peak mem ", ReadMlx,
     "Iter 10: Train loss 1.203, It/sec 1.20, Trained Tokens 20480, Peak mem 14.310 GB"},
    {"TorchRec", "GPUMemoryStats:", ReadTorchRec,
     "GPUMemoryStats: Rank 3: retries=0, allocated= 812mb, reserved= 1024mb, free= 78000mb, "
     "total= 81008mb, used= 3008mb"},
    {"detectron2", "max_mem:", ReadDetectron,
     "eta: 1:02:03  iter: 19  total_loss: 1.2  time: 0.4  data_time: 0.01  lr: 0.001  max_mem: "
     "10512M"},
    {"detectron2", "max_reserved_mem:", ReadDetectronStats,
     " iter: 19  max_reserved_mem: 9001MB  reserved_mem: 8800MB  max_allocated_mem: 8123MB  "
     "allocated_mem: 3011MB "},
    {"mmengine", "data_time:", ReadMmengine,
     "Epoch(train)  [2][ 50/7330]  lr: 1e-03  eta: 1:02:03  time: 0.4  data_time: 0.01  memory: "
     "8123  loss: 1.2"},
    {"mmengine", "\"data_time\":", ReadMmengineJson,
     "{\"lr\": 0.001, \"data_time\": 0.01, \"loss\": 1.2, \"iter\": 50, \"memory\": 8123, "
     "\"step\": 50}"},
    {"ultralytics", "MiB)", ReadYoloCard,
     "Ultralytics 8.3.0 Python-3.11 torch-2.5.0 CUDA:0 (NVIDIA A100-SXM4-40GB, 40514MiB)"},
    {"fairseq", "gb_free", ReadFairseqFree,
     "{\"epoch\": 1, \"num_updates\": \"100\", \"gb_free\": \"9.3\", \"wall\": \"61\"}"},
    {"fairseq", "total memory =", ReadFairseqTotal,
     "rank   0: capabilities =  7.0  ; total memory = 31.749 GB ; name = Tesla V100"},
    {"verl", "memory allocated (GB):", ReadVerlPhase,
     "(WorkerDict pid=881) After update_actor, memory allocated (GB): 12.34, memory reserved (GB): "
     "40.02, device memory used/total (GB): 46.90/79.11"},
    {"verl", "_gb:", ReadVerlStep,
     "step:12 - perf/max_memory_allocated_gb:41.25 - perf/max_memory_reserved_gb:52.5 - "
     "perf/cpu_memory_used_gb:120.5"},
    {"verl", "Memory usage [", ReadVerlUsage,
     "Memory usage [before cleanup]: Total: 79.11 GB, Allocated: 12.10 GB, Reserved: 30.20 GB, "
     "Cached: 30.20 GB"},
    {"EasyR1", "GB / ", ReadEasyR1, "After vllm init: 45.10 GB / 79.11 GB."},
    {"NeMo-RL", "GB allocated,", ReadNemoRlOffload,
     "GPU Memory before optimizer offload: 30.10GB allocated, 41.20GB reserved"},
    {"NeMo-RL", "[gpumem]", ReadNemoRlGpumem,
     "[gpumem] tag=refit rank=3 alloc=1.20 max_alloc=40.10 reserved=2.00 max_reserved=44.00 "
     "driver_used=4.10 total=79.11"},
    {"slime", "Memory-Usage", ReadSlime,
     "[Rank 3] Memory-Usage after wake up: {'gpu': '0', 'total_GB': 79.11, 'free_GB': 3.2, "
     "'used_GB': 75.91, 'allocated_GB': 12.5, 'reserved_GB': 20.25, 'host_used_GB': 100.5}"},
    {"vLLM", "Loading model weights took", ReadVllmWeights,
     "INFO 03-02 10:11:12 model_runner.py:1077] Loading model weights took 14.9888 GB"},
    {"vLLM", "Model loading took", ReadVllmWeights,
     "INFO 03-02 10:11:12 [gpu_model_runner.py:1595] Model loading took 14.99 GiB memory and "
     "3.100000 seconds"},
    {"vLLM", "Memory profiling results:", ReadVllmProfile,
     "Memory profiling results: total_gpu_memory=79.11GiB initial_memory_usage=15.50GiB "
     "peak_torch_memory=16.20GiB memory_usage_post_profile=16.80Gib non_torch_memory=0.60GiB "
     "kv_cache_size=54.40GiB gpu_memory_utilization=0.90"},
    {"vLLM", "total_gpu_memory (", ReadVllmShare,
     "the current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.90)"
     " = 71.20GiB"},
    {"vLLM", "model weights take", ReadVllmAccount,
     "model weights take 14.99GiB; non_torch_memory takes 0.15GiB; PyTorch activation peak memory "
     "takes 1.23GiB; the rest of the memory reserved for KV Cache is 54.83GiB."},
    {"vLLM", "Available KV cache memory:", ReadVllmCache,
     "INFO 03-02 10:11:12 [gpu_worker.py:298] Available KV cache memory: 54.83 GiB"},
    {"vLLM", "GPU KV cache size:", ReadVllmTokens, "GPU KV cache size: 449,104 tokens"},
    {"vLLM", "Graph capturing finished", ReadVllmGraphs,
     "Graph capturing finished in 21 secs, took 0.52 GiB"},
    {"vLLM", "CUDA graph pool memory:", ReadVllmGraphPool,
     "CUDA graph pool memory: 1.20 GiB (actual), 1.05 GiB (estimated), difference: 0.15 GiB"},
    {"vLLM", "Initial free memory:", ReadVllmInitial,
     "Initial free memory: 78.60 GiB; Requested memory: 0.90 (util), 71.20 GiB"},
    {"vLLM", "Free memory after profiling:", ReadVllmFreeAfter,
     "Free memory after profiling: 60.12 GiB (total), 52.71 GiB (within requested)"},
    {"vLLM", "torch peak memory increase:", ReadVllmNonCache,
     "Memory profiling takes 3.20 seconds. Total non KV cache memory: 16.44GiB; torch peak memory "
     "increase: 1.25GiB; non-torch forward increase memory: 0.20GiB; weights memory: 14.99GiB."},
    {"vLLM", "Sleep mode freed", ReadVllmSleep,
     "Sleep mode freed 61.47 GiB memory, 7.93 GiB memory is still in use."},
    {"vLLM", "sleep freed", ReadVllmAllocatorSleep,
     "CuMemAllocator: sleep freed 61.40 GiB memory in total, of which 14.99 GiB is backed up in "
     "CPU and the rest 46.41 GiB is discarded directly."},
    {"sglang", "avail mem=", ReadSglangMemory,
     "[2026-03-02 10:11:12 TP3] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, "
     "avail mem=62.01 GB, mem usage=14.99 GB."},
    {"sglang", "mem usage=", ReadSglangMemory,
     "[2026-03-02 10:11:12 TP3] Init torch distributed ends. mem usage=1.31 GB"},
    {"sglang", "KV Cache is allocated", ReadSglangCache,
     "[2026-03-02 10:11:12 TP3] KV Cache is allocated. #tokens: 449104, K size: 27.41 GB, V size: "
     "27.41 GB"},
    {"sglang", "available_gpu_mem=", ReadSglangLast,
     "[2026-03-02 10:11:12 TP0] max_total_num_tokens=449104, chunked_prefill_size=8192, "
     "max_prefill_tokens=16384, available_gpu_mem=5.21 GB"},
    {"nvidia-smi", "MiB / ", ReadSmiCard,
     "|   0  NVIDIA H100 80GB HBM3          On  | 00000000:18:00.0 Off |                    0 |\n"
     "| N/A   34C    P0             112W / 700W |   61234MiB / 81559MiB |     98%      Default |"},
    {"nvidia-smi", "MiB |", ReadSmiProcess,
     "|    0   N/A  N/A      4711      C   python                                    61220MiB |"},
    {"Slurm", "Memory Utilized:", ReadSeff, "Memory Utilized: 12.34 GB"},
    {"Slurm", "Memory Efficiency:", ReadSeff, "Memory Efficiency: 61.70% of 20.00 GB"},
    {"settings", "Instantaneous batch size per device", ReadBatchFact,
     "  Instantaneous batch size per device = 4"},
    {"settings", "micro_batch_size", ReadBatchFact, "  train_micro_batch_size_per_gpu ....... 4"},
    {"settings", "per_device_train_batch_size", ReadBatchFact, "--per_device_train_batch_size 4"},
    {"settings", "max_seq_len", ReadLengthFact, "max_seq_len=8192"},
    {"settings", "max_model_len", ReadLengthFact, "max_model_len=32768"},
    {"settings", "seq_length", ReadLengthFact, "  seq_length ...................... 4096"},
    {"settings", "cutoff_len", ReadLengthFact, "cutoff_len: 2048"},
    {"settings", "sequence_len", ReadLengthFact, "sequence_len: 4096"},
});

}  // namespace

std::span<const LogWording> LogWordings() { return kLogWordings; }

}  // namespace plimsoll
