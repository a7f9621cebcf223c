// What AXI demands of the overlay, and a record of where it did not comply.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace edgerun {

constexpr unsigned MAX_VIOLATIONS = 64;  // later ones are only counted

class Violations {
 public:
  template <typename... Values>
  void add(uint64_t cycle, const char* format, Values... values) {
    ++count_;
    if (texts_.size() >= MAX_VIOLATIONS) return;
    char text[256];
    int length = std::snprintf(text, sizeof text, "cycle %llu: ", (unsigned long long)cycle);
    std::snprintf(text + length, sizeof text - static_cast<size_t>(length), format, values...);
    texts_.emplace_back(text);
  }
  uint64_t count() const { return count_; }
  const std::vector<std::string>& texts() const { return texts_; }
  void clear() {
    count_ = 0;
    texts_.clear();
  }

 private:
  uint64_t count_ = 0;
  std::vector<std::string> texts_;
};

// A channel that the overlay drives: once VALID is up it stays, and so does what it offers, until
// READY takes it (AXI, A3.2.1).
template <typename Payload>
class StableChannel {
 public:
  explicit StableChannel(const char* name) : name_(name) {}

  void check(Violations& violations, uint64_t cycle, unsigned port, bool valid, bool ready,
             const Payload& payload) {
    if (waiting_) {
      if (!valid) {
        violations.add(cycle, "%s %u: VALID fell before READY", name_, port);
      } else if (std::memcmp(&payload, &offered_, sizeof(Payload)) != 0) {
        violations.add(cycle, "%s %u: payload changed before READY", name_, port);
      }
    }
    waiting_ = valid && !ready;
    if (waiting_) offered_ = payload;
  }
  void reset() { waiting_ = false; }

 private:
  const char* name_;
  bool waiting_ = false;
  Payload offered_{};
};

struct AddressPayload {
  uint64_t address;
  uint64_t length;
};

// Burst rules of this overlay: whole beats, no 4 KiB boundary crossed (A3.4.1), at most
// `max_beats` beats.
inline void check_burst(Violations& violations, uint64_t cycle, const char* channel, unsigned port,
                        uint64_t address, uint32_t beats, uint32_t max_beats) {
  const auto where = static_cast<unsigned long long>(address);
  if (address % 16) {
    violations.add(cycle, "%s %u: address 0x%llx is not a multiple of 16", channel, port, where);
  }
  if ((address & 4095) + 16ull * beats > 4096) {
    violations.add(cycle, "%s %u: %u beats from 0x%llx cross 4 KiB", channel, port, beats, where);
  }
  if (beats > max_beats) {
    violations.add(cycle, "%s %u: a burst of %u beats, limit %u", channel, port, beats, max_beats);
  }
}

}  // namespace edgerun
