// Inputs as no caller should give them, made from good ones.
#pragma once

#include <string>

#include "release.h"
#include "tensors.h"

namespace handoff {

// Returns `inputs` with one thing wrong, which `description` names:
//
//   @batch=65             every input's axes named `batch` have this size
//   ids:axis1=5           one input's axis has this size
//   ids:leading-axis      [1, ...] instead of [...]; `trailing-axis` [..., 1]
//   ids:less-axis         the first row alone; `scalar` its first element, without axes
//   ids:dtype=float64     the same numbers in another dtype
//   ids:last=10           the last element has this value
//   ids:strided           the same numbers, with gaps in memory; `turned` in another order there
//   ids:device=meta       on another device
//   ids:undefined         no tensor at all
//   missing, extra        an input less, and one more
//
// Throws `Refused` for another description.
Tensors make_hostile(const Signature& signature, const Tensors& inputs,
                     const std::string& description);

}  // namespace handoff
