// The training text and the batches drawn from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::train {

// Tokens are bytes, so the vocabulary is all of them.
inline constexpr int kVocabulary = 256;

// `batch` sequences of `context` inputs; the target of a position is the byte after its input. Row-major.
struct Batch {
  int batch = 0;
  int context = 0;
  std::vector<std::uint8_t> inputs;
  std::vector<std::uint8_t> targets;
};

// Which batch: a pure function of these and the text, so a step that is done again after a restart sees the
// same bytes.
struct BatchId {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  int rank = 0;
};

// The bytes of one file.
class Corpus {
 public:
  // kInvalid when the file has fewer than context + 1 bytes; it must hold one whole sequence.
  [[nodiscard]] static Result<Corpus> Load(const std::string& path, int context);

  explicit Corpus(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}

  // Sequences start anywhere in the text. Requires context + 1 <= size().
  [[nodiscard]] Batch Sample(BatchId id, int batch, int context) const;

  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace muster::train
