#include <gtest/gtest.h>

#include <algorithm>

#include "net/collectives/gloo_mesh.h"

namespace muster {
namespace {

TEST(Mesh, ConnectsBothSidesAndNobodyWithItself) {
  for (int size = 2; size < 70; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      for (const int peer : MeshPeers(rank, size)) {
        EXPECT_NE(peer, rank);
        const std::vector<int> theirs = MeshPeers(peer, size);
        EXPECT_TRUE(std::binary_search(theirs.begin(), theirs.end(), rank))
            << rank << " " << peer << " of " << size;
      }
    }
  }
}

TEST(Mesh, GrowsWithTheLogarithmOfTheSize) {
  EXPECT_TRUE(MeshPeers(0, 1).empty());
  EXPECT_EQ(MeshPeers(0, 16), (std::vector<int>{1, 2, 4, 8, 12, 14, 15}));
  EXPECT_LE(MeshPeers(5, 16384).size(), 28U);
}

}  // namespace
}  // namespace muster
