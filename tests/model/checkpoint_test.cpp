// Checkpoints written from dummy weights and read back: the same Weights, in every layout that is legal, and
// a clear error for each one that is not.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "compare_weights.h"
#include "make_checkpoint.h"
#include "model/weights_memory.h"
#include "temporary_folder.h"

namespace perigee {

namespace {

const std::string kFolder = "tests/data/configs/";
const char* const kSmall[] = {"kimi-linear-small.json", "kimi-k3-small.json", "k31-small.json"};

// A model of five layers whose every dimension is as small as the config allows, for tests of errors.
ModelConfig tiny_config(const char* name = "k31-small.json") {
  return load_config(
      kFolder + name,
      parse_config_overrides("hidden_size=32,vocab_size=512,intermediate_size=32,num_attention_heads=1,"
                             "num_key_value_heads=1,num_heads=1,q_lora_rank=32,num_experts=4,"
                             "moe_intermediate_size=32,routed_expert_hidden_size=32"));
}

struct Case {
  TemporaryFolder folder;
  ModelConfig config = tiny_config();
  std::vector<FileTensor> tensors = dummy_tensors(config, 5);

  FileTensor& tensor(const std::string& ending) {
    for (FileTensor& t : tensors)
      if (t.name.ends_with(ending)) return t;
    throw std::runtime_error("no tensor " + ending);
  }
  void write(const CheckpointLayout& layout = {}) { write_checkpoint(folder.path(), "{}", tensors, layout); }
  Weights load() { return load_weights(folder.path(), config, {LoadFormat::kAuto, 0, false}); }
  Weights dummy() { return load_weights("", config, {LoadFormat::kDummy, 5, false}); }
  std::string error() {
    try {
      load();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadFile) << e.what();
      return e.what();
    }
    return "";
  }
  void expect_error(std::initializer_list<std::string> words) {
    const std::string message = error();
    ASSERT_NE(message, "");
    for (const std::string& w : words)
      EXPECT_NE(message.find(w), std::string::npos) << "no \"" << w << "\" in " << message;
  }
};

std::string as_f32(const std::string& bf16_bytes) {
  std::string out;
  for (size_t i = 0; i < bf16_bytes.size(); i += 2) out += std::string(2, '\0') + bf16_bytes.substr(i, 2);
  return out;
}

// Rounds the values to bf16, so that both dtypes hold the same numbers.
std::string as_bf16(std::string& f32_bytes) {
  std::string out;
  for (size_t i = 0; i < f32_bytes.size(); i += 4) {
    float x;
    std::memcpy(&x, &f32_bytes[i], 4);
    const bf16 y = float_to_bf16(x);
    x = bf16_to_float(y);
    std::memcpy(&f32_bytes[i], &x, 4);
    out.append(reinterpret_cast<const char*>(&y), 2);
  }
  return out;
}

}  // namespace

class RoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, AnyLayoutGivesTheDummyWeights) {
  const std::string path = kFolder + GetParam();
  const ModelConfig config = load_config(path);
  const auto tensors = dummy_tensors(config, 42);
  const Weights want = load_weights("", config, {LoadFormat::kDummy, 42, false});
  for (const CheckpointLayout& layout : {CheckpointLayout{}, CheckpointLayout{8 << 20, 0},
                                         CheckpointLayout{0, 1}, CheckpointLayout{20 << 20, 2}}) {
    TemporaryFolder folder;
    write_checkpoint(folder.path(), read_file(path), tensors, layout);
    const Weights got =
        load_weights(folder.path(), load_config(folder.path()), {LoadFormat::kAuto, 0, false});
    EXPECT_EQ(first_difference(got, want, config), "");
    EXPECT_EQ(got.digest, want.digest);
    EXPECT_EQ(got.digest.size(), 16u);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RoundTrip, testing::ValuesIn(kSmall));

TEST(Checkpoint, BigTensorsAreViewsOfTheMapping) {
  Case t;
  const int extra = static_cast<int>(safetensors_bytes(t.tensors).size() % 2);  // even offsets
  t.write({.header_padding = extra});
  const TensorSet set = open_checkpoint(t.folder.path(), 1, false);
  const Weights w = t.load();
  const auto& packed = std::get<Mxfp4Linear>(std::get<MoeWeights>(w.layers[1].mlp).experts[0].gate);
  const std::string& bytes = t.tensor("layers.1.block_sparse_moe.experts.0.w1.weight_packed").bytes;
  EXPECT_EQ(std::memcmp(packed.packed, bytes.data(), bytes.size()), 0);
  EXPECT_EQ(set.owners.size(), 1u);
}

TEST(Checkpoint, KvBIsSplitAndTransposed) {
  Case t;
  t.write();
  const Weights w = t.load();
  const auto& mla = std::get<MlaWeights>(w.layers[4].attention);
  const std::string& bytes = t.tensor("layers.4.self_attn.kv_b_proj.weight").bytes;
  const auto kv_b = [&](int row, int r) {
    bf16 x;
    std::memcpy(&x, &bytes[static_cast<size_t>(row * 512 + r) * 2], 2);
    return x;
  };
  for (int n = 0; n < 128; n += 31)
    for (int r = 0; r < 512; r += 37) {
      EXPECT_EQ(mla.w_uk_t.weight[r * 128 + n], kv_b(n, r));
      EXPECT_EQ(mla.w_uv.weight[n * 512 + r], kv_b(128 + n, r));
    }
}

TEST(Checkpoint, AttnResScoreIsTheProduct) {
  Case t;
  t.write();
  const Weights w = t.load();
  const std::string norm = as_f32(t.tensor("layers.2.mlp_res_norm.weight").bytes);
  const std::string proj = as_f32(t.tensor("layers.2.mlp_res_proj.weight").bytes);
  for (int i = 0; i < 32; ++i) {
    float n, p;
    std::memcpy(&n, &norm[i * 4], 4);
    std::memcpy(&p, &proj[i * 4], 4);
    EXPECT_EQ(w.layers[2].mlp_res.score[i], n * p);
  }
}

TEST(Checkpoint, SmallTensorsInEitherDtype) {
  Case t;
  std::vector<FileTensor> original = t.tensors;
  for (FileTensor& x : t.tensors) {
    const bool small = x.name.ends_with("norm.weight") || x.name.ends_with("layernorm.weight") ||
                       x.name.ends_with("k_norm.bias") || x.name.ends_with("_res_proj.weight");
    if (small && x.dtype == DType::kBF16) x = {x.name, DType::kF32, x.shape, as_f32(x.bytes)};
  }
  t.write();
  EXPECT_EQ(first_difference(t.load(), t.dummy(), t.config), "");

  t.tensors = original;
  for (FileTensor& x : t.tensors)
    if (x.dtype == DType::kF32) as_bf16(x.bytes);  // values that bf16 holds
  t.write();
  const Weights f32 = t.load();
  for (FileTensor& x : t.tensors)
    if (x.dtype == DType::kF32) x = {x.name, DType::kBF16, x.shape, as_bf16(x.bytes)};
  Case other;
  other.tensors = t.tensors;
  other.write();
  EXPECT_EQ(first_difference(other.load(), f32, t.config), "");
}

TEST(Checkpoint, ShapesThatSqueezeToTheExpectedOne) {
  Case t;
  FileTensor& conv = t.tensor("layers.0.self_attn.q_conv1d.weight");
  conv.shape = {128, 4};
  t.tensor("layers.0.self_attn.dt_bias").shape = {1, 1, 128};
  t.tensor("layers.0.self_attention_res_proj.weight").shape = {32};
  t.tensor("layers.1.block_sparse_moe.gate.e_score_correction_bias").shape = {1, 4};
  t.tensor("layers.0.input_layernorm.weight").shape = {1, 32};
  t.tensor("layers.3.self_attn.kv_a_layernorm.weight").shape = {512, 1, 1};
  FileTensor& cut = t.tensor("layers.0.self_attn.A_log");  // padded [128], one head
  cut = {cut.name, cut.dtype, {1, 1, 1, 1}, cut.bytes.substr(0, 4)};
  FileTensor& scalar = t.tensor("layers.1.self_attn.A_log");
  scalar = {scalar.name, scalar.dtype, {}, scalar.bytes.substr(0, 4)};
  t.write();
  EXPECT_EQ(first_difference(t.load(), t.dummy(), t.config), "");
}

TEST(Checkpoint, PaddingOfALogIsCut) {
  Case t;
  std::string& bytes = t.tensor("layers.0.self_attn.A_log").bytes;  // one head, padded to 128
  ASSERT_EQ(bytes.size(), 128u * 4);
  bytes.replace(4, std::string::npos, std::string(127 * 4, '\xff'));  // NaN, which a head may not have
  t.write();
  EXPECT_EQ(first_difference(t.load(), t.dummy(), t.config), "");
}

TEST(Checkpoint, LegacyNamesAndOtherPrefix) {
  Case t;
  for (FileTensor& x : t.tensors) {
    for (const char* leaf : {"proj", "norm"}) {
      const std::string ending = std::string("self_attention_res_") + leaf + ".weight";
      if (x.name.ends_with(ending))
        x.name = x.name.substr(0, x.name.size() - ending.size()) + "self_attention_res." + leaf + "_weight";
    }
  }
  t.write({.max_shard_bytes = 200000});
  EXPECT_EQ(first_difference(t.load(), t.dummy(), t.config), "");

  Case text_only;
  for (FileTensor& x : text_only.tensors) x.name = x.name.substr(std::string("language_model.").size());
  text_only.write();
  EXPECT_EQ(first_difference(text_only.load(), t.dummy(), t.config), "");
}

TEST(Checkpoint, VisionTensorsAreExpectedAndSkipped) {
  Case t;
  t.config = tiny_config("kimi-linear-small.json");
  t.config = load_config(kFolder + "kimi-k3-small.json");
  t.tensors = dummy_tensors(t.config, 5);
  t.write();
  const Weights w = t.load();
  EXPECT_EQ(first_difference(w, t.dummy(), t.config), "");
  EXPECT_EQ(w.digest, t.dummy().digest);
  std::erase_if(t.tensors,
                [](const FileTensor& x) { return x.name == "vision_tower.encoder.blocks.1.wo.weight"; });
  t.write();
  t.expect_error({"1 missing", "vision_tower.encoder.blocks.1.wo.weight"});
}

TEST(Checkpoint, TiedHead) {
  Case t;
  t.config.tie_word_embeddings = true;
  std::erase_if(t.tensors, [](const FileTensor& x) { return x.name.ends_with("lm_head.weight"); });
  t.write();
  const Weights w = t.load();
  EXPECT_EQ(w.lm_head.weight, w.embedding);
  EXPECT_EQ(w.lm_head.out, t.config.vocab_size);
  EXPECT_EQ(t.dummy().digest, w.digest);
  t.config.tie_word_embeddings = false;
  t.expect_error({"missing", "language_model.lm_head.weight", "BF16 [512,32]"});
}

TEST(Checkpoint, MissingUnexpectedAndWrongAreNamed) {
  Case t;
  std::erase_if(t.tensors,
                [](const FileTensor& x) { return x.name.ends_with("layers.3.self_attn.kv_b_proj.weight"); });
  t.tensors.push_back({"language_model.model.layers.9.extra", DType::kU8, {2}, "ab"});
  FileTensor& q = t.tensor("layers.3.self_attn.q_b_proj.weight");
  q.shape = {q.shape[1], q.shape[0]};
  FileTensor& packed = t.tensor("layers.1.block_sparse_moe.experts.2.w3.weight_scale");
  packed.dtype = DType::kI8;
  t.write();
  t.expect_error({"KimiK31ForConditionalGeneration", "1 missing",
                  "layers.3.self_attn.kv_b_proj.weight: expected BF16 [256,512]",
                  "2 of a wrong dtype or shape", "expected BF16 [192,32], found BF16 [32,192]",
                  "expected U8 [32,1], found I8 [32,1]", "1 unexpected", "layers.9.extra",
                  "model.safetensors"});
}

TEST(Checkpoint, WrongALogAndNonFiniteValues) {
  Case t;
  FileTensor& a = t.tensor("layers.0.self_attn.A_log");
  const FileTensor good = a;
  a = {a.name, a.dtype, {64}, a.bytes.substr(0, 256)};
  t.write();
  t.expect_error({"A_log", "[1], or padded to [128]", "F32 [64]"});
  a = good;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(a.bytes.data(), &nan, 4);
  t.write();
  t.expect_error({"layers.0.self_attn.A_log", "element 0", "finite"});
}

TEST(Checkpoint, Mxfp4AgainstBf16Experts) {
  Case t;
  t.config.mxfp4_experts = false;
  t.write();
  t.expect_error({"experts.0.w1.weight: expected BF16", "experts.0.w1.weight_packed"});
}

TEST(Checkpoint, FolderAndIndexErrors) {
  Case t;
  t.expect_error({"model.safetensors.index.json", "dummy"});
  t.write({.max_shard_bytes = 200000});
  const std::string index_path = t.folder / "model.safetensors.index.json", index = read_file(index_path);
  ASSERT_EQ(t.error(), "");
  const auto damaged = [&](const std::string& from, const std::string& to,
                           std::initializer_list<std::string> words) {
    std::string text = index;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file(index_path, text.replace(at, from.size(), to));
    t.expect_error(words);
  };
  damaged("weight_map", "weightmap", {"weight_map", "index.json"});
  damaged("\"model-00001", "\"../model-00001", {"plain name"});
  damaged("\"model-00001", "\"model-70001", {"model-70001-of", "missing", "places tensor"});
  damaged("lm_head.weight\"", "lm_hat.weight\"", {"lm_hat.weight", "no file holds it"});
  damaged("\"language_model.lm_head.weight\":", "\"language_model.model.norm.weight\":", {"occurs twice"});
  damaged("{", "[", {"not valid JSON"});
  // Two files trade places in one entry.
  std::string text = index;
  const size_t at = text.find("\"model-00002");
  write_file(index_path, text.replace(at, 12, "\"model-00001"));
  t.expect_error({"is expected here by", "it is in", "model-00002"});
  write_file(index_path, index);

  // A tensor in a file that the index does not list, and one that two files hold.
  std::vector<FileTensor> extra{{"stray", DType::kU8, {1}, "x"}};
  std::string first;
  for (const auto& e : std::filesystem::directory_iterator(t.folder.path()))
    if (e.path().filename().string().starts_with("model-00001")) first = e.path().string();
  const std::string good = read_file(first);
  write_file(first, good.substr(0, good.size() - 1));
  t.expect_error({"model-00001", "not inside"});
  write_file(first, safetensors_bytes(extra));
  EXPECT_NE(t.error(), "");
  std::filesystem::remove(first);
  t.expect_error({"model-00001", "missing"});
}

TEST(Checkpoint, TensorInTwoFiles) {
  Case t;
  t.write();
  std::filesystem::rename(t.folder / "model.safetensors", t.folder / "a.safetensors");
  write_file(t.folder / "b.safetensors", safetensors_bytes({t.tensors[0]}));
  write_file(t.folder / "model.safetensors.index.json",
             R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  t.expect_error({"embed_tokens.weight occurs twice", "a.safetensors", "b.safetensors"});
}

TEST(Checkpoint, UnlistedTensor) {
  Case t;
  const std::string listed = t.tensors[0].name;
  t.tensors = {t.tensors[0], t.tensors[1]};
  t.write();
  write_file(t.folder / "model.safetensors.index.json",
             R"({"weight_map":{")" + listed + R"(":"model.safetensors"}})");
  t.expect_error({t.tensors[1].name, "is not listed"});
}

TEST(Checkpoint, DigestSeesBytesNamesAndShapes) {
  Case t;
  t.write();
  const std::string base = t.load().digest;
  std::reverse(t.tensors.begin(), t.tensors.end());
  t.write({.max_shard_bytes = 100000});
  EXPECT_EQ(t.load().digest, base);  // order and files do not matter
  std::filesystem::remove(t.folder / "model.safetensors.index.json");
  t.tensor("layers.4.self_attn.o_proj.weight").bytes[77] ^= 1;
  t.write();
  EXPECT_NE(t.load().digest, base);
}

TEST(MappedFile, WarmsAndKeepsTheBytes) {
  TemporaryFolder folder;
  std::string bytes(20 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  write_file(folder / "f", bytes);
  MappedFile file(folder / "f");
  EXPECT_LE(file.cold_bytes(), bytes.size());
  Progress progress("reading", 0);
  file.warm(3, progress);
  EXPECT_EQ(std::memcmp(file.bytes().data(), bytes.data(), bytes.size()), 0);
  EXPECT_THROW(MappedFile(folder / "absent"), Error);
  EXPECT_THROW(MappedFile(folder.path()), Error);
  write_file(folder / "empty", "");
  EXPECT_EQ(MappedFile(folder / "empty").bytes().size(), 0u);
}

}  // namespace perigee
