#include "document.h"

#include "pickle_writer.h"

namespace plimsoll::hostile {
namespace {

Node None() { return {.kind = Node::kNone}; }
Node Bool(bool value) { return {.kind = Node::kBool, .number = value}; }
Node Int(std::int64_t value) { return {.kind = Node::kInt, .number = value}; }
Node Float() { return {.kind = Node::kFloat}; }
Node Text(std::string text) { return {.kind = Node::kText, .text = std::move(text)}; }
Node List(std::vector<Node> items) { return {.kind = Node::kList, .items = std::move(items)}; }
Node Dict(std::vector<std::pair<std::string, Node>> fields) {
  return {.kind = Node::kDict, .fields = std::move(fields)};
}

constexpr std::int64_t kSegment = 0x7f2000000000;
constexpr std::int64_t kMiB = 1 << 20;

Node Stack(int line) {
  const auto frame = [](const char* name, const char* file, int at) {
    return Dict({{"name", Text(name)}, {"filename", Text(file)}, {"line", Int(at)}});
  };
  return List({frame("forward", "/home/user/model.py", line), frame("main", "train.py", 9)});
}

Node Event(const char* action, std::int64_t address, std::int64_t size, int index) {
  return Dict({{"action", Text(action)},
               {std::string_view(action) == "oom" ? "device_free" : "addr", Int(address)},
               {"size", Int(size)},
               {"stream", Int(0)},
               {"time_us", Int(1794702158000000 + index)},
               {"compile_context", Text("N/A")},
               {"user_metadata", Text("")},
               {"pool_id", List({Int(0), Int(0)})},
               {"frames", Stack(10 + index)},
               {"forward_frames", List({Text("  File \"model.py\", line 3, in forward\n")})}});
}

Node Block(std::int64_t address, std::int64_t size, const char* state) {
  return Dict({{"address", Int(address)},
               {"size", Int(size)},
               {"requested_size", Int(size)},
               {"state", Text(state)},
               {"frames", Stack(10)}});
}

void Write(const Node& node, bench::PickleWriter& out) {
  switch (node.kind) {
    case Node::kNone:
      return out.None();
    case Node::kBool:
      return out.Bool(node.number != 0);
    case Node::kInt:
      return out.Int(node.number);
    case Node::kFloat:
      return out.Float(0.5);
    case Node::kText:
      return out.Str(node.text);
    case Node::kList:
      out.List(node.items.size(), [&](std::size_t i) { Write(node.items[i], out); });
      return;
    case Node::kDict:
      out.Dict(node.fields.size(), [&] {
        for (const auto& [key, value] : node.fields) {
          out.Str(key);
          Write(value, out);
        }
      });
  }
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

Node SmallSnapshot() {
  const Node segment =
      Dict({{"device", Int(0)},
            {"address", Int(kSegment)},
            {"total_size", Int(20 * kMiB)},
            {"allocated_size", Int(4 * kMiB)},
            {"active_size", Int(4 * kMiB)},
            {"requested_size", Int(4 * kMiB)},
            {"stream", Int(0)},
            {"segment_type", Text("large")},
            {"segment_pool_id", List({Int(0), Int(0)})},
            {"is_expandable", Bool(false)},
            {"frames", Stack(10)},
            {"blocks", List({Block(kSegment, 4 * kMiB, "active_allocated"),
                             Block(kSegment + 4 * kMiB, 16 * kMiB, "inactive")})}});
  const Node trace =
      List({Event("segment_alloc", kSegment, 20 * kMiB, 0), Event("alloc", kSegment, 4 * kMiB, 1),
            Event("alloc", kSegment + 4 * kMiB, 2 * kMiB, 2),
            Event("free_requested", kSegment + 4 * kMiB, 2 * kMiB, 3),
            Event("free_completed", kSegment + 4 * kMiB, 2 * kMiB, 4),
            Event("oom", 3 * kMiB, 64 * kMiB, 5)});
  const Node settings = Dict({{"PYTORCH_CUDA_ALLOC_CONF", Text("")},
                              {"max_split_size", Int(-1)},
                              {"garbage_collection_threshold", Float()},
                              {"expandable_segments", Bool(false)},
                              {"roundup_power2_divisions", Dict({{"1", Int(0)}, {"2", Int(0)}})}});
  const Node annotation = Dict({{"stage", Text("START")},
                                {"name", Text("Optimizer.step#Adam.step")},
                                {"device", Int(0)},
                                {"time_us", Int(1794702158000002)}});
  return Dict({{"segments", List({segment})},
               {"device_traces", List({trace, List({})})},
               {"allocator_settings", settings},
               {"external_annotations", List({annotation})},
               {"something_new", None()}});
}

std::vector<Node*> AllNodes(Node& root) {
  std::vector<Node*> all = {&root};
  for (std::size_t i = 0; i < all.size(); ++i) {
    Node& node = *all[i];
    for (Node& item : node.items) all.push_back(&item);
    for (auto& [key, value] : node.fields) all.push_back(&value);
  }
  return all;
}

std::string AsPickle(const Node& root) {
  std::string bytes;
  bench::PickleWriter out([&](std::string_view piece) { bytes += piece; });
  Write(root, out);
  out.Stop();
  return bytes;
}

std::string AsJson(const Node& root) {
  std::string out;
  switch (root.kind) {
    case Node::kNone:
      return "null";
    case Node::kBool:
      return root.number != 0 ? "true" : "false";
    case Node::kInt:
      return std::to_string(root.number);
    case Node::kFloat:
      return "0.5";
    case Node::kText:
      return Quoted(root.text);
    case Node::kList:
      for (const Node& item : root.items) out += (out.empty() ? "" : ", ") + AsJson(item);
      return "[" + out + "]";
    case Node::kDict:
      for (const auto& [key, value] : root.fields) {
        out += (out.empty() ? "" : ", ") + Quoted(key) + ": " + AsJson(value);
      }
      return "{" + out + "}";
  }
  return out;
}

}  // namespace plimsoll::hostile
