// The DRAM model alone, for tests/hw/simulate/test_ddr_model.py: streams that read or write from address to
// address as fast as they are served.
#include <cstdint>

#include "ddr.h"

using edgerun::Ddr;
using edgerun::DdrCounters;
using edgerun::DdrOptions;
using edgerun::MAX_STREAMS;

// Mirrored in the test.
struct Stream {
  uint64_t address;    // of the first burst
  uint64_t stride;     // to the next
  uint32_t bursts, beats;
  uint32_t write;
  uint32_t depth;      // bursts that may be under way
  double finished;     // out: the cycle of the last beat
  uint64_t delivered;  // out: beats
};

// Returns the cycles until all streams were served, or -1 after `limit` cycles.
extern "C" double ddr_bench(const DdrOptions* options, Stream* streams, uint32_t count,
                            uint64_t limit, DdrCounters* counters) {
  Ddr ddr;
  ddr.configure(*options, count);
  uint32_t asked[MAX_STREAMS] = {};
  for (uint64_t cycle = 0; cycle < limit; ++cycle) {
    const double now = static_cast<double>(cycle);
    bool busy = false;
    for (uint32_t i = 0; i < count; ++i) {
      Stream& stream = streams[i];
      const uint32_t beats = ddr.collect(i, now);
      stream.delivered += beats;
      if (beats) stream.finished = now;
      const uint64_t done = stream.write ? asked[i] : stream.delivered / stream.beats;
      if (asked[i] < stream.bursts && asked[i] - done < stream.depth && ddr.has_room(i)) {
        const uint64_t address = stream.address + asked[i] * stream.stride;
        ddr.request(i, address, stream.beats, stream.write != 0, now);
        ++asked[i];
      }
      busy |= asked[i] < stream.bursts ||
              (!stream.write && stream.delivered < uint64_t{stream.bursts} * stream.beats);
    }
    ddr.tick(now);
    *counters = ddr.counters();
    if (!busy && ddr.quiet()) return now;
  }
  return -1;
}
