#include "readers/error_text/testing.h"

namespace plimsoll::wordings_torch_test {
namespace {

TEST(TorchWordings, OneZeroToOneThreeSaysCached) {
  const OomMessage m = ReadOne(
      "RuntimeError: CUDA out of memory. Tried to allocate 170.00 MiB (GPU 1; 10.92 GiB total "
      "capacity; 9.51 GiB already allocated; 117.06 MiB free; 243.25 MiB cached)");
  EXPECT_EQ(m.source, MessageSource::kTorchCuda);
  EXPECT_EQ(VersionsOf(m), "1.0 to 1.3");
  EXPECT_EQ(m.device, 1);
  EXPECT_EQ(m.requested, MiB(170));
  EXPECT_EQ(m.capacity, GiB(10.92));
  EXPECT_EQ(m.allocated, GiB(9.51));
  EXPECT_EQ(m.free, MiB(117.06));
  EXPECT_EQ(m.reserved_free, MiB(243.25));
  EXPECT_EQ(m.reserved, std::nullopt);
  EXPECT_FALSE(m.cut_off);
  EXPECT_FALSE(m.survived);
}

TEST(TorchWordings, OneFourToOneSevenSaysReservedInTotal) {
  const OomMessage m = ReadOne(
      "RuntimeError: CUDA out of memory. Tried to allocate 1.72 GiB (GPU 0; 15.78 GiB total "
      "capacity; 12.56 GiB already allocated; 1.25 GiB free; 13.31 GiB reserved in total by "
      "PyTorch)\n");
  EXPECT_EQ(VersionsOf(m), "1.4 to 1.9");
  EXPECT_EQ(m.device, 0);
  EXPECT_EQ(m.requested, GiB(1.72));
  EXPECT_EQ(m.capacity, GiB(15.78));
  EXPECT_EQ(m.allocated, GiB(12.56));
  EXPECT_EQ(m.free, GiB(1.25));
  EXPECT_EQ(m.reserved, GiB(13.31));
  EXPECT_EQ(m.reserved_free, std::nullopt);
  EXPECT_EQ(m.allowed, std::nullopt);
}

TEST(TorchWordings, OneEightHasALimit) {
  const OomMessage m = ReadOne(
      "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 3; 31.75 GiB total "
      "capacity; 7.40 GiB already allocated; 23.00 GiB free; 7.94 GiB allowed; 7.75 GiB reserved "
      "in total by PyTorch)");
  EXPECT_EQ(VersionsOf(m), "1.8 to 1.9");
  EXPECT_EQ(m.allowed, GiB(7.94));
  EXPECT_EQ(m.reserved, GiB(7.75));
  EXPECT_EQ(m.free, GiB(23));
  EXPECT_EQ(m.device, 3);
}

TEST(TorchWordings, OneTenToTwoZeroAddsAHint) {
  const std::string text =
      "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.90 GiB "
      "already allocated; 14.69 MiB free; 22.51 GiB reserved in total by PyTorch) If reserved "
      "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
      "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF";
  EXPECT_EQ(VersionsOf(ReadOne(text)), "1.10 to 2.0");
  EXPECT_EQ(VersionsOf(ReadOne("RuntimeError: " + text)), "1.10 to 1.12");
  const OomMessage m = ReadOne("torch.cuda.OutOfMemoryError: " + text);
  EXPECT_EQ(VersionsOf(m), "1.13 to 2.0");
  EXPECT_EQ(m.requested, MiB(20));
  EXPECT_EQ(m.reserved, GiB(22.51));
  EXPECT_FALSE(m.cut_off);
}

TEST(TorchWordings, TwoOneMisspellsCapacity) {
  const OomMessage m = ReadOne(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a "
      "total capacty of 4.00 GiB of which 41.56 MiB is free. Including non-PyTorch memory, this "
      "process has 3.44 GiB memory in use. Of the allocated memory 2.58 GiB is allocated by "
      "PyTorch, and 190.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
      "memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation "
      "for Memory Management and PYTORCH_CUDA_ALLOC_CONF");
  EXPECT_EQ(VersionsOf(m), "2.1");
  EXPECT_EQ(m.device, 0);
  EXPECT_EQ(m.requested, MiB(32));
  EXPECT_EQ(m.capacity, GiB(4));
  EXPECT_EQ(m.free, MiB(41.56));
  ASSERT_EQ(m.processes.size(), 1u);
  EXPECT_EQ(m.processes[0].pid, std::nullopt);
  EXPECT_EQ(m.processes[0].bytes, GiB(3.44));
  EXPECT_EQ(m.allocated, GiB(2.58));
  EXPECT_EQ(m.reserved_free, MiB(190));
  EXPECT_EQ(m.reserved, std::nullopt);
  EXPECT_FALSE(m.cut_off);
}

std::string Sentences(const std::string& middle, const std::string& hint) {
  return "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 5 has a total capacity of 79.15 GiB "
         "of which 1.19 GiB is free. " +
         middle + hint;
}
const char kUse[] =
    "Including non-PyTorch memory, this process has 77.94 GiB memory in use. Of the allocated "
    "memory 70.10 GiB is allocated by PyTorch, and 6.83 GiB is reserved by PyTorch but "
    "unallocated.";
const char kOldUrl[] =
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)";

TEST(TorchWordings, TwoTwoToTwoThree) {
  const OomMessage m = ReadOne("torch.cuda.OutOfMemoryError: " + Sentences(kUse, kOldUrl));
  EXPECT_EQ(VersionsOf(m), "2.2 to 2.3");
  EXPECT_EQ(m.device, 5);
  EXPECT_EQ(m.requested, GiB(2.5));
  EXPECT_EQ(m.capacity, GiB(79.15));
  EXPECT_EQ(m.free, GiB(1.19));
  EXPECT_EQ(m.allocated, GiB(70.10));
  EXPECT_EQ(m.reserved_free, GiB(6.83));
}

TEST(TorchWordings, TwoFourHasPrivatePools) {
  const OomMessage m = ReadOne(
      "torch.OutOfMemoryError: " +
      Sentences("Of the allocated memory 70.10 GiB is allocated by PyTorch, with 512.00 MiB "
                "allocated in private pools (e.g., CUDA Graphs), and 6.83 GiB is reserved by "
                "PyTorch but unallocated.",
                kOldUrl));
  EXPECT_EQ(VersionsOf(m), "2.4 to 2.10");
  EXPECT_EQ(m.allocated, GiB(70.10));
  EXPECT_EQ(m.private_pools, MiB(512));
  EXPECT_EQ(m.reserved_free, GiB(6.83));
  EXPECT_TRUE(m.processes.empty());
}

TEST(TorchWordings, TwoFiveHasALimit) {
  const OomMessage m = ReadOne(
      Sentences("Process 4242 has 500.00 MiB memory in use. Process 77 has 1.50 GiB memory in "
                "use. 40.00 GiB allowed; Of the allocated memory 38.10 GiB is allocated by "
                "PyTorch, and 1.83 GiB is reserved by PyTorch but unallocated.",
                kOldUrl));
  EXPECT_EQ(VersionsOf(m), "2.5 to 2.10");
  EXPECT_EQ(m.allowed, GiB(40));
  ASSERT_EQ(m.processes.size(), 2u);
  EXPECT_EQ(m.processes[0].pid, 4242);
  EXPECT_EQ(m.processes[0].bytes, MiB(500));
  EXPECT_EQ(m.processes[1].pid, 77);
  EXPECT_EQ(m.processes[1].bytes, GiB(1.5));
  EXPECT_EQ(m.allocated, GiB(38.10));
}

TEST(TorchWordings, TwoTenRenamesTheVariable) {
  const OomMessage m = ReadOne(Sentences(
      kUse,
      " If reserved but unallocated memory is large try setting "
      "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
      "Memory Management  "
      "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"));
  EXPECT_EQ(VersionsOf(m), "2.10");
  EXPECT_EQ(m.reserved_free, GiB(6.83));
}

TEST(TorchWordings, TwoElevenMovesTheDocumentation) {
  const OomMessage m = ReadOne(Sentences(
      kUse,
      " If reserved but unallocated memory is large try setting "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
      "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
      "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"));
  EXPECT_EQ(VersionsOf(m), "2.11 or newer");
}

TEST(TorchWordings, AnAbsurdProcessFigureIsNone) {
  const OomMessage m = ReadOne(
      Sentences("Process 9912 has 17179869184.00 GiB memory in use. Of the allocated memory 5.00 "
                "GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but "
                "unallocated.",
                kOldUrl));
  ASSERT_EQ(m.processes.size(), 1u);
  EXPECT_EQ(m.processes[0].pid, 9912);
  EXPECT_EQ(m.processes[0].bytes, std::nullopt);
  EXPECT_EQ(m.allocated, GiB(5));
}

TEST(TorchWordings, ZeroBytesFree) {
  const OomMessage m = ReadOne(
      "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of "
      "which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 512 "
      "bytes is reserved by PyTorch but unallocated.");
  EXPECT_EQ(m.free, 0);
  EXPECT_EQ(m.reserved_free, 512);
}

TEST(TorchWordings, MoreThanAnExabyte) {
  const OomMessage m =
      ReadOne("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_EQ(m.source, MessageSource::kTorchAbsurd);
  EXPECT_EQ(m.requested, std::nullopt);
}

TEST(TorchWordings, PreemptivelyRejected) {
  const std::string error =
      "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it "
      "would exceed per_process_memory_fraction limit. Requested size: 2.50 GiB\n";
  OomMessage m = ReadOne(error);
  EXPECT_EQ(m.source, MessageSource::kTorchRejected);
  EXPECT_EQ(VersionsOf(m), "2.12 or newer");
  EXPECT_EQ(m.requested, GiB(2.5));
  EXPECT_FALSE(m.cut_off);
  // The log's warning about the same event adds its figures.
  m = ReadOne(
      "[W301 12:00:00.5 CUDACachingAllocator.cpp:999] Warning: Preemptively rejecting allocation: "
      "requested 2.50 GiB but total_allocated_memory (18.75 GiB) + requested size would exceed "
      "memory limit (20.00 GiB = 25.27% of 79.15 GiB)\n" +
      error);
  EXPECT_EQ(m.reserved, GiB(18.75));
  EXPECT_EQ(m.allowed, GiB(20));
  EXPECT_EQ(m.capacity, GiB(79.15));
  EXPECT_EQ(m.requested, GiB(2.5));
}

TEST(TorchWordings, CudaMallocAsync) {
  const OomMessage m = ReadOne(
      "torch.cuda.OutOfMemoryError: Allocation on device 2 would exceed allowed memory. (out of "
      "memory)\nCurrently allocated     : 13.50 GiB\nRequested               : 1.25 GiB\nDevice "
      "limit            : 15.77 GiB\nFree (according to CUDA): 19.38 MiB\nPyTorch limit (set by "
      "user-supplied memory fraction)\n                        : 17179869184.00 GiB\n");
  EXPECT_EQ(m.source, MessageSource::kTorchAsync);
  EXPECT_EQ(m.device, 2);
  EXPECT_EQ(m.allocated, GiB(13.5));
  EXPECT_EQ(m.requested, GiB(1.25));
  EXPECT_EQ(m.capacity, GiB(15.77));
  EXPECT_EQ(m.free, MiB(19.38));
  EXPECT_EQ(m.allowed, std::nullopt);
  EXPECT_FALSE(m.cut_off);
}

TEST(TorchWordings, CudaMallocAsyncWithALimit) {
  const OomMessage m = ReadOne(
      "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated "
      "    : 3.50 GiB\nRequested               : 1.25 GiB\nDevice limit            : 15.77 "
      "GiB\nFree (according to CUDA): 9.38 GiB\nPyTorch limit (set by user-supplied memory "
      "fraction)\n                        : 4.00 GiB");
  EXPECT_EQ(m.allowed, GiB(4));
}

TEST(TorchWordings, Hip) {
  const OomMessage m = ReadOne(
      "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total "
      "capacity of 15.98 GiB of which 2.10 GiB is free. Of the allocated memory 12.70 GiB is "
      "allocated by PyTorch, and 620.21 MiB is reserved by PyTorch but unallocated. If reserved "
      "but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True "
      "to avoid fragmentation.");
  EXPECT_EQ(m.source, MessageSource::kTorchHip);
  EXPECT_EQ(m.requested, GiB(3));
  EXPECT_EQ(m.reserved_free, MiB(620.21));
}

TEST(TorchWordings, Xpu) {
  const OomMessage m = ReadOne(
      "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total "
      "capacity of 15.91 GiB of which 1.10 GiB is free. 12.00 GiB allowed; Of the allocated memory "
      "11.00 GiB is allocated by PyTorch, and 410.00 MiB is reserved by PyTorch but unallocated. "
      "Please use `empty_cache` to release all unoccupied cached memory.");
  EXPECT_EQ(m.source, MessageSource::kTorchXpu);
  EXPECT_EQ(m.device, 1);
  EXPECT_EQ(m.allowed, GiB(12));
  EXPECT_EQ(m.allocated, GiB(11));
  EXPECT_EQ(m.reserved_free, MiB(410));
  EXPECT_FALSE(m.cut_off);
}

TEST(TorchWordings, Mps) {
  const OomMessage m = ReadOne(
      "RuntimeError: MPS backend out of memory (MPS allocated: 8.25 GB, other allocations: 612.00 "
      "MB, max allowed: 9.07 GB). Tried to allocate 256.00 MB on private pool. Use "
      "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may "
      "cause system failure).");
  EXPECT_EQ(m.source, MessageSource::kTorchMps);
  EXPECT_EQ(m.allocated, GiB(8.25));
  EXPECT_EQ(m.other, MiB(612));
  EXPECT_EQ(m.allowed, GiB(9.07));
  EXPECT_EQ(m.requested, MiB(256));
  EXPECT_EQ(m.subject, "private pool");
  EXPECT_FALSE(m.cut_off);
}

TEST(TorchWordings, VirtualAddresses) {
  const OomMessage m = ReadOne(
      "RuntimeError: [ExpandableSegmentVA] Failed to reserve 157.29 GiB of virtual address space");
  EXPECT_EQ(m.source, MessageSource::kVirtualAddress);
  EXPECT_EQ(m.requested, GiB(157.29));
}

TEST(TorchWordings, TheBareSentence) {
  const OomMessage m = ReadOne("epoch 3\nRuntimeError: CUDA out of memory.\nepoch 4\n");
  EXPECT_EQ(m.source, MessageSource::kTorchCuda);
  EXPECT_EQ(m.requested, std::nullopt);
  EXPECT_EQ(m.line, 2u);
  EXPECT_FALSE(m.cut_off);
}

TEST(TorchWordings, AHintThatIsLeftOutTellsThatSegmentsExpand) {
  const std::string figures =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
      "capacity of 79.15 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this "
      "process has 78.60 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by "
      "PyTorch, and 18.00 GiB is reserved by PyTorch but unallocated.";
  const std::string reference =
      " See documentation for Memory Management  "
      "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage)\n";
  const OomMessage without = ReadOne(figures + reference);
  EXPECT_TRUE(without.expandable_on);
  EXPECT_EQ(VersionsOf(without), "2.4 or newer") << "not an older release";
  EXPECT_FALSE(ReadOne(figures +
                       " If reserved but unallocated memory is large try setting "
                       "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation." +
                       reference)
                   .expandable_on);
  EXPECT_FALSE(ReadOne(figures + "\n").expandable_on) << "the text may have been cut there";
}

}  // namespace
}  // namespace plimsoll::wordings_torch_test
