#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What may follow a lead byte: how many continuation bytes, and the range of the first of them.
struct Lead {
  int needed;  // 0: a character of its own; -1: never a lead byte
  unsigned char low;
  unsigned char high;
};

Lead Classify(unsigned char byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte < 0xC2) return {-1, 0, 0};
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte < 0xF4) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    Lead lead = Classify(static_cast<unsigned char>(text[pos]));
    if (lead.needed < 0 || text.size() - pos <= static_cast<size_t>(lead.needed)) return pos;
    for (int i = 1; i <= lead.needed; ++i) {
      const auto byte = static_cast<unsigned char>(text[pos + i]);
      if (byte < lead.low || byte > lead.high) return pos;
      lead.low = 0x80;
      lead.high = 0xBF;
    }
    pos += 1 + lead.needed;
  }
  return pos;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  Utf8Stream stream;
  std::string out = stream.Push(text);
  return out + stream.Finish();
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
    return;
  }
  const int extra = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  static constexpr unsigned char kMark[] = {0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kMark[extra] | (code_point >> (6 * extra))));
  for (int i = extra - 1; i >= 0; --i) {
    out.push_back(static_cast<char>(0x80 | ((code_point >> (6 * i)) & 0x3F)));
  }
}

void Utf8Stream::Step(unsigned char byte, std::string& out) {
  if (needed_ > 0) {
    if (byte >= low_ && byte <= high_) {
      pending_.push_back(static_cast<char>(byte));
      low_ = 0x80;
      high_ = 0xBF;
      if (--needed_ == 0) {
        out += pending_;
        pending_.clear();
      }
      return;
    }
    out += Finish();  // `byte` itself starts something new
  }
  const Lead lead = Classify(byte);
  if (lead.needed < 0) {
    out += kReplacement;
  } else if (lead.needed == 0) {
    out.push_back(static_cast<char>(byte));
  } else {
    pending_.assign(1, static_cast<char>(byte));
    needed_ = lead.needed;
    low_ = lead.low;
    high_ = lead.high;
  }
}

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + pending_.size());
  for (const char byte : bytes) Step(static_cast<unsigned char>(byte), out);
  return out;
}

std::string Utf8Stream::Finish() {
  if (needed_ == 0) return {};
  pending_.clear();
  needed_ = 0;
  return std::string(kReplacement);
}

}  // namespace lodestone
