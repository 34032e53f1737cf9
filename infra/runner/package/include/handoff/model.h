// What a program of your own includes: a released model, opened after its checks and called with
// checks, and the files of tensors beside it.
#pragma once

#include "../../../model.h"
#include "../../../refused.h"
