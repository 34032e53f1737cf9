#include "tensors.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

struct Dtype {
  const char* name;
  const char* safetensors;
  at::ScalarType type;
};

constexpr Dtype kDtypes[] = {
    {"float64", "F64", at::kDouble}, {"float32", "F32", at::kFloat}, {"float16", "F16", at::kHalf},
    {"bfloat16", "BF16", at::kBFloat16}, {"int64", "I64", at::kLong}, {"int32", "I32", at::kInt},
    {"int16", "I16", at::kShort}, {"int8", "I8", at::kChar}, {"uint8", "U8", at::kByte},
    {"bool", "BOOL", at::kBool},
};

constexpr std::uint64_t kHeaderLimit = 100 << 20;  // as the format's own library has it

[[noreturn]] void refuse_file(const std::string& path, const std::string& expected,
                         const std::string& got) {
  throw Refused(path + " is not a file of tensors", expected, got,
                "Write it with safetensors, or with this runner");
}

std::vector<std::int64_t> shape_of(const std::string& path, const Json& record) {
  std::vector<std::int64_t> shape;
  for (const Json& size : record.at("shape").items()) {
    shape.push_back(size.integer());
    if (shape.back() < 0) refuse_file(path, "sizes of 0 or more", std::to_string(shape.back()));
  }
  return shape;
}

// Reads one tensor, whose bytes lie behind the `begin` of the data.
at::Tensor read_one(std::ifstream& stream, const std::string& path, const Json& record,
                    std::uint64_t begin, std::uint64_t size) {
  const std::string& written = record.at("dtype").string();
  for (const Dtype& dtype : kDtypes) {
    if (written != dtype.safetensors) continue;
    const std::vector<Json>& offsets = record.at("data_offsets").items();
    const std::vector<std::int64_t> shape = shape_of(path, record);
    std::uint64_t bytes = at::elementSize(dtype.type);
    for (const std::int64_t axis : shape) {
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(axis), &bytes)) {
        refuse_file(path, "a tensor that fits into memory", "a larger one");
      }
    }
    const auto first = static_cast<std::uint64_t>(offsets.at(0).integer());
    const auto last = static_cast<std::uint64_t>(offsets.at(1).integer());
    if (first > last || last > size - begin || last - first != bytes) {
      refuse_file(path, "offsets that fit the shape and the file", "others");
    }
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype.type));
    stream.seekg(static_cast<std::streamoff>(begin + first));
    if (bytes > 0) {
      stream.read(static_cast<char*>(tensor.mutable_data_ptr()),
                  static_cast<std::streamsize>(bytes));
    }
    if (!stream) refuse_file(path, std::to_string(bytes) + " bytes of a tensor", "fewer");
    return tensor;
  }
  refuse_file(path, "a dtype that packages take", written);
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return dtype.type;
  }
  throw Refused("a signature holds an unknown dtype", "one of torch's", name,
                "Use the runner of the Handoff that wrote the release");
}

std::string name_of(at::ScalarType dtype) {
  for (const Dtype& known : kDtypes) {
    if (dtype == known.type) return known.name;
  }
  return at::toString(dtype);
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) refuse_file(path, "a file", "none that can be read");
  const auto size = static_cast<std::uint64_t>(stream.tellg());
  stream.seekg(0);
  unsigned char prefix[8] = {};
  stream.read(reinterpret_cast<char*>(prefix), sizeof prefix);
  std::uint64_t length = 0;
  for (int byte = 7; byte >= 0; --byte) length = length << 8 | prefix[byte];
  if (!stream || length > kHeaderLimit || length + 8 > size) refuse_file(path, "a header", "none");
  std::string header(length, '\0');
  stream.read(header.data(), static_cast<std::streamsize>(length));
  const Json record = Json::parse(header);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : record.names()) {
    if (name != "__metadata__") {
      tensors[name] = read_one(stream, path, record.at(name), 8 + length, size);
    }
  }
  return tensors;
}

void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  std::ostringstream header;
  std::vector<at::Tensor> held;
  std::size_t offset = 0;
  header << "{";
  for (const auto& [name, given] : tensors) {
    held.push_back(given.cpu().contiguous());
    const at::Tensor& tensor = held.back();
    const Dtype* known = nullptr;
    for (const Dtype& dtype : kDtypes) {
      if (dtype.type == tensor.scalar_type()) known = &dtype;
    }
    if (known == nullptr) refuse_file(path, "a dtype that files hold", name_of(tensor.scalar_type()));
    header << (held.size() > 1 ? "," : "") << quote(name) << ":{\"dtype\":\""
           << known->safetensors << "\",\"shape\":[";
    for (std::int64_t axis = 0; axis < tensor.dim(); ++axis) {
      header << (axis > 0 ? "," : "") << tensor.size(axis);
    }
    header << "],\"data_offsets\":[" << offset << "," << offset + tensor.nbytes() << "]}";
    offset += tensor.nbytes();
  }
  header << "}";
  std::string text = header.str();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  for (int byte = 0; byte < 8; ++byte) {
    stream.put(static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * byte)));
  }
  stream << text;
  for (const at::Tensor& tensor : held) {
    stream.write(static_cast<const char*>(tensor.const_data_ptr()),
                 static_cast<std::streamsize>(tensor.nbytes()));
  }
  stream.close();
  if (!stream) {
    throw Refused(path + " could not be written", "a writable disk with room", "none",
                  "Make room or name another file");
  }
}

bool same_bytes(const at::Tensor& left, const at::Tensor& right) {
  if (left.scalar_type() != right.scalar_type() || left.sizes() != right.sizes()) return false;
  const at::Tensor a = left.cpu().contiguous();
  const at::Tensor b = right.cpu().contiguous();
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace handoff
