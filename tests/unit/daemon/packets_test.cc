#include "daemon/agent/packets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/packet_builder.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

wire::SupervisorHello Hello() {
  wire::SupervisorHello hello{};
  hello.job_id = 12;
  hello.uid = 1000;
  hello.node_id = 1;
  hello.node_count = 2;
  hello.task_count = 4;
  hello.local_task_count = 2;
  hello.task_id = 3;
  hello.local_id = 1;
  return hello;
}

std::string HelloPacket(wire::SupervisorHello hello, const std::string& nodes = "n[1-2]",
                        const std::string& options = "restarts=2") {
  hello.node_list_bytes = static_cast<uint32_t>(nodes.size());
  hello.node_name_bytes = 2;
  hello.options_bytes = static_cast<uint32_t>(options.size());
  return BuildPacket(hello, wire::Type::kSupervisorHello, nodes + "n2" + options);
}

TEST(SupervisorHelloPacket, IsRead) {
  const std::string packet = HelloPacket(Hello());
  const auto hello = ReadSupervisorHello(packet);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->node_list, "n[1-2]");
  EXPECT_EQ(hello->node_name, "n2");
  EXPECT_EQ(hello->options, "restarts=2");
  GangJob job = StepOf(*hello);
  EXPECT_EQ(job.Id(), "12.0");
  ASSERT_TRUE(CompleteStep(hello->body, &job));
  EXPECT_EQ(job.options.restarts, 2U);
}

TEST(SupervisorHelloPacket, EveryTruncationIsMalformed) {
  const std::string packet = HelloPacket(Hello());
  for (size_t size = 0; size < packet.size(); ++size) {
    EXPECT_FALSE(ReadSupervisorHello(packet.substr(0, size))) << size;
  }
}

TEST(SupervisorHelloPacket, LengthsThatDoNotFitOrOverflowAreMalformed) {
  for (const uint32_t bytes : {100U, UINT32_MAX, UINT32_MAX - 8}) {
    wire::SupervisorHello hello = Hello();
    hello.node_list_bytes = bytes;
    hello.node_name_bytes = bytes;
    hello.options_bytes = bytes;
    EXPECT_FALSE(ReadSupervisorHello(BuildPacket(hello, wire::Type::kSupervisorHello, "n[1-2]")));
  }
}

TEST(SupervisorHelloPacket, NumbersThatContradictOneAnotherAreRefused) {
  const auto refused = [](const std::function<void(wire::SupervisorHello&)>& change) {
    wire::SupervisorHello hello = Hello();
    change(hello);
    const std::string packet = HelloPacket(hello);
    const auto read = ReadSupervisorHello(packet);
    GangJob job = StepOf(*read);
    const Status complete = CompleteStep(read->body, &job);
    return !complete && complete.error().code == Errc::kInvalid;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& h) { h.node_id = 2; }));
  EXPECT_TRUE(refused([](auto& h) { h.node_count = 3; }));
  EXPECT_TRUE(refused([](auto& h) { h.task_id = 4; }));
  EXPECT_TRUE(refused([](auto& h) { h.task_count = 1; }));
  EXPECT_TRUE(refused([](auto& h) { h.task_count = 0; }));
  EXPECT_TRUE(refused([](auto& h) { h.task_count = UINT32_MAX; }));
  EXPECT_TRUE(refused([](auto& h) { h.local_task_count = 0; }));
  EXPECT_TRUE(refused([](auto& h) { h.local_task_count = 5; }));
  EXPECT_TRUE(refused([](auto& h) { h.local_id = 2; }));
}

// A task of the second component, which Slurm numbers by itself: its second node, second task there.
wire::SupervisorHello HelloOfComponent() {
  wire::SupervisorHello hello{};
  hello.job_id = 13;
  hello.node_id = 1;
  hello.node_count = 2;
  hello.task_count = 3;
  hello.local_task_count = 2;
  hello.task_id = 2;
  hello.local_id = 1;
  return hello;
}

std::string PacketOfComponent(wire::SupervisorHello hello, const std::string& components) {
  const std::string nodes = "n[1-3]";
  const std::string options = "role=worker";
  hello.node_list_bytes = static_cast<uint32_t>(nodes.size());
  hello.options_bytes = static_cast<uint32_t>(options.size());
  hello.components_bytes = static_cast<uint32_t>(components.size());
  return BuildPacket(hello, wire::Type::kSupervisorHello, nodes + options + components);
}

const char* const kComponents = "job=12 tasks=1(x2),2\n12 n2 role=chief,restarts=0\n13 n[1,3] role=worker\n";

TEST(SupervisorHelloPacket, OfAComponentIsPlacedInTheWholeGang) {
  const std::string packet = PacketOfComponent(HelloOfComponent(), kComponents);
  const auto read = ReadSupervisorHello(packet);
  ASSERT_TRUE(read);
  GangJob job = StepOf(*read);
  EXPECT_EQ(job.Id(), "12.0");
  const Status complete = CompleteStep(read->body, &job);
  ASSERT_TRUE(complete) << complete.error().message;
  wire::SupervisorHello hello = read->body;
  const Status placed = PlaceInGang(job, "n3", &hello);
  ASSERT_TRUE(placed) << placed.error().message;
  EXPECT_EQ(hello.job_id, 12U);
  EXPECT_EQ(hello.node_id, 2U);
  EXPECT_EQ(hello.node_count, 3U);
  EXPECT_EQ(hello.task_id, 3U) << "after those of the nodes before";
  EXPECT_EQ(hello.task_count, 4U);
}

TEST(SupervisorHelloPacket, OfAComponentMustBeOneOfThatComponentsTasks) {
  const auto placed = [](const std::string& self, const std::function<void(wire::SupervisorHello&)>& change) {
    wire::SupervisorHello hello = HelloOfComponent();
    change(hello);
    const std::string packet = PacketOfComponent(hello, kComponents);
    const auto read = ReadSupervisorHello(packet);
    GangJob job = StepOf(*read);
    hello = read->body;
    return CompleteStep(hello, &job) && PlaceInGang(job, self, &hello);
  };
  EXPECT_TRUE(placed("n3", [](auto&) {}));
  EXPECT_FALSE(placed("n1", [](auto&) {})) << "which has one task";
  EXPECT_FALSE(placed("n2", [](auto&) {})) << "which is the chief's";
  EXPECT_FALSE(placed("n9", [](auto&) {}));
  EXPECT_FALSE(placed("n3", [](auto& h) { h.job_id = 12; }));
  EXPECT_FALSE(placed("n3", [](auto& h) { h.node_count = 3; }));
  EXPECT_FALSE(placed("n3", [](auto& h) { h.local_id = 2; }));
}

TEST(SupervisorHelloPacket, AHostileNodeListIsRefusedWithoutFillingTheMemory) {
  const std::string packet = HelloPacket(Hello(), "n[" + std::string(60'000, '0') + "-65535]");
  const auto hello = ReadSupervisorHello(packet);
  ASSERT_TRUE(hello);
  GangJob job = StepOf(*hello);
  const Status complete = CompleteStep(hello->body, &job);
  ASSERT_FALSE(complete);
  EXPECT_THAT(complete.error().message, HasSubstr("malformed node list"));
}

std::string Exited(const std::string& program, const std::string& tail) {
  wire::Exited exited{};
  exited.program_bytes = static_cast<uint32_t>(program.size());
  exited.stderr_bytes = static_cast<uint32_t>(tail.size());
  return BuildPacket(exited, wire::Type::kExited, program + tail);
}

TEST(ExitedPacket, IsRead) {
  const std::string packet = Exited("python3", "Killed\n\xff");
  const auto exited = ReadExited(packet);
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->program, "python3");
  EXPECT_EQ(exited->stderr_tail, "Killed\n\xff");
}

TEST(ExitedPacket, AProgramsNameIsMadePrintable) {
  const std::string packet = Exited(std::string("a\0LD_PRELOAD=x\n\xff", 16), "");
  EXPECT_EQ(ReadExited(packet)->program, "a?LD_PRELOAD=x??");
}

TEST(ExitedPacket, TooMuchTextIsMalformed) {
  EXPECT_TRUE(ReadExited(Exited(std::string(64, 'p'), std::string(wire::kMaxStderrTail, 'x'))));
  EXPECT_FALSE(ReadExited(Exited(std::string(65, 'p'), "")));
  EXPECT_FALSE(ReadExited(Exited("", std::string(wire::kMaxStderrTail + 1, 'x'))));
}

TEST(ClientHelloPacket, IsReadAndBounded) {
  const auto packet = [](const std::string& gang) {
    wire::ClientHello hello{};
    hello.gang_bytes = static_cast<uint32_t>(gang.size());
    return BuildPacket(hello, wire::Type::kClientHello, gang);
  };
  const std::string good = packet("12.0-r1");
  EXPECT_EQ(ReadClientHello(good)->gang, "12.0-r1");
  EXPECT_FALSE(ReadClientHello(packet(std::string(65, '1'))));
  EXPECT_FALSE(ReadClientHello(good.substr(0, good.size() - 1)));
}

TEST(Packets, ABodyThatANewerVersionMadeLongerIsRead) {
  wire::Executed executed{};
  executed.generation = 7;
  const std::string packet = BuildPacket(executed, wire::Type::kExecuted, "fields to come");
  EXPECT_EQ(ReadPacket<wire::Executed>(packet)->generation, 7U);
  EXPECT_FALSE(ReadPacket<wire::Executed>(packet.substr(0, sizeof executed - 1)));
}

TEST(WireHeader, IsCheckedBeforeAnythingElse) {
  wire::Executed executed{};
  const std::string good = BuildPacket(executed, wire::Type::kExecuted);
  wire::Header header{};
  const auto check = [&](const std::string& packet) {
    return wire::CheckHeader(packet.data(), packet.size(), &header);
  };
  EXPECT_EQ(check(good), wire::Check::kOk);
  EXPECT_EQ(check(good.substr(0, 15)), wire::Check::kTruncated);
  EXPECT_EQ(check(""), wire::Check::kTruncated);
  EXPECT_EQ(check(good.substr(0, good.size() - 1)), wire::Check::kSize);
  EXPECT_EQ(check(good + "x"), wire::Check::kSize);
  EXPECT_EQ(check(std::string(wire::kMaxMessage + 1, 'x')), wire::Check::kSize);
  EXPECT_EQ(check("x" + good.substr(1)), wire::Check::kNotMuster);
  std::string version = good;
  for (const char v : {'\0', '\2'}) {
    version[4] = v;
    EXPECT_EQ(check(version), wire::Check::kVersion);
  }
}

}  // namespace
}  // namespace muster
