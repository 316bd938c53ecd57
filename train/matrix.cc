#include "train/matrix.h"

#include <cblas.h>

namespace muster::train {

void Multiply(ConstView left, Form left_form, ConstView right, Form right_form, View out, float scale,
              float keep) {
  const bool left_plain = left_form == Form::kPlain;
  const int inner = left_plain ? left.columns : left.rows;
  cblas_sgemm(CblasRowMajor, left_plain ? CblasNoTrans : CblasTrans,
              right_form == Form::kPlain ? CblasNoTrans : CblasTrans, out.rows, out.columns, inner, scale,
              left.data, left.stride, right.data, right.stride, keep, out.data, out.stride);
}

void UseOneThread() {
  openblas_set_num_threads(1);
}

}  // namespace muster::train
