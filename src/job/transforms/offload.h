// Activations on the host, as torch.autograd.graph.save_on_cpu(pin_memory=True) does it: whatever
// is saved for the backward is copied to the host when the forward saves it and back to the device
// when the backward asks for it, weights and inputs included.
#pragma once

#include "job/file/job.h"

namespace plimsoll {

/// Adds to the step's strings.
Variant AddActivationOffload(Job& job, const Variant& variant);

}  // namespace plimsoll
