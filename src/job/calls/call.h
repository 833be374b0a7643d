// One operator call at a given batch size, as the rules look at it.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// The numbers of a step at one batch size.
class AtBatch {
 public:
  AtBatch(const Job& job, std::int64_t batch);

  std::int64_t Of(const Number& number) const;
  const Layout& layout(std::uint32_t index) const { return layouts_[index]; }
  /// How many bytes a new storage takes: those of its result, where that explains both sizes of the
  /// capture; else along a line through them.
  Bytes BytesOf(const CallRecord& call, const NewStorage& fresh) const;
  const Job& job() const { return job_; }
  std::int64_t batch() const { return batch_; }

 private:
  const Job& job_;
  std::int64_t batch_;
  std::vector<Layout> layouts_;
};

/// How many batches there are of this size, of data with a fixed number of samples.
std::int64_t BatchesAt(const Job& job, const Number& number, std::int64_t batch);

struct Tensor {
  const Layout* layout = nullptr;
  Storage storage = kElsewhere;
  bool view = false;
  bool parameter = false;
  bool needs_grad = false;

  const Layout& operator*() const { return *layout; }
  const Layout* operator->() const { return layout; }
};

class Call {
 public:
  Call(const CallRecord& record, const AtBatch& at, Stage stage)
      : record_(record), at_(at), stage_(stage) {}

  /// "aten.mm.default"
  std::string_view op() const { return at_.job().strings[record_.op]; }
  Stage stage() const { return stage_; }
  int thread() const { return record_.thread; }
  const CallRecord& record() const { return record_; }

  std::size_t args() const { return record_.args.size(); }
  /// An argument by position; nothing if it is left out or something else.
  std::optional<Tensor> TensorArg(std::size_t i) const;
  std::vector<Tensor> TensorsArg(std::size_t i) const;
  std::optional<std::int64_t> IntArg(std::size_t i) const;
  /// A list of integers, or one integer as a list of one.
  std::vector<std::int64_t> IntsArg(std::size_t i) const;
  std::vector<bool> BoolsArg(std::size_t i) const;
  bool BoolArg(std::size_t i, bool otherwise) const;
  double FloatArg(std::size_t i, double otherwise) const;
  /// A keyword argument; null if it is not given.
  const Argument* Keyword(std::string_view name) const;
  std::optional<Tensor> TensorOf(const Argument& value) const;
  bool BoolOf(const Argument* value, bool otherwise) const;

  std::size_t results() const { return record_.results.size(); }
  Tensor Result(std::size_t i) const { return Make(record_.results[i]); }

  std::size_t fresh() const { return record_.fresh.size(); }
  Storage FreshStorage(std::size_t i) const { return record_.fresh[i].storage; }
  Bytes FreshBytes(std::size_t i) const { return at_.BytesOf(record_, record_.fresh[i]); }
  /// The new storage in which this result lies, if it lies in one.
  std::optional<std::size_t> FreshOfResult(std::size_t result) const;

 private:
  Tensor Make(const TensorUse& use) const {
    return {.layout = &at_.layout(use.layout),
            .storage = use.storage,
            .view = use.view,
            .parameter = use.parameter,
            .needs_grad = use.needs_grad};
  }
  const Argument* Arg(std::size_t i) const {
    return i < record_.args.size() ? &record_.args[i] : nullptr;
  }

  const CallRecord& record_;
  const AtBatch& at_;
  Stage stage_;
};

}  // namespace plimsoll
