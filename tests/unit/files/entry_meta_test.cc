// Names of steps, and what the entries of a shard say that was a directory.
#include "client/files/entry_meta.h"

#include <gtest/gtest.h>

#include "client/files/step_name.h"

namespace muster::files {
namespace {

TEST(StepName, ANumberWithOrWithoutZerosIsAStep) {
  EXPECT_EQ(StepOf("step-0"), 0U);
  EXPECT_EQ(StepOf("step-12"), 12U);
  EXPECT_EQ(StepOf("step-000012"), 12U);
  EXPECT_EQ(StepOf("step-18446744073709551614"), UINT64_MAX - 1);
}

TEST(StepName, AnythingElseIsNone) {
  for (const char* name : {"", "step", "step-", "step-x", "step-1.tmp", "step--1", "step-+1", "step- 1",
                           "Step-1", "step-1 ", "committed.step-1", "step-18446744073709551615",
                           "step-99999999999999999999", "step-000000000000000000001"}) {
    EXPECT_FALSE(StepOf(name)) << name;
  }
}

TEST(EntryMeta, WhatIsEncodedIsDecoded) {
  for (const EntryMeta& meta : {EntryMeta{Kind::kStep, 0755, "step-0012"}, EntryMeta{Kind::kDirectory, 0, ""},
                                EntryMeta{Kind::kFile, 0777, ""}}) {
    const auto decoded = DecodeMeta(Encode(meta));
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(decoded->kind, meta.kind);
    EXPECT_EQ(decoded->mode, meta.mode);
    EXPECT_EQ(decoded->name, meta.name);
  }
}

TEST(EntryMeta, ItIsWhatTheDocumentationSays) {
  EXPECT_EQ(Encode({Kind::kStep, 0750, "step-7"}),
            R"({"format": "muster-files", "version": 1, "kind": "step", "mode": "750", "name": "step-7"})");
  EXPECT_EQ(Encode({Kind::kFile, 0644, ""}),
            R"({"format": "muster-files", "version": 1, "kind": "file", "mode": "644"})");
}

TEST(EntryMeta, OnlyPermissionsAreKept) {
  EXPECT_EQ(DecodeMeta(Encode({Kind::kFile, 06755, ""}))->mode, 0755U);
}

TEST(EntryMeta, WhatIsMalformedIsRefusedWithAReason) {
  const auto why = [](const char* text) {
    const auto meta = DecodeMeta(text);
    return meta ? std::string("accepted") : meta.error().message;
  };
  const std::string other = "it was not saved from files (--gang=files=yes)";
  EXPECT_EQ(why(""), other);
  EXPECT_EQ(why("[]"), other);
  EXPECT_EQ(why("{"), other);
  EXPECT_EQ(why(R"({"format": "muster-tree", "version": 1})"), other);
  EXPECT_EQ(why(R"({"format": "muster-files"})"), "its metadata is malformed: no version");
  EXPECT_EQ(why(R"({"format": "muster-files", "version": 2, "kind": "file", "mode": "644"})"),
            "it is of a version of the format that this muster-files does not know");
  EXPECT_EQ(why(R"({"format": "muster-files", "version": 1, "kind": "link", "mode": "644"})"),
            "its metadata is malformed: an unknown kind");
  for (const char* mode : {R"("")", R"("4755")", R"("8")", R"("-1")", "420", "null"}) {
    const std::string text =
        std::string(R"({"format": "muster-files", "version": 1, "kind": "file", "mode": )") + mode + "}";
    EXPECT_EQ(why(text.c_str()), "its metadata is malformed: no mode") << mode;
  }
  for (const char* name : {"", "..", "step-1/..", "/etc", "step-x"}) {
    const std::string text =
        std::string(R"({"format": "muster-files", "version": 1, "kind": "step", "mode": "755", "name": ")") +
        name + "\"}";
    EXPECT_EQ(why(text.c_str()), "its metadata is malformed: no step's name") << name;
  }
}

TEST(Path, OnlyWhatIsBelowIsTaken) {
  EXPECT_TRUE(CheckPath("a"));
  EXPECT_TRUE(CheckPath("a/b c/..d/e."));
  EXPECT_TRUE(CheckPath(std::string(255, 'x')));
  for (const char* path : {"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "a/..", "../a", "a/../b", "./a"})
    EXPECT_FALSE(CheckPath(path)) << path;
  EXPECT_FALSE(CheckPath(std::string(256, 'x')));
  EXPECT_FALSE(CheckPath("a\nb"));
  EXPECT_FALSE(CheckPath(std::string_view("a\0b", 3)));
  std::string deep = "d";
  for (size_t i = 1; i < kMaxDepth; ++i) deep += "/d";
  EXPECT_TRUE(CheckPath(deep));
  EXPECT_FALSE(CheckPath(deep + "/d"));
}

}  // namespace
}  // namespace muster::files
