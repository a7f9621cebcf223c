// Runs the glue unit alone: feeds its streams and takes its results, each with a probability per
// cycle.
//
//   glue IN OUT
//
// IN holds 32-bit words. Per case: seed, chances of x, w valid and y ready (of 256), the cycle of a
// reset in the midst (0: none), the most cycles, the numbers of commands and of x, w and y beats,
// then the commands (gate, norm, length), then the beats. Per case OUT gets the cycles until idle,
// stalls for input and output, and faults; then the y beats.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "Vtlmm_glue.h"
#include "streams.h"
#include "verilated.h"

namespace {

using namespace streams;

constexpr int kFields = 3;  // of a command

struct Case {
  uint32_t seed, chance_x, chance_w, chance_y, reset_at, most_cycles;
  uint32_t commands, x_beats, w_beats, y_beats;
};

struct Report {
  uint32_t cycles = 0, stall_input = 0, stall_output = 0, faults = 0;
};

class Bench {
 public:
  Bench(const Case& c, const uint32_t* data)
      : c_(c), chances_{c.seed | 1}, commands_(data) {
    context_.randReset(2);  // nothing may depend on what a register or memory starts with
    context_.randSeed(static_cast<int>(c.seed & 0x7fffffff));
    top_.reset(new Vtlmm_glue(&context_));
    const uint32_t* x = data + kFields * c.commands;
    const uint32_t* w = x + kBeatWords * c.x_beats;
    x_ = {x, c.x_beats, kBeatWords, c.chance_x};
    w_ = {w, c.w_beats, kBeatWords, c.chance_w};
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
    const uint32_t* command = commands_ + kFields * next_command_;
    top_->cmd_valid = next_command_ < c_.commands;
    if (top_->cmd_valid) {
      top_->cmd_gate = command[0];
      top_->cmd_norm = command[1];
      top_->cmd_length = command[2];
    }
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
    report_.faults += (top_->ev_stall_input || top_->ev_stall_output) && !top_->busy;
    report_.faults += top_->ev_stall_input && top_->ev_stall_output;
    report_.stall_input += top_->ev_stall_input;
    report_.stall_output += top_->ev_stall_output;
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
  std::unique_ptr<Vtlmm_glue> top_;
  Producer x_, w_;
  uint32_t next_command_ = 0;
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
    at += kFields * c.commands + kBeatWords * (c.x_beats + c.w_beats);
    // Always as many beats as were expected, so that the reader finds the next case.
    bench.results.resize(kBeatWords * c.y_beats);
    std::fwrite(&bench.report(), sizeof(Report), 1, out.get());
    std::fwrite(bench.results.data(), 4, bench.results.size(), out.get());
  }
  return 0;
}
