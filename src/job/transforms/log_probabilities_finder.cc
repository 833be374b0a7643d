#include "job/transforms/log_probabilities_finder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "job/transforms/cross_entropy_finder.h"
#include "job/transforms/linear_product.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// What a tensor of the forward is. The first have a number for each class, the others one for
/// each row.
enum class Meaning : std::uint8_t {
  kNone,
  kLogits,
  kLogs,           ///< their log_softmax
  kProbabilities,  ///< their softmax
  kTerms,          ///< p log p
  kPicked,         ///< the logit of one class
  kLogSum,         ///< logsumexp of the logits
  kOwn,            ///< the logarithm of one class, of which the job makes its loss
  kSumOfTerms,
  kEntropy,
};

bool IsResult(Meaning meaning) {
  return meaning == Meaning::kOwn || meaning == Meaning::kSumOfTerms ||
         meaning == Meaning::kEntropy;
}

/// A call by which tensors with a meaning become another one.
struct Rule {
  std::string_view op;
  Meaning first;
  Meaning second;
  Meaning result;
};
constexpr std::array<Rule, 14> kMeaningRules = {{
    {"_to_copy", Meaning::kLogits, Meaning::kNone, Meaning::kLogits},
    {"clone", Meaning::kLogits, Meaning::kNone, Meaning::kLogits},
    {"div", Meaning::kLogits, Meaning::kNone, Meaning::kLogits},
    {"_log_softmax", Meaning::kLogits, Meaning::kNone, Meaning::kLogs},
    {"_softmax", Meaning::kLogits, Meaning::kNone, Meaning::kProbabilities},
    {"exp", Meaning::kLogs, Meaning::kNone, Meaning::kProbabilities},
    {"mul", Meaning::kProbabilities, Meaning::kLogs, Meaning::kTerms},
    {"mul", Meaning::kLogs, Meaning::kProbabilities, Meaning::kTerms},
    {"sum", Meaning::kTerms, Meaning::kNone, Meaning::kSumOfTerms},
    {"neg", Meaning::kSumOfTerms, Meaning::kNone, Meaning::kEntropy},
    {"gather", Meaning::kLogits, Meaning::kNone, Meaning::kPicked},
    {"gather", Meaning::kLogs, Meaning::kNone, Meaning::kOwn},
    {"logsumexp", Meaning::kLogits, Meaning::kNone, Meaning::kLogSum},
    {"sub", Meaning::kPicked, Meaning::kLogSum, Meaning::kOwn},
}};

/// What autograd makes of all that, up to the products.
constexpr std::array<std::string_view, 17> kOfBackward = {"new_zeros",
                                                          "scatter_add_",
                                                          "_log_softmax_backward_data",
                                                          "_softmax_backward_data",
                                                          "sub",
                                                          "exp",
                                                          "mul",
                                                          "neg",
                                                          "add",
                                                          "add_",
                                                          "div",
                                                          "_to_copy",
                                                          "clone",
                                                          "stack",
                                                          "cat",
                                                          "slice_backward",
                                                          "select_backward"};

class FinderFromLogits {
 public:
  explicit FinderFromLogits(const CallUses& uses) : uses_(uses), product_(uses, found_) {}

  /// Where a linear layer makes what a gather reads: its logits.
  Storage Logits(const TensorUse& read) {
    std::string why = product_.FindFrom(read, {.loss = "its log-probabilities", .scaled = true});
    if (!why.empty()) return kElsewhere;
    // What is on that way is found once more, from the other side.
    const std::size_t maker = uses_.MakerOf(product_.logits());
    std::erase_if(found_.events, [&](std::size_t event) { return event != maker; });
    found_.inner.clear();
    return product_.logits();
  }

  Result<LinearLoss> Find() {
    std::string why = FollowLogits();
    if (why.empty()) why = TakeResults();
    if (why.empty()) why = FindBackward();
    if (why.empty()) {
      product_.TakeOwnCasts();
      why = product_.OnlyHere();
    }
    if (!why.empty()) return NotInChunks(why);
    found_.kind = made_;
    return std::move(found_);
  }

 private:
  Meaning MeaningOf(const TensorUse* use) const {
    const auto found = use == nullptr ? meanings_.end() : meanings_.find(use->storage);
    return found == meanings_.end() ? Meaning::kNone : found->second;
  }

  /// Through all calls of the forward that read what has a meaning, in their order.
  std::string FollowLogits() {
    Give(product_.logits(), Meaning::kLogits);
    while (!open_.empty()) {
      const std::size_t event = *open_.begin();
      open_.erase(open_.begin());
      const CallRecord& call = uses_.CallAt(event);
      const Meaning result = MeaningOfResult(event);
      if (result == Meaning::kNone && ReadsResults(call)) continue;
      if (result == Meaning::kNone || call.results.empty() || call.fresh.empty()) {
        return fmt::format("its logits are used by {} too", uses_.OpAt(event));
      }
      found_.events.insert(event);
      Give(call.results[0].storage, result);
    }
    return {};
  }

  /// Alone: it belongs to what the job makes of them.
  bool ReadsResults(const CallRecord& call) const {
    bool alone = true;
    ForEachArgument(call, [&](const TensorUse& use) {
      alone = alone && (MeaningOf(&use) == Meaning::kNone || IsResult(MeaningOf(&use)));
    });
    return alone;
  }

  void Give(Storage storage, Meaning meaning) {
    meanings_[storage] = meaning;
    for (const std::size_t reader : uses_.ReadersOf(storage)) {
      if (!uses_.InBackward(reader)) open_.insert(reader);
    }
  }

  Meaning MeaningOfResult(std::size_t event) {
    const CallRecord& call = uses_.CallAt(event);
    const std::string_view op = uses_.OpAt(event);
    if (op == "stack" || op == "cat") return MeaningOfAll(call);
    const TensorUse* second = TensorArg(call, 1);
    const Meaning first = MeaningOf(TensorArg(call, 0));
    const bool adds_bias =
        op == "add" && second != nullptr && uses_.LayoutOf(*second).sizes.size() == 1;
    if (adds_bias && first == Meaning::kLogits && found_.bias.storage != kElsewhere) return first;
    const auto rule = std::find_if(kMeaningRules.begin(), kMeaningRules.end(), [&](const Rule& r) {
      return r.op == op && r.first == first && r.second == MeaningOf(second);
    });
    if (rule == kMeaningRules.end()) return Meaning::kNone;
    if (op == "div") {
      if (second != nullptr) return Meaning::kNone;
      made_.scaled = true;
    }
    if ((op == "sum" || op == "logsumexp") && !OverClasses(call)) return Meaning::kNone;
    if (op == "gather" && !PicksOne(call)) return Meaning::kNone;
    return rule->result;
  }

  /// Of rows that were taken one after the other.
  Meaning MeaningOfAll(const CallRecord& call) {
    const auto* parts = call.args.empty() ? nullptr : std::get_if<Argument::List>(&call.args[0].is);
    if (parts == nullptr || parts->empty()) return Meaning::kNone;
    Meaning meaning = Meaning::kNone;
    for (const Argument& part : *parts) {
      const Meaning one = MeaningOf(std::get_if<TensorUse>(&part.is));
      if (meaning != Meaning::kNone && one != meaning) return Meaning::kNone;
      meaning = one;
    }
    const bool of_rows = meaning == Meaning::kLogSum || IsResult(meaning);
    made_.applies = made_.applies && !of_rows;
    return of_rows ? meaning : Meaning::kNone;
  }

  /// One number for each row is left.
  bool OverClasses(const CallRecord& call) const {
    const std::vector<Number>& read = uses_.LayoutOf(*TensorArg(call, 0)).sizes;
    const std::vector<Number>& made = uses_.LayoutOf(call.results[0]).sizes;
    const auto same = [](const Number& a, const Number& b) {
      return a.at(Number::kPoints - 1) == b.at(Number::kPoints - 1);
    };
    const bool kept = made.size() == read.size();
    return !read.empty() &&
           (kept ? made.back() == Number::Always(1) : made.size() + 1 == read.size()) &&
           std::equal(read.begin(), read.end() - 1, made.begin(), same);
  }

  /// gather(x, -1, labels[..., None])
  bool PicksOne(const CallRecord& call) {
    const TensorUse* labels = TensorArg(call, 2);
    if (labels == nullptr) return false;
    const std::vector<Number>& sizes = uses_.LayoutOf(*labels).sizes;
    if (sizes.size() < 2 || sizes.back() != Number::Always(1)) return false;
    if (found_.labels.storage != kElsewhere && found_.labels.storage != labels->storage) {
      return false;
    }
    if (found_.labels.storage == kElsewhere) found_.labels = *labels;
    return true;
  }

  /// What the rest of the job reads. All else is the loss's own.
  std::string TakeResults() {
    std::size_t first = kNoCall;
    for (const auto& [storage, meaning] : meanings_) {
      if (!IsResult(meaning) || IsConsumed(storage)) {
        found_.inner.insert(storage);
        continue;
      }
      const CallRecord& maker = uses_.CallAt(uses_.MakerOf(storage));
      TensorUse& result = meaning == Meaning::kOwn ? made_.own : made_.entropy;
      if (result.storage != kElsewhere) return "its log-probabilities are taken more than once";
      result = maker.results[0];
      first = std::min(first, uses_.MakerOf(storage));
      is_entropy_ = is_entropy_ || meaning == Meaning::kEntropy;
    }
    picks_logits_ = std::any_of(meanings_.begin(), meanings_.end(),
                                [](const auto& each) { return each.second == Meaning::kLogSum; });
    if (made_.own.storage == kElsewhere) return "no log-probabilities are made of its logits";
    const std::size_t labels = uses_.MakerOf(found_.labels.storage);
    if (labels != kNoCall && labels > first) return "its labels are made after its entropy";
    found_.forward = first;
    made_.applies = made_.applies && !picks_logits_ && made_.entropy.storage == kElsewhere;
    return CountRows();
  }

  std::string CountRows() {
    const auto times = [](std::int64_t a, std::int64_t b) {
      std::int64_t product = 0;
      return __builtin_mul_overflow(a, b, &product) ? 0 : product;
    };
    made_.rows = Number::Always(1);
    for (const Number& size : uses_.LayoutOf(made_.own).sizes) {
      made_.rows = Number::Each(times, made_.rows, size);
    }
    const auto possible = [](std::int64_t some, std::int64_t all) {
      return std::int64_t{some > 0 && some <= all};
    };
    const Number fits = Number::Each(possible, made_.rows, found_.rows);
    return fits.least() == 1 && !fits.depends() ? "" : "its log-probabilities have no size";
  }

  /// Only a call of the loss itself reads it in the forward.
  bool IsConsumed(Storage storage) const {
    const auto& readers = uses_.ReadersOf(storage);
    return std::any_of(readers.begin(), readers.end(),
                       [&](std::size_t reader) { return found_.events.contains(reader); });
  }

  /// Everything that works on a number for each class, from the calls that read what the forward
  /// left to the products.
  std::string FindBackward() {
    std::set<Storage> open = found_.inner;
    while (!open.empty()) {
      const Storage storage = *open.begin();
      open.erase(open.begin());
      for (const std::size_t reader : uses_.ReadersOf(storage)) {
        if (!uses_.InBackward(reader)) continue;
        if (std::string why = TakeOfBackward(reader, storage, open); !why.empty()) return why;
      }
      const std::size_t maker = uses_.MakerOf(storage);
      if (maker == kNoCall || !uses_.InBackward(maker)) continue;
      if (std::string why = TakeOfBackward(maker, storage, open); !why.empty()) return why;
    }
    if (!of_backward_.empty()) return TakeGradients();
    return {};
  }

  std::string TakeOfBackward(std::size_t event, Storage storage, std::set<Storage>& open) {
    if (!of_backward_.insert(event).second) return {};
    found_.events.insert(event);
    const CallRecord& call = uses_.CallAt(event);
    const std::string_view op = uses_.OpAt(event);
    if (call.results.empty()) return fmt::format("{} reads the gradient of its logits", op);
    if (op == "mm" || op == "sum") return product_.TakeGradient(event, storage);
    if (std::find(kOfBackward.begin(), kOfBackward.end(), op) == kOfBackward.end()) {
      return fmt::format("{} reads the gradient of its logits", op);
    }
    std::set<Storage>& outer = op == "scatter_add_" ? of_own_ : others_;
    const auto take = [&](const TensorUse& use) {
      if (use.storage == kElsewhere || use.storage == found_.labels.storage) return;
      if (found_.inner.contains(use.storage)) return;
      const std::size_t maker = uses_.MakerOf(use.storage);
      if (maker == kNoCall || !uses_.InBackward(maker)) {
        strange_ = true;
      } else if (!HasClasses(use.storage)) {
        outer.insert(use.storage);
      } else {
        found_.inner.insert(use.storage);
        open.insert(use.storage);
      }
    };
    ForEachArgument(call, take);
    for (const TensorUse& result : call.results) take(result);
    return {};
  }

  bool HasClasses(Storage storage) const {
    const LayoutRecord* made = uses_.LayoutOf(storage);
    return made != nullptr && made->sizes.size() > 1 && made->sizes.back() == found_.classes;
  }

  /// The gradients of what the loss made.
  std::string TakeGradients() {
    for (const Storage storage : of_own_) others_.erase(storage);
    constexpr std::string_view kStrange = "its logits have gradients of other kinds";
    if (strange_ || (!of_own_.empty() && !TakeOfOwn())) return std::string(kStrange);
    if (is_entropy_) {
      for (const Storage storage : std::set<Storage>(others_)) {
        const Storage from = ReadBy(storage, "neg");
        if (from == kElsewhere) continue;
        TakeMaker(storage);
        others_.erase(storage);
        others_.insert(from);
      }
    }
    const std::size_t known = made_.entropy.storage == kElsewhere ? 0 : 1;
    if (others_.size() > known) return std::string(kStrange);
    if (!others_.empty()) made_.of_entropy = UseOf(*others_.begin());
    return FindPlace();
  }

  /// Behind the picked classes there may be several parts, and a gradient of their logsumexp, which
  /// is the negative: all come from the gradient of what the loss made.
  bool TakeOfOwn() {
    std::set<Storage> own;
    for (const Storage picked : of_own_) {
      const std::vector<Storage> path = PathTo(picked);
      std::size_t end = of_own_.size() > 1 ? path.size() - 1 : 0;
      for (const Storage storage : std::set<Storage>(others_)) {
        const auto negated = std::find(path.begin(), path.end(), ReadBy(storage, "neg"));
        if (!picks_logits_ || negated == path.end()) continue;
        end = static_cast<std::size_t>(negated - path.begin());
        TakeMaker(storage);
        others_.erase(storage);
      }
      for (std::size_t i = 0; i < end; ++i) TakeMaker(path[i]);
      own.insert(path[end]);
    }
    if (own.size() != 1) return false;
    made_.of_own = UseOf(*own.begin());
    return true;
  }

  /// What the gradient of picked classes was made of, the last first: casts, and what undoes the
  /// squeeze behind a gather.
  std::vector<Storage> PathTo(Storage picked) const {
    std::vector<Storage> path = {picked};
    std::size_t last = kNoCall;
    for (;;) {
      Storage from = ReadBy(path.back(), "select_backward", last);
      if (from == kElsewhere) from = ReadBy(path.back(), "_to_copy", last);
      if (from == kElsewhere) return path;
      last = uses_.MakerOf(path.back());
      path.push_back(from);
    }
  }

  /// What such a call of the backward made it of, if it is made for this loss, or `reader`, alone.
  Storage ReadBy(Storage storage, std::string_view op, std::size_t reader = kNoCall) const {
    const std::size_t maker = uses_.MakerOf(storage);
    const auto& readers = uses_.ReadersOf(storage);
    const TensorUse* from = TensorArg(uses_.CallAt(maker), 0);
    if (uses_.OpAt(maker) != op || from == nullptr) return kElsewhere;
    const bool is_own = std::all_of(readers.begin(), readers.end(), [&](std::size_t each) {
      return each == reader || found_.events.contains(each);
    });
    const std::size_t before = uses_.MakerOf(from->storage);
    return is_own && before != kNoCall && uses_.InBackward(before) ? from->storage : kElsewhere;
  }
  void TakeMaker(Storage storage) {
    found_.events.insert(uses_.MakerOf(storage));
    found_.inner.insert(storage);
  }

  TensorUse UseOf(Storage storage) const {
    return uses_.CallAt(uses_.MakerOf(storage)).results.front();
  }

  /// The first call of the backward behind the gradients that it gets.
  std::string FindPlace() {
    std::size_t made = 0;
    for (const TensorUse& outer : {made_.of_own, made_.of_entropy}) {
      if (outer.storage != kElsewhere) made = std::max(made, uses_.MakerOf(outer.storage));
    }
    const auto place = of_backward_.upper_bound(made);
    if (place == of_backward_.end()) return "its backward is not known";
    found_.backward = *place;
    return {};
  }

  const CallUses& uses_;
  LinearLoss found_;
  LinearProduct product_;
  LogProbabilities made_;
  std::map<Storage, Meaning> meanings_;
  /// Calls of the forward that read what has a meaning.
  std::set<std::size_t> open_;
  std::set<std::size_t> of_backward_;
  /// Of the backward: what has one number for each row, and comes from outside.
  std::set<Storage> of_own_, others_;
  bool is_entropy_ = false;
  /// Rather than their logarithms.
  bool picks_logits_ = false;
  /// Of the backward: something else comes from outside.
  bool strange_ = false;
};

}  // namespace

std::optional<Result<LinearLoss>> LogProbabilitiesFinder::From(std::size_t gather) {
  const TensorUse* read = TensorArg(uses_.CallAt(gather), 0);
  if (read == nullptr) return std::nullopt;
  const std::size_t maker = uses_.MakerOf(read->storage);
  if (maker != kNoCall && uses_.OpAt(maker) == "_log_softmax") {
    read = TensorArg(uses_.CallAt(maker), 0);
    if (read == nullptr) return std::nullopt;
  }
  FinderFromLogits finder(uses_);
  const Storage logits = finder.Logits(*read);
  if (logits == kElsewhere || !seen_.insert(logits).second) return std::nullopt;
  return finder.Find();
}

}  // namespace plimsoll
