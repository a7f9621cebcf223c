# What the emulated processor runs first: from real mode to 64-bit mode, then into the monitor.
# Linked at the top of the 32-bit address space, where a PC has its BIOS; there is none here.
# build.py defines IMAGE, the address where Bochs loads the memory image.

    .set HEADER_CR3, IMAGE + 8
    .set HEADER_END, IMAGE + 16
    .set HEADER_CR4, IMAGE + 88
    .set MONITOR, IMAGE + 0x1000

    .code16
rom:
    cli
    lgdtl %cs:(gdt_pointer - rom)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $8, $protected

    .code32
protected:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %ss
    # Bochs loads the image in one piece into memory that it otherwise assigns block by block, at
    # the first access. Touched in order, the blocks lie as the image does (the monitor checks).
    movl $IMAGE, %esi
1:  movl (%esi), %eax
    addl $0x1000, %esi
    cmpl HEADER_END, %esi
    jb 1b

    movl HEADER_CR4, %eax
    movl %eax, %cr4
    movl HEADER_CR3, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      # EFER
    rdmsr
    orl $0x100, %eax            # LME
    wrmsr
    movl $0x80010033, %eax      # CR0: PG, WP, NE, ET, MP, PE; caches on, no FPU emulation
    movl %eax, %cr0
    ljmp $24, $long

    .code64
long:
    movl $MONITOR, %eax
    jmp *%rax

    .balign 8
gdt:
    .quad 0
    .quad 0x00cf9a000000ffff    # 8: 32-bit code
    .quad 0x00cf92000000ffff    # 16: data
    .quad 0x00af9a000000ffff    # 24: 64-bit code
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .long gdt

    .org 0xfff0                 # the reset vector
    .code16
    jmp rom
    .org 0x10000
