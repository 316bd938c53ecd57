#include "train/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "net/collectives/cuda_device.h"
#include "train/cublas.h"
#include "train/data.h"
#include "train/kernel_image.h"
#include "train/kernels.h"
#include "train/matrix.h"

namespace muster::train {
namespace {

constexpr unsigned int kThreads = kMostThreads;  // where each value is a thread's own
constexpr unsigned int kRowThreads = 128;        // where a block has a row
constexpr long long kMostBlocks = 4096;
constexpr long long kMostSums = 1024;
// The rows that one thread adds up before the sums of all such are added up.
constexpr int kChunk = 64;

// A kernel of kernels.h, with the types of its arguments.
template <typename Signature>
struct Kernel {
  const char* name;
  cuda::Function function = nullptr;
};

// All of them, by the names that they have in kernels.h without their prefix.
struct Kernels {
  Kernel<decltype(muster_add)> add{"muster_add"};
  Kernel<decltype(muster_divide)> divide{"muster_divide"};
  Kernel<decltype(muster_embed)> embed{"muster_embed"};
  Kernel<decltype(muster_embed_tokens)> embed_tokens{"muster_embed_tokens"};
  Kernel<decltype(muster_embed_positions)> embed_positions{"muster_embed_positions"};
  Kernel<decltype(muster_bias)> bias{"muster_bias"};
  Kernel<decltype(muster_column_sums)> column_sums{"muster_column_sums"};
  Kernel<decltype(muster_norm_sums)> norm_sums{"muster_norm_sums"};
  Kernel<decltype(muster_add_partials)> add_partials{"muster_add_partials"};
  Kernel<decltype(muster_norm_forward)> norm_forward{"muster_norm_forward"};
  Kernel<decltype(muster_norm_backward)> norm_backward{"muster_norm_backward"};
  Kernel<decltype(muster_gelu_forward)> gelu_forward{"muster_gelu_forward"};
  Kernel<decltype(muster_gelu_backward)> gelu_backward{"muster_gelu_backward"};
  Kernel<decltype(muster_softmax)> softmax{"muster_softmax"};
  Kernel<decltype(muster_softmax_backward)> softmax_backward{"muster_softmax_backward"};
  Kernel<decltype(muster_losses)> losses{"muster_losses"};
  Kernel<decltype(muster_mean)> mean{"muster_mean"};
  Kernel<decltype(muster_losses_backward)> losses_backward{"muster_losses_backward"};
  Kernel<decltype(muster_squares)> squares{"muster_squares"};
  Kernel<decltype(muster_clip)> clip{"muster_clip"};
  Kernel<decltype(muster_scale)> scale{"muster_scale"};
  Kernel<decltype(muster_adam)> adam{"muster_adam"};

  Status Find(const CudaDevice& device) {
    return FindEach(device, add, divide, embed, embed_tokens, embed_positions, bias, column_sums, norm_sums,
                    add_partials, norm_forward, norm_backward, gelu_forward, gelu_backward, softmax,
                    softmax_backward, losses, mean, losses_backward, squares, clip, scale, adam);
  }

 private:
  template <typename... Each>
  static Status FindEach(const CudaDevice& device, Each&... each) {
    Status found;
    const auto find = [&](auto& kernel) {
      if (!found) return;
      Result<cuda::Function> function = device.Find(kernel.name);
      if (function) {
        kernel.function = *function;
      } else {
        found = function.error();
      }
    };
    (find(each), ...);
    return found;
  }
};

struct Grid {
  unsigned int blocks;
  unsigned int threads;
};
// The launch depends on nothing but the sizes: it decides in which order sums are added up.
Grid ForEach(long long values) {
  return {static_cast<unsigned int>(std::min((values + kThreads - 1) / kThreads, kMostBlocks)), kThreads};
}
Grid ForRows(int rows) {
  return {static_cast<unsigned int>(rows), kRowThreads};
}
constexpr Grid kOneBlock{1, kThreads};

int FormOf(Form form) {
  return form == Form::kPlain ? cublas::kPlain : cublas::kTransposed;
}

long long Product(int rows, int columns) {
  return static_cast<long long>(rows) * columns;
}
template <typename T>
long long SizeOf(std::span<T> values) {
  return static_cast<long long>(values.size());
}

// Products side by side: each matrix begins so many floats behind the one before.
struct Side {
  int count;
  long long left_step;
  long long right_step;
  long long out_step;
};

// All heads of a sequence, as the first one's views and the steps to the next one's.
struct Heads {
  explicit Heads(AttentionShape shape)
      : shape(shape),
        depth(shape.width / shape.heads),
        rows(shape.batch * shape.heads * shape.context),
        parts_step(depth),
        scores_step(Product(shape.context, shape.context)),
        scale(1 / std::sqrt(static_cast<float>(depth))) {}

  // Queries, keys or values in qkv or its derivative.
  template <typename T>
  auto Part(T* qkv, int sequence, int part) const {
    return Of(qkv + Product(sequence * shape.context, 3 * shape.width) + Product(part, shape.width), depth,
              3 * shape.width);
  }
  template <typename T>
  auto Rows(T* y, int sequence) const {
    return Of(y + Product(sequence * shape.context, shape.width), depth, shape.width);
  }
  template <typename T>
  auto Scores(T* scores, int sequence) const {
    return Of(scores + scores_step * sequence * shape.heads, shape.context, shape.context);
  }
  [[nodiscard]] Side OfRows(long long left, long long right, long long out) const {
    return {shape.heads, left, right, out};
  }

  AttentionShape shape;
  int depth;
  int rows;  // of all scores
  long long parts_step;
  long long scores_step;
  float scale;

 private:
  [[nodiscard]] View Of(float* data, int columns, int stride) const {
    return {data, shape.context, columns, stride};
  }
  [[nodiscard]] ConstView Of(const float* data, int columns, int stride) const {
    return {data, shape.context, columns, stride};
  }
};

class CudaOps final : public Ops {
 public:
  CudaOps(std::unique_ptr<CudaDevice> device, const cublas::Functions& blas)
      : device_(std::move(device)), blas_(blas) {}

  ~CudaOps() override {
    if (abandoned_ || !device_->Enter()) return;
    scratch_ = Buffer();
    if (handle_ != nullptr) (void)blas_.Destroy(handle_);
  }

  Status Start() {
    if (Status loaded = device_->Load(kKernelImage); !loaded) return loaded;
    if (Status found = kernels_.Find(*device_); !found) return found;
    if (Status created = CheckBlas(blas_.Create(&handle_)); !created) return created;
    return CheckBlas(blas_.SetStream(handle_, device_->stream()));
  }

  [[nodiscard]] MemoryKind memory() const override { return MemoryKind::kCuda; }
  [[nodiscard]] void* stream() const override { return device_->stream(); }

  Status Wait() override {
    if (!failure_) return failure_;
    Keep(device_->Wait());
    return failure_;
  }

  std::function<Result<bool>()> Mark() override {
    if (failure_) {
      Result<std::shared_ptr<const CudaEvent>> event = device_->Record();
      if (event) return [event = *event] { return event->Reached(); };
      Keep(event.error());
    }
    return [error = failure_.error()] { return Result<bool>(error); };
  }

  void Abandon() override {
    abandoned_ = true;
    device_->Abandon();
  }

  float* Allocate(std::size_t floats) override {
    if (!failure_ || floats == 0) return nullptr;
    const Result<void*> memory = device_->Allocate(floats * sizeof(float));
    if (!memory) {
      Keep(memory.error());
      return nullptr;
    }
    Keep(device_->Zero(*memory, floats * sizeof(float)));
    return static_cast<float*>(*memory);
  }
  void Free(float* data) override {
    if (!abandoned_) device_->Free(data);
  }

  void Zero(std::span<float> values) override {
    if (failure_) Keep(device_->Zero(values.data(), values.size_bytes()));
  }
  void Copy(void* to, const void* from, std::size_t bytes) override {
    if (failure_) Keep(device_->Copy(to, from, bytes));
  }

  void Add(std::span<float> to, std::span<const float> values) override {
    Launch(kernels_.add, ForEach(SizeOf(to)), to.data(), values.data(), SizeOf(to));
  }
  void Divide(std::span<float> values, float divisor) override {
    Launch(kernels_.divide, ForEach(SizeOf(values)), values.data(), divisor, SizeOf(values));
  }

  void EmbeddingForward(EmbeddingShape shape, const std::uint8_t* inputs, const float* tokens,
                        const float* positions, float* out) override {
    Launch(kernels_.embed, ForEach(Product(shape.rows, shape.width)), shape.rows, shape.context, shape.width,
           inputs, tokens, positions, out);
  }
  void EmbeddingBackward(EmbeddingShape shape, const std::uint8_t* inputs, const float* d, float* dtokens,
                         float* dpositions) override {
    Launch(kernels_.embed_tokens, ForEach(Product(kVocabulary, shape.width)), shape.rows, shape.width,
           kVocabulary, inputs, d, dtokens);
    Launch(kernels_.embed_positions, ForEach(Product(shape.context, shape.width)), shape.rows, shape.context,
           shape.width, d, dpositions);
  }

  void LinearForward(LinearShape shape, const float* x, const float* weights, const float* bias,
                     float* y) override {
    if (bias != nullptr) {
      Launch(kernels_.bias, ForEach(Product(shape.rows, shape.outputs)), shape.rows, shape.outputs, bias, y);
    }
    Multiply({x, shape.rows, shape.inputs, shape.inputs}, Form::kPlain,
             {weights, shape.inputs, shape.outputs, shape.outputs}, Form::kPlain,
             {y, shape.rows, shape.outputs, shape.outputs}, 1, bias != nullptr ? 1.0F : 0.0F);
  }
  void LinearBackward(LinearShape shape, const float* x, const float* weights, const float* dy, float* dx,
                      float* dweights, float* dbias) override {
    const ConstView output{dy, shape.rows, shape.outputs, shape.outputs};
    Multiply(output, Form::kPlain, {weights, shape.inputs, shape.outputs, shape.outputs}, Form::kTransposed,
             {dx, shape.rows, shape.inputs, shape.inputs}, 1, 0);
    Multiply({x, shape.rows, shape.inputs, shape.inputs}, Form::kTransposed, output, Form::kPlain,
             {dweights, shape.inputs, shape.outputs, shape.outputs}, 1, 1);
    if (dbias == nullptr) return;
    const int chunks = Chunks(shape.rows);
    float* const partial = Scratch(Product(chunks, shape.outputs));
    Launch(kernels_.column_sums, ForEach(Product(chunks, shape.outputs)), shape.rows, shape.outputs, kChunk,
           dy, partial);
    Launch(kernels_.add_partials, ForEach(shape.outputs), chunks, shape.outputs, partial, dbias);
  }

  void NormForward(NormShape shape, const float* x, const float* gain, const float* bias, float* y,
                   float* mean, float* inverse) override {
    Launch(kernels_.norm_forward, ForRows(shape.rows), shape.rows, shape.width, x, gain, bias, y, mean,
           inverse);
  }
  void NormBackwardAdd(NormShape shape, const float* x, const float* gain, const float* mean,
                       const float* inverse, const float* dy, float* dx, float* dgain,
                       float* dbias) override {
    const int chunks = Chunks(shape.rows);
    const long long sums = Product(chunks, shape.width);
    float* const partial = Scratch(2 * sums);
    float* const partial_bias = partial == nullptr ? nullptr : partial + sums;
    Launch(kernels_.norm_sums, ForEach(sums), shape.rows, shape.width, kChunk, x, mean, inverse, dy, partial,
           partial_bias);
    Launch(kernels_.add_partials, ForEach(shape.width), chunks, shape.width, partial, dgain);
    Launch(kernels_.add_partials, ForEach(shape.width), chunks, shape.width, partial_bias, dbias);
    Launch(kernels_.norm_backward, ForRows(shape.rows), shape.rows, shape.width, x, gain, mean, inverse, dy,
           dx);
  }

  void GeluForward(std::span<const float> x, std::span<float> y, std::span<float> gate) override {
    Launch(kernels_.gelu_forward, ForEach(SizeOf(x)), x.data(), y.data(), gate.data(), SizeOf(x));
  }
  void GeluBackward(std::span<const float> x, std::span<const float> gate, std::span<float> d) override {
    Launch(kernels_.gelu_backward, ForEach(SizeOf(x)), x.data(), gate.data(), d.data(), SizeOf(x));
  }

  void AttentionForward(AttentionShape shape, const float* qkv, float* weights, float* y) override {
    if (!failure_) return;
    const Heads heads(shape);
    for (int sequence = 0; sequence < shape.batch; ++sequence) {
      Multiply(heads.OfRows(heads.parts_step, heads.parts_step, heads.scores_step),
               heads.Part(qkv, sequence, 0), Form::kPlain, heads.Part(qkv, sequence, 1), Form::kTransposed,
               heads.Scores(weights, sequence), heads.scale, 0);
    }
    Launch(kernels_.softmax, ForRows(heads.rows), heads.rows, shape.context, weights);
    for (int sequence = 0; sequence < shape.batch; ++sequence) {
      Multiply(heads.OfRows(heads.scores_step, heads.parts_step, heads.parts_step),
               heads.Scores(weights, sequence), Form::kPlain, heads.Part(qkv, sequence, 2), Form::kPlain,
               heads.Rows(y, sequence), 1, 0);
    }
  }
  void AttentionBackward(AttentionShape shape, const float* qkv, const float* weights, const float* dy,
                         float* dqkv) override {
    const Heads heads(shape);
    float* const scores = Scratch(Product(heads.rows, shape.context));
    if (!failure_) return;
    for (int sequence = 0; sequence < shape.batch; ++sequence) {
      Multiply(heads.OfRows(heads.scores_step, heads.parts_step, heads.parts_step),
               heads.Scores(weights, sequence), Form::kTransposed, heads.Rows(dy, sequence), Form::kPlain,
               heads.Part(dqkv, sequence, 2), 1, 0);
      Multiply(heads.OfRows(heads.parts_step, heads.parts_step, heads.scores_step), heads.Rows(dy, sequence),
               Form::kPlain, heads.Part(qkv, sequence, 2), Form::kTransposed, heads.Scores(scores, sequence),
               1, 0);
    }
    Launch(kernels_.softmax_backward, ForRows(heads.rows), heads.rows, shape.context, weights, scores);
    for (int sequence = 0; sequence < shape.batch; ++sequence) {
      const Side side = heads.OfRows(heads.scores_step, heads.parts_step, heads.parts_step);
      Multiply(side, heads.Scores(scores, sequence), Form::kPlain, heads.Part(qkv, sequence, 1), Form::kPlain,
               heads.Part(dqkv, sequence, 0), heads.scale, 0);
      Multiply(side, heads.Scores(scores, sequence), Form::kTransposed, heads.Part(qkv, sequence, 0),
               Form::kPlain, heads.Part(dqkv, sequence, 1), heads.scale, 0);
    }
  }

  void CrossEntropy(ScoresShape shape, const float* logits, const std::uint8_t* targets,
                    double* loss) override {
    auto* const losses = reinterpret_cast<double*>(Scratch(2 * static_cast<long long>(shape.rows)));
    Launch(kernels_.losses, ForRows(shape.rows), shape.rows, shape.classes, logits, targets, losses);
    Launch(kernels_.mean, kOneBlock, shape.rows, losses, loss);
  }
  void CrossEntropyBackward(ScoresShape shape, float* logits, const std::uint8_t* targets) override {
    Launch(kernels_.losses_backward, ForRows(shape.rows), shape.rows, shape.classes, logits, targets);
  }

  void ClipNorm(std::span<float> gradient, double limit) override {
    const auto sums = static_cast<int>(std::min<long long>(ForEach(SizeOf(gradient)).blocks, kMostSums));
    float* const scale = Scratch(2 * static_cast<long long>(sums) + 1);
    if (scale == nullptr) return;
    // The sums come first, where doubles may lie.
    auto* const partial = reinterpret_cast<double*>(scale);
    float* const by = scale + 2 * static_cast<std::ptrdiff_t>(sums);
    Launch(kernels_.squares, {static_cast<unsigned int>(sums), kThreads}, gradient.data(), SizeOf(gradient),
           partial);
    Launch(kernels_.clip, kOneBlock, sums, partial, limit, by);
    Launch(kernels_.scale, ForEach(SizeOf(gradient)), gradient.data(), by, SizeOf(gradient));
  }
  void Adam(const AdamUpdate& update, std::span<const float> gradient, std::span<float> parameters,
            std::span<float> first_moment, std::span<float> second_moment) override {
    Launch(kernels_.adam, ForEach(SizeOf(gradient)), update.beta1, update.beta2, update.correct1,
           update.correct2, update.rate, update.keep, update.epsilon, gradient.data(), parameters.data(),
           first_moment.data(), second_moment.data(), SizeOf(gradient));
  }

 private:
  static int Chunks(int rows) { return (rows + kChunk - 1) / kChunk; }

  // The first error stays; what was to be done after it is not.
  void Keep(Status status) {
    if (failure_ && !status) failure_ = std::move(status);
  }

  Status CheckBlas(int code) const {
    if (code == cublas::kSuccess) return {};
    const char* text = blas_.GetStatusString(code);
    return Error{Errc::kInternal, std::string("cuBLAS: ") + (text == nullptr ? "unknown" : text) +
                                      " (status " + std::to_string(code) + ")"};
  }

  // Memory for the time of one piece; the next one has the same. Null after an error.
  float* Scratch(long long floats) {
    const auto wanted = static_cast<std::size_t>(floats);
    if (wanted > scratch_.size()) {
      scratch_ = Buffer();
      if (failure_) scratch_ = Buffer(*this, wanted);
    }
    return failure_ ? scratch_.data() : nullptr;
  }

  template <typename... Args>
  void Launch(const Kernel<void(Args...)>& kernel, Grid grid, std::type_identity_t<Args>... args) {
    if (!failure_ || grid.blocks == 0) return;
    // The driver copies what these point to.
    void* list[] = {const_cast<void*>(static_cast<const void*>(&args))...};
    Keep(device_->Launch(kernel.function, grid.blocks, grid.threads, list));
  }

  // As Multiply of matrix.h. cuBLAS takes a row-major matrix for its column-major transpose, so left and right change places.
  void Multiply(ConstView left, Form left_form, ConstView right, Form right_form, View out, float scale,
                float keep) {
    if (!failure_) return;
    const int inner = left_form == Form::kPlain ? left.columns : left.rows;
    Keep(CheckBlas(blas_.Sgemm(handle_, FormOf(right_form), FormOf(left_form), out.columns, out.rows, inner,
                               &scale, right.data, right.stride, left.data, left.stride, &keep, out.data,
                               out.stride)));
  }
  void Multiply(Side side, ConstView left, Form left_form, ConstView right, Form right_form, View out,
                float scale, float keep) {
    if (!failure_) return;
    const int inner = left_form == Form::kPlain ? left.columns : left.rows;
    Keep(CheckBlas(blas_.SgemmStridedBatched(handle_, FormOf(right_form), FormOf(left_form), out.columns,
                                             out.rows, inner, &scale, right.data, right.stride,
                                             side.right_step, left.data, left.stride, side.left_step, &keep,
                                             out.data, out.stride, side.out_step, side.count)));
  }

  const std::unique_ptr<CudaDevice> device_;
  const cublas::Functions blas_;
  cublas::Handle handle_ = nullptr;
  Kernels kernels_;
  Status failure_;
  bool abandoned_ = false;
  Buffer scratch_;
};

}  // namespace

Result<std::unique_ptr<Ops>> MakeCudaOps(const CudaLibraries& libraries, int device) {
  if (kKernelImage == nullptr)
    return Error{Errc::kInvalid, "this build has no kernels for CUDA: nvcc was not there when it was made"};
  Result<std::unique_ptr<CudaDevice>> opened = CudaDevice::Open(libraries.cuda, device);
  if (!opened) return opened.error();
  const Result<cublas::Functions> blas = cublas::Load(libraries.cublas);
  if (!blas) return blas.error();
  auto ops = std::make_unique<CudaOps>(*std::move(opened), *blas);
  if (Status started = ops->Start(); !started) return started.error();
  return std::unique_ptr<Ops>(std::move(ops));
}

}  // namespace muster::train
