// The overlay's view of memory: regions of the host's memory at addresses of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace edgerun {

struct Region {
  uint64_t base;
  uint64_t size;
  uint8_t* host;
};

class MemoryMap {
 public:
  // False where it would overlap a region that is there.
  bool add(const Region& region) {
    auto place = std::upper_bound(regions_.begin(), regions_.end(), region.base, before);
    if (place != regions_.end() && region.base + region.size > place->base) return false;
    if (place != regions_.begin()) {
      const Region& previous = *(place - 1);
      if (previous.base + previous.size > region.base) return false;
    }
    regions_.insert(place, region);
    return true;
  }

  bool remove(uint64_t base) {
    for (auto place = regions_.begin(); place != regions_.end(); ++place) {
      if (place->base != base) continue;
      regions_.erase(place);
      return true;
    }
    return false;
  }

  // The host's address of `size` bytes at `address`, or null where they do not lie in one region.
  uint8_t* find(uint64_t address, uint64_t size) const {
    auto place = std::upper_bound(regions_.begin(), regions_.end(), address, before);
    if (place == regions_.begin()) return nullptr;
    --place;
    if (address + size > place->base + place->size) return nullptr;
    return place->host + (address - place->base);
  }

 private:
  static bool before(uint64_t address, const Region& region) { return address < region.base; }

  std::vector<Region> regions_;  // by base
};

}  // namespace edgerun
