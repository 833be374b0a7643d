// What the host takes to issue the calls of a job.
#pragma once

namespace plimsoll {

/// In microseconds: Python and PyTorch's dispatch. What stands here is of the machines that the
/// H200 was measured on; plimsoll.calibrate measures another one.
struct HostModel {
  /// A call of the forward, and one that runs without Python: of the backward, and a cast. What a
  /// checkpoint repeats is a call of the forward, wherever it runs. By 86 small jobs on one day and
  /// 82 on another; one job on both was a third apart.
  double forward = 45, backward = 20;
  /// Of an optimizer: a call with lists of tensors, each tensor of these lists, and a call in a
  /// loop over parameters.
  double list = 42, entry = 1.45, loop = 9.3;
  /// A call of what torch.compile wrote, and a buffer that it makes. Not measured: taken to be a
  /// third of what Python takes elsewhere.
  double written = 15, buffer = 4;
  /// A checkpoint besides its calls: the state of the random numbers, the context of autocast; and
  /// the hooks on what is saved, for each tensor that a call which is repeated reads. Both by
  /// blocks of six kinds on an H200, too small to keep it busy.
  double checkpoint = 600, saved = 25;
  /// What a selective checkpoint adds to each call of its modules, in the forward and when it is
  /// repeated or found kept: its policy, and the mode of PyTorch's that asks it.
  double policy = 30;
  /// A tensor that a hook copies to the host or back, likewise.
  double copy = 45;
  /// A step besides: the loop, a wait for the GPU at its end.
  double step = 600;
  /// Between two kernels on the GPU.
  double gap = 1.6;
  /// Whether these are of the machine that will train; else another one may be faster or slower by
  /// half.
  bool measured = false;
};

}  // namespace plimsoll
