// A training job as a program over tensors, as docs/formats/step.md describes it: operators in
// order, with what each got and made, when each storage dies, and where its stages begin. Numbers
// that depend on the batch are kept at two sizes of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "answer/category.h"
#include "base/interner.h"
#include "job/file/forms.h"
#include "job/file/layout.h"
#include "job/file/number.h"
#include "job/file/workspace_table.h"
#include "timeline/stage.h"

namespace plimsoll {

using Storage = std::uint32_t;
/// A tensor that is not on the device.
inline constexpr Storage kElsewhere = 0;

struct TensorUse {
  Storage storage = kElsewhere;
  std::uint32_t layout = 0;
  bool view = false;
  bool parameter = false;
  bool needs_grad = false;
};

struct Argument {
  using List = std::vector<Argument>;
  std::variant<std::monostate, bool, Number, double, StringId, TensorUse, List> is = {};
};

struct NewStorage {
  Storage storage = 0;
  Number bytes;
  /// The result that lies in it; an index into the call's results.
  std::uint32_t result = 0;
  /// Further calls during which a variable of the user's holds it, where the backward holds it too
  /// and this is longer than the forward reads it.
  std::uint32_t held_calls = 0;
};

struct CallRecord {
  StringId op;
  /// The line of the user's code, and the path of the module.
  StringId where;
  StringId module;
  int thread = 0;
  /// In which it makes its storages; 0 is the one that computes.
  std::uint8_t stream = 0;
  std::vector<Argument> args;
  std::vector<std::pair<StringId, Argument>> kwargs;
  std::vector<TensorUse> results;
  std::vector<NewStorage> fresh;
  /// A call of the forward that a checkpoint repeats in the backward.
  bool recomputed = false;
  /// A selective checkpoint asks its policy about it, which is Python.
  bool watched = false;
};

/// An operator without its namespace and overload: "mm" of "aten.mm.default".
std::string_view BaseName(std::string_view op);

/// A parameter or a buffer.
struct ModelTensor {
  Storage storage = 0;
  std::uint32_t layout = 0;
  StringId name;
  bool trainable = false;
  bool buffer = false;
  /// Those of the same number lie in one piece of memory: the weights of a recurrent layer. 0: it
  /// lies alone.
  std::uint32_t piece = 0;
};

struct JobEvent {
  enum class Kind : std::uint8_t { kModelTensor, kStep, kStage, kCall, kFree, kLabel, kRound };
  Kind kind = Kind::kCall;
  Stage stage = Stage::kUnknown;               // kStage
  Category category = Category::kTemporaries;  // kLabel
  /// Into model_tensors or calls; the storage itself for kFree and kLabel. Of kRound, which ends a
  /// micro-batch: how often that one is repeated then, with storages of its own each time.
  std::uint32_t index = 0;
};

/// A change of the user's code that frees memory earlier.
struct ReleaseEdit {
  enum class Kind : std::uint8_t {
    kVariable,   ///< `del name` before the line `where`
    kPlace,      ///< what `name` keeps from step to step, let go at the end of the step
    kGraph,      ///< the graph of the number that `name` keeps, likewise
    kBatch,      ///< the batch, before the backward
    kGradients,  ///< the gradients, after the optimizer's step at the line `where`
  };
  Kind kind = Kind::kVariable;
  StringId name;
  StringId where;
};

/// What the capture found by trying: with these edits, made together, the storages are free before
/// these events (one past the last: at the end), and nothing else changes.
struct Release {
  struct Free {
    std::size_t event = 0;
    Storage storage = 0;
  };
  std::vector<ReleaseEdit> edits;
  std::vector<Free> frees;
};

/// The variable or attribute that keeps tensors of every step ("history", "Trainer.outputs"), and
/// the line that puts them there, which may be empty: "train.py:32".
struct Keeper {
  std::string name;
  std::string where;
  /// It has room for so many, and lets go of the oldest; 0 where it keeps all.
  std::int64_t most = 0;
  /// It lets go before the step makes what takes the place; else at its end.
  bool before = false;
};

/// What a script leaves each time that something comes due in it, beside what it has left before.
struct DueGrowth {
  /// "train.py:63 `if step % 50 == 0:`"
  std::string branch;
  /// The line that makes most of it.
  std::string where;
  Number bytes;
  /// Steps from one time to the next; 0 where that is not known.
  std::int64_t every = 0;
  std::optional<Keeper> keeper = {};
};

/// A request of pinned memory, or the end of one: of the request that was the `ends`th, from 1.
struct PinnedEvent {
  Number bytes;
  std::uint32_t ends = 0;
};

/// What is in the host's memory at most, while a part of the job runs.
struct HostPeak {
  /// Tensors that are not pinned, and the line that asked for the last of them.
  Number bytes;
  std::string where;
  /// Of them, what is there at its end.
  std::optional<Number> left = {};
  /// In their order, numbered through all parts.
  std::vector<PinnedEvent> pinned = {};
  /// Processes that fetch batches for loaders, and batches that lie in shared memory.
  Number workers = {};
  Number shared = {};
};

/// What a script has in the host's memory at most.
struct HostPeaks {
  /// Modules, arrays and texts: what the process took that is in no tensor.
  Bytes imports = 0;
  /// Tensors until the model's first forward, in the steps, and in each later part.
  HostPeak build;
  HostPeak steps;
  std::vector<HostPeak> later = {};
};

/// Lists and dictionaries that modules are given as arguments, by the paths of the modules.
struct GivenLists {
  using Paths = std::set<std::string, std::less<>>;
  Paths to = {};
  /// They put something into one or take something out while they run.
  Paths changed_by = {};
};

/// Whether a step's batch is the heaviest of the job's data, and how far they were looked through.
enum class Heaviest : std::uint8_t { kNotOne, kOfFirst, kOfAll };

/// What the job does after its captured steps, in one piece: an evaluation, a save, a load, steps
/// once more. It finds what the last step left, and leaves it to the next part.
struct Part {
  Stage stage = Stage::kEvaluation;
  std::vector<JobEvent> events = {};
  /// One batch of a loop, which has so many like it; the part before it is another of them.
  Number times = {1, 1};
  /// What is done with all batches of a loop together: so many there are, and so many were seen.
  Number batches = {1, 1};
  std::int64_t seen = 1;
  /// Of a loop: numbers of each further round go on as they went from the part before to this one,
  /// which is like the two before it.
  bool grows = false;
  Heaviest heaviest = Heaviest::kNotOne;
  /// Its batch is a micro-batch of a step, or all of them together, divided by `shares`.
  bool of_whole_step = false;
  int shares = 1;
};

/// The same job in one precision.
struct Variant {
  std::string precision;
  /// The library whose setting makes it so, "accelerate"; empty where lines of the script do.
  std::string set_by = {};
  /// By torch.compile: what its forward and backward do is written by the compiler, and cannot be
  /// changed piece by piece.
  bool compiled = false;
  std::vector<ModelTensor> model_tensors;
  std::vector<CallRecord> calls;
  std::vector<JobEvent> events;
  /// One more than the highest.
  Storage storages = 1;
  /// Batches that one step of the optimizer takes, one after the other.
  int passes = 1;
  /// Lines of the script that read or change gradients between a backward and the optimizer's step:
  /// "train.py:57 in main". Nothing where the capture did not look.
  std::optional<std::vector<std::string>> gradients_used = {};
  /// Of the job as captured; a variant that is written anew has none.
  std::vector<Release> releases = {};
  /// In their order. Empty where only steps were captured.
  std::vector<Part> later = {};
};

/// Whether it has steps. One that has none evaluates or generates: all it does is in its parts.
bool Trains(const Variant& variant);

struct LayoutRecord {
  DType dtype = DType::kFloat32;
  std::vector<Number> sizes;
  std::vector<Number> strides;
};

/// What ranks exchange tensors by. Gloo goes through the host, and makes copies on the device.
enum class Backend : std::uint8_t { kNccl, kGloo };

struct Job;

/// A step of a job whose data decide the sizes of its batches.
struct SequenceStep {
  Extent extent;
  /// The point of the capture that it is. Nothing where it was not captured.
  std::optional<std::size_t> point = {};
};

/// What a loader makes of the job's data in an epoch.
struct EpochFacts {
  /// Sizes of the tensors of a batch.
  using Shapes = std::vector<Extent>;
  struct Kind {
    std::int64_t count = 0;
    Shapes shapes;
  };
  struct Heavy {
    /// Its number, from 0, and the samples that it is made of.
    std::int64_t batch = 0;
    std::vector<std::int64_t> samples;
    Shapes shapes;
  };
  struct Length {
    std::int64_t length = 0;
    std::int64_t samples = 0;
  };
  std::int64_t batches = 0;
  /// All of an epoch were seen.
  bool complete = false;
  std::vector<Kind> kinds;
  /// The heaviest first.
  std::vector<Heavy> heaviest;
  /// Growing. Empty where samples have no length.
  std::vector<Length> lengths;
};

/// The steps before a sequence: they make what all others find.
inline constexpr std::size_t kBeforeSequence = 2;

/// A part of a script that the capture did not follow. `file` is empty where the line is not known.
struct NotFollowed {
  std::string what;
  std::string file = {};
  std::int64_t line = 0;
};

/// What is known of a job beside what it does.
/// Whether results are the same with another number of micro-batches.
struct MicroBatchNumerics {
  /// Why they are not, about the loss or batch norm; empty where nothing says so.
  std::string why;
  /// The line of a loss over targets, of which the capture did not see whether some are ignored.
  std::string unknown;
};

struct JobFacts {
  std::string file;
  std::string torch;
  std::string gpu;
  std::string model;
  std::int64_t batches[2] = {2, 3};
  /// What the script asks its loader for, where other sizes were put in its place.
  std::optional<std::int64_t> own_batch = {};
  /// Of a job that was captured over more than the batch; what its numbers are at now.
  std::shared_ptr<const Forms> forms = {};
  std::optional<std::int64_t> length = {};
  /// Of a job as it stands, from the third step on: the last captured one at these. Its batch is
  /// its own, and cannot be varied.
  std::vector<SequenceStep> sequence = {};
  /// Where it was looked at.
  std::shared_ptr<const EpochFacts> data = {};
  /// The same job with the batches of its own data, where those change.
  std::shared_ptr<const Job> as_it_stands = {};
  /// What convolutions take; nothing where cuDNN was not asked at the capture.
  std::shared_ptr<const AskedWorkspaces> asked = {};
  /// torch.backends.cuda.matmul.allow_tf32
  bool matmul_tf32 = false;
  /// That of the script, where it names one; of the ranks that a transform adds.
  Backend backend = Backend::kNccl;
  /// The paths of the modules that the script gives to fully_shard, those of one call together; the
  /// whole model has the empty path. Nothing where no script tells.
  std::vector<std::vector<std::string>> sharded = {};
  /// What the script tells DistributedDataParallel, as ParseDataParallel takes it behind the ranks:
  /// ":views".
  std::string data_parallel = {};
  /// Calls of the model's own forward have a module whose path is empty, and those outside of the
  /// model have none. In older captures neither has one.
  bool names_root = false;
  /// None where the capture did not look.
  std::shared_ptr<const GivenLists> lists = std::make_shared<const GivenLists>();
  /// Of a script that was to be captured in bf16 autocast too: why it was not.
  std::string no_autocast = {};
  /// The data decide sizes: batches that were not seen may be larger.
  bool sizes_change = false;
  /// Batches that its loader has in an epoch, where what comes after that was captured sooner.
  std::optional<Number> epoch = {};
  /// Lines at which values decide how much is selected, of which equal shares are assumed.
  std::set<std::string, std::less<>> selected_at = {};
  /// The line at which a script could not be followed any further; empty where there is none.
  std::string lost_at = {};
  /// Parts of the script that were not followed and may change what it needs.
  std::vector<NotFollowed> not_followed = {};
  /// Lines that count elements, of a target that is not ignored or of a mask, and whether the
  /// capture saw the same share of them each time.
  std::map<std::string, bool, std::less<>> counted = {};
  /// Who keeps what a step leaves behind, where a script tells.
  std::optional<Keeper> keeper = {};
  /// What grows every so many steps.
  std::vector<DueGrowth> growing = {};
  /// Nothing where the capture did not look.
  std::optional<HostPeaks> host = {};
  std::vector<std::string> notes;
  /// Worked out of the job as it was captured, when it is first asked for; its copies share it.
  struct OnceNumerics {
    std::once_flag once;
    MicroBatchNumerics is;
  };
  std::shared_ptr<OnceNumerics> micro_batches = std::make_shared<OnceNumerics>();
};

struct Job : JobFacts {
  StringTable strings;
  std::vector<LayoutRecord> layouts;
  std::vector<Variant> variants;
};

/// Each assumption once: "a.py:1 in f: X" and "a.py:9 in g: X" become "a.py:1 in f, a.py:9 in g:
/// X". Of many lines the first three are named. The order is that of the first of each.
std::vector<std::string> MergedNotes(const std::vector<std::string>& notes);

/// The same job in one of its precisions alone.
Job CopyOf(const Job& job, std::size_t variant);

}  // namespace plimsoll
