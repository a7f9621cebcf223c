// The verilated overlay with a processor at its control port and memory at the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "Voverlay.h"
#include "axi_lite.h"
#include "axi_read.h"
#include "axi_write.h"
#include "pins.h"
#ifdef EDGERUN_TRACE_VCD
#include "verilated_vcd_c.h"
using TraceFile = VerilatedVcdC;
#endif

namespace edgerun {

constexpr unsigned PORTS = EDGERUN_PORTS;
constexpr unsigned ADDRESS_BITS = EDGERUN_ADDR_BITS;
constexpr unsigned READ_PORTS = PORTS + 1;    // the data port comes last
constexpr unsigned WRITE_STREAM = PORTS + 1;  // of the DRAM's streams

// Mirrored by `_Options` in edgerun_hw/simulate/library.py.
struct Options {
  uint64_t seed;
  double weight_backpressure, data_backpressure, control_backpressure;
  uint32_t max_burst, outstanding;
  DdrOptions ddr;
};

class Harness {
 public:
  explicit Harness(const Options& options);
  ~Harness();

  void cycle();
  void drive();  // after a transaction was started, so that its signals reach the pins
  void reset(uint64_t cycles);
  void clear_counters();
  bool interrupt() const { return model_->irq; }
  void open_trace(const char* path);
  void close_trace();
  void write_coverage(const char* path);

  // Of the harness that this thread evaluates, for Verilator's callbacks.
  static thread_local Surroundings* running;

  Surroundings around;
  LitePort lite;
  ReadPort read[READ_PORTS];
  WritePort write;
  uint64_t counted_since = 0;  // the cycle in which the counters were cleared

 private:
  void clock_weight_ports();
  void clock_data_port();
  void clock_control_port();
  void check_quiet_in_reset();
  void dump();

  VerilatedContext context_;
  std::unique_ptr<Voverlay> model_;
  bool in_reset_ = false;
#ifdef EDGERUN_TRACE_VCD
  std::unique_ptr<TraceFile> trace_;
#endif
};

}  // namespace edgerun
