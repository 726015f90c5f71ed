/* Ends the engine at the first write to its data that the system refuses, before anything counts as stored.

chdb-core leaves the error of write() out (src/IO/WriteBufferFromFileDescriptor.cpp of 26.9.0, upstream throws there): on a
full disk an insert or a merge goes on, is answered as done, and its part has empty files. Check with each new version.
The library finds its functions before any that is loaded first (RTLD_DEEPBIND), so its table of functions is changed. */

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define SLOT R_X86_64_JUMP_SLOT
#define DATUM R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define SLOT R_AARCH64_JUMP_SLOT
#define DATUM R_AARCH64_GLOB_DAT
#endif

static char data[PATH_MAX];
static int exit_code;

/* Only where a write failed: whether it was to a file below the data, and which. */
static int is_data(int file, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    size_t above = strlen(data);
    return strncmp(path, data, above) == 0 && path[above] == '/';
}

static ssize_t checked(int file, ssize_t written) {
    int error = errno;
    char path[PATH_MAX];
    if (written < 0 && error != EINTR && error != EAGAIN && is_data(file, path, sizeof path)) {
        dprintf(STDERR_FILENO, "the engine ends: %s was not written: %s\n", path, strerror(error));
        _exit(exit_code);
    }
    errno = error;
    return written;
}

static ssize_t checked_write(int file, const void *from, size_t bytes) {
    return checked(file, write(file, from, bytes));
}

static ssize_t checked_pwrite(int file, const void *from, size_t bytes, off64_t at) {
    return checked(file, pwrite64(file, from, bytes, at));
}

struct search {
    const char *library;
    int changed;
};

static void *replacement(const char *name) {
    if (strcmp(name, "write") == 0) return checked_write;
    if (strcmp(name, "pwrite") == 0 || strcmp(name, "pwrite64") == 0) return checked_pwrite;
    return NULL;
}

#ifdef SLOT
/* Addresses of the dynamic section are absolute, or from the library's beginning. */
static void *address(ElfW(Addr) base, ElfW(Addr) value) { return (void *)(value < base ? base + value : value); }

static int change(struct dl_phdr_info *about, size_t size, void *given) {
    (void)size;
    struct search *search = given;
    if (!about->dlpi_name || strcmp(about->dlpi_name, search->library) != 0) return 0;
    const ElfW(Dyn) *entry = NULL;
    for (int i = 0; i < about->dlpi_phnum; i++)
        if (about->dlpi_phdr[i].p_type == PT_DYNAMIC) entry = address(about->dlpi_addr, about->dlpi_phdr[i].p_vaddr);
    const ElfW(Rela) *tables[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0}, relative = 0;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        void *at = address(about->dlpi_addr, entry->d_un.d_ptr);
        switch (entry->d_tag) {
            case DT_JMPREL: tables[0] = at; break;
            case DT_PLTRELSZ: bytes[0] = entry->d_un.d_val; break;
            case DT_RELA: tables[1] = at; break;
            case DT_RELASZ: bytes[1] = entry->d_un.d_val; break;
            case DT_RELACOUNT: relative = entry->d_un.d_val; break;
            case DT_SYMTAB: symbols = at; break;
            case DT_STRTAB: names = at; break;
        }
    }
    for (int kind = 0; kind < 2 && symbols && names; kind++) {
        for (size_t i = kind ? relative : 0; tables[kind] && i < bytes[kind] / sizeof *tables[kind]; i++) {
            const ElfW(Rela) *rela = tables[kind] + i;
            unsigned long type = ELF64_R_TYPE(rela->r_info);
            if (type != SLOT && type != DATUM) continue;
            void *function = replacement(names + symbols[ELF64_R_SYM(rela->r_info)].st_name);
            if (!function) continue;
            uintptr_t slot = about->dlpi_addr + rela->r_offset, page = slot & -(uintptr_t)sysconf(_SC_PAGESIZE);
            if (mprotect((void *)page, slot + sizeof(void *) - page, PROT_READ | PROT_WRITE)) return -1;
            *(void **)slot = function;
            search->changed++;
        }
    }
    return 1;
}
#endif

/* Changes the functions of a loaded library. Returns how many; 0 where its table is not known. */
__attribute__((visibility("default"))) int end_at_failed_writes(const char *library, const char *folder, int code) {
    struct search search = {library, 0};
    snprintf(data, sizeof data, "%s", folder);
    exit_code = code;
#ifdef SLOT
    dl_iterate_phdr(change, &search);
#endif
    return search.changed;
}
