// A bench of a unit that takes commands and two streams, `x` and `w`, and gives one, `y`. Each moves
// with a probability per cycle.
//
//   BENCH IN OUT
//
// IN holds 32-bit words. Per case: seed, chances of x, w valid and y ready (of 256), the cycle of a
// reset in the midst (0: none), the most cycles, the numbers of commands and of x, w and y beats,
// then the commands, then the beats. Per case OUT gets the unit's report, then the y beats.
//
// A `Unit` has the model `Top`; how many words a command has (`kFields`) and ports a beat of w
// (`kPorts`); `command` and `observe`; and a `Report` with `cycles` until idle and `faults`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "streams.h"
#include "verilated.h"

namespace streams {

struct Case {
  uint32_t seed, chance_x, chance_w, chance_y, reset_at, most_cycles;
  uint32_t commands, x_beats, w_beats, y_beats;
};

template <typename Unit>
class Bench {
  using Top = typename Unit::Top;
  using Report = typename Unit::Report;

 public:
  Bench(const Case& c, const uint32_t* data)
      : c_(c), chances_{c.seed | 1}, commands_(data) {
    context_.randReset(2);  // nothing may depend on what a register or memory starts with
    context_.randSeed(static_cast<int>(c.seed & 0x7fffffff));
    top_.reset(new Top(&context_));
    const uint32_t* x = data + Unit::kFields * c.commands;
    const uint32_t* w = x + kBeatWords * c.x_beats;
    x_ = {x, c.x_beats, kBeatWords, c.chance_x};
    w_ = {w, c.w_beats, kBeatWords * Unit::kPorts, c.chance_w};
  }

  void run() {
    reset();
    if (c_.reset_at) {
      for (uint32_t i = 0; i < c_.reset_at; i++) cycle();
      report_ = {};
      results.clear();
      next_command_ = 0;
      x_.next = w_.next = 0;
      x_.valid = w_.valid = stalled_ = false;
      reset();
    }
    uint32_t idle = 0;  // a few cycles on, to see that nothing more comes
    while (idle < 50 && report_.cycles < c_.most_cycles) {
      bool done = next_command_ == c_.commands && results.size() >= kBeatWords * c_.y_beats &&
                  !top_->busy;
      idle = done ? idle + 1 : 0;
      cycle();
    }
    report_.cycles -= idle;
    report_.faults += results.size() != kBeatWords * c_.y_beats || x_.left() || w_.left();
  }

  const Report& report() const { return report_; }
  Words results;

 private:
  void tick() {
    top_->clk = 1;
    top_->eval();
    top_->clk = 0;
    top_->eval();
  }

  void reset() {
    top_->rst = 1;
    top_->cmd_valid = top_->x_valid = top_->w_valid = top_->y_ready = 0;
    top_->clk = 0;
    top_->eval();  // the first evaluation sees no edge
    tick();
    top_->rst = 0;
    top_->eval();
  }

  void cycle() {
    const uint32_t* command = commands_ + Unit::kFields * next_command_;
    top_->cmd_valid = next_command_ < c_.commands;
    if (top_->cmd_valid) Unit::command(*top_, command);
    x_.offer(chances_, top_->x_valid, top_->x_data);
    w_.offer(chances_, top_->w_valid, top_->w_data);
    top_->y_ready = chances_.hit(c_.chance_y);
    top_->eval();
    observe();
    next_command_ += top_->cmd_valid && top_->cmd_ready;
    x_.after(top_->x_ready);
    w_.after(top_->w_ready);
    tick();
  }

  void observe() {
    report_.cycles++;
    Unit::observe(*top_, report_);
    if (stalled_ && (!top_->y_valid || std::memcmp(held_, &top_->y_data[0], 16) != 0))
      report_.faults++;
    std::memcpy(held_, &top_->y_data[0], 16);
    stalled_ = top_->y_valid && !top_->y_ready;
    if (top_->y_valid && top_->y_ready)
      for (int i = 0; i < kBeatWords; i++) results.push_back(top_->y_data[i]);
  }

  Case c_;
  Chances chances_;
  const uint32_t* commands_;
  VerilatedContext context_;
  std::unique_ptr<Top> top_;
  Producer x_, w_;
  uint32_t next_command_ = 0;
  uint32_t held_[kBeatWords] = {};
  bool stalled_ = false;
  Report report_;
};

template <typename Unit>
int run_cases(int argc, char** argv) {
  if (argc != 3) return 2;
  Words in = read_words(argv[1]);
  std::unique_ptr<FILE, int (*)(FILE*)> out(std::fopen(argv[2], "wb"), std::fclose);
  if (!out) return 2;
  for (size_t at = 0; at < in.size();) {
    Case c;
    std::memcpy(&c, &in[at], sizeof c);
    at += sizeof c / 4;
    Bench<Unit> bench(c, &in[at]);
    bench.run();
    at += Unit::kFields * c.commands + kBeatWords * (c.x_beats + Unit::kPorts * c.w_beats);
    // Always as many beats as were expected, so that the reader finds the next case.
    bench.results.resize(kBeatWords * c.y_beats);
    std::fwrite(&bench.report(), sizeof(typename Unit::Report), 1, out.get());
    std::fwrite(bench.results.data(), 4, bench.results.size(), out.get());
  }
  return 0;
}

}  // namespace streams
