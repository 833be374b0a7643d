#include "train/parallel/sharded/lent_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

namespace plimsoll::train {
namespace {

template <class Storage>
void SayWhereItIs(Storage& storage, bool away) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    if (away) {
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
          "these parameters are with all ranks, a part each; make a Sharded::Whole to see them");
    } else {
      storage.clear_data_ptr_access_error_msg_();
    }
  }
}

}  // namespace

void TakeMemoryFrom(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
  SayWhereItIs(storage, /*away=*/true);
}

at::Tensor LendMemoryTo(const at::Tensor& tensor) {
  const at::Tensor memory = at::empty(tensor.sizes(), tensor.options());
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  SayWhereItIs(storage, /*away=*/false);
  storage.set_nbytes(memory.nbytes());
  const auto let_go = [](void* lent) { delete static_cast<at::Tensor*>(lent); };
  storage.set_data_ptr_noswap(
      at::DataPtr(memory.data_ptr(), new at::Tensor(memory), let_go, tensor.device()));
  return memory;
}

}  // namespace plimsoll::train
