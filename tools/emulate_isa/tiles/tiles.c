/* The tile instructions of AMX for a processor that lacks them.
 *
 * Loaded before a program starts (LD_PRELOAD), it catches the signal of an unknown instruction, does
 * what Intel's manual says of that instruction, and goes on behind it: so code for AMX runs as it is,
 * at full speed but for tiles. Also stands in for the system call that asks for permission.
 *
 * Counts every instruction; `tile_counts` has them in the order of `enum kind`. A fault that the
 * processor would raise (tiles that are not configured, shapes that do not fit, a misplaced
 * configuration) ends the program with a line that says so.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <immintrin.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum kind { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDP, KINDS };

enum { TILES = 8, ROWS = 16, LINE = 64, ASK_PERMISSION = 0x1023, TILE_DATA = 18 };
enum { ALL_MASKED = 0x1F80, FLUSH_TO_ZERO = 0x8000, SUBNORMALS_ARE_ZERO = 0x40 };

struct shape {
    uint16_t row_bytes;
    uint8_t rows;
};

uint64_t tile_counts[KINDS];

static __thread uint8_t tiles[TILES][ROWS][LINE];
static __thread struct shape shapes[TILES];
static __thread int configured;

struct instruction {
    const uint8_t *modrm;
    int prefix; /* 0 none, 1 66, 2 F3, 3 F2 */
    int opcode, reg, rm, mod, vvvv;
    uint64_t rex_x, rex_b;
};

static void fail(const char *why) {
    char text[200];
    int length = snprintf(text, sizeof text, "emulated AMX: %s\n", why);
    if (write(2, text, (size_t)length) < 0) abort();
    abort();
}

/* VEX with three bytes, map 0F38, 128 bits: all that AMX uses; 0 if it is something else. */
static int decode(const uint8_t *code, struct instruction *out) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84) != 0) return 0;
    out->prefix = code[2] & 3;
    out->vvvv = (~code[2] >> 3) & 15;
    out->rex_x = (code[1] & 0x40) ? 0 : 8;
    out->rex_b = (code[1] & 0x20) ? 0 : 8;
    out->opcode = code[3];
    out->modrm = code + 4;
    out->mod = code[4] >> 6;
    out->reg = (code[4] >> 3) & 7;
    out->rm = code[4] & 7;
    return out->opcode == 0x49 || out->opcode == 0x4B || out->opcode == 0x5E ||
           (out->opcode == 0x5C && out->prefix == 2);
}

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};

/* The address of an operand; `stride` gets the index register's value, `end` what follows. */
static uint8_t *operand(const struct instruction *in, const greg_t *regs, int64_t *stride,
                        const uint8_t **end) {
    const uint8_t *at = in->modrm + 1;
    uint64_t address = 0, base = (uint64_t)in->rm;
    int scale = 0, index = 4, has_base = 1;
    if (in->rm == 4) {
        scale = *at >> 6;
        index = (int)(((*at >> 3) & 7) | in->rex_x);
        base = *at & 7;
        at++;
    } else if (in->opcode == 0x4B) {
        fail("a tile is read or written without an index register");
    }
    int is_relative = in->rm == 5 && in->mod == 0;
    if (in->mod == 0 && base == 5) has_base = 0;
    if (has_base) address = (uint64_t)regs[REGISTERS[base | in->rex_b]];
    int32_t displacement = 0;
    if (in->mod == 1) {
        displacement = *(const int8_t *)at;
        at += 1;
    } else if (in->mod == 2 || !has_base) {
        memcpy(&displacement, at, 4);
        at += 4;
    }
    *stride = index == 4 ? 0 : regs[REGISTERS[index]] << scale;
    if (in->opcode == 0x49) address += (uint64_t)*stride;
    if (is_relative) address += (uint64_t)at;
    *end = at;
    return (uint8_t *)(address + (uint64_t)(int64_t)displacement);
}

static void configure(const uint8_t *from) {
    if (from[0] == 0) {
        configured = 0;
        memset(tiles, 0, sizeof tiles);
        return;
    }
    if (from[0] != 1) fail("a palette other than 1");
    for (int number = 0; number < TILES; number++) {
        memcpy(&shapes[number].row_bytes, from + 16 + 2 * number, 2);
        shapes[number].rows = from[48 + number];
        if (shapes[number].rows > ROWS || shapes[number].row_bytes > LINE)
            fail("a register of more than 16 rows or 64 bytes a row");
    }
    memset(tiles, 0, sizeof tiles);
    configured = 1;
}

static void check_product(int sums, int x, int codes) {
    struct shape c = shapes[sums], a = shapes[x], b = shapes[codes];
    if (a.rows != c.rows || b.row_bytes != c.row_bytes || a.row_bytes != 4 * b.rows ||
        c.row_bytes % 4 || a.row_bytes % 4)
        fail("a product of registers whose shapes do not fit");
    if (sums == x || sums == codes || x == codes) fail("a product of one register with itself");
}

static float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Pairs of bfloat16. Even and odd elements are added up apart; products of two are exact in
 * float32, so that it is the same whether they are rounded before they are added. The caller's
 * rounding and handling of subnormal numbers are set aside meanwhile. */
__attribute__((noinline)) static void multiply_bfloat16(int sums, int x, int codes) {
    struct shape c = shapes[sums], b = shapes[codes];
    unsigned before = _mm_getcsr();
    _mm_setcsr(ALL_MASKED | FLUSH_TO_ZERO | SUBNORMALS_ARE_ZERO);
    for (int row = 0; row < c.rows; row++) {
        float halves[2][ROWS] = {{0}}, total[ROWS] = {0};
        memcpy(total, tiles[sums][row], LINE);
        for (int step = 0; step < b.rows; step++) {
            uint32_t left, right[ROWS];
            memcpy(&left, tiles[x][row] + 4 * step, 4);
            memcpy(right, tiles[codes][step], LINE);
            float low = as_float(left << 16), high = as_float(left & 0xFFFF0000);
            for (int n = 0; n < c.row_bytes / 4; n++) {
                halves[0][n] = fmaf(low, as_float(right[n] << 16), halves[0][n]);
                halves[1][n] = fmaf(high, as_float(right[n] & 0xFFFF0000), halves[1][n]);
            }
        }
        for (int n = 0; n < c.row_bytes / 4; n++) total[n] += halves[0][n] + halves[1][n];
        memset(tiles[sums][row], 0, LINE);
        memcpy(tiles[sums][row], total, c.row_bytes);
    }
    _mm_setcsr(before);
}

static void multiply(int prefix, int sums, int x, int codes) {
    struct shape c = shapes[sums], b = shapes[codes];
    int x_signed = prefix >= 2, codes_signed = prefix == 3 || prefix == 1;
    for (int row = 0; row < c.rows; row++) {
        int32_t total[ROWS];
        memcpy(total, tiles[sums][row], sizeof total);
        for (int step = 0; step < b.rows; step++)
            for (int byte = 0; byte < 4; byte++) {
                uint8_t raw = tiles[x][row][4 * step + byte];
                int32_t left = x_signed ? (int8_t)raw : raw;
                for (int n = 0; n < c.row_bytes / 4; n++) {
                    uint8_t code = tiles[codes][step][4 * n + byte];
                    int32_t right = codes_signed ? (int8_t)code : code;
                    total[n] = (int32_t)((uint32_t)total[n] + (uint32_t)(left * right));
                }
            }
        memset(tiles[sums][row], 0, LINE);
        memcpy(tiles[sums][row], total, c.row_bytes);
    }
}

static void move(const struct instruction *in, uint8_t *address, int64_t stride) {
    struct shape shape = shapes[in->reg];
    for (int row = 0; row < shape.rows; row++, address += stride) {
        if (in->prefix == 2) {
            memcpy(address, tiles[in->reg][row], shape.row_bytes);
        } else {
            memset(tiles[in->reg][row], 0, LINE);
            memcpy(tiles[in->reg][row], address, shape.row_bytes);
        }
    }
    if (in->prefix != 2)
        for (int row = shape.rows; row < ROWS; row++) memset(tiles[in->reg][row], 0, LINE);
}

static enum kind execute(const struct instruction *in, const greg_t *regs, const uint8_t **end) {
    int64_t stride;
    *end = in->modrm + 1;
    if (in->opcode == 0x49 && in->mod == 3) {
        if (in->prefix == 3) { /* tilezero */
            if (!configured) fail("tilezero without a configuration");
            memset(tiles[in->reg], 0, sizeof tiles[in->reg]);
            return TILEZERO;
        }
        configured = 0; /* tilerelease */
        memset(tiles, 0, sizeof tiles);
        return TILERELEASE;
    }
    if (in->opcode == 0x49) {
        if (in->prefix != 0) fail("sttilecfg, which nothing here uses");
        configure(operand(in, regs, &stride, end));
        return LDTILECFG;
    }
    if (!configured) fail("a tile is used without a configuration");
    if (in->opcode == 0x5E || in->opcode == 0x5C) check_product(in->reg, in->rm, in->vvvv);
    if (in->opcode == 0x5C) {
        multiply_bfloat16(in->reg, in->rm, in->vvvv);
        return TDP;
    }
    if (in->opcode == 0x5E) {
        multiply(in->prefix, in->reg, in->rm, in->vvvv);
        return TDP;
    }
    uint8_t *address = operand(in, regs, &stride, end);
    move(in, address, stride);
    return in->prefix == 2 ? TILESTORED : TILELOADD;
}

typedef int (*set_action)(int, const struct sigaction *, struct sigaction *);

static set_action library_action(void) {
    static set_action next;
    if (!next) next = (set_action)dlsym(RTLD_NEXT, "sigaction");
    return next;
}

static void unknown(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct instruction in;
    if (!decode((const uint8_t *)regs[REG_RIP], &in)) {
        struct sigaction usual = {0};
        usual.sa_handler = SIG_DFL; /* the same instruction again, and then as without us */
        library_action()(number, &usual, 0);
        return;
    }
    const uint8_t *end;
    enum kind kind = execute(&in, regs, &end);
    __atomic_fetch_add(&tile_counts[kind], 1, __ATOMIC_RELAXED);
    regs[REG_RIP] = (greg_t)end;
}

/* The C library's, but for the permission to use tiles. */
long syscall(long number, ...) {
    static long (*next)(long, ...);
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_arch_prctl && a[0] == ASK_PERMISSION && a[1] == TILE_DATA) return 0;
    if (!next) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* The C library's, but nobody else (Python's faulthandler) gets unknown instructions. */
int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    return library_action()(number, number == SIGILL ? 0 : action, old);
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {0};
    action.sa_sigaction = unknown;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    library_action()(SIGILL, &action, 0);
}
