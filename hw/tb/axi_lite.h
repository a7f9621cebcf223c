// The processor's side of the AXI4-Lite port: one transaction at a time, as a driver makes them.
#pragma once

#include <cstdint>

#include "checks.h"
#include "faults.h"

namespace edgerun {

class LitePort {
 public:
  struct Outputs {
    bool awvalid, wvalid, bready, arvalid, rready;
    uint32_t address, wdata, wstrb;
  };
  struct Inputs {
    bool awready, wready, bvalid, arready, rvalid;
    uint32_t bresp, rresp, rdata;
  };

  LitePort() : write_check_("B (control)"), read_check_("R (control)") {}

  void configure(uint64_t seed, double backpressure) {
    chance_.seed(seed, 96);
    chance_.set(backpressure);
  }

  const Outputs& outputs() const { return outputs_; }
  bool busy() const { return writing_ || reading_; }
  uint32_t data() const { return data_; }
  uint32_t response() const { return response_; }

  // Cycles by which a transaction holds back its address, its data and its readiness for the response.
  struct Delays {
    uint32_t address, data, response;
  };

  void start_read(uint32_t address, const Delays& delays) {
    delays_ = delays;
    reading_ = want_address_ = true;
    outputs_.address = address;
    advance();
  }

  void start_write(uint32_t address, uint32_t data, uint32_t strobes, const Delays& delays) {
    delays_ = delays;
    writing_ = want_address_ = want_data_ = true;
    outputs_.address = address;
    outputs_.wdata = data;
    outputs_.wstrb = strobes;
    advance();
  }

  void reset() {
    writing_ = reading_ = want_address_ = want_data_ = false;
    outputs_ = Outputs{};
    write_check_.reset();
    read_check_.reset();
  }

  void clock(Violations& violations, uint64_t cycle, const Inputs& in) {
    write_check_.check(violations, cycle, 0, in.bvalid, outputs_.bready, in.bresp);
    read_check_.check(violations, cycle, 0, in.rvalid, outputs_.rready,
                      uint64_t{in.rdata} << 32 | in.rresp);
    if (!busy()) {
      if (in.bvalid) violations.add(cycle, "B (control): a response to nothing");
      if (in.rvalid) violations.add(cycle, "R (control): data that nothing asked for");
      return;
    }
    if (outputs_.awvalid && in.awready) outputs_.awvalid = false;
    if (outputs_.wvalid && in.wready) outputs_.wvalid = false;
    if (outputs_.arvalid && in.arready) outputs_.arvalid = false;
    if (in.bvalid && outputs_.bready) {
      if (!writing_) violations.add(cycle, "B (control): a response to nothing");
      finish(in.bresp, 0);
    } else if (in.rvalid && outputs_.rready) {
      if (!reading_) violations.add(cycle, "R (control): data that nothing asked for");
      finish(in.rresp, in.rdata);
    } else {
      advance();
    }
  }

 private:
  void finish(uint32_t response, uint32_t data) {
    response_ = response;
    data_ = data;
    writing_ = reading_ = want_address_ = want_data_ = false;
    outputs_.bready = outputs_.rready = false;
  }

  // Raises what is still to be raised, each signal with a delay of its own.
  void advance() {
    if (want_address_ && due(delays_.address) && !chance_.happens()) {
      (writing_ ? outputs_.awvalid : outputs_.arvalid) = true;
      want_address_ = false;
    }
    if (want_data_ && due(delays_.data) && !chance_.happens()) {
      outputs_.wvalid = true;
      want_data_ = false;
    }
    const bool ready = due(delays_.response) && !chance_.happens();
    outputs_.bready = writing_ && ready;
    outputs_.rready = reading_ && ready;
  }

  static bool due(uint32_t& delay) {
    if (!delay) return true;
    --delay;
    return false;
  }

  Outputs outputs_{};
  bool writing_ = false, reading_ = false, want_address_ = false, want_data_ = false;
  uint32_t data_ = 0, response_ = 0;
  Delays delays_{};
  Chance chance_;
  StableChannel<uint32_t> write_check_;
  StableChannel<uint64_t> read_check_;
};

}  // namespace edgerun
