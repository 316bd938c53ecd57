#include "daemon/health/kernel_fact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

std::optional<KernelFact> Parse(std::string_view text, uint32_t priority = 3) {
  KernelFactParser parser;
  return parser.Parse({priority, 7, 1'000'000, text});
}

TEST(KernelRecord, IsPrioritySequenceTimeAndText) {
  const auto record = ParseKernelRecord("6,339,5140900,-,caller=T1;NET: Registered; really");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->priority, 6U);
  EXPECT_EQ(record->sequence, 339U);
  EXPECT_EQ(record->log_us, 5'140'900);
  EXPECT_EQ(record->text, "NET: Registered; really");
  EXPECT_TRUE(ParseKernelRecord("6,1,2;x"));
}

TEST(KernelRecord, ThatIsMalformedIsNone) {
  for (const char* line : {"", "6,1,2", ";x", "6;x", "6,1;x", "6,,2;x", "a,1,2;x", "6,1,-2;x", "6,1,x;x",
                           "6 ,1,2;x", "99999999999,1,2;x", "6,1,99999999999999999999;x", "6,1,2x;y"}) {
    EXPECT_FALSE(ParseKernelRecord(line)) << line;
  }
}

struct Sample {
  const char* text;
  FactKind kind;
  FactClass fact_class;
  const char* device;
};

class Facts : public ::testing::TestWithParam<Sample> {};

TEST_P(Facts, AreKnownByTheKernelsWords) {
  const Sample& sample = GetParam();
  const auto fact = Parse(sample.text);
  ASSERT_TRUE(fact) << sample.text;
  EXPECT_STREQ(ToString(fact->kind), ToString(sample.kind)) << sample.text;
  EXPECT_STREQ(ToString(fact->fact_class), ToString(sample.fact_class)) << sample.text;
  EXPECT_EQ(fact->device, sample.device) << sample.text;
  EXPECT_EQ(fact->sequence, 7U);
  EXPECT_EQ(fact->text, std::string(sample.text).substr(0, 256));
}

using K = FactKind;
using C = FactClass;

INSTANTIATE_TEST_SUITE_P(
    Gpu, Facts,
    ::testing::Values(
        Sample{"NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
               K::kXid, C::kHardware, "0000:3b:00"},
        Sample{"NVRM: Xid (PCI:0000:af:00): 31, pid=4711, name=python, Ch 00000008, intr 10000000. MMU Fault",
               K::kXid, C::kUser, "0000:af:00"},
        Sample{"NVRM: Xid (0000:03:00): 13, Graphics Exception", K::kXid, C::kUser, "0000:03:00"},
        Sample{"NVRM: Xid (PCI:0000:af:00): 9999, something new", K::kXid, C::kNeutral, "0000:af:00"},
        Sample{"NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", K::kGpu, C::kHardware, "0000:3b:00.0"},
        Sample{"NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:2350)", K::kGpu, C::kHardware,
               "0000:3b:00.0"},
        Sample{"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", K::kGpu,
               C::kHardware, "0000:05:00.0"},
        Sample{"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", K::kGpu,
               C::kNeutral, "0000:05:00.0"},
        Sample{"nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping",
               K::kGpu, C::kNeutral, ""}));

INSTANTIATE_TEST_SUITE_P(
    Link, Facts,
    ::testing::Values(
        Sample{"mlx5_core 0000:5e:00.0 ens1f0np0: Link down", K::kLinkDown, C::kHardware, "ens1f0np0"},
        Sample{"mlx5_core 0000:5e:00.0 ens1f0np0: Link up", K::kLinkUp, C::kNeutral, "ens1f0np0"},
        Sample{"ixgbe 0000:01:00.0 eth0: NIC Link is Down", K::kLinkDown, C::kHardware, "eth0"},
        Sample{"ice 0000:17:00.0 ens3: NIC Link is up 100 Gbps Full Duplex", K::kLinkUp, C::kNeutral, "ens3"},
        Sample{"igb: eth0 NIC Link is Down", K::kLinkDown, C::kHardware, "eth0"},
        Sample{"bond0: (slave ens1): link status definitely down, disabling slave", K::kLinkDown,
               C::kHardware, "ens1"},
        Sample{"pcieport 0000:80:01.0: pciehp: Slot(1): Link Down", K::kLinkDown, C::kHardware, "Slot(1)"},
        Sample{"Link down", K::kLinkDown, C::kHardware, ""}));

INSTANTIATE_TEST_SUITE_P(
    Machine, Facts,
    ::testing::Values(
        Sample{"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400", K::kMachineCheck,
               C::kHardware, ""},
        Sample{"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: 9c00000000800400", K::kMachineCheck,
               C::kNeutral, ""},
        Sample{"mce: [Hardware Error]: Machine check events logged", K::kMachineCheck, C::kNeutral, ""},
        Sample{"mce: Uncorrected hardware memory error in user-access at 1234000", K::kMachineCheck,
               C::kHardware, ""},
        Sample{"Memory failure: 0x1234: Sending SIGBUS to python:77 due to hardware memory corruption",
               K::kMachineCheck, C::kHardware, ""},
        Sample{"EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0", K::kMachineCheck, C::kNeutral, ""},
        Sample{"EDAC MC1: 1 UE memory read error on CPU_SrcID#0_MC#0", K::kMachineCheck, C::kHardware, ""},
        Sample{"{1}[Hardware Error]: event severity: fatal", K::kMachineCheck, C::kHardware, ""},
        Sample{"{1}[Hardware Error]: event severity: corrected", K::kMachineCheck, C::kNeutral, ""},
        Sample{"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
               K::kMachineCheck, C::kHardware, ""},
        Sample{"pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", K::kMachineCheck,
               C::kNeutral, ""}));

INSTANTIATE_TEST_SUITE_P(
    Storage, Facts,
    ::testing::Values(
        Sample{"blk_update_request: I/O error, dev sda, sector 123 op 0x0:(READ)", K::kIoError, C::kHardware,
               "sda"},
        Sample{"Buffer I/O error on dev sdb1, logical block 0, async page read", K::kIoError, C::kHardware,
               "sdb1"},
        Sample{"critical medium error, dev nvme0n1, sector 5", K::kIoError, C::kHardware, "nvme0n1"},
        Sample{"nvme nvme0: I/O 12 QID 3 timeout, aborting", K::kIoError, C::kHardware, "nvme0"},
        Sample{"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2", K::kIoError, C::kHardware,
               "sda1"},
        Sample{"EXT4-fs (sda1): Remounting filesystem read-only", K::kReadOnly, C::kHardware, "sda1"},
        Sample{"XFS (dm-0): Log I/O Error Detected. Shutting down filesystem", K::kReadOnly, C::kHardware,
               "dm-0"},
        Sample{"XFS (dm-0): metadata I/O error in \"xfs_buf_ioend\"", K::kIoError, C::kHardware, "dm-0"}));

INSTANTIATE_TEST_SUITE_P(
    Others, Facts,
    ::testing::Values(
        Sample{"NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 1 timed out", K::kNic, C::kHardware,
               "eth0"},
        Sample{"mlx5_core 0000:5e:00.0: poll_health:800:(pid 0): device's health compromised - reached miss "
               "count",
               K::kNic, C::kHardware, "0000:5e:00.0"},
        Sample{"python[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so", K::kCrash, C::kUser, ""},
        Sample{"traps: python[4711] general protection fault ip:7f sp:7f error:0 in x.so", K::kCrash,
               C::kUser, ""},
        Sample{"INFO: task python:4711 blocked for more than 120 seconds.", K::kStuck, C::kNeutral, ""},
        Sample{"watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", K::kStuck, C::kNeutral, ""},
        Sample{"NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", K::kStuck, C::kHardware, ""}));

TEST(KernelFact, WhatABootSaysIsNone) {
  for (const char* text :
       {"", "Linux version 6.1.0", "mce: CPU0: Thermal monitoring enabled (TM1)", "mce: Using 32 MCE banks",
        "EDAC MC: Ver: 3.0.0", "EDAC skx: No memory controllers",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 25", "ata3: SATA link down (SStatus 0 SControl 300)",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode", "XFS (dm-0): Mounting V5 Filesystem",
        "nvme nvme0: pci function 0000:01:00.0", "blk_update_request: I/O error, dev fd0, sector 0",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54",
        "mlx5_core 0000:5e:00.0: firmware version: 20.39.1002", "random: crng init done",
        "veth0: entered promiscuous mode", "nvidia-peermem: loaded"}) {
    EXPECT_FALSE(Parse(text)) << text;
  }
}

TEST(KernelFact, WhatAProgramWroteToTheLogIsNone) {
  EXPECT_FALSE(Parse("NVRM: Xid (PCI:0000:3b:00): 79, forged", 3 * 8 + 3));
  EXPECT_TRUE(Parse("NVRM: Xid (PCI:0000:3b:00): 79, real", 3));
}

TEST(KernelFact, AnXidHasItsNumberMeaningAndProcess) {
  const auto fact = Parse("NVRM: Xid (PCI:0000:af:00): 31, pid=4711, name=python, Ch 00000008");
  EXPECT_EQ(fact->xid, 31U);
  EXPECT_EQ(fact->pid, 4711);
  EXPECT_EQ(fact->comm, "python");
  EXPECT_THAT(fact->meaning, ::testing::HasSubstr("page fault"));
  const auto quoted = Parse("NVRM: Xid (PCI:0000:af:00): 43, pid='4711', name=<unknown>, Ch 1");
  EXPECT_EQ(quoted->pid, 4711);
  EXPECT_EQ(quoted->comm, "");
  EXPECT_EQ(Parse("NVRM: Xid (PCI:0000:af:00): 5000, x")->meaning, "not in Muster's table");
}

TEST(KernelFact, TheTableOfXidsIsOrderedAndSaysWhatIsAgreed) {
  for (const uint32_t user : {13, 31, 43, 45}) EXPECT_EQ(FindXid(user)->fact_class, FactClass::kUser) << user;
  for (const uint32_t bad : {48, 63, 64, 74, 79, 94, 95, 119, 120, 140}) {
    EXPECT_EQ(FindXid(bad)->fact_class, FactClass::kHardware) << bad;
  }
  EXPECT_EQ(FindXid(0), nullptr);
  EXPECT_EQ(FindXid(5), nullptr);
}

TEST(KernelFact, AnOomKillIsToldInTwoRecordsAndJoined) {
  KernelFactParser parser;
  EXPECT_FALSE(
      parser.Parse({6, 1, 1,
                    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0,"
                    "oom_memcg=/slurm/uid_0/job_7,task_memcg=/slurm/uid_0/job_7/step_0/task_1,task=python,"
                    "pid=4711,uid=1000"}));
  const auto fact = parser.Parse(
      {3, 2, 2, "Memory cgroup out of memory: Killed process 4711 (my (odd) na) total-vm:1kB, anon-rss:1kB"});
  ASSERT_TRUE(fact);
  EXPECT_EQ(fact->kind, FactKind::kOomKill);
  EXPECT_EQ(fact->fact_class, FactClass::kUser);
  EXPECT_EQ(fact->pid, 4711);
  EXPECT_EQ(fact->comm, "my (odd) na");
  EXPECT_EQ(fact->cgroup, "/slurm/uid_0/job_7/step_0/task_1");
  const auto again = parser.Parse({3, 3, 3, "Out of memory: Killed process 4711 (python) total-vm:1kB"});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->cgroup, "") << "of another kill, long ago";
}

TEST(KernelFact, ACrashHasItsProcess) {
  const auto segfault = Parse("we]ird[1][4711]: segfault at 0 ip 0");
  EXPECT_EQ(segfault->pid, 4711);
  EXPECT_EQ(segfault->comm, "we]ird[1]");
  const auto trap = Parse("traps: python[4712] trap divide error ip:1");
  EXPECT_EQ(trap->pid, 4712);
  EXPECT_EQ(trap->comm, "python");
  EXPECT_EQ(Parse("INFO: task a:b:4713 blocked for more than 120 seconds.")->pid, 4713);
}

TEST(KernelFact, OfAnotherProcessConcernsOnlyThatOneUnlessItIsHardware) {
  const auto crash = Parse("python[4711]: segfault at 0 ip 0");
  EXPECT_TRUE(Concerns(*crash, 4711));
  EXPECT_FALSE(Concerns(*crash, 4712));
  EXPECT_TRUE(Concerns(*Parse("mlx5_core 0000:5e:00.0 ens1f0np0: Link down"), 4712));
  EXPECT_TRUE(Concerns(*Parse("NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=python, DBE"), 4712));
  EXPECT_FALSE(Concerns(*Parse("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, x"), 4712));
}

TEST(KernelFact, WhatItKeepsIsBoundedAndPrintable) {
  const auto fact =
      Parse("NVRM: Xid (PCI:" + std::string(5'000, 'x') + "): 79, \x01\xff" + std::string(5'000, 'y'));
  ASSERT_TRUE(fact);
  EXPECT_LE(fact->text.size(), 256U);
  EXPECT_LE(fact->device.size(), 64U);
  const auto odd = Parse("NVRM: Xid (PCI:0000:3b:00): 79, \x01\xff");
  EXPECT_EQ(odd->text, "NVRM: Xid (PCI:0000:3b:00): 79, ??");
}

}  // namespace
}  // namespace muster
