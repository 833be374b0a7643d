"""Lines as launchers, containers, journals and loggers hand them on, written by hand: what is in front of a line, around it or in
the middle of it must change no figure, step or rank."""
import dataclasses

from truth import GIB, MIB, found


@dataclasses.dataclass(frozen=True)
class Excerpt:
    name: str
    text: str
    # What is counted, how much, the step and the rank; in this order in the log.
    figures: tuple
    file: str = "run.log"


def missing_or_too_much(excerpt, answer):
    rest = [(counts, value, step, rank) for _, counts, _, step, rank, _, _, _, value, _ in found(answer)]
    wrong = []
    for figure in excerpt.figures:
        counts, value, *place = figure
        read = next((row for row in rest if row[0] == counts and [*row[2:]] == place and abs(row[1] - value) <= max(1, 1e-3 * value)), None)
        if read is None:
            wrong.append(f"missing: {figure}")
        else:
            rest.remove(read)
    return wrong + [f"too much: {row}" for row in rest]


EXCERPTS = [
    Excerpt(
        "k8s_titan",
        "2026-03-02T10:11:12.131415926Z stdout F [rank3]:[titan] 2026-03-02 10:11:12,131 - root - INFO - step: 40  loss:  6.21734  grad_norm:  1.1043  memory: 71.90GiB(90.80%)  tps: 4,310  tflops: 1,250.10  mfu: 25.29%\n",
        (("reserved", 71.9 * GIB, 40, 3), ("throughput", 4310, 40, 3),),
    ),
    Excerpt(
        "docker_json",
        '{"log":"[rank1]: step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\\n","stream":"stderr","time":"2026-03-02T10:11:12.1Z"}\n',
        (("reserved", 71.9 * GIB, 40, 1), ("throughput", 4310, 40, 1),),
    ),
    Excerpt(
        "docker_json_colour",
        '{"log":"\\u001b[31mstep: 40  \\u001b[32mloss:  6.2  \\u001b[33mmemory: 71.90GiB(90.80%)  \\u001b[34mtps: 4,310\\u001b[39m\\n","stream":"stderr","time":"2026-03-02T10:11:12.1Z"}\n',
        (("reserved", 71.9 * GIB, 40, None), ("throughput", 4310, 40, None),),
    ),
    Excerpt(
        "docker_json_spaced",
        '{"log": "step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\\n", "stream": "stderr", "time": "2026-03-02T10:11:12.1Z"}\n',
        (("reserved", 71.9 * GIB, 40, None), ("throughput", 4310, 40, None),),
    ),
    Excerpt(
        "json_stream_first",
        '{"stream":"stdout","log":"[rank2]: step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\\n","time":"2026-03-02T10:11:12.1Z"}\n',
        (("reserved", 71.9 * GIB, 40, 2), ("throughput", 4310, 40, 2),),
    ),
    Excerpt(
        "json_message",
        '{"time":"2026-03-02T10:11:12.1Z","level":"INFO","message":"[rank2]: step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310"}\n',
        (("reserved", 71.9 * GIB, 40, 2), ("throughput", 4310, 40, 2),),
    ),
    Excerpt(
        "journald",
        "Mar 02 10:11:12 node7 torchrun[4711]: [rank2]: step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\n",
        (("reserved", 71.9 * GIB, 40, 2), ("throughput", 4310, 40, 2),),
    ),
    Excerpt(
        "journald_iso",
        "2026-03-02T10:11:12+0100 node7 torchrun[4711]: [rank2]: step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\n",
        (("reserved", 71.9 * GIB, 40, 2), ("throughput", 4310, 40, 2),),
    ),
    Excerpt(
        "kubectl_prefix",
        "[pod/trainer-worker-3/pytorch] [rank11]:[titan] 2026-03-02 10:11:12,131 - root - INFO - step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\n",
        (("reserved", 71.9 * GIB, 40, 11), ("throughput", 4310, 40, 11),),
    ),
    Excerpt(
        "compose",
        "trainer-1  | step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\n"
        "trainer-1  | step: 50  loss:  6.1  memory: 71.95GiB(90.87%)  tps: 4,312\n",
        (("reserved", 71.9 * GIB, 40, None), ("throughput", 4310, 40, None), ("reserved", 71.95 * GIB, 50, None), ("throughput", 4312, 50, None),),
    ),
    Excerpt(
        "tee_default",
        "[default3]:step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\n",
        (("reserved", 71.9 * GIB, 40, 3), ("throughput", 4310, 40, 3),),
    ),
    Excerpt(
        "step_thousands",
        "[titan] INFO - step: 12,040  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 14,310\n",
        (("reserved", 71.9 * GIB, 12040, None), ("throughput", 14310, 12040, None),),
    ),
    Excerpt(
        "deepspeed_k8s",
        "2026-03-02T10:11:12.131Z stderr F [2026-01-09 12:00:01,345] [INFO] [utils.py:783:see_memory_usage] after backward\n"
        "2026-03-02T10:11:12.132Z stderr F [2026-01-09 12:00:01,346] [INFO] [utils.py:784:see_memory_usage] MA 11.21 GB         Max_MA 14.03 GB         CA 15.5 GB         Max_CA 16 GB \n"
        "2026-03-02T10:11:12.133Z stderr F [2026-01-09 12:00:01,346] [INFO] [utils.py:791:see_memory_usage] CPU Virtual Memory:  used = 489.03 GB, percent = 97.1%\n",
        (("tensors", 11.21 * GIB, None, None), ("tensors", 14.03 * GIB, None, None), ("reserved", 15.5 * GIB, None, None), ("reserved", 16 * GIB, None, None), ("host", 489.03 * GIB, None, None),),
    ),
    Excerpt(
        "deepspeed_rank",
        "[rank0]: epoch=0/micro_step=64/global_step=1,016, RunningAvgSamplesPerSec=10.4, CurrSamplesPerSec=10.6, MemAllocated=21.4GB, MaxMemAllocated=55.02GB\n",
        (("tensors", 21.4 * GIB, 1016, 0), ("tensors", 55.02 * GIB, 1016, 0),),
    ),
    Excerpt(
        "megatron_ts",
        " [2026-03-02 10:11:12.131] [Rank 24] (after 2 iterations) memory (MB) | allocated: 40112.06 | max allocated: 62890.11 | reserved: 66304.00 | max reserved: 66304.00\n",
        (("tensors", 40112.06 * MIB, 2, 24), ("tensors", 62890.11 * MIB, 2, 24), ("reserved", 64.75 * GIB, 2, 24), ("reserved", 64.75 * GIB, 2, 24),),
    ),
    Excerpt(
        "megatron_srun",
        "7: [Rank 7] (after 2 iterations) memory (MB) | allocated: 40112.0625 | max allocated: 62890.11 | reserved: 66304.0 | max reserved: 66304.0\n",
        (("tensors", 40112.0625 * MIB, 2, 7), ("tensors", 62890.11 * MIB, 2, 7), ("reserved", 64.75 * GIB, 2, 7), ("reserved", 64.75 * GIB, 2, 7),),
    ),
    Excerpt(
        "swift_bar",
        "Train:  2%|▏         | 20/900 [01:02<45:12,  3.1s/it]{'loss': 1.02, 'token_acc': 0.71, 'memory(GiB)': 61.25, 'train_speed(s/it)': 3.1, 'global_step/max_steps': '20/900'}\n",
        (("reserved", 61.25 * GIB, 20, None),),
    ),
    Excerpt(
        "swift_rewritten",
        "\r                                   \r{'loss': 1.02, 'memory(GiB)': 61.25, 'global_step/max_steps': '20/900'}\n"
        "\rTrain:   2%|▏         | 20/900 [01:02<45:12,  3.1s/it]",
        (("reserved", 61.25 * GIB, 20, None),),
    ),
    Excerpt(
        "tqdm_postfix",
        "\rEpoch 1:  10%|█         | 10/100 [00:10<01:30,  1.00it/s, loss=2.1, gpu_mem=10.25GB]\rEpoch 1:  20%|██        | 20/100 [00:20<01:20,  1.00it/s, loss=2.0, gpu_mem=10.50GB]\n",
        (("device_used", 10.5 * GIB, 1, None),),
    ),
    Excerpt(
        "loguru",
        "2026-03-02 10:11:12.131 | INFO     | train:loop:88 - step 12: allocated 10.20 GB, reserved 12.00 GB\n"
        "2026-03-02 10:11:14.131 | INFO     | train:loop:88 - step 13: allocated 10.30 GB, reserved 12.00 GB\n",
        (("tensors", 10.2 * GIB, 12, None), ("reserved", 12 * GIB, 12, None), ("tensors", 10.3 * GIB, 13, None), ("reserved", 12 * GIB, 13, None),),
    ),
    Excerpt(
        "rich_columns",
        "[03/02/26 10:11:12] INFO     step 12 allocated=10.20 GiB reserved=12.00 GiB              train.py:88\n"
        "                    INFO     step 13 allocated=10.30 GiB reserved=12.00 GiB              train.py:88\n",
        (("tensors", 10.2 * GIB, 12, None), ("reserved", 12 * GIB, 12, None), ("tensors", 10.3 * GIB, 13, None), ("reserved", 12 * GIB, 13, None),),
    ),
    Excerpt(
        "rich_titan",
        "[10:11:12] INFO     step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310      metrics.py:88\n",
        (("reserved", 71.9 * GIB, 40, None), ("throughput", 4310, 40, None),),
    ),
    Excerpt(
        "own_mib_thousands",
        "iter 100: peak memory 12,345.6 MiB, reserved 14,000 MiB\n"
        "iter 200: peak memory 12,400.1 MiB, reserved 14,000 MiB\n",
        (("tensors", 12345.6 * MIB, 100, None), ("reserved", 14000 * MIB, 100, None), ("tensors", 12400.1 * MIB, 200, None), ("reserved", 14000 * MIB, 200, None),),
    ),
    Excerpt(
        "own_mb_gb",
        "[Step 5] GPU mem: 10240 MB allocated / 12288 MB reserved\n"
        "[Step 6] GPU mem: 10250 MB allocated / 12288 MB reserved\n",
        (("tensors", 10 * GIB, 5, None), ("reserved", 12 * GIB, 5, None), ("tensors", 10250 * MIB, 6, None), ("reserved", 12 * GIB, 6, None),),
    ),
    Excerpt(
        "own_torch_names",
        "rank 2 step 7 torch.cuda.memory_allocated: 10.25GB torch.cuda.memory_reserved: 12.5GB torch.cuda.max_memory_allocated: 11.0GB\n"
        "rank 2 step 8 torch.cuda.memory_allocated: 10.26GB torch.cuda.memory_reserved: 12.5GB torch.cuda.max_memory_allocated: 11.0GB\n",
        (("tensors", 10.25 * GIB, 7, 2), ("reserved", 12.5 * GIB, 7, 2), ("tensors", 11 * GIB, 7, 2), ("tensors", 10.26 * GIB, 8, 2), ("reserved", 12.5 * GIB, 8, 2), ("tensors", 11 * GIB, 8, 2),),
    ),
    Excerpt(
        "vllm_prefixes",
        "(EngineCore_DP0 pid=881) (Worker_TP1 pid=901) INFO 03-02 10:11:12 [gpu_worker.py:298] Available KV cache memory: 54.83 GiB\n"
        "(EngineCore_DP0 pid=881) INFO 03-02 10:11:12 [kv_cache_utils.py:864] GPU KV cache size: 449,104 tokens\n",
        (("kv_cache", 54.83 * GIB, None, 1), ("kv_tokens", 449104, None, None),),
    ),
    Excerpt(
        "vllm_k8s",
        "2026-03-02T10:11:12.1Z stdout F (VllmWorker rank=3 pid=881) INFO 03-02 10:11:12 [gpu_model_runner.py:1595] Model loading took 14.9888 GiB and 3.1 seconds\n",
        (("weights", 15348.5312 * MIB, None, 3),),
    ),
    Excerpt(
        "sglang_journald",
        "Mar  2 10:11:12 node7 sglang[99]: [2026-03-02 10:11:12 TP3] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=62.01 GB, mem usage=14.99 GB.\n",
        (("device_free", 62.01 * GIB, None, 3), ("weights", 14.99 * GIB, None, 3),),
    ),
    Excerpt(
        "verl_ray_colour",
        "\x1b[36m(WorkerDict pid=4711, ip=10.0.0.5)\x1b[0m After update_actor, memory allocated (GB): 12.34, memory reserved (GB): 40.02, device memory used/total (GB): 46.90/79.11\x1b[32m [repeated 7x across cluster]\x1b[0m\n",
        (("tensors", 12.34 * GIB, None, None), ("reserved", 40.02 * GIB, None, None), ("device_used", 46.9 * GIB, None, None), ("device_total", 79.11 * GIB, None, None),),
    ),
    Excerpt(
        "verl_step",
        "(TaskRunner pid=99) step:12 - global_seqlen/min:1.0 - perf/max_memory_allocated_gb:41.253 - perf/max_memory_reserved_gb:52.5 - perf/cpu_memory_used_gb:120.5 - perf/throughput:991.2\n",
        (("tensors", 41.253 * GIB, 12, None), ("reserved", 52.5 * GIB, 12, None), ("host", 120.5 * GIB, 12, None),),
    ),
    Excerpt(
        "ultralytics_bar",
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        "\r      1/100      10.4G     1.204      1.311      1.102        155        640:  50%|█████     | 5/10 [00:01<00:01]\r      1/100      10.9G     1.204      1.311      1.102        155        640: 100%|██████████| 10/10 [00:02<00:00]\n",
        (("reserved", 10.9 * GIB, 1, None),),
    ),
    Excerpt(
        "ultralytics_colour",
        "\x1b[34m\x1b[1m      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\x1b[0m\n"
        "\r\x1b[K      1/100      10.4G     1.204      1.311      1.102        155        640: 100%|██████████| 10/10 [00:02<00:00]\n",
        (("reserved", 10.4 * GIB, 1, None),),
    ),
    Excerpt(
        "mmengine_json",
        '{"lr": 0.001, "data_time": 0.01, "loss": 1.2, "time": 0.4, "epoch": 2, "iter": 50, "memory": 8123, "step": 50}\n',
        (("tensors", 8123 * MIB, 50, None),),
    ),
    Excerpt(
        "mmengine",
        "03/02 10:11:12 - mmengine - INFO - Epoch(train)  [2][  50/7330]  base_lr: 1.0e-03 lr: 1.0e-03  eta: 1 day, 1:02:03  time: 0.4012  data_time: 0.0102  memory: 8123  grad_norm: 9.1  loss: 1.2\n",
        (("tensors", 8123 * MIB, 7380, None),),
    ),
    Excerpt(
        "detectron2",
        "[03/02 10:11:12 d2.utils.events]: \x1b[0m eta: 1 day, 1:02:03  iter: 19  total_loss: 1.2  time: 0.4  last_time: 0.4  data_time: 0.01  last_data_time: 0.01   lr: 0.001  max_mem: 10512M\n",
        (("tensors", 10512 * MIB, 19, None),),
    ),
    Excerpt(
        "torchtune_rank0",
        "INFO:torchtune.utils._logging:Memory stats after model init:\n"
        "\tGPU peak memory active: 15.20 GiB\n"
        "\tGPU peak memory alloc: 15.11 GiB\n"
        "\tGPU peak memory reserved: 16.41 GiB\n",
        (("active", 15.2 * GIB, None, None), ("tensors", 15.11 * GIB, None, None), ("reserved", 16.41 * GIB, None, None),),
    ),
    Excerpt(
        "torchtune_bar",
        "1|12|Loss: 1.204:  12%|█         | 12/100 [00:20<02:20]\rStep 12 | loss:1.204 lr:2e-05 tokens_per_second_per_gpu:3110.2 peak_memory_active:21.93 peak_memory_alloc:21.70 peak_memory_reserved:24.08 \n",
        (("active", 21.93 * GIB, 12, None), ("tensors", 21.7 * GIB, 12, None), ("reserved", 24.08 * GIB, 12, None),),
    ),
    Excerpt(
        "smi_watch",
        "Every 2.0s: nvidia-smi                                node7: Mon Mar  2 10:11:12 2026\n"
        "\n"
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |\n"
        "| N/A   34C    P0             112W /  700W |   61234MiB /  81559MiB |     98%      Default |\n"
        "|                                         |                        |             Disabled |\n",
        (("device_used", 61234 * MIB, None, None), ("device_total", 81559 * MIB, None, None),),
    ),
    Excerpt(
        "smi_k8s",
        "2026-03-02T10:11:12Z stdout F |   3  NVIDIA A100-SXM4-80GB          On  | 00000000:18:00.0 Off |                    0 |\n"
        "2026-03-02T10:11:12Z stdout F | N/A   34C    P0             112W / 400W |   61234MiB / 81920MiB |     98%      Default |\n",
        (("device_used", 61234 * MIB, None, None), ("device_total", 80 * GIB, None, None),),
    ),
    Excerpt(
        "unsloth_banner",
        "==((====))==  Unsloth 2026.3.1: Fast Llama patching. Transformers: 4.57.1.\n"
        "   \\\\   /|    Tesla T4. Num GPUs = 1. Max memory: 14.741 GB. Platform: Linux.\n"
        "O^O/ \\_/ \\    Torch: 2.8.0+cu126. CUDA: 7.5.\n"
        "5.125 GB of memory reserved.\n",
        (("device_total", 14.741 * GIB, None, None), ("reserved", 5.125 * GIB, None, None),),
    ),
    Excerpt(
        "nanochat",
        "step 00120/21400 (0.56%) | loss: 4.912 | lrm: 1.00 | dt: 312.11ms | tok/sec: 1,679,811 | mfu: 48.21 | total time: 0.52m\n"
        "Peak memory usage: 61,234.50MiB\n",
        (("tensors", 61234.5 * MIB, None, None),),
    ),
    Excerpt(
        "hf_table",
        "***** train metrics *****\n"
        "  before_init_mem_gpu        =     1234MB\n"
        "  train_mem_gpu_alloc_delta  =     5120MB\n"
        "  train_mem_gpu_peaked_delta =    10311MB\n",
        (("tensors", 1234 * MIB, None, None), ("tensors", 5 * GIB, None, None), ("tensors", 10311 * MIB, None, None),),
    ),
    Excerpt(
        "axolotl_debug",
        "[2026-03-02 10:11:12,131] [DEBUG] [axolotl.utils.bench.log_gpu_memory_usage:117] [PID:77] [RANK:2] cuda:0 memory usage after model load: 9.310GB (+6.004GB cache, +0.744GB misc)\n",
        (("tensors", 9.31 * GIB, None, 2), ("cached", 6.004 * GIB, None, 2), ("outside", 0.744 * GIB, None, 2),),
    ),
    Excerpt(
        "axolotl_rank_filter",
        "[2026-03-02 10:11:12,131] [INFO] [rank:1] {'loss': 1.02, 'memory/max_active (GiB)': 21.5, 'memory/max_allocated (GiB)': 21.25, 'memory/device_reserved (GiB)': 24.0, 'epoch': 0.1}\n",
        (("active", 21.5 * GIB, None, 1), ("tensors", 21.25 * GIB, None, 1), ("reserved", 24 * GIB, None, 1),),
    ),
    Excerpt(
        "slurm_label_two",
        "03: [Rank 3] Memory-Usage after wake up: {'gpu': '3', 'total_GB': 79.11, 'free_GB': 3.2, 'used_GB': 75.91, 'allocated_GB': 12.5, 'reserved_GB': 20.25, 'host_used_GB': 100.5}\n",
        (("device_total", 79.11 * GIB, None, 3), ("device_free", 3.2 * GIB, None, 3), ("device_used", 75.91 * GIB, None, 3), ("tensors", 12.5 * GIB, None, 3), ("reserved", 20.25 * GIB, None, 3), ("host", 100.5 * GIB, None, 3),),
    ),
]
