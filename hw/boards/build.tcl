# Builds the overlay for a board:
#   edgerun fpga build --board kv260 --out build && vivado -mode batch -source build/build.tcl
# NOT RUN HERE: no Vivado was at hand. The flow is in common.tcl; settings.tcl beside this file is
# written by `edgerun fpga build` from board.toml and the geometry.
set here [file dirname [file normalize [info script]]]
source [file join $here settings.tcl]
source [file join $here common.tcl]
::edgerun::build
