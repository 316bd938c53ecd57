#include "client/libmuster/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

namespace muster::client {
namespace {

using testing::HasSubstr;

muster_slice Rows() {
  return {"float32", 4, 2, {6, 10}, {2, 0}, {3, 10}};
}

std::string Format(const muster_slice& slice, uint32_t part) {
  char text[kSliceMeta];
  return {text, FormatSlice(slice, part, text)};
}

TEST(Slice, IsSaidInOneLineBeforeTheProgramsMetadata) {
  EXPECT_EQ(Format(Rows(), 0), "muster-slice/1 float32 4 0 6,10 2,0 3,10\n");
  EXPECT_EQ(Format({"<i8", 8, 0, {}, {}, {}}, 3), "muster-slice/1 <i8 8 3 - - -\n");
  StoredSlice read{};
  const std::string meta = Format(Rows(), 7) + "a program's own\ntext";
  ASSERT_EQ(ParseSlice(meta.c_str(), 120, &read), SliceMeta::kSlice);
  EXPECT_STREQ(read.dtype, "float32");
  EXPECT_EQ(read.element_bytes, 4u);
  EXPECT_EQ(read.dims, 2u);
  EXPECT_EQ(read.part, 7u);
  EXPECT_EQ(read.global_shape[1], 10u);
  EXPECT_EQ(read.box.offset[0], 2u);
  EXPECT_EQ(read.box.shape[0], 3u);
  EXPECT_STREQ(read.meta, "a program's own\ntext");
  ASSERT_EQ(ParseSlice("muster-slice/1 <i8 8 3 - - -\n", 8, &read), SliceMeta::kSlice);
  EXPECT_EQ(read.dims, 0u);
}

TEST(Slice, TheLongestLineFits) {
  muster_slice slice{"1234567890123456789012345678901", UINT32_MAX, 8, {}, {}, {}};
  for (int d = 0; d < 8; ++d) slice.global_shape[d] = slice.offset[d] = slice.shape[d] = UINT64_MAX;
  EXPECT_LT(Format(slice, UINT32_MAX).size(), kSliceMeta);
  EXPECT_EQ(Format(slice, UINT32_MAX).back(), '\n');
}

TEST(Slice, OtherMetadataIsNoSliceAndWhatIsNotWellFormedIsNamed) {
  StoredSlice read{};
  const auto parse = [&](const char* meta, size_t bytes = 120) { return ParseSlice(meta, bytes, &read); };
  EXPECT_EQ(parse(""), SliceMeta::kNone);
  EXPECT_EQ(parse("{\"dtype\": \"float32\"}"), SliceMeta::kNone);
  EXPECT_EQ(parse("muster-slice"), SliceMeta::kNone);
  EXPECT_EQ(parse("muster-slice/2 float32 4 0 6,10 2,0 3,10\n"), SliceMeta::kVersion);
  EXPECT_EQ(parse("muster-slice/10 float32 4 0 6,10 2,0 3,10\n"), SliceMeta::kVersion);
  for (const char* bad :
       {"", "float32", " 4 0 6,10 2,0 3,10\n", "float32 4 0 6,10 2,0 3,10", "float32 4 0 6,10 2,0 3,9\n",
        "float32 4 0 6,10 2,0 3\n", "float32 4 0 6,10 2 3,10\n", "float32 4 0 - 2,0 3,10\n",
        "float32 4 0 6,10 4,0 3,10\n", "float32 0 0 6,10 2,0 3,10\n", "float32 4 x 6,10 2,0 3,10\n",
        "float32 4 0 6,,10 2,0 3,10\n", "float32 4 0 6,-10 2,0 3,10\n",
        "float32 4 0 1,1,1,1,1,1,1,1,1 0,0,0,0,0,0,0,0,0 1,1,1,1,1,1,1,1,1\n",
        "float32 4 0 18446744073709551616,10 2,0 3,10\n", "float32 4294967296 0 6,10 2,0 3,10\n",
        "12345678901234567890123456789012 4 0 6,10 2,0 3,10\n"}) {
    EXPECT_EQ(parse((std::string("muster-slice/1 ") + bad).c_str()), SliceMeta::kMalformed) << bad;
  }
}

TEST(Slice, WhatContradictsItselfIsSaidInASentence) {
  const auto wrong = [](const std::function<void(muster_slice&)>& change, size_t bytes = 120) -> std::string {
    muster_slice slice = Rows();
    change(slice);
    char text[kSliceText];
    const char* said = CheckSlice(&slice, bytes, text);
    return said != nullptr ? said : "";
  };
  EXPECT_EQ(wrong([](auto&) {}), "");
  EXPECT_THAT(wrong([](auto& s) { s.dtype = nullptr; }), HasSubstr("has no dtype"));
  EXPECT_THAT(wrong([](auto& s) { s.dtype = ""; }), HasSubstr("has no dtype"));
  EXPECT_THAT(wrong([](auto& s) { s.dtype = "float 32"; }), HasSubstr("has no dtype"));
  EXPECT_THAT(wrong([](auto& s) { s.dtype = "12345678901234567890123456789012"; }),
              HasSubstr("has no dtype"));
  EXPECT_THAT(wrong([](auto& s) { s.element_bytes = 0; }), HasSubstr("elements of 0 bytes"));
  EXPECT_THAT(wrong([](auto& s) { s.dims = 9; }), HasSubstr("has 9 dimensions; up to 8"));
  EXPECT_THAT(wrong([](auto& s) { s.offset[0] = 4; }),
              HasSubstr("goes beyond dimension 0: 3 from 4 on, of 6"));
  EXPECT_THAT(wrong([](auto& s) { s.offset[1] = UINT64_MAX; }), HasSubstr("goes beyond dimension 1"));
  EXPECT_THAT(wrong([](auto& s) { s.shape[1] = UINT64_MAX; }), HasSubstr("goes beyond dimension 1"));
  EXPECT_THAT(wrong([](auto& s) { s.global_shape[0] = uint64_t{1} << 60; }),
              HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(wrong([](auto&) {}, 119), HasSubstr("is of shape 3,10 and 4 bytes each: not 119 bytes"));
  EXPECT_EQ(wrong([](auto& s) { s.shape[0] = 0; }, 0), "");
  char text[kSliceText];
  EXPECT_STREQ(CheckSlice(nullptr, 0, text), "has no slice: it is NULL");
}

}  // namespace
}  // namespace muster::client
