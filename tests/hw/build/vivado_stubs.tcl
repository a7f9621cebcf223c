# Stand-ins for the Vivado commands that hw/boards uses: they know which cells, pins, ports and files
# there are and refuse anything else, so that a typing error fails here and not after an hour.
# Every call is logged to stdout. Environment: STUB_WNS, STUB_BOARDS (board files), STUB_FAIL (a run).

array set cells {}
array set properties {}
array set connected {}
array set run_done {}
array set run_status {}
set current_design ""
set project_folder ""
set project_name ""
set ip_repository ""
set intervals {}

set catalogue {
    xilinx.com:ip:zynq_ultra_ps_e:3.5 xilinx.com:ip:processing_system7:5.5
    xilinx.com:ip:smartconnect:1.0 xilinx.com:ip:proc_sys_reset:5.0
}
set ps_config {
    CONFIG.PSU__FPGA_PL0_ENABLE CONFIG.PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ CONFIG.PSU__USE__IRQ0
    CONFIG.PSU__USE__M_AXI_GP[012] CONFIG.PSU__MAXIGP[012]__DATA_WIDTH
    CONFIG.PSU__USE__S_AXI_GP[0-5] CONFIG.PSU__SAXIGP[0-5]__DATA_WIDTH
}
set ps7_config {
    CONFIG.PCW_EN_CLK0_PORT CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ CONFIG.PCW_USE_FABRIC_INTERRUPT
    CONFIG.PCW_IRQ_F2P_INTR CONFIG.PCW_USE_M_AXI_GP0 CONFIG.PCW_USE_S_AXI_HP[0-3]
    CONFIG.PCW_S_AXI_HP[0-3]_DATA_WIDTH
}

proc log {args} { puts "CALL $args" }
proc refuse {text} { error "stub: $text" }

# Takes a command's arguments apart: flags with a value, flags alone, then what is left.
proc options {arguments valued flags} {
    set found {}
    set rest {}
    while {[llength $arguments] > 0} {
        set arguments [lassign $arguments word]
        if {[lsearch -exact $valued $word] >= 0} {
            if {[llength $arguments] == 0} { refuse "$word without a value" }
            set arguments [lassign $arguments value]
            dict set found $word $value
        } elseif {[lsearch -exact $flags $word] >= 0} {
            dict set found $word 1
        } elseif {[string match -* $word]} {
            refuse "unknown option $word"
        } else {
            lappend rest $word
        }
    }
    return [list $found $rest]
}

# ---- Projects, files, IP packaging
proc create_project {args} {
    lassign [options $args {-part} {-force}] found rest
    lassign $rest ::project_name ::project_folder
    if {[dict get $found -part] eq ""} { refuse "no part" }
    file mkdir $::project_folder
    log create_project {*}$args
}
proc close_project {} { log close_project }
proc current_project {} { return project }
proc current_fileset {} { return sources_1 }
proc version {args} { return 2025.2 }
proc add_files {args} {
    lassign [options $args {-fileset} {-norecurse}] found rest
    foreach file [concat {*}$rest] {
        if {![file exists $file]} { refuse "add_files: no file $file" }
    }
    log add_files {*}$args
}
proc update_compile_order {args} { options $args {-fileset} {} }
proc get_board_parts {args} {
    lassign [options $args {} {-quiet}] found rest
    return [lsearch -all -inline -glob $::env(STUB_BOARDS) [lindex $rest 0]]
}
proc update_ip_catalog {args} {
    options $args {} {-rebuild}
    if {![file exists [file join $::ip_repository component.xml]]} { refuse "no IP there" }
    lappend ::catalogue $::packaged
}
namespace eval ipx {}
proc ipx::package_project {args} {
    lassign [options $args {-root_dir -vendor -library -taxonomy -set_current} {-import_files}] \
        found rest
    if {$rest ne ""} { refuse "package_project: $rest" }
    file mkdir [dict get $found -root_dir]
    set ::ip_folder [dict get $found -root_dir]
    set ::ip_vendor [dict get $found -vendor]:[dict get $found -library]
    log package_project {*}$args
}
proc ipx::current_core {} { return core }
proc ipx::get_bus_interfaces {name args} {
    options $args {-of_objects} {}
    if {[lsearch -exact $::wrapper_interfaces $name] < 0} { refuse "no interface $name" }
    return interface:$name
}
proc ipx::get_ports {args} {
    options $args {-of_objects -filter} {}
    return {port:m_axi_w0_arready}
}
proc ipx::create_xgui_files {core} {}
proc ipx::update_checksums {core} {}
proc ipx::check_integrity {core} {}
proc ipx::save_core {core} {
    close [open [file join $::ip_folder component.xml] w]
    set ::packaged $::ip_vendor:$::properties(core,name):$::properties(core,version)
    log save_core $::packaged
}

# ---- Properties
proc set_property {args} {
    if {[lindex $args 0] eq "-dict"} {
        lassign $args -> pairs object
    } else {
        lassign $args name value object
        set pairs [list $name $value]
    }
    if {$object eq ""} { refuse "set_property without an object: $args" }
    foreach {name value} $pairs {
        check_config $object $name
        set ::properties($object,$name) $value
        if {$name eq "ip_repo_paths"} { set ::ip_repository [lindex $value 0] }
        log set_property $name $value $object
    }
}
proc check_config {object name} {
    if {![info exists ::cells($object)] || ![string match CONFIG.* $name]} { return }
    switch -glob $::cells($object) {
        *zynq_ultra_ps_e* { set known $::ps_config }
        *processing_system7* { set known $::ps7_config }
        *smartconnect* { set known {CONFIG.NUM_SI CONFIG.NUM_MI CONFIG.NUM_CLKS} }
        *tlmm* { set known [lmap key $::wrapper_parameters {string cat CONFIG. $key}] }
        default { set known {} }
    }
    foreach pattern $known {
        if {[string match $pattern $name]} { return }
    }
    refuse "$::cells($object) has no parameter $name"
}
proc get_property {name object} {
    switch -glob $name {
        STATS.WNS { return [lindex $::env(STUB_WNS) [expr {[llength $::env(STUB_WNS)] > 1
                            && $::run_status(impl_1) eq "write_bitstream Complete!"}]] }
        STATS.WHS - STATS.TPWS { return 0.01 }
        STATUS { return $::run_status($object) }
        CONFIG.FREQ_HZ { return 249997500 }
        CONFIG.PSU__CRL_APB__PL0_REF_CTRL__ACT_FREQMHZ { return 249.997500 }
    }
    refuse "get_property $name"
}

# ---- Block design
proc create_bd_design {name} { set ::current_design $name }
proc get_ipdefs {args} {
    lassign [options $args {} {-all -quiet}] found rest
    return [lsearch -all -inline -glob $::catalogue [lindex $rest 0]]
}
proc create_bd_cell {args} {
    lassign [options $args {-type -vlnv} {}] found rest
    set vlnv [dict get $found -vlnv]
    if {[lsearch -exact $::catalogue $vlnv] < 0} { refuse "no IP $vlnv" }
    set name [lindex $rest 0]
    if {[info exists ::cells($name)]} { refuse "there is a cell $name already" }
    set ::cells($name) $vlnv
    log create_bd_cell $vlnv $name
    return $name
}
proc apply_bd_automation {args} {
    options $args {-rule -config} {}
    log apply_bd_automation {*}$args
}
proc enabled {cell name} {
    return [expr {[info exists ::properties($cell,CONFIG.$name)]
                  && $::properties($cell,CONFIG.$name) == 1}]
}
# Interfaces that a cell has with the parameters it has been given.
proc interfaces {cell} {
    set result {}
    switch -glob $::cells($cell) {
        *zynq_ultra_ps_e* {
            foreach {port number} {HPC0 0 HPC1 1 HP0 2 HP1 3 HP2 4 HP3 5} {
                if {[enabled $cell PSU__USE__S_AXI_GP$number]} { lappend result S_AXI_${port}_FPD }
            }
            if {[enabled $cell PSU__USE__M_AXI_GP0]} { lappend result M_AXI_HPM0_FPD }
        }
        *processing_system7* {
            foreach port {HP0 HP1 HP2 HP3} {
                if {[enabled $cell PCW_USE_S_AXI_$port]} { lappend result S_AXI_$port }
            }
            if {[enabled $cell PCW_USE_M_AXI_GP0]} { lappend result M_AXI_GP0 }
        }
        *smartconnect* { set result {S00_AXI M00_AXI} }
        *tlmm* {
            foreach name $::wrapper_interfaces {
                if {![regexp {m_axi_w(\d)} $name -> port]
                    || $port < $::properties($cell,CONFIG.PORTS)} { lappend result $name }
            }
        }
    }
    return $result
}
# Pins, in two kinds: those that must be connected, and those that may.
proc pins {cell} {
    switch -glob $::cells($cell) {
        *zynq_ultra_ps_e* {
            set must {}
            foreach name [interfaces $cell] {
                regexp {([MS])_AXI_(\w+)} [string tolower $name] -> kind port
                lappend must [string map {m_axi_ maxi s_axi_ saxi} [string tolower $name]]_aclk
            }
            return [list $must {pl_clk0 pl_resetn0 pl_ps_irq0}]
        }
        *processing_system7* {
            return [list [lmap name [interfaces $cell] {string cat $name _ACLK}] \
                {FCLK_CLK0 FCLK_RESET0_N IRQ_F2P}]
        }
        *smartconnect* { return {{aclk aresetn} {}} }
        *proc_sys_reset* {
            return {{slowest_sync_clk ext_reset_in} {peripheral_aresetn interconnect_aresetn}}
        }
        *tlmm* { return {{aclk aresetn irq} {}} }
    }
}
proc part_of {path kinds} {
    lassign [split $path /] cell name
    if {![info exists ::cells($cell)]} { refuse "no cell $cell in $path" }
    if {[lsearch -exact [concat {*}[$kinds $cell]] $name] < 0} { refuse "no pin $path" }
    return $path
}
proc get_bd_intf_pins {path} { return [part_of $path interfaces] }
proc get_bd_pins {path} { return [part_of $path pins] }
proc connect_bd_intf_net {from to} {
    foreach end [list $from $to] {
        if {[info exists ::connected($end)]} { refuse "$end is connected twice" }
        set ::connected($end) 1
    }
    log connect_bd_intf_net $from $to
}
proc connect_bd_net {from to} {
    if {[info exists ::connected($to)]} { refuse "$to is driven twice" }
    set ::connected($from) 1
    set ::connected($to) 1
    log connect_bd_net $from $to
}
proc get_bd_addr_spaces {path} {
    lassign [split $path /] cell name
    if {![info exists ::cells($cell)]} { refuse "no address space $path" }
    return $path
}
proc get_bd_addr_segs {args} { return [lindex $args end] }
proc exclude_bd_addr_seg {args} { options $args {-target_address_space} {} }
proc assign_bd_address {args} {
    lassign [options $args {-target_address_space -offset -range} {}] found rest
    log assign_bd_address {*}$args
}
proc regenerate_bd_layout {} {}
proc validate_bd_design {} {
    foreach cell [array names ::cells] {
        foreach name [concat [interfaces $cell] [lindex [pins $cell] 0]] {
            if {![info exists ::connected($cell/$name)]} { refuse "$cell/$name is not connected" }
        }
    }
    log validate_bd_design
}
proc save_bd_design {} {}
proc get_files {name} { return $name }
proc make_wrapper {args} {
    options $args {-files} {-top}
    set file [file join $::project_folder wrapper.v]
    close [open $file w]
    return $file
}

# ---- Runs and reports
proc get_runs {name} { return $name }
proc launch_runs {run args} {
    lassign [options $args {-jobs -to_step} {}] found rest
    if {$run eq "impl_1" && ![info exists ::run_done(synth_1)]} { refuse "synthesis comes first" }
    set ::run_status($run) [last_status $run [expr {
        [dict exists $found -to_step] ? [dict get $found -to_step] : ""}]]
    if {$run eq $::env(STUB_FAIL)} { set ::run_status($run) "place_design ERROR" }
    if {$run ne $::env(STUB_FAIL)} { set ::run_done($run) 1 }
    set base [file join $::project_folder $::project_name]
    if {$run eq "synth_1"} {
        touch $base.gen/sources_1/bd/$::current_design/hw_handoff/$::current_design.hwh
    } elseif {$::run_status($run) eq "write_bitstream Complete!"} {
        touch $base.runs/impl_1/${::current_design}_wrapper.bit
    }
    log launch_runs $run {*}$args
}
# What a run is left at, as Vivado says it; a run that stops before a step that its strategy has is
# said to have that one not started.
proc last_status {run step} {
    if {$run eq "synth_1"} { return "synth_design Complete!" }
    switch $step {
        write_bitstream { return "write_bitstream Complete!" }
        "" { return "phys_opt_design (Post-Route) Complete!" }
        route_design { return "Not started phys_opt_design (Post-Route)" }
    }
    refuse "no step $step"
}
proc touch {file} {
    file mkdir [file dirname $file]
    close [open $file w]
}
proc wait_on_run {run} {}
proc open_run {run} {}
foreach name {report_utilization report_drc report_power report_timing_summary} {
    proc $name {args} {
        lassign [options $args {-file -max_paths} {-hierarchical -warn_on_violation}] found rest
        touch [dict get $found -file]
    }
}
proc write_hw_platform {args} {
    lassign [options $args {-file} {-fixed -include_bit -force}] found rest
    touch [dict get $found -file]
}

# ---- What the wrapper says of itself: read from its text, as the IP packager would.
set handle [open [file join [file dirname [lindex $argv 0]] rtl tlmm_wrapper.v]]
set text [read $handle]
close $handle
set wrapper_interfaces [lsort -unique [lmap {all name} \
    [regexp -all -inline {aximm:1.0 (\w+) A[RW]ADDR} $text] {set name}]]
set wrapper_parameters [lmap {all name} [regexp -all -inline {parameter (\w+)} $text] {set name}]

source [lindex $argv 0]
