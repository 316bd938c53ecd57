// Matrix products on row-major float32, by OpenBLAS on the calling thread.
#pragma once

#include <span>

namespace muster::train {

// A matrix that lies in somebody else's memory: element (i, j) is data[i * stride + j].
struct View {
  float* data;
  int rows;
  int columns;
  int stride;
};
struct ConstView {
  ConstView(const float* data, int rows, int columns, int stride)
      : data(data), rows(rows), columns(columns), stride(stride) {}
  ConstView(const View& view)  // NOLINT(google-explicit-constructor)
      : ConstView(view.data, view.rows, view.columns, view.stride) {}
  const float* data;
  int rows;
  int columns;
  int stride;
};

enum class Form { kPlain, kTransposed };

// out = scale * (left)(right) + keep * out, each operand in the given form. Shapes must fit.
void Multiply(ConstView left, Form left_form, ConstView right, Form right_form, View out, float scale,
              float keep);

// Keeps OpenBLAS on the calling thread in this process: members share a node's cores, and the order of
// additions must not depend on how many there are.
void UseOneThread();

}  // namespace muster::train
