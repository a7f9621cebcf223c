// Runs the glue unit alone. A command is gate, norm and length; the report: cycles, stalls for input
// and output, faults.

#include "Vtlmm_glue.h"
#include "queued.h"

namespace {

struct Glue {
  using Top = Vtlmm_glue;
  static constexpr int kFields = 3;
  static constexpr int kPorts = 1;

  struct Report {
    uint32_t cycles = 0, stall_input = 0, stall_output = 0, faults = 0;
  };

  static void command(Top& top, const uint32_t* fields) {
    top.cmd_gate = fields[0];
    top.cmd_norm = fields[1];
    top.cmd_length = fields[2];
  }

  static void observe(const Top& top, Report& report) {
    report.faults += top.ev_stall_input + top.ev_stall_output > top.busy;
    report.stall_input += top.ev_stall_input;
    report.stall_output += top.ev_stall_output;
  }
};

}  // namespace

int main(int argc, char** argv) { return streams::run_cases<Glue>(argc, argv); }
