// What the CPU's functions share: tensors as they lie, and vectors of what a processor has. It
// stands inside each function that is written into a package, where its include is.
  struct View {
    void* data = nullptr;
    int64_t* sizes = nullptr;
    int64_t* strides = nullptr;
    int32_t dtype = -1;
    bool open(AtenTensorHandle tensor) {
      return aoti_torch_get_data_ptr(tensor, &data) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_sizes(tensor, &sizes) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_strides(tensor, &strides) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_dtype(tensor, &dtype) == AOTI_TORCH_SUCCESS;
    }
    // Of a number, and of a step along a dimension, in bytes.
    int64_t size() const {
      return dtype == aoti_torch_dtype_float32() ? 4 : dtype == aoti_torch_dtype_uint8() ? 1 : 2;
    }
    int64_t step(int64_t dimension) const { return strides[dimension] * size(); }
    // Whether its sizes are these, and where a row of its first dimension or its first three begins.
    bool is(int64_t a, int64_t b, int64_t c, int64_t d) const {
      return sizes[0] == a && sizes[1] == b && sizes[2] == c && sizes[3] == d;
    }
    char* at(int64_t a) const { return static_cast<char*>(data) + a * step(0); }
    char* at(int64_t a, int64_t b, int64_t c) const { return at(a) + b * step(1) + c * step(2); }
  };
  struct Vectors {
#if defined(__AVX512F__)
    enum : int64_t { lanes = 16 };
#else
    enum : int64_t { lanes = 8 };
#endif
    typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
    typedef int32_t Whole __attribute__((vector_size(lanes * sizeof(float))));
    typedef uint32_t Bits __attribute__((vector_size(lanes * sizeof(float))));
    typedef uint16_t Halves __attribute__((vector_size(lanes * sizeof(uint16_t))));
    static inline __attribute__((always_inline)) Vector load(const float* from) {
      Vector loaded;
      __builtin_memcpy(&loaded, from, sizeof(loaded));
      return loaded;
    }
    static inline __attribute__((always_inline)) Bits load_halves(const char* from) {
      Halves loaded;
      __builtin_memcpy(&loaded, from, sizeof(loaded));
      return __builtin_convertvector(loaded, Bits);
    }
    static inline __attribute__((always_inline)) void store(float* to, const Vector& from) {
      __builtin_memcpy(to, &from, sizeof(from));
    }
    // The nearest bfloat16, the even one of two, in the lower half of each number's bits.
    static inline __attribute__((always_inline)) Bits round(const Vector& of) {
#if defined(__AVX512BF16__)
      return (Bits)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)of));
#else
      const Bits bits = (Bits)of;
      const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      return (bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 64 : rounded;
#endif
    }
    // `lanes` numbers, or the first `count` of them and zeros; of float32, or of bfloat16 if `half`.
    static inline __attribute__((always_inline)) Vector read(
        const char* from, const bool half, const int64_t count = lanes) {
      if (half) {
        Halves loaded{};
        __builtin_memcpy(&loaded, from, count * sizeof(uint16_t));
        return (Vector)(__builtin_convertvector(loaded, Bits) << 16);
      }
      Vector loaded{};
      __builtin_memcpy(&loaded, from, count * sizeof(float));
      return loaded;
    }
    static inline __attribute__((always_inline)) void write(
        char* to, const Vector& from, const bool half, const int64_t count = lanes) {
      if (half) {
        const Halves halves = __builtin_convertvector(round(from), Halves);
        __builtin_memcpy(to, &halves, count * sizeof(uint16_t));
      } else {
        __builtin_memcpy(to, &from, count * sizeof(float));
      }
    }
    // e to the power of x as 2^n times what is given, e^r by Cephes' polynomial.
    static inline __attribute__((always_inline)) Vector reduce(const Vector& x, Vector& n) {
      const Vector round = Vector{} + 12582912.0f;  // 1.5 * 2^23, to which wholes alone are added
      n = (x * 1.44269504f + round) - round;
      const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
      Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
      p = p * r + 8.3334519073e-3f;
      p = p * r + 4.1665795894e-2f;
      p = p * r + 1.6666665459e-1f;
      p = p * r + 5.0000001201e-1f;
      return p * (r * r) + r + 1.0f;
    }
    // Times 2^n, of wholes from -126 to 127.
    static inline __attribute__((always_inline)) Vector scale(const Vector& x, const Vector& n) {
      const Whole exponent = (__builtin_convertvector(n, Whole) + 127) << 23;
      Vector power;
      __builtin_memcpy(&power, &exponent, sizeof(power));
      return x * power;
    }
    // e to the power of what isn't above 0.
    static inline __attribute__((always_inline)) Vector power(const Vector& of) {
      const Vector least = Vector{} - 87.3365f;  // what is smaller has no normal number
      Vector n;
      const Vector p = reduce(of < least ? least : of, n);
      return of < least ? Vector{} : scale(p, n);
    }
    // What x is divided by to be x times its sigmoid: 1 + e^-x, infinite where that is too large.
    static inline __attribute__((always_inline)) Vector divisor(const Vector& x) {
      Vector n;
#if defined(__AVX512F__)
      // NaN stays NaN: these give the second operand then.
      __m512 y = _mm512_min_ps(_mm512_set1_ps(104.0f), (__m512)(-x));
      y = _mm512_max_ps(_mm512_set1_ps(-104.0f), y);
      const Vector p = reduce((Vector)y, n);
      return (Vector)_mm512_scalef_ps((__m512)p, (__m512)n) + 1.0f;
#else
      const Vector most = Vector{} + 88.0f, y = -x;
      const Vector above = y < -87.0f ? Vector{} - 87.0f : y;
      const Vector p = reduce(above > most ? most : above, n);
      return (y > most ? Vector{} + __builtin_inff() : scale(p, n)) + 1.0f;
#endif
    }
    // Six times the hard sigmoid.
    static inline __attribute__((always_inline)) Vector shifted(const Vector& x) {
      const Vector moved = x + 3.0f, least = moved < 0.0f ? Vector{} : moved;
      return least > 6.0f ? Vector{} + 6.0f : least;
    }
    // What a function of `kernels/activations.py` makes of some vectors; NaN stays NaN in each.
    static inline __attribute__((always_inline)) void activate(
        Vector* vectors, const int64_t count, const int64_t which) {
      if (which == 0) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < count; ++v)
          vectors[v] = vectors[v] < 0.0f ? Vector{} : vectors[v];
      } else if (which == 1) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < count; ++v) vectors[v] /= divisor(vectors[v]);
      } else if (which == 2) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < count; ++v) vectors[v] = vectors[v] * shifted(vectors[v]) / 6.0f;
      } else if (which == 3) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < count; ++v) vectors[v] = 1.0f / divisor(vectors[v]);
      } else if (which == 4) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < count; ++v) vectors[v] = shifted(vectors[v]) / 6.0f;
      } else if (which == 5) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < count; ++v) {
          vectors[v] = vectors[v] < 0.0f ? Vector{} : vectors[v];
          vectors[v] = vectors[v] > 6.0f ? Vector{} + 6.0f : vectors[v];
        }
      }
    }
  };
