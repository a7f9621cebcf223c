# Calls kernels one after another, then writes a report and all changed memory to port 0xe9.
# Linked behind the header page. build.py defines IMAGE; image.py writes the header, whose words
# are listed here, and the tables that they point to.

    .set IMAGE_END, IMAGE + 16  # IMAGE + 8 is for reset.S: the page table's root
    .set CHECKSUM, IMAGE + 24   # sum of all words of the image behind the header page
    .set JOBS, IMAGE + 32       # per job: function, arguments, chunks, 0
    .set JOBS_END, IMAGE + 40
    .set REPORTS, IMAGE + 48    # per job: 1 + exception or 0, error code, instruction, address
    .set PAGES, IMAGE + 56      # first page of the kernels' data
    .set PAGES_END, IMAGE + 64
    .set ENTRIES, IMAGE + 72    # page table entries of these pages
    .set STACK, IMAGE + 80      # end of the stack
    .set XCR0, IMAGE + 96       # 0: the processor has no XSETBV
    .set PORT, 0xe9
    .set DIRTY, 0x40

    .section .monitor, "awx"
    .code64
    .globl _start
_start:
    movl $IMAGE + 0x1000, %esi
    xorl %eax, %eax
1:  addq (%rsi), %rax
    addq $8, %rsi
    cmpq IMAGE_END, %rsi
    jb 1b
    movq STACK, %rsp            # from here on the image changes
    cmpq CHECKSUM, %rax
    jne damaged

    lea idt(%rip), %rdi
    lea traps(%rip), %rsi
    movl $32, %ecx
1:  movq %rsi, %rax
    movw %ax, (%rdi)
    movl $0x8e000018, 2(%rdi)   # selector of 64-bit code; interrupt gate
    shrq $16, %rax
    movw %ax, 6(%rdi)
    shrq $16, %rax
    movl %eax, 8(%rdi)
    movl $0, 12(%rdi)
    addq $16, %rdi
    addq $16, %rsi
    loop 1b
    lidt idt_pointer(%rip)
    movq XCR0, %rax
    testq %rax, %rax
    jz 2f
    xorl %ecx, %ecx
    xorl %edx, %edx
    xsetbv
2:  movq JOBS, %rax
    movq %rax, job(%rip)
    movq REPORTS, %rax
    movq %rax, report(%rip)

next_job:
    movq STACK, %rsp
    cld
    fninit
    ldmxcsr mxcsr(%rip)
    movq job(%rip), %rax
    cmpq JOBS_END, %rax
    jae dump
    xorl %esi, %esi
next_chunk:
    movq %rsi, chunk(%rip)
    movq job(%rip), %rax
    cmpq 16(%rax), %rsi
    jae job_done
    movq 8(%rax), %rdi
    call *(%rax)
    movq chunk(%rip), %rsi
    incq %rsi
    jmp next_chunk
job_done:
    addq $32, job(%rip)
    addq $32, report(%rip)
    jmp next_job

    .balign 16
traps:
    .set vector, 0
    .rept 32
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21)
    .else
    pushq $0                    # no error code
    .endif
    pushq $vector
    jmp trap
    .balign 16
    .set vector, vector + 1
    .endr

trap:                           # on the stack: vector, error code, instruction
    movq report(%rip), %rdi
    popq %rax
    incq %rax
    movq %rax, (%rdi)
    popq 8(%rdi)
    popq 16(%rdi)
    movq %cr2, %rax
    movq %rax, 24(%rdi)
    jmp job_done

dump:
    lea begin(%rip), %rsi
    movl $16, %ecx
    call write
    movq REPORTS, %rsi
    movq report(%rip), %rcx
    subq %rsi, %rcx
    call write
    movq PAGES, %rbx
    movq ENTRIES, %rbp
1:  cmpq PAGES_END, %rbx
    jae 3f
    testb $DIRTY, (%rbp)
    jz 2f
    movq %rbx, job(%rip)
    lea job(%rip), %rsi
    movl $8, %ecx
    call write
    movq %rbx, %rsi
    movl $0x1000, %ecx
    call write
2:  addq $0x1000, %rbx
    addq $8, %rbp
    jmp 1b
3:  movq $0, job(%rip)
    lea job(%rip), %rsi
    movl $8, %ecx
    call write
    jmp shutdown

write:                          # rcx bytes at rsi
    movl $PORT, %edx
    rep outsb
    ret

damaged:
    lea broken(%rip), %rsi
    movl $16, %ecx
    call write
shutdown:                       # Bochs ends when it reads this word at this port
    lea farewell(%rip), %rsi
    movl $0x8900, %edx
    movl $8, %ecx
    rep outsb
    hlt

    .balign 16
begin:      .ascii "<edgerun-report>"
broken:     .ascii "<image damaged!>"
farewell:   .ascii "Shutdown"
    .balign 4
mxcsr:      .long 0x1f80
idt_pointer:
    .word 32 * 16 - 1
    .quad idt
    .balign 16
idt:        .fill 32 * 16, 1, 0
job:        .quad 0
chunk:      .quad 0
report:     .quad 0

# What compiled code may call.
    .text
    .globl memcpy, memmove, memset
memmove:
    movq %rdi, %rax
    movq %rdx, %rcx
    cmpq %rsi, %rdi
    jbe 1f
    lea -1(%rdi, %rdx), %rdi    # downwards, since the ranges may overlap
    lea -1(%rsi, %rdx), %rsi
    std
    rep movsb
    cld
    ret
memcpy:
    movq %rdi, %rax
    movq %rdx, %rcx
1:  rep movsb
    ret
memset:
    movq %rdi, %r8
    movl %esi, %eax
    movq %rdx, %rcx
    rep stosb
    movq %r8, %rax
    ret
