// The memory's side of one AXI4 write port: takes addresses and data, gives responses in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "axi_read.h"

namespace edgerun {

struct DataPayload {
  uint8_t data[BEAT_BYTES];
  uint32_t strobes;
  uint32_t last;
};

class WritePort {
 public:
  struct Outputs {
    bool awready, wready, bvalid;
    uint32_t bresp;
  };
  using Counters = ReadPort::Counters;

  WritePort() : address_check_("AW"), data_check_("W") {}

  void configure(unsigned index, unsigned stream, uint64_t seed, double backpressure) {
    index_ = index;
    stream_ = stream;
    Chance* chances[] = {&address_chance_, &data_chance_, &response_chance_};
    for (unsigned i = 0; i < 3; ++i) {
      chances[i]->seed(seed, 64 + i);
      chances[i]->set(backpressure);
    }
  }

  const Outputs& outputs() const { return outputs_; }
  const Counters& counters() const { return counters_; }
  void clear_counters() { counters_ = Counters{}; }
  void end_silence() { silence_.end(); }
  uint32_t waiting_bursts() const { return bursts_.size() + responses_.size(); }

  void reset() {
    bursts_.clear();
    responses_.clear();
    silence_.end();
    address_check_.reset();
    data_check_.reset();
    outputs_ = Outputs{};
  }

  void clock(Surroundings& around, bool awvalid, uint64_t awaddr, uint32_t awlen, bool wvalid,
             const DataPayload& data, bool bready) {
    address_check_.check(around.violations, around.cycle, index_, awvalid, outputs_.awready,
                         AddressPayload{awaddr, awlen});
    data_check_.check(around.violations, around.cycle, index_, wvalid, outputs_.wready, data);
    if (outputs_.bvalid && bready) outputs_.bvalid = false;
    if (awvalid && outputs_.awready) accept(around, awaddr, awlen + 1);
    if (wvalid && outputs_.wready) take(around, data);
    outputs_.awready = !silence_.of(AW, around.cycle) && waiting_bursts() < around.outstanding &&
                       !address_chance_.happens();
    // The next beat must find an address that has been accepted, and room in the DRAM's queue.
    outputs_.wready = !silence_.of(W, around.cycle) && !bursts_.empty() &&
                      around.ddr.has_room(stream_) && !data_chance_.happens();
    respond(around);
  }

 private:
  struct Burst {
    uint64_t address;
    uint8_t* host;
    uint32_t beats;
    uint32_t done;
    uint32_t response;
  };
  struct Pending {
    double when;
    uint32_t response;
  };

  void accept(Surroundings& around, uint64_t address, uint32_t beats) {
    check_burst(around.violations, around.cycle, "AW", index_, address, beats, around.max_burst);
    Burst burst{address, around.memory.find(address, 16ull * beats), beats, 0, OKAY};
    if (!burst.host) burst.response = DECERR;
    for (Fault& fault : around.faults) {
      if (!fault.of_writes()) continue;
      if (!fault.hits(static_cast<int32_t>(index_), address, 16ull * beats)) continue;
      ++around.faults_committed;
      if (fault.kind == FAULT_WRITE_RESPONSE) {
        burst.response = fault.value;
      } else {
        silence_.start(fault.value, around.cycle, fault.cycles);
      }
    }
    bursts_.push(burst);
    ++counters_.bursts;
  }

  void take(Surroundings& around, const DataPayload& data) {
    Burst& burst = bursts_.front();
    if (burst.host && burst.response == OKAY) store(burst, data);
    ++burst.done;
    ++counters_.beats;
    const bool last = burst.done == burst.beats;
    if (last != (data.last != 0)) {
      around.violations.add(around.cycle, "W %u: WLAST is %u at beat %u of %u", index_, data.last,
                            burst.done, burst.beats);
    }
    if (!last) return;
    const double now = static_cast<double>(around.cycle);
    if (!around.ddr.ideal()) around.ddr.request(stream_, burst.address, burst.beats, true, now);
    responses_.push({now + around.ddr.latency(), burst.response});
    bursts_.pop();
  }

  static void store(const Burst& burst, const DataPayload& data) {
    uint8_t* target = burst.host + uint64_t{burst.done} * BEAT_BYTES;
    if (data.strobes == 0xFFFF) {
      std::memcpy(target, data.data, BEAT_BYTES);
      return;
    }
    for (unsigned byte = 0; byte < BEAT_BYTES; ++byte) {
      if (data.strobes >> byte & 1) target[byte] = data.data[byte];
    }
  }

  void respond(const Surroundings& around) {
    if (outputs_.bvalid || responses_.empty() || silence_.of(B, around.cycle)) return;
    if (responses_.front().when > static_cast<double>(around.cycle)) return;
    if (response_chance_.happens()) return;
    outputs_.bvalid = true;
    outputs_.bresp = responses_.front().response;
    responses_.pop();
  }

  unsigned index_ = 0, stream_ = 0;
  Ring<Burst, 32> bursts_;
  Ring<Pending, 64> responses_;
  Silence silence_;
  Outputs outputs_{};
  Counters counters_{};
  Chance address_chance_, data_chance_, response_chance_;
  StableChannel<AddressPayload> address_check_;
  StableChannel<DataPayload> data_check_;
};

}  // namespace edgerun
