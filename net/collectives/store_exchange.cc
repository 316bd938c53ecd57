#include "net/collectives/store_exchange.h"

#include <utility>

#include "net/collectives/one_line.h"

namespace muster {

Result<std::vector<std::string>> ExchangeThrough(rendezvous::Client& store, const GroupOptions& options,
                                                 const std::string& key, const std::string& value,
                                                 rendezvous::Deadline deadline) {
  const auto of = [&key](int rank) { return key + "/" + std::to_string(rank); };
  const auto grace = options.end_timeout / 4;
  if (Status given = store.Set(of(options.rank), value); !given) return given.error();
  std::string missing;  // empty: all have come
  if (options.rank == 0) {
    // Before those give up who began with this member, for they are told who is missing.
    store.SetDeadline(deadline - options.connect_timeout / 10, grace);
    for (int other = 1; other < options.size && missing.empty(); ++other) {
      if (store.Get(of(other))) continue;
      missing = "rank " + std::to_string(other) + " of " + std::to_string(options.size) +
                " did not come within " + std::to_string(options.connect_timeout.count()) + " ms";
    }
    store.SetDeadline(deadline, grace);
    if (Status told = store.Set(key, missing); !told && missing.empty()) return told.error();
  } else {
    Result<std::string> told = store.Get(key);
    if (!told) return told.error();
    missing = OneLine(*told);
  }
  if (!missing.empty()) return Error{Errc::kUnavailable, missing};
  std::vector<std::string> values;
  for (int rank = 0; rank < options.size; ++rank) {
    Result<std::string> one = store.Get(of(rank));
    if (!one) return one.error();
    values.push_back(std::move(*one));
  }
  return values;
}

}  // namespace muster
