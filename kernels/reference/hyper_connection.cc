#include <algorithm>
#include <cmath>

#include "kernels/reference/gemm.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

std::vector<float> ReadStreams(const TensorView& streams, int64_t token) {
  const int64_t dims = streams.shape[2];
  std::vector<float> z(streams.shape[1] * dims);
  for (int64_t m = 0; m < streams.shape[1]; ++m) {
    ReadRow(streams, token * streams.strides[0] + m * streams.strides[1], dims,
            z.data() + m * dims);
  }
  return z;
}

// mix = (fn z) * rsqrt(mean(z^2) + eps).
std::vector<double> Mixes(const WideWeight& fn, int64_t n, const std::vector<float>& z, float eps) {
  std::vector<float> products(n);
  fn.Multiply(z.data(), products.data());
  const double mean = MeanSquare(z.data(), static_cast<int64_t>(z.size()));
  const double factor = 1.0 / std::sqrt(mean + static_cast<double>(eps));
  std::vector<double> mixes(products.begin(), products.end());
  for (double& mix : mixes) mix *= factor;
  return mixes;
}

// c [M, M] becomes nearly doubly stochastic. The last pass normalises columns. Spec 6.1.
void Sinkhorn(double* c, int64_t m, double eps, int iters) {
  const auto divide_rows = [&] {
    for (int64_t j = 0; j < m; ++j) {
      double sum = eps;
      for (int64_t k = 0; k < m; ++k) sum += c[j * m + k];
      for (int64_t k = 0; k < m; ++k) c[j * m + k] /= sum;
    }
  };
  const auto divide_columns = [&] {
    for (int64_t k = 0; k < m; ++k) {
      double sum = eps;
      for (int64_t j = 0; j < m; ++j) sum += c[j * m + k];
      for (int64_t j = 0; j < m; ++j) c[j * m + k] /= sum;
    }
  };
  for (int64_t j = 0; j < m; ++j) {  // row softmax, eps added after the division
    const double largest = *std::max_element(c + j * m, c + (j + 1) * m);
    double sum = 0;
    for (int64_t k = 0; k < m; ++k) sum += c[j * m + k] = std::exp(c[j * m + k] - largest);
    for (int64_t k = 0; k < m; ++k) c[j * m + k] = c[j * m + k] / sum + eps;
  }
  divide_columns();
  for (int iter = 1; iter < iters; ++iter) {
    divide_rows();
    divide_columns();
  }
}

// round(sum_m pre[m] * z[m]), then its RMSNorm.
std::vector<float> CollapseAndNorm(const std::vector<double>& pre, const std::vector<float>& z,
                                   const std::vector<float>& norm_weight, float eps, DType act) {
  const int64_t dims = static_cast<int64_t>(norm_weight.size());
  std::vector<float> u(dims);
  for (int64_t c = 0; c < dims; ++c) {
    double sum = 0;
    for (size_t m = 0; m < pre.size(); ++m) sum += pre[m] * static_cast<double>(z[m * dims + c]);
    u[c] = Round(act, static_cast<float>(sum));
  }
  RmsNormRow(u.data(), norm_weight.data(), dims, eps, act);
  return u;
}

std::vector<double> Affine(const std::vector<double>& mixes, int64_t first, int64_t count,
                           double scale, const float* base) {
  std::vector<double> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = mixes[first + i] * scale + static_cast<double>(base[first + i]);
  }
  return values;
}

}  // namespace

void HcPre(const HcPreParams& p) {
  const DType act = p.streams.dtype;
  const int64_t m = p.streams.shape[1];
  const WideWeight fn(p.fn);
  const std::vector<float> norm_weight = ReadAll(p.norm_weight);
  const float* base = p.base.as<float>();
  const float* scale = p.scale.as<float>();
  for (int64_t t = 0; t < p.streams.shape[0]; ++t) {
    const std::vector<float> z = ReadStreams(p.streams, t);
    const std::vector<double> mixes = Mixes(fn, p.fn.n, z, p.rms_eps);
    std::vector<double> pre = Affine(mixes, 0, m, static_cast<double>(scale[0]), base);
    for (double& value : pre) value = Sigmoid(value) + static_cast<double>(p.hc_eps);
    const std::vector<double> post = Affine(mixes, m, m, static_cast<double>(scale[1]), base);
    std::vector<double> comb = Affine(mixes, 2 * m, m * m, static_cast<double>(scale[2]), base);
    Sinkhorn(comb.data(), m, static_cast<double>(p.hc_eps), p.sinkhorn_iters);
    for (int64_t k = 0; k < m; ++k) {
      p.post.row<float>(t)[k] = static_cast<float>(2 * Sigmoid(post[k]));
      for (int64_t j = 0; j < m; ++j) {
        p.comb.row<float>(t)[j * p.comb.strides[1] + k] = static_cast<float>(comb[j * m + k]);
      }
    }
    const std::vector<float> x = CollapseAndNorm(pre, z, norm_weight, p.rms_eps, act);
    WriteRow(p.x, t * p.x.strides[0], p.x.shape[1], x.data());
  }
}

void HcPost(const HcPostParams& p) {
  const DType act = p.streams.dtype;
  const int64_t m = p.streams.shape[1];
  const int64_t dims = p.streams.shape[2];
  std::vector<float> out(dims);
  for (int64_t t = 0; t < p.streams.shape[0]; ++t) {
    const std::vector<float> z = ReadStreams(p.streams, t);
    const std::vector<float> x = ReadRow(p.x, t * p.x.strides[0], dims);
    for (int64_t k = 0; k < m; ++k) {  // destination stream
      const double post = static_cast<double>(p.post.row<float>(t)[k]);
      for (int64_t c = 0; c < dims; ++c) {
        double sum = post * static_cast<double>(x[c]);
        for (int64_t j = 0; j < m; ++j) {  // source stream
          const float comb = p.comb.row<float>(t)[j * p.comb.strides[1] + k];
          sum += static_cast<double>(comb) * static_cast<double>(z[j * dims + c]);
        }
        out[c] = Round(act, static_cast<float>(sum));
      }
      WriteRow(p.streams, t * p.streams.strides[0] + k * p.streams.strides[1], dims, out.data());
    }
  }
}

void HcHead(const HcHeadParams& p) {
  const int64_t m = p.streams.shape[1];
  const WideWeight fn(p.fn);
  const std::vector<float> norm_weight = ReadAll(p.norm_weight);
  const double scale = static_cast<double>(p.scale.as<float>()[0]);
  for (int64_t r = 0; r < p.rows.shape[0]; ++r) {
    const std::vector<float> z = ReadStreams(p.streams, p.rows.as<int32_t>()[r]);
    const std::vector<double> mixes = Mixes(fn, m, z, p.rms_eps);
    std::vector<double> pre = Affine(mixes, 0, m, scale, p.base.as<float>());
    for (double& value : pre) value = Sigmoid(value) + static_cast<double>(p.hc_eps);
    const std::vector<float> x = CollapseAndNorm(pre, z, norm_weight, p.rms_eps, p.streams.dtype);
    WriteRow(p.x, r * p.x.strides[0], p.x.shape[1], x.data());
  }
}

}  // namespace lodestone::reference
