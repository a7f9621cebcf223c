// The harness as C functions, for ctypes (edgerun_hw/simulate/library.py).
//
// Functions that can fail return a Status. A harness may be used by one thread at a time.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

#include "harness.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using edgerun::DdrCounters;
using edgerun::Fault;
using edgerun::Harness;
using edgerun::Options;

namespace {

// Mirrored by `_Status` in library.py.
enum Status : int { DONE = 0, TIMED_OUT = 1, ERROR_RESPONSE = 2, REFUSED = 3 };

// Mirrored by `_Counters` in library.py.
struct Counters {
  uint64_t cycles;
  uint64_t read_bursts[8], read_beats[8];
  uint64_t write_bursts, write_beats;
  uint64_t faults;
  DdrCounters ddr;
};

// Runs until the transaction under way is over.
Status finish_transaction(Harness& harness, uint64_t limit) {
  harness.drive();
  for (uint64_t i = 0; i < limit && harness.lite.busy(); ++i) harness.cycle();
  if (harness.lite.busy()) return TIMED_OUT;
  return harness.lite.response() == edgerun::OKAY ? DONE : ERROR_RESPONSE;
}

thread_local std::string last_message;

}  // namespace

EXPORT int edgerun_abi() { return 2; }

EXPORT const char* edgerun_message() { return last_message.c_str(); }

EXPORT Harness* edgerun_create(const Options* options) {
  try {
    return new Harness(*options);
  } catch (const std::exception& error) {
    last_message = error.what();
    return nullptr;
  }
}

EXPORT void edgerun_destroy(Harness* harness) { delete harness; }

EXPORT void edgerun_reset(Harness* harness, uint64_t cycles) { harness->reset(cycles); }

EXPORT void edgerun_step(Harness* harness, uint64_t cycles) {
  for (uint64_t i = 0; i < cycles; ++i) harness->cycle();
}

// Runs until the interrupt line is up; returns whether it is.
EXPORT int edgerun_step_until_interrupt(Harness* harness, uint64_t limit) {
  for (uint64_t i = 0; i < limit && !harness->interrupt(); ++i) harness->cycle();
  return harness->interrupt();
}

EXPORT uint64_t edgerun_cycle(const Harness* harness) { return harness->around.cycle; }

EXPORT int edgerun_interrupt(const Harness* harness) { return harness->interrupt(); }

EXPORT int edgerun_read(Harness* harness, uint32_t offset, uint32_t* value, uint64_t limit) {
  if (harness->lite.busy()) return REFUSED;
  harness->lite.start_read(offset, {});
  const Status status = finish_transaction(*harness, limit);
  *value = harness->lite.data();
  return status;
}

EXPORT int edgerun_write(Harness* harness, uint32_t offset, uint32_t value, uint32_t strobes,
                         const edgerun::LitePort::Delays* delays, uint64_t limit) {
  if (harness->lite.busy()) return REFUSED;
  harness->lite.start_write(offset, value, strobes, *delays);
  return finish_transaction(*harness, limit);
}

// Reads a register every `interval` cycles until (register & mask) == wanted.
EXPORT int edgerun_poll(Harness* harness, uint32_t offset, uint32_t mask, uint32_t wanted,
                        uint64_t interval, uint64_t limit, uint32_t* value) {
  const uint64_t end = harness->around.cycle + limit;
  for (;;) {
    const int status = edgerun_read(harness, offset, value, limit);
    if (status != DONE || (*value & mask) == wanted) return status;
    if (harness->around.cycle >= end) return TIMED_OUT;
    edgerun_step(harness, std::min(interval, end - harness->around.cycle));
  }
}

EXPORT int edgerun_map(Harness* harness, uint64_t address, uint64_t nbytes, void* host) {
  const edgerun::Region region{address, nbytes, static_cast<uint8_t*>(host)};
  return harness->around.memory.add(region) ? DONE : REFUSED;
}

EXPORT int edgerun_unmap(Harness* harness, uint64_t address) {
  return harness->around.memory.remove(address) ? DONE : REFUSED;
}

EXPORT void edgerun_add_fault(Harness* harness, const Fault* fault) {
  harness->around.faults.push_back(*fault);
}

// Also ends silences under way.
EXPORT void edgerun_clear_faults(Harness* harness) {
  harness->around.faults.clear();
  for (auto& port : harness->read) port.end_silence();
  harness->write.end_silence();
}

EXPORT void edgerun_counters(const Harness* harness, Counters* counters) {
  *counters = Counters{};
  counters->cycles = harness->around.cycle - harness->counted_since;
  for (unsigned port = 0; port < edgerun::READ_PORTS; ++port) {
    counters->read_bursts[port] = harness->read[port].counters().bursts;
    counters->read_beats[port] = harness->read[port].counters().beats;
  }
  counters->write_bursts = harness->write.counters().bursts;
  counters->write_beats = harness->write.counters().beats;
  counters->faults = harness->around.faults_committed;
  counters->ddr = harness->around.ddr.counters();
}

EXPORT void edgerun_clear_counters(Harness* harness) { harness->clear_counters(); }

// Bursts that the memory has accepted and not finished, of all ports.
EXPORT uint64_t edgerun_outstanding(const Harness* harness) {
  uint64_t bursts = harness->write.waiting_bursts();
  for (const auto& port : harness->read) bursts += port.waiting_bursts();
  return bursts;
}

EXPORT uint64_t edgerun_violation_count(const Harness* harness) {
  return harness->around.violations.count();
}

// The index-th violation recorded, or null where there is none.
EXPORT const char* edgerun_violation(const Harness* harness, uint64_t index) {
  const auto& texts = harness->around.violations.texts();
  return index < texts.size() ? texts[index].c_str() : nullptr;
}

EXPORT void edgerun_clear_violations(Harness* harness) { harness->around.violations.clear(); }

EXPORT int edgerun_open_trace(Harness* harness, const char* path) {
  try {
    harness->open_trace(path);
    return DONE;
  } catch (const std::exception& error) {
    last_message = error.what();
    return REFUSED;
  }
}

EXPORT void edgerun_close_trace(Harness* harness) { harness->close_trace(); }

EXPORT int edgerun_write_coverage(Harness* harness, const char* path) {
  try {
    harness->write_coverage(path);
    return DONE;
  } catch (const std::exception& error) {
    last_message = error.what();
    return REFUSED;
  }
}

// A failed assertion in the RTL is a violation; Verilator's own would end the process.
void vl_finish(const char*, int, const char*) {}

void vl_stop(const char* file, int line, const char* scope) {
  Harness::running->violations.add(Harness::running->cycle, "%s:%d: $stop or a failed assertion in %s",
                                   file, line, scope);
}

void vl_fatal(const char* file, int line, const char* scope, const char* message) {
  Harness::running->violations.add(Harness::running->cycle, "%s:%d: %s in %s", file, line, message,
                                   scope);
}
