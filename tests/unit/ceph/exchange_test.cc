// Shards as safetensors files, and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "ceph/exchange/leaf_types.h"
#include "ceph/exchange/safetensors.h"
#include "ceph/exchange/shard_export.h"
#include "ceph/exchange/shard_import.h"
#include "ceph/exchange/shard_index.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

struct Sample {
  std::string name;
  std::string meta;
  std::string data;
};

std::string Pack(const std::vector<Sample>& samples) {
  std::vector<ShardEntryInfo> entries;
  for (const Sample& sample : samples) entries.push_back({sample.name, sample.meta, 0, sample.data.size()});
  const auto layout = LayOutShard(&entries);
  EXPECT_TRUE(layout) << layout.error().message;
  std::string shard(layout->bytes, '\0');
  shard.replace(0, layout->header.size(), layout->header);
  shard.replace(layout->index_offset, layout->index.size(), layout->index);
  for (size_t i = 0; i < samples.size(); ++i)
    shard.replace(entries[i].offset, samples[i].data.size(), samples[i].data);
  return shard;
}

std::span<const std::byte> Span(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Result<std::vector<ShardEntryInfo>> Entries(const std::string& shard) {
  const auto place = ReadShardHeader(Span(shard), shard.size());
  if (!place) return place.error();
  return ReadShardIndex(*place, Span(shard).subspan(place->offset, place->bytes));
}

std::string Export(const std::string& shard, uint32_t rank = 0, uint32_t world_size = 1) {
  const auto entries = Entries(shard);
  EXPECT_TRUE(entries) << entries.error().message;
  std::string structure;
  for (const ShardEntryInfo& entry : *entries) {
    if (IsStructure(entry)) structure = shard.substr(entry.offset, entry.bytes);
  }
  const auto plan = PlanExport({"name-k", 7, rank, world_size}, *entries, structure);
  EXPECT_TRUE(plan) << plan.error().message;
  std::string file = plan->header;
  for (const auto& piece : plan->pieces) file += shard.substr(piece.offset, piece.bytes);
  EXPECT_EQ(file.size(), plan->bytes);
  return file;
}

Result<SafeTensorsHeader> Read(const std::string& file) {
  const auto length = SafeTensorsHeaderLength(Span(file), file.size());
  if (!length) return length.error();
  return ReadSafeTensorsHeader(std::string_view(file).substr(8, *length), file.size());
}

Result<std::string> Import(const std::string& file) {
  const auto header = Read(file);
  if (!header) return header.error();
  const auto plan = PlanImport(*header);
  if (!plan) return plan.error();
  std::string shard(plan->layout.bytes, '\0');
  shard.replace(0, plan->layout.header.size(), plan->layout.header);
  shard.replace(plan->layout.index_offset, plan->layout.index.size(), plan->layout.index);
  if (!plan->structure.empty())
    shard.replace(plan->structure_offset, plan->structure.size(), plan->structure);
  for (const auto& piece : plan->pieces)
    shard.replace(piece.offset, piece.bytes, file.substr(piece.from, piece.bytes));
  return shard;
}

std::string File(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

std::string WhyNot(const std::string& file) {
  const auto shard = Import(file);
  return shard ? "it is good" : shard.error().message;
}

Sample Structure(const std::string& text) {
  return {kStructure, MetaOfWhole("bytes", 1, {text.size()}), text};
}

// What the Python package writes: two tensors, an array, bytes, a number that is none, a key that is no text.
std::string Tree() {
  return Pack(
      {{"/model/layers.0.weight", MetaOfWhole("bfloat16", 2, {2, 3}), "abcdefghijkl"},
       {"/model/bias", MetaOfWhole("float64", 8, {}), "12345678"},
       {"/3/0", MetaOfWhole("<U3", 12, {1}), "a   b   c   "},
       {"/3/1/0", MetaOfWhole("bytes", 1, {0}), ""},
       Structure(
           "muster-tree/1\n"
           R"({"dict":[["model",{"ordered":[["layers.0.weight",{"tensor":["/model/layers.0.weight",null]}],)"
           R"(["bias",{"tensor":["/model/bias",null]}]]}],["step",12],["lr",{"float":"inf"}],)"
           R"([3,[{"array":["/3/0",null]},{"tuple":[{"bytes":["/3/1/0",null]},null,"x"]}]]]})")});
}

TEST(Export, NamesTensorsByTheirPathInTheState) {
  const auto header = Read(Export(Tree()));
  ASSERT_TRUE(header) << header.error().message;
  std::vector<std::string> names;
  for (const SafeTensor& tensor : header->tensors)
    names.push_back(tensor.name + " " + tensor.dtype + " " + json(tensor.shape).dump());
  EXPECT_THAT(names, ElementsAre("model.bias F64 []", "model.layers.0.weight BF16 [2,3]", "3.0 U8 [12]",
                                 "3.1.0 U8 [0]"));
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->data_offset % 8, 0U);
}

TEST(Export, AndImportGiveBackTheSameShard) {
  EXPECT_EQ(*Import(Export(Tree())), Tree());
}

TEST(Export, OfEntriesWithoutATreeGivesThemBackToo) {
  const std::string shard = Pack({{"weights", "f32 3x4", std::string(100, 'w')},
                                  {"__metadata__", "", "m"},
                                  {"not \xff text", "\x80\xfe", "z"},
                                  {"empty", "{}", ""}});
  const auto header = Read(Export(shard));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_THAT(header->tensors, SizeIs(4));
  EXPECT_EQ(*Import(Export(shard)), shard);
}

TEST(Export, OfSlicesHasTheirTypesAndShapes) {
  const std::string shard = Pack({{"w", "muster-slice/1 float32 4 0 6,10 2,0 2,1\nmore", "12345678"},
                                  {"w#1", "muster-slice/1 bfloat16 2 1 - - -", "12"},
                                  {"odd", "muster-slice/1 float32 4 0 6 0 3", "12345678"},
                                  {"other", "muster-slice/1 quaternion 8 0 1 0 1", "12345678"}});
  const auto header = Read(Export(shard));
  ASSERT_TRUE(header) << header.error().message;
  std::vector<std::string> types;
  for (const SafeTensor& tensor : header->tensors)
    types.push_back(tensor.name + " " + tensor.dtype + " " + json(tensor.shape).dump());
  EXPECT_THAT(types, ElementsAre("w F32 [2,1]", "w#1 BF16 []", "odd U8 [8]", "other U8 [8]"));
  EXPECT_EQ(*Import(Export(shard)), shard);
}

// Of torch's float4_e2m1fn_x2 a byte is an element; safetensors counts both numbers in it. ml_dtypes' have a byte each.
TEST(Export, OfEightBitsAndLessIsAsSafetensorsHasThem) {
  const std::string shard = Pack({{"e8m0", MetaOfWhole("float8_e8m0fnu", 1, {2}), "12"},
                                  {"e4m3fnuz", MetaOfWhole("float8_e4m3fnuz", 1, {2}), "12"},
                                  {"e5m2fnuz", MetaOfWhole("float8_e5m2fnuz", 1, {}), "1"},
                                  {"fours", MetaOfWhole("float4_e2m1fn_x2", 1, {3, 2}), "123456"},
                                  {"none", MetaOfWhole("float4_e2m1fn_x2", 1, {0, 3}), ""},
                                  {"one", MetaOfWhole("float4_e2m1fn_x2", 1, {}), "1"},
                                  {"part", "muster-slice/1 float4_e2m1fn_x2 1 0 4,8 2,4 2,1", "12"},
                                  {"wide", MetaOfWhole("float4_e2m1fn_x2", 1, {0, UINT64_MAX / 2 + 1}), ""},
                                  {"ml", MetaOfWhole("float4_e2m1fn", 1, {2}), "12"},
                                  {"int4", MetaOfWhole("int4", 1, {2}), "12"},
                                  {"double", MetaOfWhole("float64", 8, {1}), "12345678"}});
  const auto header = Read(Export(shard));
  ASSERT_TRUE(header) << header.error().message;
  std::vector<std::string> types;
  for (const SafeTensor& tensor : header->tensors)
    types.push_back(tensor.name + " " + tensor.dtype + " " + json(tensor.shape).dump());
  EXPECT_THAT(types,
              UnorderedElementsAre("double F64 [1]", "e8m0 F8_E8M0 [2]", "e4m3fnuz F8_E4M3FNUZ [2]",
                                   "e5m2fnuz F8_E5M2FNUZ []", "fours F4 [3,4]", "none F4 [0,6]", "one U8 [1]",
                                   "part F4 [2,2]", "wide U8 [0]", "ml U8 [2]", "int4 U8 [2]"));
  EXPECT_EQ(header->tensors.front().name, "double");
  EXPECT_EQ(*Import(Export(shard)), shard);
}

TEST(Export, OfAStructureKeepsItWhateverItIs) {
  for (const char* structure : {"", "{", "\xff\x80", "muster-tree/1\n{\"dcp\":{}}"}) {
    const std::string shard = Pack({Structure(structure), {"0", "{}", "data"}});
    EXPECT_EQ(*Import(Export(shard)), shard) << structure;
  }
  // What is called so and is something else is as any other entry.
  const std::string shard = Pack({{kStructure, "mine", "text"}, {"0", "{}", "data"}});
  EXPECT_EQ(*Import(Export(shard)), shard);
  const auto header = Read(Export(shard));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_THAT(header->tensors, SizeIs(2));
}

TEST(Export, GivesTensorsOfTheSamePathDifferentNames) {
  std::vector<Sample> samples;
  for (const char* name : {"/a.b", "/a/b", "/a~1b", "/x~0y", "/", "state", "__metadata__", "/w", "/w#1"})
    samples.push_back({name, MetaOfWhole("uint8", 1, {1}), "x"});
  std::vector<std::string> names;
  const auto header = Read(Export(Pack(samples)));
  ASSERT_TRUE(header) << header.error().message;
  for (const SafeTensor& tensor : header->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names,
              ElementsAre("a.b", "a.b~2", "a/b", "x~y", "state", "state~2", "__metadata__~2", "w", "w#1"));
  EXPECT_EQ(*Import(Export(Pack(samples))), Pack(samples));
}

TEST(Import, MakesADictOfAnotherProgramsTensors) {
  const std::string file = File(
      R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"n":{"dtype":"U16","shape":[1],"data_offsets":[8,10]},)"
      R"("__metadata__":{"format":"pt"}})",
      "1234567890");
  const auto shard = Import(file);
  ASSERT_TRUE(shard) << shard.error().message;
  const auto entries = Entries(*shard);
  ASSERT_TRUE(entries);
  ASSERT_THAT(*entries, SizeIs(3));
  EXPECT_TRUE(IsStructure(entries->at(2)));
  EXPECT_EQ(shard->substr(entries->at(2).offset, entries->at(2).bytes),
            "muster-tree/1\n"
            R"({"dict":[["w",{"tensor":["/w",null]}],["n",{"array":["/n",null]}]]})");
  EXPECT_EQ(entries->at(0).name, "/w");
  EXPECT_EQ(entries->at(0).meta, "muster-slice/1 float32 4 0 2 0 2\n");
  EXPECT_EQ(entries->at(1).meta, "muster-slice/1 uint16 2 0 1 0 1\n");
  EXPECT_EQ(shard->substr(entries->at(0).offset, 8), "12345678");
  EXPECT_EQ(shard->substr(entries->at(1).offset, 2), "90");
}

TEST(Import, OfEightBitsAndLessIsAsTorchHasThem) {
  const std::string file = File(
      R"({"a":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F8_E4M3FNUZ","shape":[1],"data_offsets":[2,3]},)"
      R"("c":{"dtype":"F8_E5M2FNUZ","shape":[1],"data_offsets":[3,4]},"d":{"dtype":"F4","shape":[3,2],"data_offsets":[4,7]}})",
      "1234567");
  const auto shard = Import(file);
  ASSERT_TRUE(shard) << shard.error().message;
  const auto entries = Entries(*shard);
  ASSERT_TRUE(entries);
  ASSERT_THAT(*entries, SizeIs(5));
  EXPECT_EQ(entries->at(0).meta, MetaOfWhole("float8_e8m0fnu", 1, {2}));
  EXPECT_EQ(entries->at(1).meta, MetaOfWhole("float8_e4m3fnuz", 1, {1}));
  EXPECT_EQ(entries->at(2).meta, MetaOfWhole("float8_e5m2fnuz", 1, {1}));
  EXPECT_EQ(entries->at(3).meta, MetaOfWhole("float4_e2m1fn_x2", 1, {3, 1}));
  EXPECT_EQ(shard->substr(entries->at(3).offset, 3), "567");
  EXPECT_THAT(shard->substr(entries->at(4).offset, entries->at(4).bytes),
              HasSubstr(R"(["d",{"tensor":["/d",null]}])"));
}

TEST(Import, CallsTensorsByTheirPathsWhereThatCanBeAName) {
  std::string header = "{";
  int at = 0;
  for (const std::string& name : {std::string("a/b~c"), std::string("a\\nb"), std::string(300, 'n')}) {
    header += R"(")" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(at) + "," +
              std::to_string(at + 1) + "]},";
    ++at;
  }
  header.back() = '}';
  const auto shard = Import(File(header, "123"));
  ASSERT_TRUE(shard) << shard.error().message;
  std::vector<std::string> names;
  const auto entries = Entries(*shard);
  ASSERT_TRUE(entries) << entries.error().message;
  for (const ShardEntryInfo& entry : *entries) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("/a~1b~0c", "/~n1", "/~n2", "structure"));
  const std::string nine = R"({"w":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})";
  EXPECT_THAT(WhyNot(File(nine, "1")),
              HasSubstr("tensor w has the dtype U8 and the shape [1,1,1,1,1,1,1,1,1], which"));
}

TEST(Import, TakesAFileWithoutTensors) {
  EXPECT_TRUE(Import(File("{}")));
}

TEST(Import, RefusesWhatIsNoSafetensorsFile) {
  EXPECT_THAT(WhyNot("1234"), HasSubstr("shorter than 8 bytes"));
  EXPECT_THAT(WhyNot(std::string(8, '\xff')), HasSubstr("at most 100000000 are allowed"));
  EXPECT_THAT(WhyNot(File("{}").substr(0, 9)), HasSubstr("cut off"));
  EXPECT_THAT(WhyNot(File("")), HasSubstr("does not begin with {"));
  EXPECT_THAT(WhyNot(File("{]")), HasSubstr("is not JSON"));
  EXPECT_THAT(WhyNot(File(R"({"a":{"b":{"c":{"d":1}}}})")), HasSubstr("nested too deeply"));
  EXPECT_THAT(WhyNot(File(R"({"a":1})")), HasSubstr("\"a\" is no object"));
  EXPECT_THAT(WhyNot(File(R"({"__metadata__":{"a":1}})")), HasSubstr("no text"));
  EXPECT_THAT(WhyNot(File("{}", "x")), HasSubstr("belong to no tensor"));
}

std::string OneTensor(const std::string& dtype, const std::string& shape, const std::string& offsets,
                      const std::string& data = "12345678") {
  return WhyNot(File(
      R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data));
}

TEST(Import, RefusesATensorThatIsNotWhatItSays) {
  EXPECT_EQ(OneTensor(R"("F32")", "[2]", "[0,8]"), "it is good");
  EXPECT_THAT(OneTensor(R"("F32")", "[3]", "[0,8]"), HasSubstr("has 8 bytes, its shape and dtype need 12"));
  EXPECT_THAT(OneTensor(R"("F33")", "[2]", "[0,8]"), HasSubstr("has the dtype \"F33\"; known are F64, F32"));
  EXPECT_EQ(OneTensor(R"("F4")", "[4,4]", "[0,8]"), "it is good");
  EXPECT_THAT(OneTensor(R"("F4")", "[2,4]", "[0,8]"), HasSubstr("its shape and dtype need 4"));
  EXPECT_THAT(OneTensor(R"("F4")", "[5,3]", "[0,8]"),
              HasSubstr("ends within a byte, by its shape and dtype"));
  EXPECT_THAT(OneTensor(R"("F4")", "[]", "[0,1]"), HasSubstr("ends within a byte"));
  EXPECT_THAT(OneTensor(R"("F6_E2M3")", "[9]", "[0,8]"), HasSubstr("ends within a byte"));
  // What is good, and nobody can have.
  EXPECT_THAT(OneTensor(R"("F4")", "[16,1]", "[0,8]"),
              HasSubstr("tensor t has the dtype F4 and the shape [16,1], which"));
  EXPECT_THAT(OneTensor(R"("F6_E3M2")", "[8]", "[0,6]", "123456"),
              HasSubstr("has the dtype F6_E3M2 and the shape [8]"));
  EXPECT_THAT(OneTensor("1", "[2]", "[0,8]"), HasSubstr("has no dtype"));
  EXPECT_THAT(OneTensor(R"("F32")", "[-2]", "[0,8]"), HasSubstr("no list of sizes"));
  EXPECT_THAT(OneTensor(R"("F32")", "[4294967296,4294967296]", "[0,8]"), HasSubstr("too large"));
  EXPECT_THAT(OneTensor(R"("F32")", "2", "[0,8]"), HasSubstr("has no shape"));
  EXPECT_THAT(OneTensor(R"("F32")", "[2]", "[0,9]"), HasSubstr("outside of the data"));
  EXPECT_THAT(OneTensor(R"("F32")", "[2]", "[8,0]"), HasSubstr("outside of the data"));
  EXPECT_THAT(OneTensor(R"("F32")", "[2]", "[0]"), HasSubstr("has no data_offsets"));
  EXPECT_THAT(OneTensor(R"("F32")", "[1]", "[4,8]"),
              HasSubstr("the 4 bytes before tensor \"t\" belong to none"));
}

TEST(Import, RefusesTensorsThatOverlapOrComeTwice) {
  const auto two = [](const std::string& second, const std::string& name) {
    return WhyNot(File(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},")" + name +
                           R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                       "12345678"));
  };
  EXPECT_EQ(two("[4,8]", "b"), "it is good");
  EXPECT_THAT(two("[3,7]", "b"), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,4]", "b"), HasSubstr("overlaps"));
  EXPECT_THAT(two("[4,8]", "a"), HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(WhyNot(File(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})")),
              HasSubstr("twice"));
}

// An exported file whose Muster metadata a test changes.
std::string Changed(const std::function<void(json*)>& change) {
  const std::string file = Export(Tree());
  auto header = Read(file);
  json about = json::parse(header->metadata.at(kExportMetadata));
  change(&about);
  header->metadata[kExportMetadata] = about.dump();
  return *MakeSafeTensorsHeader(header->metadata, header->tensors) + file.substr(header->data_offset);
}

TEST(Import, RefusesMetadataThatContradictsTheFile) {
  EXPECT_EQ(WhyNot(Changed([](json*) {})), "it is good");
  const auto why = [](const std::function<void(json*)>& change) { return WhyNot(Changed(change)); };
  EXPECT_THAT(why([](json* a) { (*a)["version"] = 2; }),
              HasSubstr("it has version 2; this program reads version 1"));
  EXPECT_THAT(why([](json* a) { a->erase("version"); }), HasSubstr("no version"));
  EXPECT_THAT(why([](json* a) { (*a)["rank"] = 1; }), HasSubstr("missing or wrong"));
  EXPECT_THAT(why([](json* a) { (*a)["structure"] = "[]"; }), HasSubstr("has no tensor"));
  EXPECT_THAT(why([](json* a) { (*a)["structure"] = 1; }), HasSubstr("structure is no text"));
  EXPECT_THAT(why([](json* a) { a->erase("structure"); }), HasSubstr("whether there is a structure"));
  EXPECT_THAT(why([](json* a) { a->at("entries").erase(4); }), HasSubstr("structure is no entry's"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"].erase(1); }), HasSubstr("does not say what they are"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"][1][2] = "nothing"; }), HasSubstr("does not have"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"][1][2] = nullptr; }), HasSubstr("has no tensor"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"][2][2] = (*a)["entries"][1][2]; }), HasSubstr("two entries"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"][1][1] = MetaOfWhole("float16", 2, {4}); }),
              HasSubstr("another dtype or shape"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"][1][0] = {{"hex", "0"}}; }), HasSubstr("no text"));
  EXPECT_THAT(why([](json* a) { (*a)["entries"][1] = 1; }), HasSubstr("no list of three"));
}

TEST(Export, OfACutOrScribbledFileIsRefusedNotBelieved) {
  const std::string file = Export(Tree());
  for (size_t size = 0; size < file.size(); ++size) EXPECT_FALSE(Import(file.substr(0, size))) << size;
  for (size_t at = 0; at < file.size(); ++at) {
    std::string bad = file;
    bad[at] = static_cast<char>(bad[at] ^ 0x15);
    (void)Import(bad);  // whatever it comes to, without a fault
  }
}

TEST(ShardIndex, RefusesWhatIsNoShard) {
  const std::string shard = Pack({{"a", "m", "data"}, {"b", "", "x"}});
  ASSERT_TRUE(Entries(shard));
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string bad = shard;
    bad.replace(at, bytes.size(), bytes);
    return Entries(bad);
  };
  EXPECT_FALSE(Entries(shard.substr(0, 63)));
  EXPECT_FALSE(with(0, "X"));
  EXPECT_FALSE(with(8, "\x02"));
  EXPECT_FALSE(with(12, "\x07"));
  EXPECT_FALSE(with(16, "\xff\xff"));
  EXPECT_FALSE(with(24, "\xff\xff"));
  const size_t index = ReadShardHeader(Span(shard), shard.size())->offset;
  EXPECT_FALSE(with(index, "\xff\xff"));
  EXPECT_FALSE(with(index + 8, "\xff\xff"));
  EXPECT_FALSE(with(index + 16, "\xff\xff"));
  EXPECT_FALSE(with(index + 24, "\n"));
  EXPECT_FALSE(with(index + 24, "b"));  // then both have the same name
}

TEST(ShardIndex, RefusesNamesThatNoShardCanHave) {
  for (const std::string& name : {std::string(), std::string(256, 'n'), std::string("a\nb")}) {
    std::vector<ShardEntryInfo> entries = {{name, "", 0, 1}};
    EXPECT_FALSE(LayOutShard(&entries));
  }
  std::vector<ShardEntryInfo> entries = {{"a", std::string(4097, 'm'), 0, 1}};
  EXPECT_FALSE(LayOutShard(&entries));
  entries = {{"a", "", 0, UINT64_MAX - 100}};
  EXPECT_FALSE(LayOutShard(&entries));
}

}  // namespace
}  // namespace muster
