// libmuster: saves of GPU memory, by CUDA's driver API. Without a GPU against a stand-in for the driver; on a machine with
// one: MUSTER_TEST_CUDA=libcuda.so.1 build/tests/libmuster_device_test.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr size_t kMiB = 1u << 20;

// What the test itself does with a GPU.
class Gpu {
 public:
  Gpu() {
    const char* const named = std::getenv("MUSTER_TEST_CUDA");
    library_ = dlopen(named != nullptr ? named : STAND_IN_CUDA, RTLD_NOW);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    Call<int(unsigned)>("cuInit", 0);
    Call<int(int*)>("cuDeviceGetCount", &devices_);
    for (int i = 0; i < devices_; ++i) {
      contexts_.emplace_back();
      Call<int(void**, int)>("cuDevicePrimaryCtxRetain", &contexts_.back(), i);
    }
    Use(0);
  }

  [[nodiscard]] int devices() const { return devices_; }
  [[nodiscard]] bool stand_in() const { return dlsym(library_, "stand_in_cuda_fail") != nullptr; }
  void Use(int device) { Call<int(void*)>("cuCtxPushCurrent_v2", contexts_[device]); }
  void UseNone() {
    for (void* popped = nullptr; Current() != nullptr;) Call<int(void**)>("cuCtxPopCurrent_v2", &popped);
  }
  void* Current() {
    void* context = nullptr;
    Call<int(void**)>("cuCtxGetCurrent", &context);
    return context;
  }
  void* NewStream() {
    void* stream = nullptr;
    Call<int(void**, unsigned)>("cuStreamCreate", &stream, 1);
    return stream;
  }
  void EndStream(void* stream) { Call<int(void*)>("cuStreamDestroy_v2", stream); }
  char* New(size_t bytes, bool pool = false) {
    uint64_t address = 0;
    if (pool) {
      Call<int(uint64_t*, size_t, void*)>("cuMemAllocAsync", &address, bytes, nullptr);
      Wait(nullptr);
    } else {
      Call<int(uint64_t*, size_t)>("cuMemAlloc_v2", &address, bytes);
    }
    return reinterpret_cast<char*>(static_cast<uintptr_t>(address));
  }
  void Free(const void* memory) { Call<int(uint64_t)>("cuMemFree_v2", Address(memory)); }
  void Fill(const void* memory, char value, size_t bytes, void* stream) {
    Call<int(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async", Address(memory),
                                                      static_cast<unsigned char>(value), bytes, stream);
  }
  void Wait(void* stream) { Call<int(void*)>("cuStreamSynchronize", stream); }

  // Of the stand-in only.
  void Capture(void* stream, bool capturing) {
    reinterpret_cast<void (*)(void*, int)>(dlsym(library_, "stand_in_cuda_capture"))(stream,
                                                                                     capturing ? 1 : 0);
  }
  int CaptureMode() { return reinterpret_cast<int (*)()>(dlsym(library_, "stand_in_cuda_capture_mode"))(); }
  void Fail(const char* function, int code) {
    reinterpret_cast<void (*)(const char*, int)>(dlsym(library_, "stand_in_cuda_fail"))(function, code);
  }
  uint64_t Count(const char* what) {
    return reinterpret_cast<uint64_t (*)(const char*)>(dlsym(library_, "stand_in_cuda_count"))(what);
  }

 private:
  static uint64_t Address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
  template <typename Signature, typename... Arguments>
  void Call(const char* name, Arguments... arguments) {
    auto* const function = reinterpret_cast<Signature*>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("no ") + name);
    if (const int status = function(arguments...); status != 0)
      throw std::runtime_error(std::string(name) + " gives " + std::to_string(status));
  }

  void* library_ = nullptr;
  int devices_ = 0;
  std::vector<void*> contexts_;
};

class LibmusterDevice : public Libmuster {
 protected:
  void SetUp() override {
    Libmuster::SetUp();
    Open();
    stream_ = gpu_.NewStream();
    if (!gpu_.stand_in()) return;
    pageable_before_ = gpu_.Count("pageable");
    registered_before_ = gpu_.Count("registered");
  }
  void TearDown() override {
    Libmuster::TearDown();
    gpu_.EndStream(stream_);
    for (const char* memory : memory_) gpu_.Free(memory);
    gpu_.UseNone();
  }

  char* New(size_t bytes, bool pool = false) { return memory_.emplace_back(gpu_.New(bytes, pool)); }
  int Add(const char* name, const void* data, size_t bytes) {
    return muster_save_add_device(m_, name, "m", data, bytes, stream_);
  }
  // Bytes that this test has copied into memory that was not registered; a real driver does not tell.
  uint64_t Pageable() { return gpu_.stand_in() ? gpu_.Count("pageable") - pageable_before_ : 0; }
  std::string Restored(uint64_t step, const char* name, size_t bytes) {
    std::string content(bytes, '?');
    muster_restore* r = nullptr;
    EXPECT_EQ(muster_wait(m_, step, 10000), MUSTER_OK) << Said();
    EXPECT_EQ(muster_restore_open(m_, step, &r), MUSTER_OK) << Said();
    if (r == nullptr) return "";
    EXPECT_EQ(muster_restore_get(r, name, content.data(), bytes), MUSTER_OK) << Said();
    muster_restore_close(r);
    return content;
  }

  Gpu gpu_;
  void* stream_ = nullptr;
  uint64_t pageable_before_ = 0;
  uint64_t registered_before_ = 0;
  std::vector<char*> memory_;
};

TEST_F(LibmusterDevice, WhatTheStreamWasGivenBeforeIsSavedAndWhatCameAfterIsNot) {
  char* const tensor = New(3 * kMiB);
  for (uint64_t step = 1; step <= 6; ++step) {
    const char value = static_cast<char>('a' + step);
    gpu_.Fill(tensor, value, 3 * kMiB, stream_);
    ASSERT_EQ(muster_save_begin(m_, step, 4 * kMiB), MUSTER_OK);
    ASSERT_EQ(Add("w", tensor, 3 * kMiB), MUSTER_OK) << Said();
    gpu_.Fill(tensor, 'y', 3 * kMiB, stream_);
    if (step % 2 == 0) gpu_.Wait(stream_);
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
    gpu_.Fill(tensor, 'z', 3 * kMiB, nullptr);
    gpu_.Wait(nullptr);
    EXPECT_EQ(Restored(step, "w", 3 * kMiB), std::string(3 * kMiB, value));
  }
  EXPECT_EQ(Pageable(), 0u);
  if (!gpu_.stand_in()) return;
  EXPECT_EQ(gpu_.Count("registered"), registered_before_ + 2) << "one for each staging memory";
  muster_close(m_);
  m_ = nullptr;
  EXPECT_EQ(gpu_.Count("registered"), registered_before_);
}

// Memory grows by more than is wanted, and a driver pins all of it.
TEST_F(LibmusterDevice, WhatTheDriverPinsHasBeenGranted) {
  char* const tensor = New(24 * kMiB);
  const auto save = [&](uint64_t step, size_t bytes) {
    gpu_.Fill(tensor, static_cast<char>('a' + step), bytes, stream_);
    ASSERT_EQ(muster_save_begin(m_, step, bytes), MUSTER_OK) << Said();
    ASSERT_EQ(Add("w", tensor, bytes), MUSTER_OK) << Said();
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
    EXPECT_EQ(Restored(step, "w", bytes), std::string(bytes, static_cast<char>('a' + step)));
  };
  const auto most_wanted = [&] { return *std::max_element(musterd_.wanted.begin(), musterd_.wanted.end()); };
  for (const uint64_t step : {1, 2}) save(step, 23 * kMiB);
  EXPECT_TRUE(musterd_.Await([&](const FakeMusterd&) { return most_wanted() == 32 * kMiB; }));
  save(3, 24 * kMiB);
  EXPECT_TRUE(musterd_.Await([&](const FakeMusterd&) { return most_wanted() > 34 * kMiB; }));
  EXPECT_EQ(Pageable(), 0u);
  // Where there is less, the copies are slower.
  musterd_.Change([](auto& rules) { rules.most_memory = 33 * kMiB; });
  save(4, 24 * kMiB);
  if (gpu_.stand_in()) {
    EXPECT_EQ(Pageable(), 24 * kMiB);
  }
}

TEST_F(LibmusterDevice, PartsOfTensorsAndEntriesOfBothKindsGoTogether) {
  char* const tensor = New(64);
  gpu_.Fill(tensor, 1, 64, nullptr);
  gpu_.Fill(tensor + 32, 2, 32, nullptr);
  const muster_slice part{"uint8", 1, 1, {100}, {10}, {32}};
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "host", nullptr, "abc", 3), MUSTER_OK);
  ASSERT_EQ(muster_save_add_slice_device(m_, "t", nullptr, &part, tensor + 32, 32, nullptr), MUSTER_OK)
      << Said();
  ASSERT_EQ(muster_save_add_device(m_, "empty", nullptr, nullptr, 0, nullptr), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_add_device(m_, "first", nullptr, tensor, 32, nullptr), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "host", 3), "abc");
  EXPECT_EQ(Restored(1, "t", 32), std::string(32, 2));
  EXPECT_EQ(Restored(1, "first", 32), std::string(32, 1));
  EXPECT_EQ(Restored(1, "empty", 0), "");
}

TEST_F(LibmusterDevice, AShardThatOutgrowsItsMemoryKeepsWhatIsOnItsWay) {
  char* const tensor = New(kMiB);
  const std::string large(40 * kMiB, 'L');
  for (uint64_t step = 1; step <= 3; ++step) {
    gpu_.Fill(tensor, 'd', kMiB, stream_);
    ASSERT_EQ(muster_save_begin(m_, step, 0), MUSTER_OK);
    ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
    ASSERT_EQ(muster_save_add(m_, "large", nullptr, large.data(), large.size() * step / 3), MUSTER_OK);
    ASSERT_EQ(Add("v", tensor, kMiB), MUSTER_OK) << Said();
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
    EXPECT_EQ(Restored(step, "w", kMiB), std::string(kMiB, 'd'));
    EXPECT_EQ(Restored(step, "v", kMiB), std::string(kMiB, 'd'));
  }
  EXPECT_EQ(Pageable(), 0u);
}

TEST_F(LibmusterDevice, AnAbortedSaveWritesNothingIntoTheNext) {
  char* const tensor = New(kMiB);
  const std::string host(kMiB, 'h');
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  muster_save_abort(m_);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "w", nullptr, host.data(), host.size()), MUSTER_OK);
  ASSERT_EQ(Add("v", tensor, kMiB), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "w", kMiB), host);
}

TEST_F(LibmusterDevice, EveryGpuAndMemoryOfAPoolAndAThreadWithoutAContext) {
  std::vector<char*> tensors;
  for (int i = 0; i < gpu_.devices(); ++i) {
    gpu_.Use(i);
    for (const bool pool : {false, true}) {
      tensors.push_back(New(kMiB, pool));
      gpu_.Fill(tensors.back(), static_cast<char>('0' + tensors.size()), kMiB, nullptr);
      gpu_.Wait(nullptr);
    }
  }
  void* const before = gpu_.Current();
  std::thread([&] {
    ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
    for (size_t i = 0; i < tensors.size(); ++i) {
      ASSERT_EQ(muster_save_add_device(m_, std::to_string(i).c_str(), nullptr, tensors[i], kMiB, nullptr),
                MUSTER_OK)
          << Said();
    }
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
    EXPECT_EQ(gpu_.Current(), nullptr);
  }).join();
  EXPECT_EQ(gpu_.Current(), before);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(Restored(1, std::to_string(i).c_str(), kMiB), std::string(kMiB, static_cast<char>('1' + i)));
  }
}

TEST_F(LibmusterDevice, WhatIsNoMemoryOfAGpuIsRefusedAndTheSaveGoesOn) {
  char* const tensor = New(kMiB);
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  std::string host(100, 'h');
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  EXPECT_EQ(Add("w", host.data(), host.size()), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("the data of 'w' cannot be copied: it is no memory of a GPU: CUDA error 1"));
  EXPECT_EQ(Add("w", nullptr, 1), MUSTER_E_INVALID);
  EXPECT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
  EXPECT_EQ(Restored(1, "w", kMiB), std::string(kMiB, 'd'));
}

TEST_F(LibmusterDevice, ACopyThatFailsAbortsTheSaveAndTheStepCanBeSavedAgain) {
  if (!gpu_.stand_in()) return;  // a real context is of no use after such an error
  char* const tensor = New(kMiB);
  struct Case {
    const char* function;
    bool at_commit;
  };
  for (const Case& c : {Case{"execution", true}, Case{"cuMemcpyAsync", false}, Case{"cuEventRecord", false},
                        Case{"cuStreamWaitEvent", false}, Case{"cuCtxPushCurrent_v2", false}}) {
    ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
    gpu_.Fail(c.function, 700);
    const int added = Add("w", tensor, kMiB);
    EXPECT_EQ(added, c.at_commit ? MUSTER_OK : MUSTER_E_DEVICE) << c.function;
    if (c.at_commit) {
      EXPECT_EQ(muster_save_commit(m_), MUSTER_E_DEVICE);
    }
    EXPECT_THAT(Said(), HasSubstr("the save has been aborted: "));
    EXPECT_THAT(Said(), HasSubstr("CUDA error 700, an illegal memory access was encountered"));
    EXPECT_EQ(muster_save_commit(m_), MUSTER_E_INVALID);
    EXPECT_EQ(gpu_.CaptureMode(), 0);
  }
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "w", kMiB), std::string(kMiB, 'd'));
}

TEST_F(LibmusterDevice, WhereTheGpuMayStillWriteNothingElseIsPut) {
  if (!gpu_.stand_in()) return;
  char* const tensor = New(kMiB);
  const std::string host(kMiB, 'h');
  for (const bool abort : {false, true}) {
    gpu_.Fill(tensor, 'd', kMiB, stream_);
    ASSERT_EQ(muster_save_begin(m_, abort ? 2 : 1, 0), MUSTER_OK);
    ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
    // The wait fails, and the copy is made when its stream is waited for next: by way of the program's.
    gpu_.Fail("cuStreamSynchronize", 900);
    if (abort) {
      muster_save_abort(m_);
    } else {
      EXPECT_EQ(muster_save_commit(m_), MUSTER_E_DEVICE);
      EXPECT_THAT(Said(), HasSubstr("CUDA error 900"));
    }
    ASSERT_EQ(muster_save_begin(m_, abort ? 2 : 1, 0), MUSTER_OK);
    ASSERT_EQ(muster_save_add(m_, "w", nullptr, host.data(), host.size()), MUSTER_OK);
    gpu_.Wait(stream_);
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
    EXPECT_EQ(Restored(abort ? 2 : 1, "w", kMiB), host);
  }
}

TEST_F(LibmusterDevice, MemoryThatTheDriverDoesNotGiveBackDoesNotMove) {
  if (!gpu_.stand_in()) return;
  char* const tensor = New(kMiB);
  const std::string large(40 * kMiB, 'L');
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  gpu_.Fail("cuMemHostUnregister", 2);
  EXPECT_EQ(muster_save_add(m_, "large", nullptr, large.data(), large.size()), MUSTER_E_DEVICE);
  EXPECT_THAT(Said(), HasSubstr("the memory's registration cannot be taken back: CUDA error 2"));
  EXPECT_EQ(muster_save_add(m_, "more", nullptr, "x", 1), MUSTER_E_INVALID);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "large", nullptr, large.data(), large.size()), MUSTER_OK);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "w", kMiB), std::string(kMiB, 'd'));
  EXPECT_EQ(gpu_.Count("registered"), registered_before_ + 2);
}

TEST_F(LibmusterDevice, AStreamThatIsBeingCapturedIsRefusedAndTheSaveGoesOn) {
  if (!gpu_.stand_in()) return;
  char* const tensor = New(kMiB);
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  gpu_.Capture(stream_, true);
  EXPECT_EQ(Add("w", tensor, kMiB), MUSTER_E_INVALID);
  EXPECT_THAT(Said(),
              HasSubstr("the data of 'w' cannot be copied: its stream is being captured into a graph"));
  gpu_.Capture(stream_, false);
  EXPECT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "w", kMiB), std::string(kMiB, 'd'));
}

TEST_F(LibmusterDevice, TheStreamMayBeAnotherGpusThanTheMemory) {
  if (gpu_.devices() < 2) return;
  char* const tensor = New(kMiB);
  gpu_.Fill(tensor, 'd', kMiB, nullptr);
  gpu_.Wait(nullptr);
  gpu_.Use(1);
  void* const other = gpu_.NewStream();
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add_device(m_, "w", nullptr, tensor, kMiB, other), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "w", kMiB), std::string(kMiB, 'd'));
  gpu_.EndStream(other);
}

TEST_F(LibmusterDevice, AHandleThatIsClosedInASaveWaitsForTheCopies) {
  char* const tensor = New(kMiB);
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  const uint64_t before = gpu_.stand_in() ? gpu_.Count("execution") : 0;
  muster_close(m_);
  m_ = nullptr;
  if (gpu_.stand_in()) {
    EXPECT_EQ(gpu_.Count("execution"), before + 1);
  }
  gpu_.Wait(stream_);
}

TEST_F(LibmusterDevice, WithoutAStreamOfItsOwnNothingIsSavedAndWithoutRegistrationAllIs) {
  if (!gpu_.stand_in()) return;
  char* const tensor = New(kMiB);
  gpu_.Fill(tensor, 'd', kMiB, stream_);
  for (const char* function : {"cuStreamCreate", "cuEventCreate"}) {
    ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
    gpu_.Fail(function, 2);
    EXPECT_EQ(Add("w", tensor, kMiB), MUSTER_E_DEVICE);
    EXPECT_THAT(Said(), HasSubstr("no stream for the copies can be had: CUDA error 2"));
  }
  const uint64_t asked = gpu_.Count("cuMemHostRegister_v2");
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  gpu_.Fail("cuMemHostRegister_v2", 2);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  ASSERT_EQ(Add("v", tensor, kMiB / 2), MUSTER_OK) << Said();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  EXPECT_EQ(Restored(1, "w", kMiB), std::string(kMiB, 'd'));
  EXPECT_EQ(Pageable(), kMiB * 3 / 2);
  EXPECT_EQ(gpu_.Count("cuMemHostRegister_v2"), asked + 1) << "once in a save";
}

TEST_F(LibmusterDevice, AForkedProcessDoesNotTouchItsParentsDriver) {
  if (!gpu_.stand_in()) return;  // who forks has no driver
  char* const tensor = New(kMiB);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  ASSERT_EQ(Add("w", tensor, kMiB), MUSTER_OK) << Said();
  const pid_t child = ::fork();
  if (child == 0) {
    const uint64_t before = gpu_.Count("all");
    const int added = Add("v", tensor, kMiB);
    muster_save_abort(m_);
    muster_close(m_);
    ::_exit(added == MUSTER_E_INVALID && gpu_.Count("all") == before ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
}

}  // namespace
}  // namespace muster
