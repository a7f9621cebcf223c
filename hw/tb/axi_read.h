// The memory's side of one AXI4 read port: takes addresses, gives beats in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "checks.h"
#include "ddr.h"
#include "faults.h"
#include "memory_map.h"
#include "ring.h"

namespace edgerun {

enum Response : uint32_t { OKAY = 0, SLVERR = 2, DECERR = 3 };

// What a port needs from its surroundings.
struct Surroundings {
  MemoryMap memory;
  Ddr ddr;
  Faults faults;
  uint64_t faults_committed = 0;
  Violations violations;
  uint64_t cycle = 0;
  uint32_t max_burst = 64;
  uint32_t outstanding = 8;  // bursts a port accepts before it withholds ARREADY or AWREADY
};

class ReadPort {
 public:
  // What the memory drives until the next clock edge.
  struct Outputs {
    bool arready, rvalid, rlast;
    uint32_t rresp;
    const uint8_t* rdata;  // 16 bytes
  };
  struct Counters {
    uint64_t bursts, beats;
  };

  ReadPort() : address_check_("AR") {}

  void configure(unsigned index, uint64_t seed, double backpressure) {
    index_ = index;
    address_chance_.seed(seed, 4 * index);
    data_chance_.seed(seed, 4 * index + 1);
    address_chance_.set(backpressure);
    data_chance_.set(backpressure);
  }

  const Outputs& outputs() const { return outputs_; }
  const Counters& counters() const { return counters_; }
  void clear_counters() { counters_ = Counters{}; }
  void end_silence() { silence_.end(); }
  uint32_t waiting_bursts() const { return bursts_.size(); }

  void reset() {
    bursts_.clear();
    arrived_ = arrived_skip_ = 0;
    silence_.end();
    address_check_.reset();
    outputs_ = Outputs{};
  }

  // The clock's rising edge, with what the overlay drove before it.
  void clock(Surroundings& around, bool arvalid, uint64_t araddr, uint32_t arlen, bool rready) {
    address_check_.check(around.violations, around.cycle, index_, arvalid, outputs_.arready,
                         AddressPayload{araddr, arlen});
    if (outputs_.rvalid && rready) finish_beat();
    if (arvalid && outputs_.arready) accept(around, araddr, arlen + 1);
    // Beats that arrive while none is on offer wait no cycle more.
    if (!bursts_.empty()) arrived_ += around.ddr.collect(index_, static_cast<double>(around.cycle));
    outputs_.arready = !silence_.of(AR, around.cycle) && bursts_.size() < around.outstanding &&
                       around.ddr.has_room(index_) && !address_chance_.happens();
    if (!outputs_.rvalid && arrived_ && !silence_.of(R, around.cycle) && !data_chance_.happens()) {
      offer();
    }
  }

 private:
  struct Burst {
    uint64_t address;
    const uint8_t* host;  // null: unmapped
    uint32_t beats;       // that will be given
    uint32_t requested;
    uint32_t done;
    bool without_last;
    uint64_t error_first, error_last;  // addresses answered with `error`
    uint32_t error;
  };

  void accept(Surroundings& around, uint64_t address, uint32_t beats) {
    check_burst(around.violations, around.cycle, "AR", index_, address, beats, around.max_burst);
    Burst burst{address, around.memory.find(address, 16ull * beats),
                beats,   beats,
                0,       false,
                0,       0,
                OKAY};
    for (Fault& fault : around.faults) {
      if (fault.of_reads() && fault.hits(static_cast<int32_t>(index_), address, 16ull * beats)) {
        apply(around, fault, burst);
        ++around.faults_committed;
      }
    }
    bursts_.push(burst);
    ++counters_.bursts;
    around.ddr.request(index_, address, beats, false, static_cast<double>(around.cycle));
  }

  void apply(const Surroundings& around, const Fault& fault, Burst& burst) {
    switch (fault.kind) {
      case FAULT_READ_RESPONSE:
        burst.error_first = fault.first;
        burst.error_last = fault.last;
        burst.error = fault.value;
        break;
      case FAULT_EARLY_LAST:
        burst.beats -= std::min(fault.value, burst.beats - 1);
        break;
      case FAULT_MISSING_LAST:
        burst.without_last = true;
        break;
      default:
        silence_.start(fault.value, around.cycle, fault.cycles);
    }
  }

  void finish_beat() {
    outputs_.rvalid = false;
    outputs_.rlast = false;
    --arrived_;
    ++counters_.beats;
    Burst& burst = bursts_.front();
    if (++burst.done < burst.beats) return;
    arrived_skip_ += burst.requested - burst.beats;
    bursts_.pop();
  }

  void offer() {
    static const uint8_t nothing[BEAT_BYTES] = {};
    // The rest of a burst that was cut short arrives from the DRAM and is dropped.
    const uint32_t dropped = std::min(arrived_, arrived_skip_);
    arrived_ -= dropped;
    arrived_skip_ -= dropped;
    if (!arrived_ || bursts_.empty()) return;
    const Burst& burst = bursts_.front();
    const uint64_t address = burst.address + uint64_t{burst.done} * BEAT_BYTES;
    outputs_.rvalid = true;
    outputs_.rlast = burst.done + 1 == burst.beats && !burst.without_last;
    outputs_.rdata = burst.host ? burst.host + uint64_t{burst.done} * BEAT_BYTES : nothing;
    outputs_.rresp = burst.host ? OKAY : DECERR;
    if (burst.error && address < burst.error_last && burst.error_first < address + BEAT_BYTES) {
      outputs_.rresp = burst.error;
    }
  }

  unsigned index_ = 0;
  Ring<Burst, 32> bursts_;
  uint32_t arrived_ = 0;       // beats that may be given
  uint32_t arrived_skip_ = 0;  // beats of cut bursts still to drop
  Silence silence_;
  Outputs outputs_{};
  Counters counters_{};
  Chance address_chance_, data_chance_;
  StableChannel<AddressPayload> address_check_;
};

}  // namespace edgerun
