#include "readers/error_text/testing.h"

namespace plimsoll::wordings_other_test {
namespace {

TEST(CudaWordings, RuntimeAndDriver) {
  for (const char* text :
       {"RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/x.cu:58",
        "RuntimeError: CUDA driver error: out of memory",
        "torch.AcceleratorError: HIP error: out of memory",
        "error: cudaErrorMemoryAllocation: out of memory"}) {
    const OomMessage m = ReadOne(text);
    const bool hip = std::string_view(text).find("HIP") != std::string_view::npos;
    EXPECT_EQ(m.source, hip ? MessageSource::kHipRuntime : MessageSource::kCudaRuntime) << text;
    EXPECT_EQ(m.requested, std::nullopt);
    EXPECT_FALSE(m.survived);
  }
}

TEST(CudaWordings, Nccl) {
  const OomMessage m = ReadOne(
      "node7:4242:4300 [3] transport/p2p.cc:275 NCCL WARN Cuda failure 'out of memory'\n"
      "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled "
      "cuda error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function "
      "failed.\nLast error:\nFailed to CUDA calloc 536870912 bytes\n");
  EXPECT_EQ(m.source, MessageSource::kNccl);
  EXPECT_EQ(m.requested, 536870912);
  EXPECT_EQ(m.device, 3);
  EXPECT_EQ(ReadOne("Failed to CUDA calloc async 2432 bytes").requested, 2432);
  EXPECT_EQ(ReadOne("ncclUnhandledCudaError\nLast error:\nCuda failure 2 'out of memory'").source,
            MessageSource::kNccl);
}

TEST(CudaWordings, CublasAndCudnn) {
  const OomMessage cublas = ReadOne(
      "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
  EXPECT_EQ(cublas.source, MessageSource::kCublas);
  EXPECT_EQ(cublas.subject, "cublasCreate");
  const OomMessage cudnn = ReadOne(
      "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed "
      "in a non-contiguous input.");
  EXPECT_EQ(cudnn.source, MessageSource::kCudnn);
  EXPECT_FALSE(cudnn.survived);
  const OomMessage warning = ReadOne(
      "UserWarning: Plan failed with a cudnnException: cudnnFinalizeDescriptor: "
      "CUDNN_STATUS_ALLOC_FAILED (Triggered internally at Conv_v8.cpp:919.)");
  EXPECT_TRUE(warning.survived);
}

TEST(CudaWordings, APlanThatCudnnDoesNotSupportIsNoLackOfMemory) {
  EXPECT_FALSE(RecogniseErrorText(
      "UserWarning: Plan failed with a cudnnException: CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: "
      "cudnnFinalizeDescriptor Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED (Triggered "
      "internally at Conv_v8.cpp:919.)"));
}

TEST(CudaWordings, ABrokenSegmentIsKnownBesideTheShortageThatBrokeIt) {
  const std::string assertion =
      "RuntimeError: !handles_.at(i) INTERNAL ASSERT FAILED at "
      "\"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":487, please report a bug to PyTorch.\n";
  EXPECT_EQ(ReadOne(assertion).source, MessageSource::kBrokenSegment);
  EXPECT_FALSE(
      RecogniseErrorText("RuntimeError: !handles_.at(i) INTERNAL ASSERT FAILED at "
                         "\"other.cpp\":12, please report a bug\nand more\n"));
  const Recording both = ReadText(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
      "capacity of 31.84 GiB of which 0 bytes is free. Of the allocated memory 28.00 GiB is "
      "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n" +
      assertion + assertion);
  ASSERT_EQ(both.messages.size(), 2u);
  EXPECT_EQ(both.messages[1].source, MessageSource::kBrokenSegment);
}

TEST(CudaWordings, NotReady) {
  EXPECT_EQ(ReadOne("RuntimeError: CUDA driver error: device not ready\n").source,
            MessageSource::kDriverNotReady);
}

TEST(CudaWordings, AnEngineThatWakesUp) {
  const OomMessage m = ReadOne(
      "INFO Sleep mode freed 50.00 GiB memory, 9.00 GiB memory is still in use.\n"
      "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n");
  EXPECT_EQ(m.source, MessageSource::kCudaRuntime);
  EXPECT_EQ(m.program, Program::kVllm);
  EXPECT_EQ(m.subject, "waking up");
  EXPECT_EQ(m.engine_sleep->freed, GiB(50));
}

TEST(CudaWordings, MemoryInUseIsNoLackOfIt) {
  const OomMessage m = ReadOne(
      "Memory critical error by agent node-0 (Agent handle: 0x55d1f0) on address 0x7f1c2a400000. "
      "Reason: Memory in use. \nAborted (core dumped)\n");
  EXPECT_EQ(m.source, MessageSource::kHipInUse);
  EXPECT_FALSE(RecogniseErrorText(
      "Memory critical error by agent node-0 (Agent handle: 0x55d1f0) on address 0x7f1c2a400000. "
      "Reason: Page not present or supervisor privilege.\nand so on for longer than that\n"));
}

TEST(HostWordings, TheDriverFoundNone) {
  const OomMessage m = ReadOne(
      "[ 4242.123456] NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] "
      "(0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359\n");
  EXPECT_EQ(m.source, MessageSource::kHostMemory);
  EXPECT_EQ(m.host, HostEvent::kDriver);
  EXPECT_EQ(m.subject, "_memdescAllocInternal");
  EXPECT_FALSE(RecogniseErrorText("the code [NV_ERR_NO_MEMORY] is listed in the manual\n"));
}

TEST(HostWordings, PinnedMemoryOnWindows) {
  const OomMessage m = ReadOne(
      "RuntimeError: cudaHostRegister failed for 2147483648 bytes: cudaErrorAlreadyMapped: "
      "resource already mapped\n");
  EXPECT_EQ(m.source, MessageSource::kHostMemory);
  EXPECT_EQ(m.host, HostEvent::kPinned);
  EXPECT_FALSE(RecogniseErrorText("cudaGraphicsMapResources: cudaErrorAlreadyMapped\n"));
}

TEST(CudaWordings, Gaudi) {
  const OomMessage m = ReadOne(
      "RuntimeError: [Rank:6] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for "
      "size::939524096 (896)MB\n");
  EXPECT_EQ(m.source, MessageSource::kHabana);
  EXPECT_EQ(m.rank, 6);
  EXPECT_EQ(m.requested, 939524096);
}

TEST(HostWordings, CpuAllocator) {
  OomMessage m = ReadOne(
      "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't "
      "allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate "
      "memory)");
  EXPECT_EQ(m.source, MessageSource::kHostMemory);
  EXPECT_EQ(m.requested, 68719476736);
  m = ReadOne(
      "RuntimeError: [enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough "
      "memory: you tried to allocate 1048576000 bytes.");
  EXPECT_EQ(m.requested, 1048576000);
}

TEST(HostWordings, Numpy) {
  const OomMessage m = ReadOne(
      "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3.00 GiB for an array with "
      "shape (402653184,) and data type float64");
  EXPECT_EQ(m.source, MessageSource::kHostMemory);
  EXPECT_EQ(m.requested, GiB(3));
  EXPECT_EQ(m.subject, "(402653184,)");
}

TEST(HostWordings, TheKernelsAndSlurmsKillers) {
  OomMessage m = ReadOne(
      "Mar  1 12:00:00 node7 kernel: Memory cgroup out of memory: Killed process 4242 (python) "
      "total-vm:81788928kB, anon-rss:64000000kB, file-rss:1024kB, shmem-rss:0kB");
  EXPECT_EQ(m.source, MessageSource::kHostMemory);
  EXPECT_EQ(m.subject, "python");
  ASSERT_EQ(m.processes.size(), 1u);
  EXPECT_EQ(m.processes[0].pid, 4242);
  EXPECT_EQ(m.processes[0].bytes, (64000000 + 1024) * kKiB);
  m = ReadOne("[1.5] Out of memory: Kill process 99 (python3) score 900 or sacrifice child");
  EXPECT_EQ(m.processes.at(0).pid, 99);
  m = ReadOne("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=4242,uid=0");
  EXPECT_EQ(m.processes.at(0).pid, 4242);
  m = ReadOne(
      "slurmstepd: error: Detected 1 oom_kill event in StepId=991.0. Some of the step tasks have "
      "been OOM Killed.");
  EXPECT_EQ(m.subject, "StepId=991.0");
  m = ReadOne("slurmstepd: error: Detected 3 oom-kill event(s) in StepId=991.batch cgroup.");
  EXPECT_EQ(m.subject, "StepId=991.batch");
  EXPECT_EQ(ReadOne("    Reason:       OOMKilled\n    Exit Code:    137\n").source,
            MessageSource::kHostMemory);
}

TEST(HostWordings, WhoeverWatchesTheMemory) {
  const OomMessage early = ReadOne(
      "Mar  2 10:11:12 node7 earlyoom[812]: low memory! at or below SIGTERM limits: mem 10.00%, "
      "swap 10.00%\n"
      "Mar  2 10:11:12 node7 earlyoom[812]: sending SIGTERM to process 4711 uid 1000 \"python\": "
      "oom_score 1210, VmRSS 59210 MiB, cmdline \"python train.py\"\n");
  EXPECT_EQ(early.host, HostEvent::kEarlyOomKill);
  EXPECT_EQ(early.subject, "python");
  ASSERT_EQ(early.processes.size(), 1u);
  EXPECT_EQ(early.processes[0].pid, 4711);
  EXPECT_EQ(early.processes[0].bytes, 59210 * kMiB);
  const OomMessage share = ReadOne(
      "Mar 02 10:11:12 node7 systemd-oomd[611]: Killed /user.slice/user-1000.slice/session-2.scope "
      "due to memory used (61203456000) / total (67353593344) and swap used (2147479552) / total "
      "(2147483648) being more than 90.00%\n");
  EXPECT_EQ(share.host, HostEvent::kSystemdKill);
  EXPECT_EQ(share.allocated, 61203456000);
  EXPECT_EQ(share.capacity, 67353593344);
  EXPECT_EQ(share.allowed, 60618234009);
  const OomMessage node = ReadOne(
      "Warning  SystemOOM  3m  kubelet  System OOM encountered, victim process: python, pid: "
      "518\n");
  EXPECT_EQ(node.host, HostEvent::kKernelKill);
  EXPECT_EQ(node.subject, "python");
  EXPECT_EQ(node.processes.at(0).pid, 518);
  const OomMessage dask = ReadOne(
      "distributed.nanny.memory - WARNING - Worker tcp://10.0.0.5:40513 (pid=4711) exceeded 95% "
      "memory budget. Restarting...\n");
  EXPECT_EQ(dask.host, HostEvent::kDaskKill);
  EXPECT_EQ(dask.processes.at(0).pid, 4711);
  const OomMessage condor = ReadOne(
      "Error from slot1@node7: Job has gone over cgroup memory limit of 65536 megabytes. Last "
      "measured usage: 65012 megabytes.  Consider resubmitting with a higher request_memory.\n");
  EXPECT_EQ(condor.host, HostEvent::kBatchKill);
  EXPECT_EQ(condor.allowed, 64 * kGiB);
  EXPECT_EQ(condor.allocated, 65012 * kMiB);
  EXPECT_FALSE(RecogniseErrorText("sending SIGTERM to process group of the launcher\n"));
  EXPECT_FALSE(RecogniseErrorText("the pool grew due to memory used (12) by others\n"));
}

TEST(XlaWordings, TensorFlowTensor) {
  const OomMessage m = ReadOne(
      "tensorflow.python.framework.errors_impl.ResourceExhaustedError:  OOM when allocating tensor "
      "with shape[32,1024,64,64] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by "
      "allocator GPU_1_bfc [Op:Conv2D]");
  EXPECT_EQ(m.source, MessageSource::kTensorFlow);
  EXPECT_EQ(m.subject, "tensor [32,1024,64,64] of type float");
  EXPECT_EQ(m.requested, 32LL * 1024 * 64 * 64 * 4);
  EXPECT_EQ(m.device, 1);
  EXPECT_FALSE(m.survived);
  EXPECT_FALSE(m.cut_off);
}

TEST(XlaWordings, AShapeThatOverflowsHasNoSize) {
  const OomMessage m = ReadOne(
      "OOM when allocating tensor with shape[9223372036854775807,9223372036854775807] and type "
      "double on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc");
  EXPECT_EQ(m.requested, std::nullopt);
}

TEST(XlaWordings, TensorFlowSurvivesItsWarnings) {
  const OomMessage m = ReadOne(
      "2020-04-29 16:25:36.594950: W bfc_allocator.cc:243] Allocator (GPU_0_bfc) ran out of memory "
      "trying to allocate 1.25GiB with freed_by_count=0. The caller indicates that this is not a "
      "failure, but may mean that there could be performance gains if more memory were available.");
  EXPECT_EQ(m.source, MessageSource::kTensorFlow);
  EXPECT_TRUE(m.survived);
  EXPECT_EQ(m.requested, GiB(1.25));
  EXPECT_EQ(m.device, 0);
}

TEST(XlaWordings, JaxWithItsBuffers) {
  const OomMessage m = ReadOne(
      "W bfc_allocator.cc:482] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.97GiB "
      "(rounded to 2110783744)requested by op \n"
      "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
      "allocate 2110783616 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
      "             parameter allocation:    1.02GiB\n              constant allocation:         "
      "0B\n"
      "        maybe_live_out allocation:    4.89GiB\n     preallocated temp allocation:    "
      "1.97GiB\n"
      "  preallocated temp fragmentation:         0B (0.00%)\n"
      "                 total allocation:    7.88GiB\n"
      "              total fragmentation:       112B (0.00%)\nPeak buffers:\n\tBuffer 1:\n"
      "\t\tSize: 4.89GiB\n\t\tOperator: op_name=\"jit(dot)/jit(main)/dot_general[dims=(((2,), "
      "(0,)), ((), ()))]\" source_file=\"/home/me/models/gemma.py\" source_line=175\n"
      "\t\tXLA Label: custom-call\n\t\tShape: f32[5104,257152]\n\t\t==========================\n\n"
      "\tBuffer 2:\n\t\tSize: 559.67MiB\n\t\tEntry Parameter Subshape: f32[11,5120,2605]\n"
      "\t\t==========================\n");
  EXPECT_EQ(m.source, MessageSource::kJax);
  EXPECT_EQ(m.requested, 2110783616);
  EXPECT_EQ(m.other, GiB(7.88));
  ASSERT_EQ(m.buffers.size(), 2u);
  EXPECT_EQ(m.buffers[0].size, GiB(4.89));
  EXPECT_EQ(m.buffers[0].where, "gemma.py:175");
  EXPECT_EQ(m.buffers[0].what, "dot_general f32[5104,257152]");
  EXPECT_EQ(m.buffers[1].size, MiB(559.67));
  EXPECT_EQ(m.buffers[1].where, "");
  EXPECT_EQ(m.buffers[1].what, "parameter f32[11,5120,2605]");
  EXPECT_FALSE(m.cut_off);
}

TEST(XlaWordings, JaxOtherOpenings) {
  OomMessage m = ReadOne(
      "Execution of replica 0 failed: RESOURCE_EXHAUSTED: Failed to allocate request for 154.06GiB "
      "(165425291480B) on device ordinal 2\n");
  EXPECT_EQ(m.requested, 165425291480);
  EXPECT_EQ(m.device, 2);
  m = ReadOne(
      "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of "
      "memory in memory space hbm. Used 20.93G of 15.48G hbm. Exceeded hbm capacity by 5.45G.");
  EXPECT_EQ(m.other, GiB(20.93));
  EXPECT_EQ(m.capacity, GiB(15.48));
  m = ReadOne(
      "RESOURCE_EXHAUSTED: Attempting to reserve 2.20G at the bottom of memory. That was not "
      "possible. There are 1.90G free, 0B reserved, and 1.90G reservable.");
  EXPECT_EQ(m.requested, GiB(2.2));
  EXPECT_EQ(m.free, GiB(1.9));
}

}  // namespace
}  // namespace plimsoll::wordings_other_test
