#include "job/transforms/sample_means.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "base/hash.h"
#include "job/transforms/call_uses.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

bool IsFloat(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat64 || IsHalf(type);
}

template <std::size_t kCount>
bool IsOneOf(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Of a number over all samples: another mean of it is no mean of the samples.
constexpr std::array<std::string_view, 30> kNotLinear = {
    "pow",      "sqrt",      "rsqrt",
    "exp",      "exp2",      "expm1",
    "log",      "log1p",     "log2",
    "log10",    "square",    "reciprocal",
    "abs",      "tanh",      "sigmoid",
    "softplus", "relu",      "log_sigmoid_forward",
    "clamp",    "clamp_min", "clamp_max",
    "maximum",  "minimum",   "norm",
    "std",      "var",       "linalg_vector_norm",
    "_softmax", "logsumexp", "prod"};
/// Numbers over all samples that are no sums of them.
constexpr std::array<std::string_view, 12> kNoSums = {
    "std", "var",    "norm",    "linalg_vector_norm", "logsumexp", "prod", "amax", "amin", "max",
    "min", "median", "var_mean"};
constexpr std::array<std::string_view, 6> kSums = {"sum", "mean", "mm", "addmm", "bmm", "dot"};
/// What they put into a tensor comes from elsewhere in it: rows that were selected are back in
/// their places.
constexpr std::array<std::string_view, 9> kPutsBack = {
    "index_put",   "_index_put_impl", "index_add",      "index_copy", "scatter",
    "scatter_add", "masked_scatter",  "scatter_reduce", "index_fill"};

/// Which argument says whether a loss is a mean (1) or a sum (2).
struct Reduction {
  std::string_view op;
  std::size_t argument;
};
constexpr std::array<Reduction, 7> kReductions = {{{"nll_loss_forward", 3},
                                                   {"nll_loss2d_forward", 3},
                                                   {"mse_loss", 2},
                                                   {"smooth_l1_loss", 2},
                                                   {"huber_loss", 2},
                                                   {"binary_cross_entropy", 3},
                                                   {"binary_cross_entropy_with_logits", 4}}};
constexpr std::int64_t kMean = 1;
constexpr std::int64_t kSum = 2;

/// By how many factors of the number of samples a number is more than a mean of them. Not known
/// where a tensor of the script's own divides it.
using Degree = std::optional<int>;

/// In a tensor: none, some of them each in its own part, or all together, as in a mean.
enum class PartOfSamples : std::uint8_t { kNone, kSome, kAll };

class LossReader {
 public:
  LossReader(const Job& job, const Variant& variant)
      : job_(job), variant_(variant), uses_(job, variant) {}

  MicroBatchNumerics Read() {
    for (const CallRecord& call : variant_.calls) {
      const std::string_view op = job_.strings[call.op];
      if (op.find("batch_norm") != std::string_view::npos) {
        return {.why = "batch norm averages over the samples of one micro-batch"};
      }
      if (BaseName(op).starts_with("nll_loss")) cross_entropies_.insert(call.where);
    }
    if (const TensorUse* loss = FindLoss()) ReadNumber(loss->storage, 0);
    while (!open_.empty() && found_.why.empty()) {
      const Storage storage = open_.back();
      open_.pop_back();
      for (const std::size_t event : WritersOf(storage)) ReadOfSamples(event, storage);
    }
    return found_;
  }

 private:
  /// The backward begins with a gradient of ones for it.
  const TensorUse* FindLoss() {
    Stage stage = Stage::kUnknown;
    for (std::size_t i = 0; i < variant_.events.size(); ++i) {
      const JobEvent& event = variant_.events[i];
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      if (event.kind != JobEvent::Kind::kCall || stage != Stage::kBackward) continue;
      backward_ = i;
      return uses_.OpAt(i) == "ones_like" ? TensorArg(uses_.CallAt(i), 0) : nullptr;
    }
    return nullptr;
  }

  /// Those that make it and that write into it before the backward. A model's own tensors have
  /// none.
  std::vector<std::size_t> WritersOf(Storage storage) const {
    const std::size_t maker = uses_.MakerOf(storage);
    if (maker == kNoCall || maker > backward_) return {};
    std::vector<std::size_t> writers = {maker};
    for (const std::size_t reader : uses_.ReadersOf(storage)) {
      if (reader > backward_) break;
      const TensorUse* first = TensorArg(uses_.CallAt(reader), 0);
      const bool writes =
          uses_.OpAt(reader).ends_with('_') && first != nullptr && first->storage == storage;
      if (writes && !PutsBack(reader)) writers.push_back(reader);
    }
    return writers;
  }

  /// Without the underscore of what writes in place.
  std::string_view NameAt(std::size_t event) const {
    std::string_view name = uses_.OpAt(event);
    if (name.ends_with('_')) name.remove_suffix(1);
    return name;
  }
  bool PutsBack(std::size_t event) const { return IsOneOf(NameAt(event), kPutsBack); }

  bool FollowsBatch(Storage storage) const {
    const LayoutRecord* made = uses_.LayoutOf(storage);
    return made != nullptr && std::ranges::any_of(made->sizes, &Number::depends);
  }

  bool FollowsBatch(const TensorUse& use) const {
    return std::ranges::any_of(uses_.LayoutOf(use).sizes, &Number::depends);
  }

  bool Reduces(std::size_t event) const {
    return IsOneOf(NameAt(event), kSums) || IsOneOf(NameAt(event), kNoSums);
  }

  /// Which part samples have in it.
  PartOfSamples PartIn(Storage storage) {
    const auto [known, is_new] = parts_.emplace(storage, PartOfSamples::kNone);
    if (!is_new) return known->second;
    PartOfSamples part = PartOfSamples::kNone;
    if (FollowsBatch(storage)) {
      part = PartOfSamples::kSome;
    } else {
      for (const std::size_t event : WritersOf(storage)) {
        ForEachArgument(uses_.CallAt(event), [&](const TensorUse& use) {
          if (use.storage == storage || use.storage == kElsewhere) return;
          part = std::max(part, Reduces(event) && FollowsBatch(use) ? PartOfSamples::kAll
                                                                    : PartIn(use.storage));
        });
      }
    }
    return parts_[storage] = part;
  }
  bool IsOfSamples(Storage storage) { return PartIn(storage) != PartOfSamples::kNone; }

  /// A number over all samples on the way to the loss: linear in what it is made of.
  void ReadNumber(Storage storage, Degree degree) {
    if (!numbers_.emplace(storage, 1).second) return;
    // What was written last comes first.
    std::vector<std::size_t> writers = WritersOf(storage);
    for (; !writers.empty(); writers.pop_back()) {
      const std::size_t event = writers.back();
      const std::string_view name = NameAt(event);
      degree = DegreeBefore(event, degree);
      std::set<Storage> numbers;
      ForEachArgument(uses_.CallAt(event), [&](const TensorUse& use) {
        if (use.storage == kElsewhere || !IsOfSamples(use.storage)) return;
        if (!FollowsBatch(use.storage)) {
          numbers.insert(use.storage);
        } else if (of_each_.emplace(use.storage, 1).second) {
          open_.push_back(use.storage);
        }
      });
      if (numbers.empty()) Reduce(event, degree);
      if (!numbers.empty() &&
          (IsOneOf(name, kNotLinear) || (name == "mul" && numbers.size() > 1))) {
        Refuse(event, "is not linear in a mean over the samples of one micro-batch");
      }
      // A divisor was looked at.
      const TensorUse* divisor = name == "div" ? TensorArg(uses_.CallAt(event), 1) : nullptr;
      if (divisor != nullptr) numbers.erase(divisor->storage);
      numbers.erase(storage);
      for (const Storage number : numbers) ReadNumber(number, degree);
    }
  }

  /// Of what the call divides or multiplies.
  Degree DegreeBefore(std::size_t event, Degree degree) {
    const CallRecord& call = uses_.CallAt(event);
    const std::string_view name = NameAt(event);
    if (name != "div" && name != "mul") return degree;
    if (const TensorUse* by = name == "div" ? TensorArg(call, 1) : nullptr) {
      if (!IsOfSamples(by->storage)) return std::nullopt;
      if (FollowsBatch(by->storage)) return degree;
      ReadDivisor(event, by->storage);
      return degree ? Degree(*degree - 1) : Degree();
    }
    const auto* by = call.args.size() > 1 ? std::get_if<Number>(&call.args[1].is) : nullptr;
    if (by == nullptr || !by->depends() || !degree) return degree;
    return name == "div" ? *degree - 1 : *degree + 1;
  }

  /// The samples decide it. It may say how many elements count, as many in each sample; or in all
  /// micro-batches of a step, as transformers' Trainer counts.
  void ReadDivisor(std::size_t event, Storage storage) {
    std::vector<Storage> open = {storage};
    std::set<Storage> seen;
    int counts = 0;
    bool alike = true;
    while (!open.empty()) {
      const Storage at = open.back();
      open.pop_back();
      if (!seen.insert(at).second) continue;
      for (const std::size_t writer : WritersOf(at)) {
        bool over_batch = false;
        ForEachArgument(uses_.CallAt(writer), [&](const TensorUse& use) {
          if (use.storage == kElsewhere || !IsOfSamples(use.storage)) return;
          over_batch = over_batch || FollowsBatch(use.storage);
          if (!FollowsBatch(use.storage)) open.push_back(use.storage);
        });
        if (!over_batch) continue;
        ++counts;
        alike = alike && NameAt(writer) == "sum" && CountsAlike(writer);
      }
    }
    const bool of_step = variant_.passes > 1 && counts >= variant_.passes;
    if (!alike && !of_step) {
      Refuse(event, "is divided by a number over the samples of one micro-batch");
    }
  }
  /// Of a cross-entropy with label smoothing, which counts by itself, it may not be known.
  bool CountsAlike(std::size_t sum) {
    const StringId where = uses_.CallAt(sum).where;
    const auto found = job_.counted.find(job_.strings[where]);
    return found != job_.counted.end() ? found->second : cross_entropies_.contains(where);
  }

  /// From numbers of each sample to one over all.
  void Reduce(std::size_t event, Degree degree) {
    const CallRecord& call = uses_.CallAt(event);
    const std::string_view name = NameAt(event);
    if (IsOneOf(name, kNoSums)) {
      return Refuse(event, "is not linear in what its samples have");
    }
    std::int64_t kind = name == "sum" ? kSum : kMean;
    const auto known = std::ranges::find(kReductions, name, &Reduction::op);
    if (known != kReductions.end() && call.args.size() > known->argument) {
      const auto* told = std::get_if<Number>(&call.args[known->argument].is);
      if (told != nullptr) kind = told->least();
    }
    if (kind == kSum && degree && *degree + 1 > 0) {
      return Refuse(event, "is a sum over the samples of one micro-batch, and no mean");
    }
    if (kind == kMean && name.starts_with("nll_loss")) ReadCrossEntropy(event);
  }

  /// nll_loss_forward(log_probabilities, target, weight, ...) as a mean
  void ReadCrossEntropy(std::size_t event) {
    const CallRecord& call = uses_.CallAt(event);
    if (TensorArg(call, 2) != nullptr) {
      return Refuse(event, "is divided by the weights of the classes in one micro-batch");
    }
    const std::string_view where = job_.strings[call.where];
    const auto found = job_.counted.find(where);
    if (found != job_.counted.end()) {
      if (found->second) return;
      return Refuse(event,
                    "is a mean over the targets that are not ignored, as many as one "
                    "micro-batch has");
    }
    const TensorUse* target = TensorArg(call, 1);
    if (target == nullptr) return;
    std::int64_t rows = 1;
    for (const Number& size : uses_.LayoutOf(*target).sizes) rows *= size.least();
    if (rows > job_.batches[0]) found_.unknown = where;
  }

  /// A call that makes or writes what is of each sample.
  void ReadOfSamples(std::size_t event, Storage storage) {
    const CallRecord& call = uses_.CallAt(event);
    if (SelectsByMask(call, uses_.OpAt(event))) {
      return Refuse(event, "is over what a mask selects, as much as one micro-batch has", call);
    }
    const bool puts_back = PutsBack(event);
    bool is_first = true;
    ForEachArgument(call, [&](const TensorUse& use) {
      const bool counts = !puts_back || is_first;
      is_first = false;
      if (!counts || use.storage == kElsewhere || use.storage == storage) return;
      if (use.needs_grad && FactorsOfBatch(uses_.LayoutOf(use)) > 1) {
        Refuse(event, "compares the samples of one micro-batch", call);
      }
      if (FollowsBatch(use.storage)) {
        if (of_each_.emplace(use.storage, 1).second) open_.push_back(use.storage);
      } else if (IsFloat(uses_.LayoutOf(use).dtype) && PartIn(use.storage) == PartOfSamples::kAll) {
        Refuse(event, "has a number over the samples of one micro-batch in it", call);
      }
    });
  }

  /// x[mask], or x[mask.nonzero()]
  bool SelectsByMask(const CallRecord& call, std::string_view op) const {
    const TensorUse* read = TensorArg(call, 0);
    if (op != "index" || read == nullptr || !read->needs_grad || call.args.size() < 2) return false;
    const auto* indices = std::get_if<Argument::List>(&call.args[1].is);
    if (indices == nullptr) return false;
    return std::ranges::any_of(*indices, [&](const Argument& index) {
      const auto* use = std::get_if<TensorUse>(&index.is);
      if (use == nullptr) return false;
      const DType type = uses_.LayoutOf(*use).dtype;
      const std::size_t maker = uses_.MakerOf(use->storage);
      return type == DType::kBool || type == DType::kUInt8 ||
             (maker != kNoCall && uses_.OpAt(maker) == "nonzero");
    });
  }

  /// How many of its dimensions grow as the batch does.
  int FactorsOfBatch(const LayoutRecord& layout) const {
    return static_cast<int>(std::ranges::count_if(layout.sizes, [&](const Number& n) {
      return n.depends() && n.at(0) * job_.batches[1] == n.at(1) * job_.batches[0];
    }));
  }

  void Refuse(std::size_t event, std::string_view why) { Refuse(event, why, uses_.CallAt(event)); }
  void Refuse(std::size_t, std::string_view why, const CallRecord& call) {
    if (!found_.why.empty()) return;
    const std::string_view where = job_.strings[call.where];
    found_.why = where.empty() ? fmt::format("the loss {}", why)
                               : fmt::format("the loss {} ({})", why, where);
  }

  const Job& job_;
  const Variant& variant_;
  const CallUses uses_;
  std::size_t backward_ = 0;
  MicroBatchNumerics found_;
  /// Where they are.
  std::set<StringId> cross_entropies_;
  HashMap<Storage, PartOfSamples> parts_;
  HashMap<Storage, char> numbers_, of_each_;
  /// What is of each sample, and still to be read.
  std::vector<Storage> open_;
};

}  // namespace

MicroBatchNumerics NumericsOfMicroBatches(const Job& job, const Variant& variant) {
  return LossReader(job, variant).Read();
}

}  // namespace plimsoll
