// Runs the attention unit alone. A command is heads, units, queries and pairs; the report: cycles,
// beats of keys and values, stalls for beats, softmax and output, faults.

#include "Vtlmm_attention.h"
#include "queued.h"

namespace {

struct Attention {
  using Top = Vtlmm_attention;
  static constexpr int kFields = 4;
  static constexpr int kPorts = 4;

  struct Report {
    uint32_t cycles = 0, beats = 0, stall_beats = 0, stall_softmax = 0, stall_output = 0,
             faults = 0;
  };

  static void command(Top& top, const uint32_t* fields) {
    top.cmd_heads = fields[0];
    top.cmd_units = fields[1];
    top.cmd_queries = fields[2];
    top.cmd_pairs = fields[3];
  }

  static void observe(const Top& top, Report& report) {
    int events =
        top.ev_beat + top.ev_stall_beats + top.ev_stall_softmax + top.ev_stall_output;
    report.faults += events != top.busy;
    report.faults += top.ev_beat != (top.w_valid && top.w_ready);
    report.beats += top.ev_beat;
    report.stall_beats += top.ev_stall_beats;
    report.stall_softmax += top.ev_stall_softmax;
    report.stall_output += top.ev_stall_output;
  }
};

}  // namespace

int main(int argc, char** argv) { return streams::run_cases<Attention>(argc, argv); }
