#include "train/data.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "train/hash.h"

namespace muster::train {

Result<Corpus> Corpus::Load(const std::string& path, int context) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    return Error{Errc::kNotFound, "reading text '" + path + "': " + std::generic_category().message(errno)};
  }
  if (bytes.size() < static_cast<std::size_t>(context) + 1) {
    return Error{Errc::kInvalid, "text '" + path + "' has " + std::to_string(bytes.size()) +
                                     " bytes; a context of " + std::to_string(context) +
                                     " needs one more than that"};
  }
  return Corpus(std::move(bytes));
}

Batch Corpus::Sample(BatchId id, int batch, int context) const {
  Batch out{.batch = batch, .context = context, .inputs = {}, .targets = {}};
  const auto length = static_cast<std::size_t>(context);
  out.inputs.reserve(static_cast<std::size_t>(batch) * length);
  out.targets.reserve(static_cast<std::size_t>(batch) * length);
  for (int sequence = 0; sequence < batch; ++sequence) {
    const std::uint64_t hash =
        Hash({id.seed, id.step, static_cast<std::uint64_t>(id.rank), static_cast<std::uint64_t>(sequence)});
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(hash % (bytes_.size() - length));
    const auto end = begin + context;
    out.inputs.insert(out.inputs.end(), begin, end);
    out.targets.insert(out.targets.end(), begin + 1, end + 1);
  }
  return out;
}

}  // namespace muster::train
