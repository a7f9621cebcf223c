// Runs the engine alone: feeds its streams and takes its results, each with a probability per cycle.
//
//   engine IN OUT
//
// IN holds 32-bit words. Per case: seed, chances of x, w, s valid and y ready (of 256), the cycle
// of a reset in the midst (0: none), the most cycles, the numbers of commands and of x, w, s and y
// beats, then the commands (mode, scale, row_beats, tiles, columns), then the beats. Per case OUT
// gets the cycles until idle, those from the first to the last beat of weights, lookups, stalls for
// weights, tables and output, and faults; then the y beats, and for each one whether it was the
// last of a command.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "Vtlmm_engine.h"
#include "streams.h"
#include "verilated.h"

namespace {

constexpr int kPorts = PORTS;  // given to the compiler
using namespace streams;

struct Case {
  uint32_t seed, chance_x, chance_w, chance_s, chance_y, reset_at, most_cycles;
  uint32_t commands, x_beats, w_beats, s_beats, y_beats;
};

struct Report {
  uint32_t cycles = 0, lookup_span = 0, lookups = 0;
  uint32_t stall_weights = 0, stall_tables = 0, stall_output = 0, faults = 0;
};

class Bench {
 public:
  Bench(const Case& c, const uint32_t* data)
      : c_(c), chances_{c.seed | 1}, commands_(data) {
    context_.randReset(2);  // nothing may depend on what a register or memory starts with
    context_.randSeed(static_cast<int>(c.seed & 0x7fffffff));
    top_.reset(new Vtlmm_engine(&context_));
    const uint32_t* x = data + 5 * c.commands;
    const uint32_t* w = x + kBeatWords * c.x_beats;
    const uint32_t* s = w + kBeatWords * kPorts * c.w_beats;
    x_ = {x, c.x_beats, kBeatWords, c.chance_x};
    w_ = {w, c.w_beats, kBeatWords * kPorts, c.chance_w};
    s_ = {s, c.s_beats, kBeatWords, c.chance_s};
  }

  void run() {
    reset();
    if (c_.reset_at) {
      for (uint32_t i = 0; i < c_.reset_at; i++) cycle();
      report_ = {};
      results.clear();
      lasts.clear();
      next_command_ = first_lookup_ = 0;
      x_.next = w_.next = s_.next = 0;
      x_.valid = w_.valid = s_.valid = stalled_ = false;
      reset();
    }
    uint32_t idle = 0;  // a few cycles on, to see that nothing more comes
    while (idle < 50 && report_.cycles < c_.most_cycles) {
      bool done = next_command_ == c_.commands && lasts.size() >= c_.y_beats && !top_->busy;
      idle = done ? idle + 1 : 0;
      cycle();
    }
    report_.cycles -= idle;
    report_.faults += lasts.size() != c_.y_beats || x_.left() || w_.left() || s_.left();
  }

  const Report& report() const { return report_; }
  Words results, lasts;

 private:
  void tick() {
    top_->clk = 1;
    top_->eval();
    top_->clk = 0;
    top_->eval();
  }

  void reset() {
    top_->rst = 1;
    top_->cmd_valid = top_->x_valid = top_->w_valid = top_->s_valid = top_->y_ready = 0;
    top_->clk = 0;
    top_->eval();  // the first evaluation sees no edge
    tick();
    top_->rst = 0;
    top_->eval();
  }

  void cycle() {
    const uint32_t* command = commands_ + 5 * next_command_;
    top_->cmd_valid = next_command_ < c_.commands;
    if (top_->cmd_valid) {
      top_->cmd_mode = command[0];
      top_->cmd_scale = command[1];
      top_->cmd_row_beats = command[2];
      top_->cmd_tiles = command[3];
      top_->cmd_columns = command[4];
    }
    x_.offer(chances_, top_->x_valid, top_->x_data);
    w_.offer(chances_, top_->w_valid, top_->w_data);
    s_.offer(chances_, top_->s_valid, top_->s_data);
    top_->y_ready = chances_.hit(c_.chance_y);
    top_->eval();
    observe();
    next_command_ += top_->cmd_valid && top_->cmd_ready;
    x_.after(top_->x_ready);
    w_.after(top_->w_ready);
    s_.after(top_->s_ready);
    tick();
  }

  void observe() {
    report_.cycles++;
    int events = top_->ev_lookup + top_->ev_stall_weights + top_->ev_stall_tables +
                 top_->ev_stall_output;
    report_.faults += events != top_->busy;
    report_.faults += top_->ev_lookup != (top_->w_valid && top_->w_ready);
    report_.lookups += top_->ev_lookup;
    report_.stall_weights += top_->ev_stall_weights;
    report_.stall_tables += top_->ev_stall_tables;
    report_.stall_output += top_->ev_stall_output;
    if (top_->ev_lookup) {
      if (!first_lookup_) first_lookup_ = report_.cycles;
      report_.lookup_span = report_.cycles - first_lookup_ + 1;
    }
    if (stalled_ && (!top_->y_valid || std::memcmp(held_, &top_->y_data[0], 16) != 0))
      report_.faults++;
    std::memcpy(held_, &top_->y_data[0], 16);
    stalled_ = top_->y_valid && !top_->y_ready;
    if (top_->y_valid && top_->y_ready) {
      for (int i = 0; i < kBeatWords; i++) results.push_back(top_->y_data[i]);
      lasts.push_back(top_->y_last);
    }
  }

  Case c_;
  Chances chances_;
  const uint32_t* commands_;
  VerilatedContext context_;
  std::unique_ptr<Vtlmm_engine> top_;
  Producer x_, w_, s_;
  uint32_t next_command_ = 0, first_lookup_ = 0;
  uint32_t held_[kBeatWords] = {};
  bool stalled_ = false;
  Report report_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Words in = read_words(argv[1]);
  std::unique_ptr<FILE, int (*)(FILE*)> out(std::fopen(argv[2], "wb"), std::fclose);
  if (!out) return 2;
  for (size_t at = 0; at < in.size();) {
    Case c;
    std::memcpy(&c, &in[at], sizeof c);
    at += sizeof c / 4;
    Bench bench(c, &in[at]);
    bench.run();
    at += 5 * c.commands + kBeatWords * (c.x_beats + kPorts * c.w_beats + c.s_beats);
    // Always as many beats as were expected, so that the reader finds the next case.
    bench.results.resize(kBeatWords * c.y_beats);
    bench.lasts.resize(c.y_beats, 2);
    std::fwrite(&bench.report(), sizeof(Report), 1, out.get());
    std::fwrite(bench.results.data(), 4, bench.results.size(), out.get());
    std::fwrite(bench.lasts.data(), 4, bench.lasts.size(), out.get());
  }
  return 0;
}
