// Gives `axi_address_rules` what stdin says, a line for each cycle (resetn valid ready addr len size
// burst cache prot), and goes on after a broken rule; what is broken, Verilator prints.
#include <cstdint>
#include <iostream>

#include "Vrules.h"

void vl_stop(const char*, int, const char*) {}

int main() {
  VerilatedContext context;
  Vrules rules(&context);
  unsigned resetn, valid, ready, len, size, burst, cache, prot;
  uint64_t addr;
  while (std::cin >> resetn >> valid >> ready >> addr >> len >> size >> burst >> cache >> prot) {
    rules.resetn = resetn;
    rules.valid = valid;
    rules.ready = ready;
    rules.addr = addr;
    rules.len = len;
    rules.size = size;
    rules.burst = burst;
    rules.cache = cache;
    rules.prot = prot;
    for (unsigned clk = 0; clk < 2; ++clk) {
      rules.clk = clk;
      rules.eval();
      context.timeInc(1);
    }
  }
  rules.final();
  return 0;
}
