#include "ceph/catalog/references.h"

#include <algorithm>
#include <charconv>

#include "ceph/catalog/object_names.h"

namespace muster {

void ObjectSet::Add(const std::string& prefix, Interval interval) {
  if (interval.begin >= interval.end) return;
  std::vector<Interval>& list = intervals_[prefix];
  // What it touches becomes one with it.
  const auto first = std::lower_bound(list.begin(), list.end(), interval.begin,
                                      [](const Interval& a, uint64_t begin) { return a.end < begin; });
  auto last = first;
  for (; last != list.end() && last->begin <= interval.end; ++last) {
    interval.begin = std::min(interval.begin, last->begin);
    interval.end = std::max(interval.end, last->end);
  }
  list.insert(list.erase(first, last), interval);
}

void ObjectSet::Add(const Manifest& manifest) {
  for (const Shard& shard : manifest.shards) {
    uint64_t own = 0;
    for (const ChunkRun& run : shard.elsewhere) {
      Add(shard.prefix, {own, run.first});
      Add(run.prefix, {run.first, run.first + run.count});
      own = run.first + run.count;
    }
    Add(shard.prefix, {own, shard.chunks.size()});
  }
}

void ObjectSet::Add(const ObjectSet& other) {
  for (const auto& [prefix, list] : other.intervals_) {
    for (const Interval& interval : list) Add(prefix, interval);
  }
}

bool ObjectSet::Contains(std::string_view prefix, uint64_t chunk) const {
  const auto found = intervals_.find(prefix);
  if (found == intervals_.end()) return false;
  const auto after =
      std::upper_bound(found->second.begin(), found->second.end(), chunk,
                       [](uint64_t number, const Interval& interval) { return number < interval.begin; });
  return after != found->second.begin() && chunk < std::prev(after)->end;
}

bool ObjectSet::Contains(std::string_view name) const {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  uint64_t chunk = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + dot + 1, end, chunk);
  return error == std::errc() && at == end && Contains(name.substr(0, dot), chunk);
}

std::vector<std::string> ObjectSet::Without(const ObjectSet& others) const {
  std::vector<std::string> names;
  for (const auto& [prefix, list] : intervals_) {
    for (const Interval& interval : list) {
      for (uint64_t chunk = interval.begin; chunk < interval.end; ++chunk) {
        if (!others.Contains(prefix, chunk)) names.push_back(ChunkName(prefix, chunk));
      }
    }
  }
  return names;
}

}  // namespace muster
