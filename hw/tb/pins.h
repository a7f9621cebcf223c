// Parts of Verilator's ports, whose C++ type depends on their width.
#pragma once

#include <cstdint>
#include <cstring>

#include "verilated.h"

namespace edgerun {

// `width` (1 to 64) bits from `lsb` of a port of up to 64 bits.
inline uint64_t bits(uint64_t port, unsigned lsb, unsigned width) {
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  return (port >> lsb) & mask;
}

// The same of a wider one.
template <std::size_t WORDS>
inline uint64_t bits(const VlWide<WORDS>& port, unsigned lsb, unsigned width) {
  uint64_t value = 0;
  const unsigned first = lsb / 32, shift = lsb % 32;
  value = port[first] >> shift;
  unsigned have = 32 - shift;
  for (unsigned word = first + 1; have < width && word < WORDS; ++word, have += 32) {
    value |= static_cast<uint64_t>(port[word]) << have;
  }
  return bits(value, 0, width);
}

// Puts 16 bytes into the index-th 128 bits of a port.
template <std::size_t WORDS>
inline void put_beat(VlWide<WORDS>& port, unsigned index, const uint8_t* bytes) {
  std::memcpy(&port[4 * index], bytes, 16);
}

}  // namespace edgerun
