// The CPU's handoff::attention_pooling_cpu, put into a package's own C++ by AOTInductor, which
// declares it inside extern "C" and calls it for the operator: one definition, and no includes.
// A row of the tables is read once, and not at all for padding. Vectors are written by hand,
// because Inductor turns the compiler's own vectorisation off.
__attribute__((optimize("O3"))) AOTITorchError aoti_torch_cpu_attention_pooling_cpu(
    AtenTensorHandle table, AtenTensorHandle ids, AtenTensorHandle categories,
    AtenTensorHandle kinds, AtenTensorHandle gate, AtenTensorHandle weight,
    AtenTensorHandle target, AtenTensorHandle present, double mix, double slope, double scale,
    double fill, AtenTensorHandle* total, AtenTensorHandle* attended) {
  struct View {
    void* data = nullptr;
    int64_t* sizes = nullptr;
    int64_t* strides = nullptr;
    bool open(AtenTensorHandle tensor) {
      return aoti_torch_get_data_ptr(tensor, &data) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_sizes(tensor, &sizes) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_strides(tensor, &strides) == AOTI_TORCH_SUCCESS;
    }
  };
  View t, i, c, k, g, w, q, p, sum, mean;
  const bool opened = t.open(table) && i.open(ids) && c.open(categories) && k.open(kinds) &&
      g.open(gate) && w.open(weight) && q.open(target) && p.open(present);
  if (!opened) return AOTI_TORCH_FAILURE;
  const int64_t rows = i.sizes[0], length = i.sizes[1], width = t.sizes[1];
  const int64_t known = t.sizes[0], kinds_known = c.sizes[0];
  const int64_t shape[2] = {rows, width}, stride[2] = {width, 1};
  for (AtenTensorHandle* made : {total, attended}) {
    const auto status = aoti_torch_empty_strided(
        2, shape, stride, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, made);
    if (status != AOTI_TORCH_SUCCESS) return status;
  }
  if (!sum.open(*total) || !mean.open(*attended)) return AOTI_TORCH_FAILURE;

  // What one row of ids is given; strides of a step along the sequence.
  struct Row {
    const float* __restrict table;
    const float* __restrict categories;
    const float* __restrict gate;
    const float* __restrict target;
    const int64_t* __restrict ids;
    const int64_t* __restrict kinds;
    const float* __restrict weight;
    const bool* __restrict present;
    int64_t ids_step, kinds_step, weight_step, present_step, length, known, kinds_known;
    float mix, slope, scale, fill;
  };
  struct Pool {
    typedef float Vector __attribute__((vector_size(64)));
    enum : int64_t { lanes = 16 };
    static inline __attribute__((always_inline)) Vector at(const float* from, int64_t count) {
      Vector loaded = {};
      __builtin_memcpy(&loaded, from, count * sizeof(float));
      return loaded;
    }
    // In halves, which takes four additions in a row instead of sixteen.
    static inline __attribute__((always_inline)) float added(const Vector& of) {
      typedef float Half __attribute__((vector_size(32)));
      typedef float Quarter __attribute__((vector_size(16)));
      Half half[2];
      __builtin_memcpy(half, &of, sizeof(of));
      half[0] += half[1];
      Quarter quarter[2];
      __builtin_memcpy(quarter, half, sizeof(half[0]));
      quarter[0] += quarter[1];
      return (quarter[0][0] + quarter[0][2]) + (quarter[0][1] + quarter[0][3]);
    }
    // Columns come in `blocks` of 16, of which the last has `tail`; both are constants where they
    // are common, so that the sums stay in registers. False: an id lies outside its table.
    static inline __attribute__((always_inline)) bool run(
        const Row& row, float* __restrict total, float* __restrict attended, int64_t width,
        const int64_t blocks, const int64_t tail, Vector* __restrict kept,
        float* __restrict score) {
      Vector sums[8] = {}, means[8] = {};
      float largest = -std::numeric_limits<float>::infinity();
      int64_t here = 0, absent = 0;
      for (int64_t l = 0; l < row.length; ++l) {
        const bool present = row.present[l * row.present_step];
        const float share = row.weight[l * row.weight_step];
        const int64_t id = row.ids[l * row.ids_step], kind = row.kinds[l * row.kinds_step];
        if (id < 0 || id >= row.known || kind < 0 || kind >= row.kinds_known) return false;
        absent += !present;
        if (!present && share == 0.0f) continue;
        const float* item = row.table + id * width;
        const float* category = row.categories + kind * width;
        Vector dots = {};
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t count = b + 1 < blocks ? lanes : tail, j = b * lanes;
          Vector value = (at(item + j, count) + at(category + j, count) * row.mix) *
              at(row.gate + j, count);
          value = value > 0.0f ? value : value * row.slope;
          kept[here * blocks + b] = value;
          sums[b] += value * share;
          dots += value * at(row.target + j, count);
        }
        if (!present) continue;
        score[here] = added(dots) * row.scale;
        largest = score[here] > largest ? score[here] : largest;
        ++here;
      }
      if (absent && row.fill > largest) largest = row.fill;
      float all = absent ? static_cast<float>(absent) * std::exp(row.fill - largest) : 0.0f;
      for (int64_t l = 0; l < here; ++l) {
        score[l] = std::exp(score[l] - largest);
        all += score[l];
      }
      for (int64_t l = 0; l < here; ++l) {
        const float attention = score[l] / all;
        for (int64_t b = 0; b < blocks; ++b) means[b] += kept[l * blocks + b] * attention;
      }
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t count = b + 1 < blocks ? lanes : tail;
        __builtin_memcpy(total + b * lanes, &sums[b], count * sizeof(float));
        __builtin_memcpy(attended + b * lanes, &means[b], count * sizeof(float));
      }
      return true;
    }
  };

  const int64_t blocks = (width + Pool::lanes - 1) / Pool::lanes;
  const int64_t tail = width - (blocks - 1) * Pool::lanes;
  bool known_ids = blocks <= 8;
#pragma omp parallel reduction(&& : known_ids) if (rows * length * width > 65536)
  {
    std::vector<float> score(length), memory((length * blocks + 1) * Pool::lanes);
    auto* kept = reinterpret_cast<Pool::Vector*>(
        (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
#pragma omp for
    for (int64_t n = 0; n < rows; ++n) {
      const Row row = {
          static_cast<const float*>(t.data), static_cast<const float*>(c.data),
          static_cast<const float*>(g.data),
          static_cast<const float*>(q.data) + n * q.strides[0],
          static_cast<const int64_t*>(i.data) + n * i.strides[0],
          static_cast<const int64_t*>(k.data) + n * k.strides[0],
          static_cast<const float*>(w.data) + n * w.strides[0],
          static_cast<const bool*>(p.data) + n * p.strides[0],
          i.strides[1], k.strides[1], w.strides[1], p.strides[1], length, known, kinds_known,
          static_cast<float>(mix), static_cast<float>(slope), static_cast<float>(scale),
          static_cast<float>(fill)};
      float* sums = static_cast<float*>(sum.data) + n * width;
      float* means = static_cast<float*>(mean.data) + n * width;
      if (!known_ids) continue;
      if (width == 16) {
        known_ids = Pool::run(row, sums, means, 16, 1, 16, kept, score.data());
      } else if (width == 32) {
        known_ids = Pool::run(row, sums, means, 32, 2, 16, kept, score.data());
      } else if (width == 64) {
        known_ids = Pool::run(row, sums, means, 64, 4, 16, kept, score.data());
      } else {
        known_ids = Pool::run(row, sums, means, width, blocks, tail, kept, score.data());
      }
    }
  }
  if (known_ids) return AOTI_TORCH_SUCCESS;
  // No exception may leave a parallel region, so the error is told here.
  std::cerr << "attention_pooling: expected ids from 0 to " << known - 1 << " and kinds from 0 to "
            << kinds_known - 1 << ", got others" << std::endl;
  return AOTI_TORCH_FAILURE;
}
