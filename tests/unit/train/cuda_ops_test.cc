// The trainer on a CUDA device: each piece against the host's, and whole trainings. Driver, cuBLAS and NCCL are looked up under
// their own names: they are NVIDIA's where the loader finds those first, else the stand-ins, which run the same kernels.
#include "train/cuda_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/unit/net/processes.h"
#include "train/hash.h"
#include "train/host_ops.h"
#include "train/model.h"
#include "train/trainer.h"

namespace muster::train {
namespace {

using test::Fail;
using test::FreePort;
using test::RunMembers;
using test::ScratchDirectory;
using test::SharedFloats;
using test::Succeeded;
using testing::Each;
using testing::HasSubstr;
using testing::ResultOf;

using Values = std::vector<std::vector<float>>;

std::vector<float> Noise(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = SignedUnit(Hash({seed, i}));
  return values;
}

Values Noises(std::initializer_list<int> counts) {
  Values values;
  for (const int count : counts) values.push_back(Noise(static_cast<std::size_t>(count), values.size() + 1));
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float Largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

Corpus Text() {
  std::vector<std::uint8_t> text(999);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>('a' + i * i % 23);
  return Corpus(std::move(text));
}

// What a piece does with its buffers; `tokens` are bytes, one a row.
using Piece = std::function<void(Ops& ops, std::vector<Buffer>& buffers, const std::uint8_t* tokens)>;

// With blocks of one thread and of three; NVIDIA's own driver gives a block what it was to have.
class CudaOpsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ::setenv("MUSTER_STAND_IN_NCCL", ("threads=" + std::to_string(GetParam())).c_str(), 1);
    Result<std::unique_ptr<Ops>> made = MakeCudaOps({}, 0);
    ASSERT_TRUE(made.ok()) << made.error().message;
    cuda_ = *std::move(made);
  }
  void TearDown() override { ::unsetenv("MUSTER_STAND_IN_NCCL"); }

  static Values Results(Ops& ops, const Values& values, const Piece& piece) {
    std::vector<Buffer> buffers;
    for (const std::vector<float>& one : values) {
      buffers.emplace_back(ops, one.size());
      ops.Copy(buffers.back().data(), one.data(), one.size() * sizeof(float));
    }
    std::vector<std::uint8_t> tokens(1024);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint8_t>(Hash({7, i}) % 5);
    const Buffer on_device(ops, tokens.size() / sizeof(float));
    ops.Copy(on_device.data(), tokens.data(), tokens.size());
    piece(ops, buffers, reinterpret_cast<const std::uint8_t*>(on_device.data()));
    Values results = values;
    for (std::size_t i = 0; i < values.size(); ++i)
      ops.Copy(results[i].data(), buffers[i].data(), results[i].size() * sizeof(float));
    const Status done = ops.Wait();
    EXPECT_TRUE(done.ok()) << done.error().message;
    return results;
  }

  // All buffers afterwards are nearly those of the host, and the same bits when it is done again.
  void Compare(const char* what, const Values& values, const Piece& piece) {
    HostOps host;
    const Values expected = Results(host, values, piece);
    const Values found = Results(*cuda_, values, piece);
    const Values again = Results(*cuda_, values, piece);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(SameBits(found[i], again[i])) << what << ", buffer " << i;
      const float allowed = 2e-5F * Largest(expected[i]);
      for (std::size_t k = 0; k < expected[i].size(); ++k) {
        ASSERT_NEAR(found[i][k], expected[i][k], allowed) << what << ", buffer " << i << " at " << k;
      }
    }
  }

  std::unique_ptr<Ops> cuda_;
};

INSTANTIATE_TEST_SUITE_P(Threads, CudaOpsTest, testing::Values(1, 3));

TEST_P(CudaOpsTest, LinearIsTheHosts) {
  for (const LinearShape s : {LinearShape{1, 1, 1}, LinearShape{7, 5, 3}, LinearShape{130, 33, 70}}) {
    const Values values = Noises({s.rows * s.inputs, s.inputs * s.outputs, s.outputs, s.rows * s.outputs});
    Compare("with a bias", values, [s](Ops& ops, auto& b, auto) {
      ops.LinearForward(s, b[0].data(), b[1].data(), b[2].data(), b[3].data());
    });
    Compare("without", values, [s](Ops& ops, auto& b, auto) {
      ops.LinearForward(s, b[0].data(), b[1].data(), nullptr, b[3].data());
    });
    const Values backward = Noises({s.rows * s.inputs, s.inputs * s.outputs, s.rows * s.outputs,
                                    s.rows * s.inputs, s.inputs * s.outputs, s.outputs});
    Compare("backward", backward, [s](Ops& ops, auto& b, auto) {
      ops.LinearBackward(s, b[0].data(), b[1].data(), b[2].data(), b[3].data(), b[4].data(), b[5].data());
    });
    Compare("backward without a bias", backward, [s](Ops& ops, auto& b, auto) {
      ops.LinearBackward(s, b[0].data(), b[1].data(), b[2].data(), b[3].data(), b[4].data(), nullptr);
    });
  }
}

TEST_P(CudaOpsTest, NormIsTheHosts) {
  for (const NormShape s : {NormShape{1, 2}, NormShape{7, 5}, NormShape{130, 33}, NormShape{3, 301}}) {
    const int size = s.rows * s.width;
    Compare("norm, forward and backward",
            Noises({size, s.width, s.width, size, s.rows, s.rows, size, size, s.width, s.width}),
            [s](Ops& ops, auto& b, auto) {
              ops.NormForward(s, b[0].data(), b[1].data(), b[2].data(), b[3].data(), b[4].data(),
                              b[5].data());
              ops.NormBackwardAdd(s, b[0].data(), b[1].data(), b[4].data(), b[5].data(), b[6].data(),
                                  b[7].data(), b[8].data(), b[9].data());
            });
  }
}

TEST_P(CudaOpsTest, WhatEachValueHasForItselfIsTheHosts) {
  for (const int size : {1, 5, 257, 4099}) {
    Compare("gelu", Noises({size, size, size, size}), [](Ops& ops, auto& b, auto) {
      ops.GeluForward(b[0].values(), b[1].values(), b[2].values());
      ops.GeluBackward(b[0].values(), b[2].values(), b[3].values());
    });
    Compare("addition, division, zero, copy", Noises({size, size, size, size}), [](Ops& ops, auto& b, auto) {
      ops.Add(b[0].values(), b[1].values());
      ops.Divide(b[0].values(), 3);
      ops.Zero(b[2].values());
      ops.Copy(b[3].data(), b[0].data(), b[0].size() * sizeof(float));
    });
    Values values = Noises({size, size, size, size});
    for (float& value : values[3]) value = std::abs(value);
    Compare("Adam", values, [](Ops& ops, auto& b, auto) {
      ops.Adam({0.9F, 0.95F, 1.5F, 2.5F, 0.01F, 0.99F, 1e-8F}, b[0].values(), b[1].values(), b[2].values(),
               b[3].values());
    });
    for (const double limit : {0.1, 1000.0}) {
      Compare("clipping", Noises({size}),
              [limit](Ops& ops, auto& b, auto) { ops.ClipNorm(b[0].values(), limit); });
    }
  }
}

TEST_P(CudaOpsTest, AttentionIsTheHosts) {
  for (const AttentionShape s : {AttentionShape{1, 1, 1, 1}, AttentionShape{2, 5, 3, 6},
                                 AttentionShape{3, 17, 2, 10}, AttentionShape{1, 140, 1, 4}}) {
    const int rows = s.batch * s.context;
    const int scores = s.batch * s.heads * s.context * s.context;
    Compare("attention, forward and backward",
            Noises({rows * 3 * s.width, scores, rows * s.width, rows * s.width, rows * 3 * s.width}),
            [s](Ops& ops, auto& b, auto) {
              ops.AttentionForward(s, b[0].data(), b[1].data(), b[2].data());
              ops.AttentionBackward(s, b[0].data(), b[1].data(), b[3].data(), b[4].data());
            });
  }
}

TEST_P(CudaOpsTest, TheEmbeddingIsTheHosts) {
  for (const EmbeddingShape s :
       {EmbeddingShape{1, 1, 1}, EmbeddingShape{6, 3, 5}, EmbeddingShape{130, 65, 7}}) {
    const int size = s.rows * s.width;
    Compare("embedding, forward and backward",
            Noises({kVocabulary * s.width, s.context * s.width, size, size, kVocabulary * s.width,
                    s.context * s.width}),
            [s](Ops& ops, auto& b, const std::uint8_t* tokens) {
              ops.EmbeddingForward(s, tokens, b[0].data(), b[1].data(), b[2].data());
              ops.EmbeddingBackward(s, tokens, b[3].data(), b[4].data(), b[5].data());
            });
  }
}

TEST_P(CudaOpsTest, CrossEntropyIsTheHosts) {
  for (const ScoresShape s : {ScoresShape{1, 5}, ScoresShape{7, 256}, ScoresShape{130, 33}}) {
    Values values = Noises({s.rows * s.classes});
    for (float& value : values[0]) value *= 90;  // the exponents must not overflow
    const auto loss_with = [&](Ops& ops) {
      double loss = 0;
      (void)Results(ops, values, [&](Ops&, auto& b, const std::uint8_t* tokens) {
        const Buffer result(ops, 2);
        ops.CrossEntropy(s, b[0].data(), tokens, reinterpret_cast<double*>(result.data()));
        ops.Copy(&loss, result.data(), sizeof(loss));
        EXPECT_TRUE(ops.Wait().ok());
      });
      return loss;
    };
    HostOps host;
    EXPECT_NEAR(loss_with(*cuda_), loss_with(host), 1e-5 * loss_with(host));
    EXPECT_EQ(loss_with(*cuda_), loss_with(*cuda_));
    Compare("its derivative", values, [s](Ops& ops, auto& b, const std::uint8_t* tokens) {
      ops.CrossEntropyBackward(s, b[0].data(), tokens);
    });
  }
}

TEST_P(CudaOpsTest, AModelsLossAndGradientAreTheHosts) {
  const ModelConfig config{.width = 30, .depth = 2, .heads = 5, .context = 13};
  constexpr int kSequences = 6;
  const Layout layout(config);
  std::vector<float> parameters(layout.size);
  Initialize(layout, 3, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] += 0.2F * SignedUnit(Hash({4, i}));
  const Batch batch = Text().Sample({1, 2, 3}, kSequences, config.context);
  double loss = 0;
  const auto gradient_with = [&](Ops& ops) {
    return Results(ops, {parameters, Noise(layout.size, 9)}, [&](Ops&, auto& b, auto) {
      Model model(ops, config, kSequences);
      model.Forward(b[0].values(), batch);
      model.Backward(b[0].values(), b[1].values());
      const Result<double> found = model.Loss();
      ASSERT_TRUE(found.ok()) << found.error().message;
      loss = *found;
    })[1];
  };
  HostOps host;
  const std::vector<float> expected = gradient_with(host);
  const double expected_loss = loss;
  const std::vector<float> found = gradient_with(*cuda_);
  EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss);
  for (const Tensor& tensor : layout.Tensors()) {
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(tensor.offset);
    const float allowed = 1e-4F * Largest({begin, begin + static_cast<std::ptrdiff_t>(tensor.size())});
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], allowed) << tensor.name << " at " << i - tensor.offset;
  }
}

TEST_P(CudaOpsTest, AMarkIsReachedWhenTheWorkBeforeItIsDone) {
  const std::vector<float> values(100'000, 1);
  std::vector<float> results(values.size());
  const Buffer buffer(*cuda_, values.size());
  cuda_->Copy(buffer.data(), values.data(), values.size() * sizeof(float));
  cuda_->Copy(results.data(), buffer.data(), values.size() * sizeof(float));
  const std::function<Result<bool>()> reached = cuda_->Mark();
  std::thread([&] {
    for (bool is = false; !is;) {
      const Result<bool> asked = reached();
      ASSERT_TRUE(asked.ok()) << asked.error().message;
      is = *asked;
    }
  }).join();
  EXPECT_EQ(results, values);
}

TEST_P(CudaOpsTest, TheFirstErrorStays) {
  const Buffer large(*cuda_, std::size_t{1} << 50U);
  EXPECT_EQ(large.data(), nullptr);
  cuda_->Zero(large.values());
  const Buffer none(*cuda_, 1);
  EXPECT_EQ(none.data(), nullptr);
  const Status status = cuda_->Wait();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("CUDA device 0, allocating 4503599627370496 bytes"));
  const Result<bool> reached = cuda_->Mark()();
  ASSERT_FALSE(reached.ok());
  EXPECT_EQ(reached.error().message, status.error().message);
}

TEST(CudaOps, ALibraryThatIsNotThereIsNamed) {
  const auto why = [](const CudaLibraries& libraries) {
    const Result<std::unique_ptr<Ops>> made = MakeCudaOps(libraries, 0);
    return made ? "it was there" : made.error().message;
  };
  EXPECT_THAT(why({.cuda = "libnothing.so.1"}),
              HasSubstr("NVIDIA's driver cannot be loaded: libnothing.so.1"));
  EXPECT_THAT(why({.cublas = {"libnone.so.13", "libnone.so.12"}}),
              testing::AllOf(HasSubstr("cuBLAS cannot be loaded: libnone.so.13"), HasSubstr("libnone.so.12"),
                             HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(why({.cublas = {"libc.so.6"}}), HasSubstr("libc.so.6 has no function cublasCreate_v2"));
}

// Whole trainings, each member in a process of its own. A process that has used a driver cannot be forked: on a GPU these tests
// run apart from those above.

TrainOptions Small() {
  return {.model = {.width = 18, .depth = 2, .heads = 3, .context = 11},
          .batch = 3,
          .steps = 12,
          .learning_rate = 1e-2F,
          .seed = 5,
          .checkpoint_every = 4,
          .log_every = 0,
          .exchange = {.bucket_bytes = 1024, .overlap = true}};
}

struct Training {
  bool cuda = true;
  const char* collectives = "nccl";
  MemoryKind memory = MemoryKind::kCuda;  // of the group
  std::string directory;                  // of checkpoints; empty: not started by Muster
  int lost_at = 0;                        // the step at which rank 0 is lost or, alone, told to stop
};

Result<Outcome> TrainAs(int rank, int members, std::uint16_t port, const Training& run) {
  Result<std::unique_ptr<Ops>> ops = std::unique_ptr<Ops>(std::make_unique<HostOps>());
  test::ShareTheGpu(rank);
  if (run.cuda) ops = MakeCudaOps({}, 0);
  if (!ops) return ops.error();
  GroupOptions options = test::LoopbackGroup(rank, members, port);
  options.memory = run.memory;
  const Result<std::unique_ptr<Collectives>> group = MakeCollectives(run.collectives, options);
  if (!group) return group.error();
  Result<Handle> muster = Handle();
  std::optional<Checkpoints> checkpoints;
  if (!run.directory.empty()) {
    ::setenv("MUSTER_TEST_DIRECTORY", run.directory.c_str(), 1);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(members).c_str(), 1);
    muster = OpenMuster();
    if (!muster) return muster.error();
    checkpoints.emplace(muster->get(), Small().model, rank, members);
  }
  int asked = 0;
  const TrainContext context{**ops, **group, checkpoints ? &*checkpoints : nullptr, {}, [&] {
                               if (++asked != run.lost_at || rank != 0) return false;
                               if (members > 1) ::raise(SIGKILL);
                               return true;
                             }};
  return Train(Small(), Text(), context);
}

// The weights, and behind them the loss, of a training that must go to its end.
std::vector<float> TrainToTheEnd(int members, const Training& run) {
  SharedFloats shared(Layout(Small().model).size + 1);
  const std::uint16_t port = FreePort();
  const auto train = [&](int rank) {
    const Result<Outcome> outcome = TrainAs(rank, members, port, run);
    if (!outcome) return Fail(outcome.error().message);
    if (!outcome->finished) return Fail("not finished");
    if (rank != 0) return 0;
    std::copy(outcome->parameters.begin(), outcome->parameters.end(), shared.values().begin());
    shared.values().back() = static_cast<float>(outcome->loss);
    return 0;
  };
  EXPECT_THAT(RunMembers(members, train), Each(ResultOf(&Succeeded, true)));
  return {shared.values().begin(), shared.values().end()};
}

constexpr int kMostMembers = 3;

TEST(CudaTraining, ComesToTheHostsLossAndToTheSameBitsAgain) {
  for (int members = 1; members <= kMostMembers; ++members) {
    const std::vector<float> host =
        TrainToTheEnd(members, {.cuda = false, .collectives = "gloo", .memory = MemoryKind::kHost});
    const std::vector<float> cuda = TrainToTheEnd(members, {});
    EXPECT_LT(cuda.back(), 4.5F) << "it has learned nothing";
    // Not so the weights: what a loss does not depend on, as it does not on the keys' biases, goes where rounding takes it.
    EXPECT_NEAR(cuda.back(), host.back(), 5e-3) << members << " members";
    EXPECT_TRUE(SameBits(cuda, TrainToTheEnd(members, {}))) << members << " members";
  }
}

TEST(CudaTraining, OfOneMemberNeedsNoNccl) {
  const std::vector<float> with = TrainToTheEnd(1, {});
  EXPECT_TRUE(SameBits(with, TrainToTheEnd(1, {.collectives = "gloo", .memory = MemoryKind::kHost})));
}

TEST(CudaTraining, GoesOnFromACheckpointOfTheDevicesMemoryWithTheSameBits) {
  for (int members = 1; members <= kMostMembers; ++members) {
    const std::vector<float> clean = TrainToTheEnd(members, {});
    const ScratchDirectory directory;
    const Training lost{.directory = directory.path(), .lost_at = 7};
    const std::uint16_t port = FreePort();
    const std::vector<int> statuses = RunMembers(members, [&](int rank) {
      const Result<Outcome> outcome = TrainAs(rank, members, port, lost);
      if (members == 1) return outcome && outcome->step == 7 ? 0 : Fail("it was not told to stop");
      if (outcome) return Fail("no error without a member");
      return outcome.error().code == Errc::kUnavailable ? 0 : Fail(outcome.error().message);
    });
    for (int rank = 0; rank < members; ++rank)
      EXPECT_EQ(Succeeded(statuses[static_cast<std::size_t>(rank)]), members == 1 || rank != 0);
    EXPECT_TRUE(SameBits(clean, TrainToTheEnd(members, {.directory = directory.path()})))
        << members << " members";
  }
}

TEST(CudaTraining, OfSeveralMembersNeedsCollectivesOfTheSameMemory) {
  const std::uint16_t port = FreePort();
  const std::vector<int> statuses = RunMembers(2, [&](int rank) {
    const Result<Outcome> outcome = TrainAs(rank, 2, port, {.cuda = false});
    if (outcome) return Fail("they trained");
    return outcome.error().code == Errc::kInvalid ? 0 : Fail(outcome.error().message);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

}  // namespace
}  // namespace muster::train
