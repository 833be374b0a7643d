// What to record next, for each kind of device.
#include "diagnose/error_texts/sentences.h"

namespace plimsoll {
namespace {

std::vector<std::string> SnapshotLines(const std::string& module, const std::string& observer) {
  return {
      "# at the beginning of the program (PyTorch 2.1 or newer):",
      "import os, torch",
      "torch." + module + ".memory._record_memory_history(max_entries=200000, stacks=\"python\")",
      "def dump(*_):",
      "    torch." + module +
          ".memory._dump_snapshot(f\"snapshot.rank{os.environ.get('RANK', 0)}.pickle\")",
      observer,
      "# or around the training loop:  except torch.OutOfMemoryError: dump(); raise",
      "# without an edit: put these lines into record/sitecustomize.py and run",
      "#   PYTHONPATH=record python train.py",
      "# then:",
      "plimsoll explain snapshot.rank*.pickle",
  };
}

}  // namespace

std::vector<std::string> RecordSnapshot() {
  return SnapshotLines("cuda", "torch._C._cuda_attach_out_of_memory_observer(dump)");
}

std::vector<std::string> RecordNext(const OomMessage& message) {
  using enum MessageSource;
  switch (message.source) {
    case kTorchXpu:
      return SnapshotLines("xpu", "# Intel GPUs have snapshots from PyTorch 2.12 on");
    case kTorchMps:
      return {"# Apple GPUs have no snapshots; print what is in use at every step:",
              "print(torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory())"};
    case kTorchAsync:
      return {"# cudaMallocAsync records no history: run once with PyTorch's own allocator,",
              "#   unset PYTORCH_CUDA_ALLOC_CONF",
              "# and record there:",
              "import torch",
              "torch.cuda.memory._record_memory_history(max_entries=200000, stacks=\"python\")",
              "# on the error:  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")",
              "plimsoll explain snapshot.pickle"};
    case kHostMemory:
      return {"# the host's memory, by the line that asked for it:", "pip install memray",
              "memray run --follow-fork train.py", "memray flamegraph memray-*.bin"};
    case kHabana:
      return {"# Gaudi has no snapshots; print what is in use at every step:",
              "print(habana_frameworks.torch.hpu.memory_summary())"};
    case kTensorFlow:
      return {"# TensorFlow has no snapshots; the profiler shows its memory by operator:",
              "tf.profiler.experimental.start(\"logs\")",
              "print(tf.config.experimental.get_memory_info(\"GPU:0\"))"};
    case kJax:
      return {"# what is alive, by the line that made it (read it with pprof):",
              "jax.profiler.save_device_memory_profile(\"memory.prof\")"};
    case kTorchAbsurd:
      return {};
    case kVirtualAddress:
      return {"ulimit -v", "cat /proc/sys/vm/max_map_count"};
    default: {
      std::vector<std::string> lines = RecordSnapshot();
      if (message.source != kTorchCuda && message.source != kTorchHip &&
          message.source != kTorchRejected) {
        lines.push_back("# and what no snapshot sees:");
        lines.push_back("nvidia-smi --query-compute-apps=pid,used_memory --format=csv -l 1");
      }
      return lines;
    }
  }
}

}  // namespace plimsoll
