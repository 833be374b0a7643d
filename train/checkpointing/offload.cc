#include "train/checkpointing/offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "train/checkpointing/offload_copies.h"
#include "train/checkpointing/offload_pool.h"

namespace plimsoll::train {

/// What all forwards have in common.
struct OffloadShared {
  OffloadShared(c10::Device on, OffloadOptions with)
      : device(on), options(with), queues(CopyQueuesOf(on)), pool(queues, with.host_limit) {}

  void Count(Bytes OffloadStats::*figure, Bytes more) {
    const std::lock_guard lock(mutex);
    stats.*figure += more;
  }

  const c10::Device device;
  const OffloadOptions options;
  const std::shared_ptr<CopyQueues> queues;
  HostPool pool;
  std::mutex mutex;
  OffloadStats stats;
  /// What the last forward saved and could move. The next one will save as much, in most programs.
  std::atomic<Bytes> expected = 0;
};

namespace {

using StorageSet = std::unordered_set<const c10::StorageImpl*>;

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// The version of a tensor when it was saved. Autograd leaves the check to those who have hooks. It
/// also means that a copy that is made later than the saving has the right value.
class SavedVersion {
 public:
  explicit SavedVersion(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        saved_(counter_.current_version()) {}

  std::int64_t saved() const { return saved_; }
  void Check() const {
    TORCH_CHECK(counter_.current_version() == saved_,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: it is at version ",
                counter_.current_version(), "; expected version ", saved_, " instead");
  }

 private:
  c10::VariableVersion counter_;
  decltype(counter_.current_version()) saved_;
};

class Kept : public PackedTensor {
 public:
  /// Without its graph, which would hold this in turn.
  explicit Kept(const at::Tensor& tensor) : tensor_(tensor.detach()), version_(tensor) {}
  at::Tensor Unpack() override {
    version_.Check();
    return tensor_;
  }

 private:
  at::Tensor tensor_;
  SavedVersion version_;
};

/// Bytes of a storage.
struct Extent {
  Bytes begin = 0;
  Bytes bytes = 0;
  bool operator==(const Extent&) const = default;
};

/// The whole storage where the tensor has most of it: then it is what the others that share it have
/// too (query, key and value out of one product). Otherwise only what is the tensor's: rows of a
/// large batch.
Extent ExtentOf(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto item = static_cast<Bytes>(tensor.itemsize());
  const Extent own{.begin = tensor.storage_offset() * item, .bytes = (last + 1) * item};
  const auto whole = static_cast<Bytes>(tensor.storage().nbytes());
  return 2 * own.bytes >= whole ? Extent{.begin = 0, .bytes = whole} : own;
}

/// Memory that forward saved, by one tensor or by several that share it. It is on the device, on
/// the host, or both.
struct Region {
  Region(const at::Tensor& tensor, Extent where)
      : storage(tensor.storage().getWeakStorageImpl()),
        extent(where),
        version(tensor),
        on_device(tensor.storage()),
        begin_on_device(where.begin),
        device(tensor.device()) {}

  bool Is(const at::Tensor& tensor, Extent where) const {
    return where == extent && tensor._version() == version.saved();
  }
  const void* data_on_device() const {
    return static_cast<const char*>(on_device.data()) + begin_on_device;
  }

  /// The one that was saved. While this is held no other has its address.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  Extent extent;
  SavedVersion version;

  c10::Storage on_device;
  Bytes begin_on_device;
  c10::Device device;
  bool came_back = false;
  /// Undefined until the copy out is enqueued.
  at::Tensor host;
  std::unique_ptr<Copy> out;
  std::unique_ptr<Copy> back;
  /// What was brought back and handed out, which may still be in use.
  c10::weak_intrusive_ptr<c10::StorageImpl> handed_out{c10::intrusive_ptr<c10::StorageImpl>()};

  int uses = 0;
  /// The last look ahead that saw it.
  std::int64_t seen = 0;
};

/// How a tensor lies over its region.
struct Layout {
  Layout(const at::Tensor& tensor, const Extent& extent)
      : options(tensor.options()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset() - extent.begin / static_cast<Bytes>(tensor.itemsize())) {}

  at::Tensor Over(const Region& region) const {
    const auto item = static_cast<Bytes>(options.dtype().itemsize());
    return at::empty({0}, options.requires_grad(false))
        .set_(region.on_device, offset + region.begin_on_device / item, sizes, strides);
  }

  at::TensorOptions options;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset;
};

/// What one forward saves. The order of saving is a number for each tensor; backward asks for them
/// about the other way round.
class Session : public SavedTensorPolicy, public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<OffloadShared> shared, StorageSet staying)
      : shared_(std::move(shared)), options_(shared_->options), staying_(std::move(staying)) {}

  std::unique_ptr<PackedTensor> Pack(const at::Tensor& tensor) override;
  at::Tensor Unpack(std::int64_t order, const Layout& layout);
  void Forget(std::int64_t order);

 private:
  bool Movable(const at::Tensor& tensor) const;
  std::shared_ptr<Region> Find(const at::Tensor& tensor, Extent extent) const;
  std::optional<std::int64_t> Save(const at::Tensor& tensor, Extent extent);
  std::shared_ptr<Region> Add(const at::Tensor& tensor, Extent extent);
  bool CopyOut(Region& region);
  void MakeRoom();
  void Bring(Region& region);
  void LookAhead(std::int64_t order);
  void LeaveDevice(Region& region);
  void Remove(Region& region);

  std::shared_ptr<OffloadShared> shared_;
  const OffloadOptions& options_;
  StorageSet staying_;

  /// Branches of a graph may come back from several threads.
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<Region>> uses_;
  std::unordered_multimap<const c10::StorageImpl*, std::shared_ptr<Region>> by_storage_;
  /// Those that have not left the device since they were saved, oldest first.
  std::deque<Region*> resident_;
  Bytes resident_bytes_ = 0;
  Bytes saved_bytes_ = 0;
  std::int64_t next_order_ = 0;
  std::int64_t looks_ = 0;
};

class Moved : public PackedTensor {
 public:
  Moved(std::shared_ptr<Session> session, std::int64_t order, Layout layout)
      : session_(std::move(session)), order_(order), layout_(std::move(layout)) {}
  ~Moved() override { session_->Forget(order_); }
  at::Tensor Unpack() override { return session_->Unpack(order_, layout_); }

 private:
  std::shared_ptr<Session> session_;
  std::int64_t order_;
  Layout layout_;
};

bool IsTrained(const at::TensorBase& tensor) { return tensor.is_leaf() && tensor.requires_grad(); }

bool Session::Movable(const at::Tensor& tensor) const {
  const c10::Device device = shared_->device;
  if (tensor.device().type() != device.type()) return false;
  if (device.has_index() && device.is_cuda() && tensor.device() != device) return false;
  // Sizes and strides must say all that there is to say.
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0) return false;
  if (tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor()) return false;
  if (IsTrained(tensor) || (tensor.is_view() && IsTrained(tensor._base()))) return false;
  return !staying_.contains(StorageOf(tensor)) && shared_->queues->Ready();
}

std::shared_ptr<Region> Session::Find(const at::Tensor& tensor, Extent extent) const {
  const auto [begin, end] = by_storage_.equal_range(StorageOf(tensor));
  const auto found =
      std::find_if(begin, end, [&](const auto& entry) { return entry.second->Is(tensor, extent); });
  return found == end ? nullptr : found->second;
}

/// Null where the host has no room.
std::shared_ptr<Region> Session::Add(const at::Tensor& tensor, Extent extent) {
  auto region = std::make_shared<Region>(tensor, extent);
  const Bytes saved = saved_bytes_ + extent.bytes;
  // In the last forward this much stayed to the end: its copy would be for nothing.
  const bool last = shared_->expected > 0 && saved > shared_->expected - options_.keep_last;
  if (!last && !CopyOut(*region)) return nullptr;
  by_storage_.emplace(StorageOf(tensor), region);
  resident_.push_back(region.get());
  resident_bytes_ += extent.bytes;
  saved_bytes_ = saved;
  return region;
}

/// The tensor's number, if it may leave the device.
std::optional<std::int64_t> Session::Save(const at::Tensor& tensor, Extent extent) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Region> region = Find(tensor, extent);
  if (!region) region = Add(tensor, extent);
  if (!region) return std::nullopt;
  ++region->uses;
  uses_.emplace(next_order_, std::move(region));
  MakeRoom();
  return next_order_++;
}

std::unique_ptr<PackedTensor> Session::Pack(const at::Tensor& tensor) {
  if (Movable(tensor)) {
    const Extent extent = ExtentOf(tensor);
    const auto order = extent.bytes < options_.least ? std::nullopt : Save(tensor, extent);
    if (order) {
      shared_->Count(&OffloadStats::tensors_moved, 1);
      return std::make_unique<Moved>(shared_from_this(), *order, Layout(tensor, extent));
    }
  }
  shared_->Count(&OffloadStats::tensors_kept, 1);
  return std::make_unique<Kept>(tensor);
}

/// False where the host has no room.
bool Session::CopyOut(Region& region) {
  at::Tensor host = shared_->pool.Take(region.extent.bytes);
  if (!host.defined()) return false;
  region.out = shared_->queues->ToHost(host.mutable_data_ptr(), region.data_on_device(),
                                       region.extent.bytes);
  region.host = std::move(host);
  shared_->Count(&OffloadStats::to_host, region.extent.bytes);
  return true;
}

/// Lets the oldest leave the device. Those whose copy is done leave at no cost; beyond the limit
/// the device waits for the copy before it computes on. That is better than telling the allocator
/// of the copying stream (recordStream), which frees memory only once it has seen the copy end: the
/// host runs ahead of the device, so that the peak would be a matter of luck.
void Session::MakeRoom() {
  while (resident_bytes_ > options_.keep_last && !resident_.empty()) {
    Region& oldest = *resident_.front();
    const bool done = oldest.host.defined() && (!oldest.out || oldest.out->Done());
    if (!done && resident_bytes_ <= options_.keep_last + options_.in_flight) return;
    resident_.pop_front();
    resident_bytes_ -= oldest.extent.bytes;
    // Without room on the host it stays after all.
    if (oldest.host.defined() || CopyOut(oldest)) LeaveDevice(oldest);
  }
}

void Session::LeaveDevice(Region& region) {
  for (auto* copy : {&region.out, &region.back}) {
    if (*copy && !(*copy)->Done()) (*copy)->HoldBack();
  }
  region.on_device = c10::Storage();
}

/// Onto the device, if it is not there. Out-of-memory leaves everything as it was.
void Session::Bring(Region& region) {
  if (region.on_device) return;
  if (auto still = region.handed_out.lock()) {
    region.on_device = c10::Storage(std::move(still));
    return;
  }
  const Bytes bytes = region.extent.bytes;
  const at::Tensor fresh = at::empty({bytes}, at::TensorOptions(at::kByte).device(region.device));
  region.back = shared_->queues->ToDevice(fresh.mutable_data_ptr(), region.host.const_data_ptr(),
                                          bytes, region.out.get());
  region.on_device = fresh.storage();
  region.begin_on_device = 0;
  region.came_back = true;
  region.handed_out = region.on_device.getWeakStorageImpl();
  shared_->Count(&OffloadStats::to_device, bytes);
}

/// Brings what was saved before `order`, which is what backward will want next.
void Session::LookAhead(std::int64_t order) {
  ++looks_;
  if (options_.prefetch == 0) return;
  Bytes ahead = 0;
  for (auto use = uses_.lower_bound(order); use != uses_.begin();) {
    Region& next = *(--use)->second;
    if (next.seen == looks_) continue;
    if (ahead > 0 && ahead + next.extent.bytes > options_.prefetch) return;
    ahead += next.extent.bytes;
    next.seen = looks_;
    try {
      Bring(next);
    } catch (const c10::OutOfMemoryError&) {
      // Too early; there may be room when it is needed.
      return;
    }
  }
}

at::Tensor Session::Unpack(std::int64_t order, const Layout& layout) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  shared_->expected = saved_bytes_;
  Region& region = *uses_.at(order);
  region.version.Check();
  Bring(region);
  if (region.back) region.back->HoldBack();
  const at::Tensor tensor = layout.Over(region);
  LookAhead(order);
  // Unless it is wanted again soon, whoever has the tensor is the last to hold it.
  if (region.came_back && region.seen != looks_) LeaveDevice(region);
  return tensor;
}

void Session::Forget(std::int64_t order) {
  const std::lock_guard lock(mutex_);
  const auto use = uses_.find(order);
  if (use == uses_.end()) return;
  const std::shared_ptr<Region> region = std::move(use->second);
  uses_.erase(use);
  if (--region->uses == 0) Remove(*region);
}

/// Nobody will ask for it any more.
void Session::Remove(Region& region) {
  if (std::erase(resident_, &region) > 0) resident_bytes_ -= region.extent.bytes;
  LeaveDevice(region);
  if (region.host.defined()) shared_->pool.Return(std::move(region.host));
  const auto [begin, end] = by_storage_.equal_range(region.storage._unsafe_get_target());
  const auto entry = std::find_if(
      begin, end, [&](const auto& candidate) { return candidate.second.get() == &region; });
  if (entry != end) by_storage_.erase(entry);
}

}  // namespace

Offload::Offload(c10::Device device, std::vector<at::Tensor> staying, OffloadOptions options)
    : staying_(std::move(staying)), shared_(std::make_shared<OffloadShared>(device, options)) {}

Offload::~Offload() = default;

std::shared_ptr<SavedTensorPolicy> Offload::policy(const std::vector<at::Tensor>& also_staying) {
  StorageSet storages;
  for (const auto* tensors : {&std::as_const(staying_), &also_staying}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.defined() && tensor.has_storage()) storages.insert(StorageOf(tensor));
    }
  }
  return std::make_shared<Session>(shared_, std::move(storages));
}

OffloadStats Offload::stats() const {
  const std::lock_guard lock(shared_->mutex);
  OffloadStats stats = shared_->stats;
  stats.host = shared_->pool.bytes();
  return stats;
}

void Offload::ReleaseHost() { shared_->pool.Release(); }

}  // namespace plimsoll::train
