#include "harness.h"

#include <stdexcept>

#if VM_COVERAGE
#include "verilated_cov.h"
#endif

namespace edgerun {

thread_local Surroundings* Harness::running = nullptr;

Harness::Harness(const Options& options) {
  running = &around;
  context_.randReset(2);  // what the RTL does not initialise starts at random
  context_.randSeed(static_cast<int>(options.seed % 2147483646) + 1);
#ifdef EDGERUN_TRACE_VCD
  context_.traceEverOn(true);
#endif
  model_ = std::make_unique<Voverlay>(&context_, "overlay");
  around.max_burst = options.max_burst;
  around.outstanding = options.outstanding;
  around.ddr.configure(options.ddr, READ_PORTS + 1);
  for (unsigned port = 0; port < READ_PORTS; ++port) {
    const bool weights = port < PORTS;
    read[port].configure(port, options.seed,
                         weights ? options.weight_backpressure : options.data_backpressure);
  }
  write.configure(PORTS, WRITE_STREAM, options.seed, options.data_backpressure);
  lite.configure(options.seed, options.control_backpressure);
  model_->aresetn = 0;
  model_->aclk = 0;
  drive();
  model_->eval();
}

Harness::~Harness() {
  close_trace();
  model_->final();
}

void Harness::cycle() {
  running = &around;
  model_->aclk = 0;
  model_->eval();  // lets the inputs that `drive` set settle
  dump();
  if (in_reset_) {
    check_quiet_in_reset();
  } else {
    clock_weight_ports();
    clock_data_port();
    clock_control_port();
    around.ddr.tick(static_cast<double>(around.cycle));
  }
  // What the overlay sees at the edge is what it saw settle: the new outputs come after it.
  model_->aclk = 1;
  model_->eval();
  dump();
  ++around.cycle;
  drive();
}

void Harness::clock_weight_ports() {
  for (unsigned port = 0; port < PORTS; ++port) {
    const bool valid = bits(model_->m_axi_w_arvalid, port, 1);
    uint64_t address = 0;
    uint32_t length = 0;
    if (valid) {
      address = bits(model_->m_axi_w_araddr, ADDRESS_BITS * port, ADDRESS_BITS);
      length = static_cast<uint32_t>(bits(model_->m_axi_w_arlen, 8 * port, 8));
    }
    read[port].clock(around, valid, address, length, bits(model_->m_axi_w_rready, port, 1));
  }
}

void Harness::clock_data_port() {
  Voverlay& model = *model_;
  read[PORTS].clock(around, model.m_axi_d_arvalid, model.m_axi_d_araddr, model.m_axi_d_arlen,
                    model.m_axi_d_rready);
  DataPayload data{};
  if (model.m_axi_d_wvalid) {
    std::memcpy(data.data, &model.m_axi_d_wdata[0], BEAT_BYTES);
    data.strobes = model.m_axi_d_wstrb;
    data.last = model.m_axi_d_wlast;
  }
  write.clock(around, model.m_axi_d_awvalid, model.m_axi_d_awaddr, model.m_axi_d_awlen,
              model.m_axi_d_wvalid, data, model.m_axi_d_bready);
}

void Harness::clock_control_port() {
  const Voverlay& model = *model_;
  LitePort::Inputs in{};
  in.awready = model.s_axi_control_awready;
  in.wready = model.s_axi_control_wready;
  in.bvalid = model.s_axi_control_bvalid;
  in.bresp = model.s_axi_control_bresp;
  in.arready = model.s_axi_control_arready;
  in.rvalid = model.s_axi_control_rvalid;
  in.rresp = model.s_axi_control_rresp;
  in.rdata = model.s_axi_control_rdata;
  lite.clock(around.violations, around.cycle, in);
}

// Puts the surroundings' outputs on the overlay's inputs.
void Harness::drive() {
  Voverlay& model = *model_;
  uint32_t arready = 0, rvalid = 0, rlast = 0, rresp = 0;
  for (unsigned port = 0; port < PORTS; ++port) {
    const ReadPort::Outputs& out = read[port].outputs();
    arready |= uint32_t{out.arready} << port;
    rvalid |= uint32_t{out.rvalid} << port;
    rlast |= uint32_t{out.rlast} << port;
    rresp |= out.rresp << (2 * port);
    if (out.rvalid) put_beat(model.m_axi_w_rdata, port, out.rdata);
  }
  model.m_axi_w_arready = arready;
  model.m_axi_w_rvalid = rvalid;
  model.m_axi_w_rlast = rlast;
  model.m_axi_w_rresp = rresp;
  const ReadPort::Outputs& data = read[PORTS].outputs();
  model.m_axi_d_arready = data.arready;
  model.m_axi_d_rvalid = data.rvalid;
  model.m_axi_d_rlast = data.rlast;
  model.m_axi_d_rresp = data.rresp;
  if (data.rvalid) put_beat(model.m_axi_d_rdata, 0, data.rdata);
  model.m_axi_d_awready = write.outputs().awready;
  model.m_axi_d_wready = write.outputs().wready;
  model.m_axi_d_bvalid = write.outputs().bvalid;
  model.m_axi_d_bresp = write.outputs().bresp;
  const LitePort::Outputs& control = lite.outputs();
  model.s_axi_control_awvalid = control.awvalid;
  model.s_axi_control_awaddr = control.address;
  model.s_axi_control_wvalid = control.wvalid;
  model.s_axi_control_wdata = control.wdata;
  model.s_axi_control_wstrb = control.wstrb;
  model.s_axi_control_bready = control.bready;
  model.s_axi_control_arvalid = control.arvalid;
  model.s_axi_control_araddr = control.address;
  model.s_axi_control_rready = control.rready;
}

// AXI, A3.1.2: VALID of every channel that the overlay drives is low in reset. It may need the
// first edge to get there.
void Harness::check_quiet_in_reset() {
  const Voverlay& model = *model_;
  const bool quiet = !(model.m_axi_w_arvalid || model.m_axi_d_arvalid || model.m_axi_d_awvalid ||
                       model.m_axi_d_wvalid || model.s_axi_control_bvalid ||
                       model.s_axi_control_rvalid);
  if (!quiet) around.violations.add(around.cycle, "reset: a VALID of the overlay is up");
}

void Harness::reset(uint64_t cycles) {
  for (ReadPort& port : read) port.reset();
  write.reset();
  lite.reset();
  around.ddr.reset();
  model_->aresetn = 0;
  drive();
  in_reset_ = true;
  running = &around;
  for (uint64_t i = 0; i < 2; ++i) {  // without checks
    model_->aclk = 0;
    model_->eval();
    dump();
    model_->aclk = 1;
    model_->eval();
    dump();
    ++around.cycle;
  }
  for (uint64_t i = 0; i < cycles; ++i) cycle();
  model_->aresetn = 1;
  in_reset_ = false;
}

void Harness::clear_counters() {
  for (ReadPort& port : read) port.clear_counters();
  write.clear_counters();
  around.ddr.clear_counters();
  around.faults_committed = 0;
  counted_since = around.cycle;
}

void Harness::dump() {
#ifdef EDGERUN_TRACE_VCD
  context_.timeInc(1);
  if (trace_) trace_->dump(context_.time());
#endif
}

void Harness::open_trace(const char* path) {
#ifdef EDGERUN_TRACE_VCD
  close_trace();
  trace_ = std::make_unique<TraceFile>();
  model_->trace(trace_.get(), 99);
  trace_->open(path);
  if (!trace_->isOpen()) {
    trace_.reset();
    throw std::runtime_error("the file cannot be written");
  }
#else
  (void)path;
  throw std::runtime_error("the simulator was built without traces");
#endif
}

void Harness::close_trace() {
#ifdef EDGERUN_TRACE_VCD
  if (trace_) trace_->close();
  trace_.reset();
#endif
}

void Harness::write_coverage(const char* path) {
#if VM_COVERAGE
  context_.coveragep()->write(path);
#else
  (void)path;
  throw std::runtime_error("the simulator was built without coverage");
#endif
}

}  // namespace edgerun
