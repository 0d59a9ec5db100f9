/*
 * The bridge: the nginx program's own import slots of a few libssl functions point to ours.
 *
 * The calls by which nginx brings a handshake further run in a job that may pause. It is told SSL_ERROR_WANT_READ then,
 * and the waiting connection's read event comes from us; other calls meanwhile are told the same. nginx ties every TLS
 * connection, also those to upstreams, to its own by SSL_set_ex_data. What it frees by SSL_free may still wait. And it
 * writes an answer by several SSL_write, which know nothing of each other.
 *
 * A slot is an entry of the program's relocation tables (ELF gABI, "Relocation"); which one is found by the symbol's
 * name. After RELRO the page is read-only: it is made writable for one aligned store of a pointer, and read-only
 * again. Only the program's slots are changed: libraries, and this module, keep calling libssl.
 */
#define _GNU_SOURCE
#include "wattlock_nginx.h"
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define IS_SLOT(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined(__aarch64__)
#define IS_SLOT(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#else
#define IS_SLOT(type) 0
#endif

#define MOST_SLOTS 24 /* two relocations of each, at most */

typedef struct {
    const char  *name;
    void        *ours;
    unsigned     optional:1;  /* an nginx that does not import it does not call it */
} wattlock_wanted_t;

typedef struct {
    void       **slot;
    void        *before;
    void        *ours;
} wattlock_slot_t;

static const wattlock_wanted_t  wanted[] = {
    { "SSL_get_error", (void *) wattlock_get_error, 0 },
    { "SSL_set_ex_data", (void *) wattlock_set_ex_data, 0 },
    { "SSL_free", (void *) wattlock_free, 0 },
    { "SSL_do_handshake", (void *) wattlock_do_handshake, 0 },
    { "SSL_read_early_data", (void *) wattlock_read_early_data, 1 },
    { "SSL_read", (void *) wattlock_read, 0 },
    { "SSL_write", (void *) wattlock_write, 0 },
    { "SSL_shutdown", (void *) wattlock_shutdown, 0 },
};

#define WANTED (sizeof(wanted) / sizeof(wanted[0]))

static wattlock_slot_t  slots[MOST_SLOTS];
static size_t           slot_count;
static uintptr_t        relro_from, relro_to;


/* How the dynamic linker left a page of the program's data: read-only within PT_GNU_RELRO, as glibc rounds it. The
 * program headers say so, not proc(5)'s maps: in a chroot there may be no /proc. */
static int
wattlock_protection(const void *page)
{
    return (uintptr_t) page >= relro_from && (uintptr_t) page < relro_to ? PROT_READ : PROT_READ|PROT_WRITE;
}


static int
wattlock_store(void **slot, void *value)
{
    long   page = sysconf(_SC_PAGESIZE);
    void  *start = (void *) ((uintptr_t) slot & ~((uintptr_t) page - 1));
    int    before = wattlock_protection(start);

    if (mprotect(start, page, PROT_READ|PROT_WRITE) != 0) {
        return -1;
    }

    __atomic_store_n(slot, value, __ATOMIC_RELEASE);

    /* A program bound at its start has its slots read-only (RELRO), and has them so again now. */
    return mprotect(start, page, before);
}


static void
wattlock_scan(const ElfW(Rela) *rela, size_t bytes, const ElfW(Sym) *symbols, const char *strings, ElfW(Addr) base)
{
    size_t  i, w;

    for (i = 0; rela != NULL && i < bytes / sizeof(*rela); i++) {
        const char  *name = strings + symbols[ELF64_R_SYM(rela[i].r_info)].st_name;

        if (!IS_SLOT(ELF64_R_TYPE(rela[i].r_info))) {
            continue;
        }

        for (w = 0; w < WANTED; w++) {
            if (strcmp(name, wanted[w].name) == 0 && slot_count < MOST_SLOTS) {
                slots[slot_count].slot = (void **) (base + rela[i].r_offset);
                slots[slot_count].before = *slots[slot_count].slot;
                slots[slot_count++].ours = wanted[w].ours;
            }
        }
    }
}


/* The first object is the program itself: dl_iterate_phdr(3). */
static int
wattlock_program(struct dl_phdr_info *info, size_t size, void *data)
{
    const ElfW(Dyn)   *dynamic = NULL;
    const ElfW(Sym)   *symbols = NULL;
    const char        *strings = NULL;
    const ElfW(Rela)  *plt = NULL, *rela = NULL;
    size_t             plt_bytes = 0, rela_bytes = 0;
    uintptr_t          in_page = (uintptr_t) sysconf(_SC_PAGESIZE) - 1;
    int                i;

    (void) size;
    (void) data;

    for (i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *) (info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        }

        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            relro_from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            relro_to = (relro_from + info->dlpi_phdr[i].p_memsz) & ~in_page;
            relro_from &= ~in_page;
        }
    }

    for ( ; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB:   symbols = (const void *) dynamic->d_un.d_ptr; break;
        case DT_STRTAB:   strings = (const void *) dynamic->d_un.d_ptr; break;
        case DT_JMPREL:   plt = (const void *) dynamic->d_un.d_ptr; break;
        case DT_PLTRELSZ: plt_bytes = dynamic->d_un.d_val; break;
        case DT_RELA:     rela = (const void *) dynamic->d_un.d_ptr; break;
        case DT_RELASZ:   rela_bytes = dynamic->d_un.d_val; break;
        }
    }

    if (symbols != NULL && strings != NULL) {
        wattlock_scan(plt, plt_bytes, symbols, strings, info->dlpi_addr);
        wattlock_scan(rela, rela_bytes, symbols, strings, info->dlpi_addr);
    }

    return 1;
}


/*
 * Finds the slots and points them to us. May be called again (after a reload of the configuration).
 * Returns NGX_OK, or NGX_DECLINED with the reason.
 */
ngx_int_t
wattlock_bridge_raise(const char **why)
{
    size_t  i;

    if (wattlock_bridge_stands()) {
        return NGX_OK;
    }

    slot_count = 0;
    (void) dl_iterate_phdr(wattlock_program, NULL);

    for (i = 0; i < WANTED; i++) {
        size_t  s;

        for (s = 0; s < slot_count && slots[s].ours != wanted[i].ours; s++) { /* void */ }

        if (s == slot_count && !wanted[i].optional) {
            slot_count = 0;
            *why = "this nginx does not import libssl's SSL_do_handshake and its like: libssl is linked in statically";
            return NGX_DECLINED;
        }
    }

    for (i = 0; i < slot_count; i++) {
        if (slots[i].before == slots[i].ours || wattlock_store(slots[i].slot, slots[i].ours) != 0) {
            wattlock_bridge_lower();
            *why = "an import slot of the nginx program cannot be written";
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


int
wattlock_bridge_stands(void)
{
    size_t  i;

    for (i = 0; i < slot_count; i++) {
        if (*slots[i].slot != slots[i].ours) {
            return 0;
        }
    }

    return slot_count > 0;
}


/* Puts everything back, before the module is unloaded. */
void
wattlock_bridge_lower(void)
{
    size_t  i;

    for (i = 0; i < slot_count; i++) {
        if (*slots[i].slot == slots[i].ours) {
            (void) wattlock_store(slots[i].slot, slots[i].before);
        }
    }

    slot_count = 0;
}
