// Which objects checkpoints consist of: chunks may be shared with older checkpoints, so an object goes when the last
// manifest that has it has gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ceph/catalog/manifest.h"

namespace muster {

// The chunk objects of some checkpoints, as intervals of numbers by prefix. The manifests' own objects are not in it.
class ObjectSet {
 public:
  ObjectSet() = default;
  explicit ObjectSet(const Manifest& manifest) { Add(manifest); }

  void Add(const Manifest& manifest);
  void Add(const ObjectSet& other);
  // Of an object's name; false for what is no chunk's name.
  [[nodiscard]] bool Contains(std::string_view name) const;
  // The names of those that are not in `others`.
  [[nodiscard]] std::vector<std::string> Without(const ObjectSet& others) const;

 private:
  struct Interval {
    uint64_t begin = 0;
    uint64_t end = 0;  // not in it
  };
  void Add(const std::string& prefix, Interval interval);
  [[nodiscard]] bool Contains(std::string_view prefix, uint64_t chunk) const;

  std::map<std::string, std::vector<Interval>, std::less<>> intervals_;  // ascending, apart from each other
};

}  // namespace muster
