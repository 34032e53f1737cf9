// All that `handoff/model.h` needs, as one source: torch's headers are nine tenths of the work, and
// are read once. Compiled with a program of your own, by CMake (HandoffConfig.cmake), by what
// pkg-config prints (handoff.pc), or by what `handoff cpp` prints.
#include "../archive.cpp"
#include "../base64.cpp"
#include "../guard.cpp"
#include "../json.cpp"
#include "../json_parser.cpp"
#include "../kernels.cpp"
#include "../libcrypto.cpp"
#include "../model.cpp"
#include "../public_key.cpp"
#include "../release.cpp"
#include "../sealed.cpp"
#include "../sha256.cpp"
#include "../signature.cpp"
#include "../tensors.cpp"
