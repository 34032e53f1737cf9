// The members of a ZIP archive (APPNOTE.TXT of PKWARE, 4.3 and 4.4), from its central directory.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "json.h"
#include "kernels.h"
#include "refused.h"
#include "sealed.h"

namespace handoff {
namespace {

constexpr std::uint64_t kEnd = 22;        // bytes of the end of central directory record,
constexpr std::uint64_t kLocator = 20;    // of the zip64 one's locator,
constexpr std::uint64_t kEnd64 = 56;      // of the zip64 record
constexpr std::uint64_t kEntry = 46;      // of an entry before its name
constexpr std::uint64_t kLocal = 30;      // and of what stands before a member, before its name
constexpr std::uint64_t kIn64 = 0xFFFFFFFF;  // in the place of what stands in the zip64 field

struct Member {
  std::string name;
  std::uint64_t method, size, offset;
};

class Archive {
 public:
  Archive(const SealedFile& file, std::string what) : file_(file), what_(std::move(what)) {
    const off_t size = lseek(file.descriptor(), 0, SEEK_END);
    size_ = size < 0 ? 0 : static_cast<std::uint64_t>(size);
  }

  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
    throw Refused(what_ + " is not a package that may be unpacked", expected, got,
                  "Don't load it, and tell who releases: it was signed like this");
  }

  std::vector<Member> members() const {
    if (size_ < kEnd) broken();
    const std::string end = read(size_ - kEnd, kEnd);
    if (number(end, 0, 4) != 0x06054b50 || number(end, 20, 2) != 0) broken();
    std::uint64_t count = number(end, 10, 2), size = number(end, 12, 4),
                  offset = number(end, 16, 4), behind = size_ - kEnd;
    const std::string locator = size_ < kEnd + kLocator ? std::string(kLocator, '\0')
                                                        : read(behind - kLocator, kLocator);
    if (number(locator, 0, 4) == 0x07064b50) {
      behind = number(locator, 8, 8);
      const std::string end64 = read(behind, kEnd64);
      if (number(end64, 0, 4) != 0x06064b50) broken();
      // A reader that knows nothing of zip64 has to find the same members.
      const std::uint64_t count64 = number(end64, 32, 8), size64 = number(end64, 40, 8),
                          offset64 = number(end64, 48, 8);
      if (std::min<std::uint64_t>(count64, 0xFFFF) != count ||
          std::min<std::uint64_t>(size64, 0xFFFFFFFF) != size ||
          std::min<std::uint64_t>(offset64, 0xFFFFFFFF) != offset) {
        broken();
      }
      count = count64, size = size64, offset = offset64;
    }
    if (size > behind || offset != behind - size) broken();
    return members_in(read(offset, size), count);
  }

  // A member's bytes, which have to lie there as they are.
  std::string stored(const Member& member) const {
    const std::string local = read(member.offset, kLocal);
    if (member.method != 0 || number(local, 0, 4) != 0x04034b50) {
      refuse("operators' names that are stored as they are", "others");
    }
    return read(member.offset + kLocal + number(local, 26, 2) + number(local, 28, 2), member.size);
  }

 private:
  [[noreturn]] void broken() const { refuse("a ZIP archive", "something else"); }

  std::string read(std::uint64_t offset, std::uint64_t count) const {
    if (offset > size_ || count > size_ - offset) broken();
    std::string bytes(count, '\0');
    std::uint64_t done = 0;
    while (done < count) {
      const ssize_t got = pread(file_.descriptor(), bytes.data() + done, count - done,
                                static_cast<off_t>(offset + done));
      if (got <= 0) broken();
      done += static_cast<std::uint64_t>(got);
    }
    return bytes;
  }

  std::uint64_t number(const std::string& bytes, std::uint64_t place, std::uint64_t width) const {
    std::uint64_t value = 0;
    for (std::uint64_t byte = width; byte > 0; --byte) {
      value = value << 8 | static_cast<unsigned char>(bytes[place + byte - 1]);
    }
    return value;
  }

  std::vector<Member> members_in(const std::string& directory, std::uint64_t count) const {
    std::vector<Member> members;
    std::uint64_t place = 0;
    for (std::uint64_t entry = 0; entry < count; ++entry) {
      if (directory.size() - place < kEntry || number(directory, place, 4) != 0x02014b50) broken();
      const std::uint64_t name = number(directory, place + 28, 2);
      const std::uint64_t others =
          number(directory, place + 30, 2) + number(directory, place + 32, 2);
      if (directory.size() - place < kEntry + name + others) broken();
      Member member{directory.substr(place + kEntry, name), number(directory, place + 10, 2),
                    number(directory, place + 24, 4), number(directory, place + 42, 4)};
      const std::uint64_t packed = number(directory, place + 20, 4);
      const std::string extra =
          directory.substr(place + kEntry + name, number(directory, place + 30, 2));
      read_field64(extra, packed == kIn64, member);
      members.push_back(member);
      place += kEntry + name + others;
    }
    if (place != directory.size()) broken();
    return members;
  }

  // The sizes and the place that don't fit into four bytes, from an entry's field with the tag 1.
  void read_field64(const std::string& extra, bool packed, Member& member) const {
    for (std::uint64_t place = 0; place + 4 <= extra.size();) {
      const std::uint64_t end = place + 4 + number(extra, place + 2, 2);
      if (end > extra.size()) broken();
      if (number(extra, place, 2) == 1) {
        std::uint64_t next = place + 4;
        const auto take = [&](std::uint64_t& value) {
          if (end - next < 8) broken();
          value = number(extra, next, 8);
          next += 8;
        };
        std::uint64_t unused = 0;
        if (member.size == kIn64) take(member.size);
        if (packed) take(unused);
        if (member.offset == kIn64) take(member.offset);
      }
      place = end;
    }
  }

  const SealedFile& file_;
  std::string what_;
  std::uint64_t size_ = 0;
};

bool is_plain(const std::string& name) {
  const bool printable = std::all_of(name.begin(), name.end(), [](char character) {
    return static_cast<unsigned char>(character) >= 0x20 && character != 0x7F &&
           character != '\\';
  });
  std::size_t parts = 0;
  for (std::size_t begin = 0; begin <= name.size(); ++parts) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return printable && parts > 1;
}

}  // namespace

void require_known_members(const SealedFile& file, const std::string& what) {
  const Archive archive(file, what);
  const std::vector<Member> members = archive.members();
  std::set<std::string> roots, seen;
  for (const Member& member : members) {
    if (!is_plain(member.name)) {
      archive.refuse("members with plain names below one folder",
                     quote(member.name.substr(0, 80)));
    }
    roots.insert(member.name.substr(0, member.name.find('/')));
    if (!seen.insert(member.name).second) {
      archive.refuse("each member once", quote(member.name.substr(0, 80)));
    }
  }
  if (roots.size() != 1) archive.refuse("members below one folder", "others");
  for (const Member& member : members) {
    const std::size_t point = member.name.find_last_of('.');
    const bool is_kernels = point != member.name.npos && member.name.substr(point) == ".json" &&
                            seen.count(member.name.substr(0, point) + ".so") > 0;
    if (!is_kernels) continue;
    if (member.size > kKernelsLimit) archive.refuse("operators' names of 16 MiB at most", "more");
    require_known_operators(archive.stored(member), what);
  }
}

}  // namespace handoff
