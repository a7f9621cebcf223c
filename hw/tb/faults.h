// Faults that the memory can be told to commit, and random back-pressure.
#pragma once

#include <cstdint>
#include <vector>

namespace edgerun {

// Mirrored by `FaultKind` in edgerun_hw/simulate/faults.py.
enum FaultKind : uint32_t {
  FAULT_READ_RESPONSE = 0,   // beats in the range are answered with `value`
  FAULT_EARLY_LAST = 1,      // a read burst ends, with RLAST, `value` beats too early
  FAULT_MISSING_LAST = 2,    // a read burst's last beat comes without RLAST
  FAULT_WRITE_RESPONSE = 3,  // write bursts are answered with `value`
  FAULT_SILENCE = 4,         // a burst silences the channels in `value` of its port
};

// Channels of FAULT_SILENCE; mirrored by `Channel` in faults.py.
enum Channel : uint32_t { AR = 1, R = 2, AW = 4, W = 8, B = 16 };

// Hits `remaining` bursts of a port that touch the address range, after `skip` of them.
struct Fault {
  uint32_t kind;
  int32_t port;  // weight ports, then the data port; -1: any
  uint32_t skip, remaining;
  uint64_t first, last;  // addresses, `last` excluded
  uint64_t cycles;       // of silence
  uint32_t value;

  bool in_range(uint64_t address, uint64_t bytes) const {
    return address < last && first < address + bytes;
  }

  // Whether this burst is one to hit; counts it.
  bool hits(int32_t on_port, uint64_t address, uint64_t bytes) {
    if (!remaining || (port >= 0 && port != on_port) || !in_range(address, bytes)) return false;
    if (skip) {
      --skip;
      return false;
    }
    --remaining;
    return true;
  }

  bool of_reads() const {
    return kind == FAULT_SILENCE ? (value & (AR | R)) != 0 : kind != FAULT_WRITE_RESPONSE;
  }
  bool of_writes() const {
    return kind == FAULT_SILENCE ? (value & (AW | W | B)) != 0 : kind == FAULT_WRITE_RESPONSE;
  }
};

using Faults = std::vector<Fault>;

// Which channels of a port do not answer, and until which cycle.
class Silence {
 public:
  void start(uint32_t channels, uint64_t now, uint64_t cycles) {
    channels_ = channels;
    until_ = cycles < UINT64_MAX - now ? now + cycles : UINT64_MAX;
  }
  void end() { until_ = 0; }
  bool of(Channel channel, uint64_t now) const { return now < until_ && (channels_ & channel); }

 private:
  uint32_t channels_ = 0;
  uint64_t until_ = 0;
};

// A generator per channel, so that a channel's pattern does not depend on the others' traffic.
class Chance {
 public:
  void seed(uint64_t seed, unsigned channel) {
    state_ = static_cast<uint32_t>((seed + 1) * 2654435761u ^ (channel + 1) * 2246822519u);
    if (!state_) state_ = 1;
  }
  void set(double probability) {
    threshold_ = probability >= 1 ? UINT32_MAX : static_cast<uint32_t>(probability * 4294967296.0);
  }
  // True with the probability set.
  bool happens() {
    if (!threshold_) return false;
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_ < threshold_;
  }

 private:
  uint32_t state_ = 1;
  uint32_t threshold_ = 0;
};

}  // namespace edgerun
