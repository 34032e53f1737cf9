// The CPU's handoff::channels_last_cpu, written in a package's own C++ by AOTInductor, which declares
// it inside extern "C" and calls it for the operator: one definition, and no includes. As many
// points of each channel as a vector has numbers are read, and put beside each other by moves from
// two vectors into one. Inductor's own code stores them one by one.
__attribute__((optimize("O3"))) AOTITorchError aoti_torch_cpu_channels_last_cpu(
    AtenTensorHandle image, int64_t half, AtenTensorHandle* result) {
#include "vectors.h"
  struct Core : Vectors {
    enum : int64_t { lanes = Vectors::lanes, most = 4 };
    // Of which place of the two vectors each number of vector `r` comes, once channel `c` joins.
    struct Moves {
      Whole from[most][most];
      explicit Moves(int64_t channels) {
        for (int64_t r = 0; r < channels; ++r)
          for (int64_t c = 1; c < channels; ++c)
            for (int64_t l = 0; l < lanes; ++l) {
              const int64_t at = r * lanes + l, point = at / channels, channel = at % channels;
              from[r][c][l] = channel == c ? lanes + point : (c == 1 ? point : l);
            }
      }
    };
    // `lanes` points of `channels` planes that lie `step` bytes apart, or the first `count`.
    static inline __attribute__((always_inline)) void move(
        const char* __restrict from, int64_t step, char* __restrict to, const Moves& moves,
        int64_t count, const int64_t channels, const bool half, const bool is_whole) {
      Vector given[most];
#pragma GCC unroll 4
      for (int64_t c = 0; c < channels; ++c)
        given[c] = is_whole ? load(reinterpret_cast<const float*>(from + c * step))
                            : read(from + c * step, false, count);
      const int64_t size = half ? sizeof(uint16_t) : sizeof(float);
#pragma GCC unroll 4
      for (int64_t r = 0; r < channels; ++r) {
        Vector made = given[0];
#pragma GCC unroll 4
        for (int64_t c = 1; c < channels; ++c)
          made = __builtin_shuffle(made, given[c], moves.from[r][c]);
        if (is_whole) {
          write(to + r * lanes * size, made, half);
        } else {
          const int64_t left = count * channels - r * lanes;
          if (left > 0) write(to + r * lanes * size, made, half, left < lanes ? left : lanes);
        }
      }
    }
    static inline __attribute__((always_inline)) void run(
        const char* from, int64_t step, char* to, const Moves& moves, int64_t count,
        const int64_t channels, const bool half) {
      const int64_t size = half ? sizeof(uint16_t) : sizeof(float);
      int64_t p = 0;
      for (; p + lanes <= count; p += lanes)
        move(from + p * sizeof(float), step, to + p * channels * size, moves, lanes, channels, half,
             true);
      if (p < count)
        move(from + p * sizeof(float), step, to + p * channels * size, moves, count - p, channels,
             half, false);
    }
    static inline __attribute__((always_inline)) void run_for(
        const char* from, int64_t step, char* to, const Moves& moves, int64_t count,
        int64_t channels, const bool half) {
      if (channels == 2) {
        run(from, step, to, moves, count, 2, half);
      } else if (channels == 3) {
        run(from, step, to, moves, count, 3, half);
      } else {
        run(from, step, to, moves, count, 4, half);
      }
    }
  };

  const auto refuse = [](const char* why) {
    std::cerr << "handoff::channels_last: " << why << std::endl;
    return AOTI_TORCH_FAILURE;
  };
  View x, made;
  if (!x.open(image) || x.dtype != aoti_torch_dtype_float32()) return refuse("expected float32");
  const int64_t batch = x.sizes[0], channels = x.sizes[1], height = x.sizes[2], width = x.sizes[3];
  const int64_t points = height * width;
  const bool fits = channels > 1 && channels <= Core::most && (width < 2 || x.strides[3] == 1) &&
      (height < 2 || x.strides[2] == width);
  if (!fits) return refuse("expected two to four channels, whose points lie beside each other");
  const int64_t shape[4] = {batch, channels, height, width};
  const int64_t steps[4] = {points * channels, 1, width * channels, channels};
  const auto dtype = half ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32();
  const auto status = aoti_torch_empty_strided(
      4, shape, steps, dtype, aoti_torch_device_type_cpu(), 0, result);
  if (status != AOTI_TORCH_SUCCESS) return status;
  if (!made.open(*result)) {
    aoti_torch_delete_tensor_object(*result);
    return refuse("its result can't be read");
  }
  const Core::Moves moves(channels);
  // In parts, so that one image is shared among threads, too.
  const int64_t part = 4096, parts = (points + part - 1) / part, work = batch * parts;
#pragma omp parallel for if (work > 1)
  for (int64_t w = 0; w < work; ++w) {
    const int64_t n = w / parts, first = w % parts * part;
    const int64_t count = points - first < part ? points - first : part;
    const char* from = x.at(n, 0, 0) + first * sizeof(float);
    char* to = made.at(n, 0, 0) + first * channels * made.size();
    if (half) {
      Core::run_for(from, x.step(1), to, moves, count, channels, true);
    } else {
      Core::run_for(from, x.step(1), to, moves, count, channels, false);
    }
  }
  return AOTI_TORCH_SUCCESS;
}
