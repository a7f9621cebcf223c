// What the benches of single units share: valid/ready producers that hesitate, and files of words.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "verilated.h"

namespace streams {

constexpr int kBeatWords = 4;
using Words = std::vector<uint32_t>;

struct Chances {
  uint32_t state;
  bool hit(uint32_t of_256) {  // xorshift32
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return (state >> 8 & 255) < of_256;
  }
};

// A valid/ready producer: a beat that was offered stays until it is taken.
struct Producer {
  const uint32_t* words;
  uint32_t beats, beat_words, chance, next = 0;
  bool valid = false;

  template <typename Port>
  void offer(Chances& chances, CData& valid_port, Port& data) {
    valid = next < beats && (valid || chances.hit(chance));
    valid_port = valid;
    for (uint32_t i = 0; i < beat_words; i++)
      data[i] = valid ? words[next * beat_words + i] : chances.state * (2 * i + 1);
  }
  bool left() const { return next != beats; }
  void after(bool ready) {
    if (valid && ready) next++, valid = false;
  }
};

inline Words read_words(const char* path) {
  Words words;
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "rb"), std::fclose);
  if (!file) return words;
  std::fseek(file.get(), 0, SEEK_END);
  words.resize(std::ftell(file.get()) / 4);
  std::rewind(file.get());
  if (std::fread(words.data(), 4, words.size(), file.get()) != words.size()) words.clear();
  return words;
}

}  // namespace streams
