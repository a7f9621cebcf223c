# The Vivado flow that all boards share: package the overlay as an IP, draw the block design, build,
# refuse a design that misses timing, export. Sourced by <board>/build.tcl in a folder that
# `edgerun fpga build` has written. NOT RUN HERE: written against the documented commands (UG835,
# UG994, UG1118) and tested with stand-ins for them; no Vivado was at hand.
#
# `settings` is an array made by `edgerun fpga build` from board.toml and the geometry:
#   name part board_parts board_connections family pl_mhz weight_ports data_port port_bits
#   control_port control_address control_bytes top vlnv version jobs
#   parameters (name value ...), ports (number of weight ports in use), rtl (files), constraints

namespace eval ::edgerun {
    variable root [file dirname [file normalize [info script]]]
    variable design tlmm_system
    # Numbers by which the processing system's parameters know its ports.
    variable port_number
    array set port_number {HPC0 0 HPC1 1 HP0 2 HP1 3 HP2 4 HP3 5}
}

proc ::edgerun::say {text} {
    puts "edgerun: $text"
}

# Ends with an error that batch mode turns into a non-zero exit code.
proc ::edgerun::fail {text} {
    error "edgerun: $text"
}

proc ::edgerun::check_settings {} {
    global settings
    foreach key {name part board_parts board_connections family pl_mhz weight_ports data_port
                 port_bits control_port control_address control_bytes top vlnv version jobs
                 parameters ports rtl constraints} {
        if {![info exists settings($key)]} {
            fail "settings.tcl lacks '$key': write the folder again with `edgerun fpga build`"
        }
    }
    foreach file [concat $settings(rtl) $settings(constraints)] {
        if {![file exists $file]} {
            fail "the file $file is missing: write the folder again with `edgerun fpga build`"
        }
    }
    if {$settings(ports) > [llength $settings(weight_ports)]} {
        fail "the geometry has $settings(ports) weight ports, but $settings(name) has\
              [llength $settings(weight_ports)] for them: choose another geometry"
    }
}

# The newest installed version of an IP of Vivado's own catalogue.
proc ::edgerun::catalogue {ip} {
    set found [lsort -dictionary [get_ipdefs -all "xilinx.com:ip:$ip:*"]]
    if {[llength $found] == 0} {
        fail "this Vivado has no IP '$ip': install the device family of the part"
    }
    return [lindex $found end]
}

proc ::edgerun::add_cell {ip name} {
    return [create_bd_cell -type ip -vlnv [catalogue $ip] $name]
}

proc ::edgerun::connect {from to} {
    connect_bd_intf_net [get_bd_intf_pins $from] [get_bd_intf_pins $to]
}

proc ::edgerun::connect_net {from args} {
    foreach to $args {
        connect_bd_net [get_bd_pins $from] [get_bd_pins $to]
    }
}

# ---- The IP -------------------------------------------------------------------------------------

proc ::edgerun::package_ip {folder} {
    global settings
    say "packaging $settings(vlnv) in $folder"
    lassign [split $settings(vlnv) :] vendor library name version
    create_project -force -part $settings(part) tlmm_package [file join $folder project]
    add_files -norecurse $settings(rtl)
    set_property top $settings(top) [current_fileset]
    update_compile_order -fileset sources_1
    ipx::package_project -root_dir [file join $folder ip] -vendor $vendor -library $library \
        -taxonomy /UserIP -import_files -set_current true
    set core [ipx::current_core]
    set_property name $name $core
    set_property version $version $core
    set_property display_name "edgerun table-lookup engine" $core
    set_property description "Ternary and low-bit matrix multiplication by table lookup" $core
    set_property core_revision $settings(version) $core
    # Ports beyond the number in use disappear from the symbol, and their inputs are tied low.
    for {set port 1} {$port < 4} {incr port} {
        set interface [ipx::get_bus_interfaces "m_axi_w$port" -of_objects $core]
        set_property enablement_dependency "\$PORTS > $port" $interface
    }
    foreach port [ipx::get_ports -of_objects $core -filter {direction == in}] {
        set_property driver_value 0 $port
    }
    ipx::create_xgui_files $core
    ipx::update_checksums $core
    ipx::check_integrity $core
    ipx::save_core $core
    close_project
}

# ---- The processing system ----------------------------------------------------------------------

# Zynq UltraScale+: ports are 128 bits wide, and every port brings its own clock pin.
proc ::edgerun::processor_zynqmp {} {
    global settings
    variable port_number
    set ps [add_cell zynq_ultra_ps_e ps]
    apply_bd_automation -rule xilinx.com:bd_rule:zynq_ultra_ps_e \
        -config {apply_board_preset 1} $ps
    set wanted [list \
        CONFIG.PSU__FPGA_PL0_ENABLE 1 \
        CONFIG.PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ $settings(pl_mhz) \
        CONFIG.PSU__USE__IRQ0 1 \
        CONFIG.PSU__USE__M_AXI_GP0 1 CONFIG.PSU__MAXIGP0__DATA_WIDTH 128 \
        CONFIG.PSU__USE__M_AXI_GP1 0 \
        CONFIG.PSU__USE__M_AXI_GP2 0]
    foreach port [used_ports] {
        set number $port_number($port)
        lappend wanted CONFIG.PSU__USE__S_AXI_GP$number 1 \
            CONFIG.PSU__SAXIGP${number}__DATA_WIDTH $settings(port_bits)
    }
    set_property -dict $wanted $ps
    say "asked for $settings(pl_mhz) MHz, the processing system gives\
         [get_property CONFIG.PSU__CRL_APB__PL0_REF_CTRL__ACT_FREQMHZ $ps]"
    set clocks ps/maxihpm0_fpd_aclk
    foreach port [used_ports] {
        lappend clocks ps/saxi[string tolower $port]_fpd_aclk
    }
    return [list ps/pl_clk0 ps/pl_resetn0 ps/pl_ps_irq0 $clocks]
}

# Zynq-7000: AXI3 ports of 64 bits; a SmartConnect converts both.
proc ::edgerun::processor_zynq7 {} {
    global settings
    set ps [add_cell processing_system7 ps]
    apply_bd_automation -rule xilinx.com:bd_rule:processing_system7 -config \
        {make_external "FIXED_IO, DDR" apply_board_preset 1 Master Disable Slave Disable} $ps
    set wanted [list \
        CONFIG.PCW_EN_CLK0_PORT 1 \
        CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ $settings(pl_mhz) \
        CONFIG.PCW_USE_FABRIC_INTERRUPT 1 \
        CONFIG.PCW_IRQ_F2P_INTR 1 \
        CONFIG.PCW_USE_M_AXI_GP0 1]
    foreach port [used_ports] {
        lappend wanted CONFIG.PCW_USE_S_AXI_$port 1 \
            CONFIG.PCW_S_AXI_${port}_DATA_WIDTH $settings(port_bits)
    }
    set_property -dict $wanted $ps
    set clocks ps/M_AXI_GP0_ACLK
    foreach port [used_ports] {
        lappend clocks ps/S_AXI_${port}_ACLK
    }
    return [list ps/FCLK_CLK0 ps/FCLK_RESET0_N ps/IRQ_F2P $clocks]
}

proc ::edgerun::used_ports {} {
    global settings
    set last [expr {$settings(ports) - 1}]
    return [concat [lrange $settings(weight_ports) 0 $last] [list $settings(data_port)]]
}

# The name of the interface of a memory port.
proc ::edgerun::memory_interface {port} {
    global settings
    if {$settings(family) eq "zynq7"} {
        return ps/S_AXI_$port
    }
    return ps/S_AXI_${port}_FPD
}

# ---- The block design ---------------------------------------------------------------------------

proc ::edgerun::draw {} {
    global settings
    variable design
    create_bd_design $design
    lassign [processor_$settings(family)] clock reset interrupt port_clocks
    set tlmm [create_bd_cell -type ip -vlnv $settings(vlnv) tlmm]
    set values {}
    foreach {name value} $settings(parameters) {
        lappend values CONFIG.$name $value
    }
    set_property -dict $values $tlmm

    add_cell proc_sys_reset reset
    connect_net $clock reset/slowest_sync_clk tlmm/aclk
    connect_net $reset reset/ext_reset_in
    connect_net reset/peripheral_aresetn tlmm/aresetn
    foreach pin $port_clocks {
        connect_net $clock $pin
    }
    connect_net tlmm/irq $interrupt

    join_through control $clock ps/$settings(control_port) tlmm/s_axi_control
    for {set port 0} {$port < $settings(ports)} {incr port} {
        set target [memory_interface [lindex $settings(weight_ports) $port]]
        join_through weights$port $clock tlmm/m_axi_w$port $target
    }
    join_through data $clock tlmm/m_axi_d [memory_interface $settings(data_port)]
    map_addresses
    regenerate_bd_layout
    validate_bd_design
    save_bd_design
    # Known once the clock has been propagated through a valid design.
    variable clock_hz [get_property CONFIG.FREQ_HZ [get_bd_pins tlmm/aclk]]
}

# Connects a master to a slave through a SmartConnect, which converts width and protocol where they
# differ and is wires where they do not.
proc ::edgerun::join_through {name clock master slave} {
    set cell [add_cell smartconnect $name]
    set_property -dict [list CONFIG.NUM_SI 1 CONFIG.NUM_MI 1 CONFIG.NUM_CLKS 1] $cell
    connect_net $clock $name/aclk
    connect_net reset/interconnect_aresetn $name/aresetn
    connect $master $name/S00_AXI
    connect $name/M00_AXI $slave
}

proc ::edgerun::map_addresses {} {
    global settings
    variable port_number
    assign_bd_address -target_address_space [get_bd_addr_spaces ps/Data] \
        -offset [format 0x%08X $settings(control_address)] \
        -range [format 0x%X $settings(control_bytes)] \
        [get_bd_addr_segs tlmm/s_axi_control/reg0]
    assign_bd_address
    if {$settings(family) ne "zynqmp"} {
        return
    }
    # The engine reads and writes memory only, never flash or the on-chip memory of the firmware.
    set masters [list m_axi_d $settings(data_port)]
    for {set port 0} {$port < $settings(ports)} {incr port} {
        lappend masters m_axi_w$port [lindex $settings(weight_ports) $port]
    }
    foreach {master port} $masters {
        foreach segment [list ${port}_QSPI ${port}_LPS_OCM] {
            set found [get_bd_addr_segs -quiet ps/SAXIGP$port_number($port)/$segment]
            if {$found ne ""} {
                exclude_bd_addr_seg -target_address_space [get_bd_addr_spaces tlmm/$master] $found
            }
        }
    }
}

# ---- Building -----------------------------------------------------------------------------------

proc ::edgerun::open_board {folder} {
    global settings
    create_project -force -part $settings(part) $settings(name) $folder
    set chosen ""
    foreach candidate $settings(board_parts) {
        if {[llength [get_board_parts -quiet $candidate]] > 0} {
            set chosen $candidate
            break
        }
    }
    if {$chosen eq ""} {
        fail "none of the board files $settings(board_parts) is installed: get them with\
              Tools > Vivado Store or `xhub::install`, or this part's memory settings are unknown"
    }
    say "board files: $chosen"
    set_property board_part $chosen [current_project]
    if {[llength $settings(board_connections)] == 2} {
        lassign $settings(board_connections) connector carrier
        set_property board_connections [list $connector $carrier:*] [current_project]
    }
}

proc ::edgerun::run_to_end {run args} {
    global settings
    launch_runs $run -jobs $settings(jobs) {*}$args
    wait_on_run $run
    # PROGRESS counts steps that were not asked for: a run that ended as it should can have 80%.
    set status [get_property STATUS [get_runs $run]]
    if {![string match "*Complete!" $status]} {
        fail "$run ended with '$status': see runme.log in its folder"
    }
}

# Fails when a path is slower than the clock: a design that misses timing computes wrong numbers on
# some days, and nothing later in the chain would notice.
proc ::edgerun::check_timing {folder} {
    set run [get_runs impl_1]
    set slack [get_property STATS.WNS $run]
    set hold [get_property STATS.WHS $run]
    set pulse [get_property STATS.TPWS $run]
    report_timing_summary -max_paths 10 -warn_on_violation \
        -file [file join $folder timing.rpt]
    say "worst setup slack $slack ns, worst hold slack $hold ns"
    foreach {what value} [list setup $slack hold $hold "pulse width" $pulse] {
        if {$value eq ""} {
            fail "Vivado reports no $what slack: the clock does not reach the design"
        }
        if {$value < 0} {
            fail "timing is not met: $what slack $value ns. Nothing was exported. Lower\
                  pl_mhz in board.toml or choose a smaller geometry; timing.rpt has the paths"
        }
    }
}

# Moves the results of an earlier build out of the way: should this one fail, they are not its own,
# and perhaps of another geometry.
proc ::edgerun::set_aside {out} {
    global settings
    set before [file join $out before]
    foreach name [list $settings(name).bit $settings(name).hwh $settings(name).xsa build.json] {
        if {[file exists [file join $out $name]]} {
            file mkdir $before
            file rename -force [file join $out $name] [file join $before $name]
        }
    }
}

proc ::edgerun::build {} {
    global settings
    variable root
    variable design
    check_settings
    set work [file join $root work]
    set out [file join $root out]
    file mkdir $work $out
    set_aside $out
    package_ip [file join $work package]
    open_board [file join $work project]
    set_property ip_repo_paths [list [file join $work package ip]] [current_project]
    update_ip_catalog -rebuild
    draw
    set wrapper [make_wrapper -files [get_files $design.bd] -top]
    add_files -norecurse [list $wrapper]
    add_files -fileset constrs_1 -norecurse $settings(constraints)
    set_property top ${design}_wrapper [current_fileset]
    update_compile_order -fileset sources_1

    run_to_end synth_1
    set_property strategy Performance_ExplorePostRoutePhysOpt [get_runs impl_1]
    # Without a last step named it goes as far as physical optimisation after routing, which is
    # where timing is closed; only the bitstream is left out.
    run_to_end impl_1
    open_run impl_1
    report_utilization -hierarchical -file [file join $out utilization.rpt]
    report_drc -file [file join $out drc.rpt]
    report_power -file [file join $out power_estimate.rpt]
    check_timing $out
    run_to_end impl_1 -to_step write_bitstream
    check_timing $out
    export_results $work $out
    say "done: $out has $settings(name).bit, .hwh and .xsa; next: `edgerun fpga package\
        [file join $out $settings(name).xsa] --board $settings(name)`"
}

proc ::edgerun::export_results {work out} {
    global settings
    variable design
    set project [file join $work project $settings(name)]
    set bitstream $project.runs/impl_1/${design}_wrapper.bit
    set handoff $project.gen/sources_1/bd/$design/hw_handoff/$design.hwh
    foreach {from suffix} [list $bitstream bit $handoff hwh] {
        if {![file exists $from]} {
            fail "Vivado did not write $from"
        }
        file copy -force $from [file join $out $settings(name).$suffix]
    }
    write_hw_platform -fixed -include_bit -force -file [file join $out $settings(name).xsa]
    # What was built, for programs.
    variable clock_hz
    set about [open [file join $out build.json] w]
    puts $about "{\"board\": \"$settings(name)\", \"part\": \"$settings(part)\",\
        \"clock_hz\": $clock_hz,\
        \"vivado\": \"[version -short]\"}"
    close $about
}
