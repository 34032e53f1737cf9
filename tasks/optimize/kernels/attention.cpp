// The CPU's handoff::attention_cpu, written in a package's own C++ by AOTInductor, which declares it
// inside extern "C" and calls it for the operator: one definition, and no includes. Keys and values
// are read where they lie, and a block of queries once for all keys: its scores have a row for each
// key, so that the softmax is of columns and needs no sum across a vector. Vectors are written by
// hand, because Inductor turns the compiler's own vectorisation off, and products and sums are
// contracted, which it turns off as well.
__attribute__((optimize("O3", "fp-contract=fast"))) AOTITorchError aoti_torch_cpu_attention_cpu(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* mask,
    double scale, AtenTensorHandle* result) {
  struct View {
    void* data = nullptr;
    int64_t* sizes = nullptr;
    int64_t* strides = nullptr;
    bool open(AtenTensorHandle tensor) {
      int32_t dtype = -1;
      return aoti_torch_get_data_ptr(tensor, &data) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_sizes(tensor, &sizes) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_strides(tensor, &strides) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_dtype(tensor, &dtype) == AOTI_TORCH_SUCCESS &&
          dtype == aoti_torch_dtype_float32();
    }
    bool is(int64_t batch, int64_t heads, int64_t rows, int64_t columns) const {
      return sizes[0] == batch && sizes[1] == heads && sizes[2] == rows && sizes[3] == columns;
    }
    const float* at(int64_t batch, int64_t head) const {
      return static_cast<const float*>(data) + batch * strides[0] + head * strides[1];
    }
  };
  struct Core {
#if defined(__AVX512F__)
    enum : int64_t { lanes = 16, columns = 4, keys = 8 };
#else
    enum : int64_t { lanes = 8, columns = 2, keys = 4 };
#endif
    // Of a block of queries, in vectors; how many of its rows are multiplied with values at once.
    enum : int64_t { most = 3, rows = 6 };
    typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
    typedef int32_t Whole __attribute__((vector_size(lanes * sizeof(float))));
    static inline __attribute__((always_inline)) Vector load(const float* from) {
      Vector loaded;
      __builtin_memcpy(&loaded, from, sizeof(loaded));
      return loaded;
    }
    static inline __attribute__((always_inline)) void store(float* to, const Vector& from) {
      __builtin_memcpy(to, &from, sizeof(from));
    }
    // result[count][vectors] = left[count][depth] * right[depth][vectors]; all sums in registers.
    static inline __attribute__((always_inline)) void multiply(
        int64_t depth, const float* __restrict left, int64_t left_step, int64_t left_depth,
        const float* __restrict right, int64_t right_step, float* __restrict result,
        int64_t result_step, const int64_t count, const int64_t vectors) {
      Vector sums[8][4];
#pragma GCC unroll 8
      for (int64_t r = 0; r < count; ++r)
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v) sums[r][v] = Vector{};
      for (int64_t k = 0; k < depth; ++k) {
        Vector given[4];
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v) given[v] = load(right + k * right_step + v * lanes);
#pragma GCC unroll 8
        for (int64_t r = 0; r < count; ++r) {
          const float one = left[r * left_step + k * left_depth];
#pragma GCC unroll 4
          for (int64_t v = 0; v < vectors; ++v) sums[r][v] += given[v] * one;
        }
      }
#pragma GCC unroll 8
      for (int64_t r = 0; r < count; ++r)
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v) store(result + r * result_step + v * lanes, sums[r][v]);
    }
    // e to the power of what isn't above 0, as 2^n e^r with Cephes' polynomial for the latter.
    static inline __attribute__((always_inline)) Vector power(const Vector& of) {
      const Vector least = Vector{} - 87.3365f;  // what is smaller has no normal number
      const Vector x = of < least ? least : of;
      const Vector round = Vector{} + 12582912.0f;  // 1.5 * 2^23, to which wholes alone are added
      const Vector n = (x * 1.44269504f + round) - round;
      const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
      Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
      p = p * r + 8.3334519073e-3f;
      p = p * r + 4.1665795894e-2f;
      p = p * r + 1.6666665459e-1f;
      p = p * r + 5.0000001201e-1f;
      p = p * (r * r) + r + 1.0f;
      const Whole exponent = (__builtin_convertvector(n, Whole) + 127) << 23;
      Vector power;
      __builtin_memcpy(&power, &exponent, sizeof(power));
      return of < least ? Vector{} : p * power;
    }
    // Steps are of rows, and inside one; `mask` may be null.
    struct Head {
      const float* __restrict query;
      const float* __restrict key;
      const float* __restrict value;
      const float* __restrict mask;
      float* __restrict result;
      int64_t query_step, query_depth, key_step, key_depth, value_step, mask_step, mask_depth;
      int64_t result_step, length, depth, width;
      float scale;
    };
    // score[length][block] = key * query, for the first `count` queries of a block of `vectors`.
    static inline __attribute__((always_inline)) void compare(
        const Head& of, int64_t count, float* __restrict turned, float* __restrict score,
        const int64_t vectors) {
      const int64_t block = vectors * lanes;
      for (int64_t r = 0; r < block; ++r)
        for (int64_t d = 0; d < of.depth; ++d)
          turned[d * block + r] =
              r < count ? of.query[r * of.query_step + d * of.query_depth] * of.scale : 0.0f;
      const int64_t last = of.length - keys;
      if (last >= 0) {
        // The last rows overlap, where the length is no multiple.
        for (int64_t j = 0; j < of.length; j += keys) {
          const int64_t first = j < last ? j : last;
          multiply(of.depth, of.key + first * of.key_step, of.key_step, of.key_depth, turned, block,
                   score + first * block, block, keys, vectors);
        }
      } else {
        for (int64_t j = 0; j < of.length; ++j)
          multiply(of.depth, of.key + j * of.key_step, of.key_step, of.key_depth, turned, block,
                   score + j * block, block, 1, vectors);
      }
      if (of.mask) {
        for (int64_t j = 0; j < of.length; ++j)
          for (int64_t r = 0; r < count; ++r)
            score[j * block + r] += of.mask[r * of.mask_step + j * of.mask_depth];
      }
    }
    // Make weights of the scores, which `share` makes a sum of 1 of.
    static inline __attribute__((always_inline)) void weigh(
        const Head& of, float* __restrict score, float* __restrict share, const int64_t vectors) {
      const int64_t block = vectors * lanes;
      Vector largest[most], total[most];
      for (int64_t v = 0; v < vectors; ++v) largest[v] = load(score + v * lanes);
      for (int64_t j = 1; j < of.length; ++j)
        for (int64_t v = 0; v < vectors; ++v) {
          const Vector x = load(score + j * block + v * lanes);
          largest[v] = x > largest[v] ? x : largest[v];
        }
      const float infinity = std::numeric_limits<float>::infinity();
      for (int64_t v = 0; v < vectors; ++v) {
        total[v] = Vector{};
        // Where a mask leaves nothing, weights and results are 0, as torch's are.
        largest[v] = largest[v] == -infinity ? Vector{} : largest[v];
      }
      for (int64_t j = 0; j < of.length; ++j)
        for (int64_t v = 0; v < vectors; ++v) {
          const Vector weight = power(load(score + j * block + v * lanes) - largest[v]);
          total[v] += weight;
          store(score + j * block + v * lanes, weight);
        }
      for (int64_t v = 0; v < vectors; ++v)
        store(share + v * lanes, total[v] == 0.0f ? Vector{} : 1.0f / total[v]);
    }
    // result[count][width] = weights * value * share. The last rows of weights may lie beyond the
    // block, in the memory behind it; what they give is not stored.
    static inline __attribute__((always_inline)) void mix(
        const Head& of, int64_t count, const float* __restrict score, const float* __restrict share,
        const int64_t vectors) {
      const int64_t block = vectors * lanes;
      float part[rows * columns * lanes];
      for (int64_t r = 0; r < count; r += rows)
        for (int64_t d = 0; d < of.width;) {
          const bool is_wide = of.width - d >= columns * lanes;
          const int64_t given = is_wide ? columns : 1;
          if (is_wide) {
            multiply(of.length, score + r, 1, block, of.value + d, of.value_step, part,
                     columns * lanes, rows, columns);
          } else {
            multiply(of.length, score + r, 1, block, of.value + d, of.value_step, part,
                     columns * lanes, rows, 1);
          }
          for (int64_t x = 0; x < rows && r + x < count; ++x)
            for (int64_t v = 0; v < given; ++v)
              store(of.result + (r + x) * of.result_step + d + v * lanes,
                    load(part + (x * columns + v) * lanes) * share[r + x]);
          d += given * lanes;
        }
    }
    static inline __attribute__((always_inline)) void run(
        const Head& of, int64_t count, float* __restrict turned, float* __restrict score,
        const int64_t vectors) {
      float share[most * lanes];
      compare(of, count, turned, score, vectors);
      weigh(of, score, share, vectors);
      mix(of, count, score, share, vectors);
    }
  };

  const auto refuse = [](const char* why) {
    std::cerr << "handoff::attention: " << why << std::endl;
    return AOTI_TORCH_FAILURE;
  };
  View q, k, v, m, made;
  if (!q.open(query) || !k.open(key) || !v.open(value) || (mask && !m.open(*mask)))
    return refuse("expected float32 everywhere");
  const int64_t batch = q.sizes[0], heads = q.sizes[1], length = q.sizes[2], depth = q.sizes[3];
  const int64_t known = k.sizes[2], width = v.sizes[3];
  const bool fits = known > 0 && k.is(batch, heads, known, depth) &&
      v.is(batch, heads, known, width) && (!mask || m.is(batch, heads, length, known)) &&
      width % 16 == 0 && v.strides[3] == 1;
  if (!fits) return refuse("queries, keys, values and mask don't belong together");
  // Heads of a place beside each other, as torch has them, so that joining them copies nothing.
  const int64_t shape[4] = {batch, heads, length, width};
  const int64_t steps[4] = {length * heads * width, width, heads * width, 1};
  const auto status = aoti_torch_empty_strided(
      4, shape, steps, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, result);
  if (status != AOTI_TORCH_SUCCESS) return status;
  const auto undo = [result, refuse](const char* why) {
    aoti_torch_delete_tensor_object(*result);
    return refuse(why);
  };
  if (!made.open(*result)) return undo("its result can't be read");
  const int64_t block = Core::most * Core::lanes, blocks = (length + block - 1) / block;
  const int64_t work = batch * heads * blocks;
  bool has_memory = true;
#pragma omp parallel if (batch * heads * length * known * depth > 65536) reduction(&& : has_memory)
  {
    // No exception may leave a parallel region. The spare is for the address to be rounded up.
    const std::unique_ptr<float[]> memory(
        new (std::nothrow) float[block * (known + depth) + 2 * Core::lanes]());
    has_memory = memory != nullptr;
    float* turned = reinterpret_cast<float*>(
        (reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
    float* score = turned + block * depth;
#pragma omp for
    for (int64_t w = 0; w < work; ++w) {
      if (!has_memory) continue;
      const int64_t b = w / blocks / heads, h = w / blocks % heads, first = w % blocks * block;
      const int64_t count = length - first < block ? length - first : block;
      const Core::Head head = {
          q.at(b, h) + first * q.strides[2], k.at(b, h), v.at(b, h),
          mask ? m.at(b, h) + first * m.strides[2] : nullptr,
          const_cast<float*>(made.at(b, h)) + first * steps[2],
          q.strides[2], q.strides[3], k.strides[2], k.strides[3], v.strides[2],
          mask ? m.strides[2] : 0, mask ? m.strides[3] : 0, steps[2], known, depth, width,
          static_cast<float>(scale)};
      if (count > 2 * Core::lanes) {
        Core::run(head, count, turned, score, 3);
      } else if (count > Core::lanes) {
        Core::run(head, count, turned, score, 2);
      } else {
        Core::run(head, count, turned, score, 1);
      }
    }
  }
  return has_memory ? AOTI_TORCH_SUCCESS : undo("there is no memory for its scores");
}
