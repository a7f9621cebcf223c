# Constraints of the overlay on every board. It has no pins of its own, and its only clock
# comes from the processing system, whose IP constrains it. NOT RUN HERE: no Vivado was at hand.

# The reset leaves a synchroniser (proc_sys_reset) and fans out to the whole engine: let the tool
# duplicate its driver instead of routing one net everywhere.
set_property -quiet MAX_FANOUT 512 [get_nets -quiet -hierarchical -filter {NAME =~ *reset/peripheral_aresetn*}]

# Smaller files load faster, and the configuration logic checks its own CRC.
set_property BITSTREAM.GENERAL.COMPRESS TRUE [current_design]
