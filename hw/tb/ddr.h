// A model of one DRAM channel that all memory ports share.
//
// What it has: banks with one open row each (activate, precharge, least time open), a data bus of
// so many bytes a cycle, refresh, the loss when the bus turns from reading to writing, and a
// controller that serves open rows first, ports in turn, up to a limit of hits in a row's favour.
// What it has not: bank groups, ranks, and the queues inside a processing system's interconnect;
// `latency` stands for that path as a constant. Times are in cycles of the overlay's clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ring.h"

namespace edgerun {

// Mirrored by `_DdrOptions` in edgerun_hw/simulate/library.py.
struct DdrOptions {
  double bytes_per_cycle;   // of the data bus; 0 means ideal memory: only `latency` counts
  double activate;          // tRCD: from opening a row to its first access
  double precharge;         // tRP: closing a row
  double row_active;        // tRAS: least time a row stays open
  double activate_spacing;  // tFAW / 4: least time between two activates
  double refresh_interval;  // tREFI; 0 means no refresh
  double refresh_length;    // tRFC
  double turnaround;        // bus idle when it changes direction
  double latency;           // from the access to the first beat at the port, CAS latency included
  uint32_t banks;
  uint32_t row_bytes;       // of one bank, over the channel's whole width
  uint32_t line_bytes;      // of one access (burst length times bus width)
  uint32_t row_hit_limit;   // accesses to an open row while another one of that bank waits
  uint32_t write_batch;     // lines written before the bus turns back to waiting reads
};

// Mirrored by `_DdrCounters` in edgerun_hw/simulate/library.py.
struct DdrCounters {
  uint64_t lines_read;
  uint64_t lines_written;
  uint64_t row_hits;      // accesses that found their row open
  uint64_t row_misses;    // activates
  uint64_t refreshes;
  double refresh_cycles;  // lost to refresh
  double turnaround_cycles;
};

constexpr unsigned MAX_STREAMS = 8;
constexpr unsigned MAX_BANKS = 64;
constexpr unsigned BEAT_BYTES = 16;

class Ddr {
 public:
  struct Arrival {
    double when;
    uint32_t beats;
  };

  void configure(const DdrOptions& options, unsigned streams) {
    options_ = options;
    streams_ = streams;
    line_cycles_ = ideal() ? 0 : options.line_bytes / options.bytes_per_cycle;
    next_refresh_ = options.refresh_interval;
    row_shift_ = shift(options.row_bytes);
    bank_shift_ = shift(options.banks);
  }

  // Whether nothing waits for the data bus.
  bool quiet() const { return pending_ == 0; }
  bool ideal() const { return options_.bytes_per_cycle <= 0; }
  double latency() const { return options_.latency; }
  const DdrCounters& counters() const { return counters_; }
  void clear_counters() { counters_ = DdrCounters{}; }

  // Whether `stream` may hand in another burst.
  bool has_room(unsigned stream) const { return !queue_[stream].full(); }

  // Forgets what is under way; the DRAM's own state (open rows, refresh) stays.
  void reset() {
    for (auto& queue : queue_) queue.clear();
    for (auto& queue : arrivals_) queue.clear();
    pending_ = pending_writes_ = 0;
    write_beats_ = 0;
  }

  // Asks for `beats` of 16 bytes from `address`; they arrive in order.
  void request(unsigned stream, uint64_t address, uint32_t beats, bool write, double now) {
    if (ideal()) {
      if (!write) arrivals_[stream].push({now + options_.latency, beats});
      return;
    }
    Burst burst{address, beats, write};
    const bool was_empty = queue_[stream].empty();
    queue_[stream].push(burst);
    ++pending_;
    if (write) {
      ++pending_writes_;
      write_beats_ += beats;
    }
    if (was_empty) locate(stream);
  }

  // Beats that have arrived for `stream` by `now`, removed from its queue.
  uint32_t collect(unsigned stream, double now) {
    uint32_t beats = 0;
    auto& queue = arrivals_[stream];
    while (!queue.empty() && queue.front().when <= now) {
      beats += queue.front().beats;
      queue.pop();
    }
    return beats;
  }

  // One cycle of the overlay's clock.
  void tick(double now) {
    if (ideal()) return;
    if (options_.refresh_interval > 0 && now >= next_refresh_) refresh(now);
    if (!pending_) return;
    choose_direction(now);
    prepare_rows(now);
    while (bus_free_ < now + 1 && transfer_one(now)) {
    }
  }

 private:
  struct Burst {
    uint64_t address;
    uint32_t beats;
    bool write;
  };
  struct Bank {
    int64_t row = -1;
    double ready = 0;   // when the row may be accessed
    double opened = 0;
    double used = 0;    // end of the last transfer
    uint32_t hits = 0;  // in this row's favour
  };

  void locate(unsigned stream) {
    const uint64_t row_number = queue_[stream].front().address >> row_shift_;
    bank_[stream] = static_cast<unsigned>(row_number & (options_.banks - 1));
    row_[stream] = static_cast<int64_t>(row_number >> bank_shift_);
  }

  static unsigned shift(uint32_t power_of_two) {
    unsigned bits = 0;
    while (power_of_two >> (bits + 1)) ++bits;
    return bits;
  }

  // The i-th stream after the one served last.
  unsigned turn(unsigned i) const {
    const unsigned stream = last_ + i;
    return stream < streams_ ? stream : stream - streams_;
  }

  bool is_open(unsigned stream) const { return banks_[bank_[stream]].row == row_[stream]; }

  void refresh(double now) {
    double start = std::max(now, bus_free_);
    for (unsigned bank = 0; bank < options_.banks; ++bank) {
      if (banks_[bank].row >= 0) start = std::max(start, banks_[bank].opened + options_.row_active);
    }
    const double end = start + options_.precharge + options_.refresh_length;
    for (unsigned bank = 0; bank < options_.banks; ++bank) {
      banks_[bank].row = -1;
      banks_[bank].ready = end;
    }
    bus_free_ = next_activate_ = end;
    next_refresh_ += options_.refresh_interval;
    ++counters_.refreshes;
    counters_.refresh_cycles += end - start;
  }

  // Reads go first, unless writes have piled up or are alone.
  void choose_direction(double now) {
    const uint64_t reads = pending_ - pending_writes_;
    bool write = writing_;
    if (!pending_writes_) {
      write = false;
    } else if (!reads) {
      write = true;
    } else if (writing_) {
      write = batch_ < options_.write_batch;
    } else {
      write = write_beats_ * BEAT_BYTES >= uint64_t{options_.write_batch} * options_.line_bytes;
    }
    if (write == writing_) return;
    writing_ = write;
    batch_ = 0;
    bus_free_ = std::max(bus_free_, now) + options_.turnaround;
    counters_.turnaround_cycles += options_.turnaround;
  }

  // Opens the rows that waiting streams need. Those of the bus's present direction go first, and
  // of those a row in use is not closed before its limit of hits; the others get banks that no
  // stream of the present direction needs.
  void prepare_rows(double now) {
    uint64_t wanted = 0, in_use = 0;
    bool any_miss = false;
    for (unsigned stream = 0; stream < streams_; ++stream) {
      if (queue_[stream].empty()) continue;
      const bool open = is_open(stream);
      any_miss |= !open;
      if (queue_[stream].front().write != writing_) continue;
      wanted |= uint64_t{1} << bank_[stream];
      if (open) in_use |= uint64_t{1} << bank_[stream];
    }
    if (!any_miss) return;
    for (unsigned i = 1; i <= streams_; ++i) {
      const unsigned stream = turn(i);
      if (queue_[stream].empty() || is_open(stream)) continue;
      const bool present = queue_[stream].front().write == writing_;
      Bank& bank = banks_[bank_[stream]];
      const uint64_t bit = uint64_t{1} << bank_[stream];
      if (bank.ready > now) continue;
      if (present ? (in_use & bit) && bank.hits < options_.row_hit_limit : (wanted & bit) != 0) {
        continue;
      }
      open(bank, row_[stream], now);
      in_use |= bit;
      wanted |= bit;
    }
  }

  void open(Bank& bank, int64_t row, double now) {
    double start = now;
    if (bank.row >= 0) {
      start = std::max({now, bank.opened + options_.row_active, bank.used}) + options_.precharge;
    }
    start = std::max(start, next_activate_);
    next_activate_ = start + options_.activate_spacing;
    bank.row = row;
    bank.opened = start;
    bank.ready = start + options_.activate;
    bank.hits = 0;
    fresh_ |= uint64_t{1} << (&bank - banks_);
    ++counters_.row_misses;
  }

  // Moves one line of the next stream in turn whose row is open; false if there is none.
  bool transfer_one(double now) {
    const double start = std::max(now, bus_free_);
    for (unsigned i = 1; i <= streams_; ++i) {
      const unsigned stream = turn(i);
      if (queue_[stream].empty() || queue_[stream].front().write != writing_) continue;
      Bank& bank = banks_[bank_[stream]];
      if (bank.row != row_[stream] || bank.ready > start) continue;
      last_ = stream;
      move(stream, bank, start);
      return true;
    }
    return false;
  }

  void move(unsigned stream, Bank& bank, double start) {
    Burst& burst = queue_[stream].front();
    const uint32_t offset = static_cast<uint32_t>(burst.address & (options_.line_bytes - 1));
    const uint32_t beats = std::min(burst.beats, (options_.line_bytes - offset) / BEAT_BYTES);
    bus_free_ = bank.used = start + line_cycles_;
    ++bank.hits;
    const uint64_t bit = uint64_t{1} << (&bank - banks_);
    if (fresh_ & bit) {
      fresh_ &= ~bit;
    } else {
      ++counters_.row_hits;
    }
    if (burst.write) {
      ++counters_.lines_written;
      ++batch_;
      write_beats_ -= beats;
    } else {
      ++counters_.lines_read;
      arrivals_[stream].push({bus_free_ + options_.latency, beats});
    }
    burst.address += beats * BEAT_BYTES;
    burst.beats -= beats;
    if (!burst.beats) {
      --pending_;
      if (burst.write) --pending_writes_;
      queue_[stream].pop();
    }
    if (!queue_[stream].empty()) locate(stream);
  }

  DdrOptions options_{};
  DdrCounters counters_{};
  unsigned streams_ = 0;
  unsigned last_ = 0;
  unsigned bank_[MAX_STREAMS] = {};
  int64_t row_[MAX_STREAMS] = {};
  Bank banks_[MAX_BANKS];
  Ring<Burst, 32> queue_[MAX_STREAMS];
  Ring<Arrival, 1024> arrivals_[MAX_STREAMS];
  uint64_t pending_ = 0, pending_writes_ = 0;  // bursts
  uint64_t write_beats_ = 0;
  unsigned row_shift_ = 0, bank_shift_ = 0;
  uint64_t fresh_ = 0;                         // banks opened and not yet accessed
  uint32_t batch_ = 0;                         // lines since the bus changed direction
  bool writing_ = false;
  double line_cycles_ = 0;
  double bus_free_ = 0;
  double next_activate_ = 0;
  double next_refresh_ = 0;
};

}  // namespace edgerun
