// generate_snapshot EVENTS FRAMES OUT [shared]
//
// Writes a memory snapshot as torch 2.11 and CPython would:
// pickle.dump(torch.cuda.memory._snapshot()). Each frame is one dict, written where it is first
// used and referred to afterwards. Each event has a traceback list of its own, which is the most
// that a reader can be given to do. In a real file the two events of a free, and a block and its
// allocation, share one list: "shared" writes that.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pickle_writer.h"
#include "training_run.h"

namespace plimsoll::bench {
namespace {

class SnapshotWriter {
 public:
  SnapshotWriter(const TrainingRun& run, bool shared, PickleWriter& out)
      : run_(run), shared_(shared), out_(out), frames_(run.stacks.frames.size()) {}

  void Write() {
    out_.Dict(4, [&] {
      Segments();
      Traces();
      Settings();
      Annotations();
    });
    out_.Stop();
  }

 private:
  struct BlockAt {
    std::uint64_t address;
    const Block* block;
  };

  void Field(std::string_view key, std::int64_t value) {
    out_.Str(key);
    out_.Int(value);
  }
  void Field(std::string_view key, std::string_view value) {
    out_.Str(key);
    out_.Str(value);
  }
  void Flag(std::string_view key, bool value) {
    out_.Str(key);
    out_.Bool(value);
  }

  void Segments() {
    std::vector<std::vector<BlockAt>> blocks(run_.allocator.segments().size());
    for (const auto& [address, block] : run_.allocator.blocks()) {
      blocks[block.segment].push_back({address, &block});
    }
    out_.Str("segments");
    out_.List(blocks.size(), [&](std::size_t i) {
      out_.Dict(12, [&] { OneSegment(run_.allocator.segments()[i], blocks[i]); });
    });
  }

  void OneSegment(const Segment& segment, const std::vector<BlockAt>& blocks) {
    std::int64_t used = 0, active = 0, requested = 0;
    for (const BlockAt& at : blocks) {
      if (at.block->state == Block::kUsed) used += at.block->size;
      if (at.block->state != Block::kFree) active += at.block->size;
      if (at.block->state != Block::kFree) requested += at.block->requested;
    }
    Field("device", 0);
    Field("address", static_cast<std::int64_t>(segment.address));
    Field("total_size", segment.size);
    Field("allocated_size", used);
    Field("active_size", active);
    Field("requested_size", requested);
    Field("stream", 0);
    Field("segment_type", segment.small ? "small" : "large");
    out_.Str("segment_pool_id");
    out_.IntPair(0, 0);
    Flag("is_expandable", false);
    Traceback(segment.stack, segment.context);
    out_.Str("blocks");
    out_.List(blocks.size(), [&](std::size_t i) {
      out_.Dict(5, [&] { OneBlock(blocks[i].address, *blocks[i].block); });
    });
  }

  void OneBlock(std::uint64_t address, const Block& block) {
    static constexpr const char* kStates[] = {"inactive", "active_allocated",
                                              "active_pending_free"};
    Field("address", static_cast<std::int64_t>(address));
    Field("size", block.size);
    Field("requested_size", block.requested);
    Field("state", kStates[block.state]);
    if (block.state == Block::kFree) {
      NoTraceback();
    } else {
      Traceback(block.stack, block.context);
    }
  }

  void Traces() {
    const std::vector<Event>& events = run_.allocator.events();
    out_.Str("device_traces");
    out_.List(1, [&](std::size_t) {
      out_.List(events.size(), [&](std::size_t i) { out_.Dict(8, [&] { OneEvent(events[i]); }); });
    });
  }

  void OneEvent(const Event& event) {
    static constexpr const char* kActions[] = {"alloc", "free_requested", "free_completed",
                                               "segment_alloc"};
    Field("action", kActions[static_cast<int>(event.what)]);
    Field("addr", static_cast<std::int64_t>(event.address));
    Field("size", event.size);
    Field("stream", 0);
    Field("time_us", event.time_us);
    Field("compile_context", "N/A");
    Field("user_metadata", "");
    Traceback(event.stack, event.context);
  }

  void Traceback(std::uint32_t stack, std::uint32_t context) {
    out_.Str("frames");
    if (shared_) {
      if (context >= lists_.size()) lists_.resize(context + 1);
      if (lists_[context]) return out_.Get(*lists_[context]);
    }
    const std::vector<std::uint32_t>& frames = run_.stacks.stacks[stack];
    const PickleWriter::Memo list =
        out_.List(frames.size(), [&](std::size_t i) { OneFrame(frames[i]); });
    if (shared_) lists_[context] = list;
  }

  // Blocks that are free all refer to one empty list.
  void NoTraceback() {
    out_.Str("frames");
    if (empty_list_) return out_.Get(*empty_list_);
    empty_list_ = out_.List(0, [](std::size_t) {});
  }

  void OneFrame(std::uint32_t id) {
    if (frames_[id]) return out_.Get(*frames_[id]);
    const Frame& frame = run_.stacks.frames[id];
    frames_[id] = out_.Dict(3, [&] {
      Field("name", frame.name);
      Field("filename", frame.file);
      Field("line", frame.line);
    });
  }

  void Settings() {
    out_.Str("allocator_settings");
    out_.Dict(9, [&] {
      Field("PYTORCH_CUDA_ALLOC_CONF", "");
      Field("max_split_size", -1);
      out_.Str("garbage_collection_threshold");
      out_.Float(0.0);
      Flag("expandable_segments", false);
      Field("pinned_num_register_threads", 1);
      Flag("release_lock_on_cudamalloc", false);
      Flag("pinned_use_cuda_host_register", false);
      Flag("graph_capture_record_stream_reuse", false);
      out_.Str("roundup_power2_divisions");
      out_.Dict(16, [&] {
        for (int bit = 0; bit < 16; ++bit) Field(std::to_string(1 << bit), 0);
      });
    });
  }

  void Annotations() {
    out_.Str("external_annotations");
    out_.List(run_.annotations.size(), [&](std::size_t i) {
      const Annotation& annotation = run_.annotations[i];
      out_.Dict(4, [&] {
        // torch makes these two keys anew for each annotation.
        out_.FreshStr("stage");
        out_.Str(annotation.start ? "START" : "END");
        out_.FreshStr("name");
        out_.Str(annotation.name);
        Field("device", 0);
        Field("time_us", annotation.time_us);
      });
    });
  }

  const TrainingRun& run_;
  bool shared_;
  PickleWriter& out_;
  std::vector<std::optional<PickleWriter::Memo>> frames_;
  std::vector<std::optional<PickleWriter::Memo>> lists_;
  std::optional<PickleWriter::Memo> empty_list_;
};

int Main(int argc, char** argv) {
  const bool shared = argc == 5 && std::string_view(argv[4]) == "shared";
  const long events = argc >= 4 ? std::atol(argv[1]) : 0;
  const long frames = argc >= 4 ? std::atol(argv[2]) : 0;
  if (events <= 0 || frames <= 0 || argc > 5 || (argc == 5 && !shared)) {
    std::fprintf(stderr, "usage: generate_snapshot EVENTS FRAMES OUT [shared]\n");
    return 2;
  }
  std::FILE* file = std::fopen(argv[3], "wb");
  if (file == nullptr) {
    std::perror(argv[3]);
    return 2;
  }
  const TrainingRun run = Train(static_cast<std::size_t>(events), static_cast<std::size_t>(frames));
  bool written = true;
  PickleWriter out([&](std::string_view bytes) {
    written &= std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  });
  SnapshotWriter(run, shared, out).Write();
  written &= std::fclose(file) == 0;
  if (!written) {
    std::perror(argv[3]);
    return 2;
  }
  std::printf("%s: %zu events, %zu stacks of %ld frames, %zu distinct frames\n", argv[3],
              run.allocator.events().size(), run.stacks.stacks.size(), frames,
              run.stacks.frames.size());
  return 0;
}

}  // namespace
}  // namespace plimsoll::bench

int main(int argc, char** argv) { return plimsoll::bench::Main(argc, argv); }
