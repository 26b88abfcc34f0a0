/* Preloaded into a process: let the n-th operation on a file below a folder fail.

   arm(folder, n, code, for_good, reads) starts counting. Operation n fails with errno `code`; with `for_good`,
   so do all later ones that need space. With `reads`, reading counts, too. `counted()` says how many there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static char last[PATH_MAX + 64];
static int n_seen, n_fail = -1, error_code, for_good, with_reads, armed;

void arm(const char *folder, int n, int code, int good, int reads) {
    strncpy(root, folder, sizeof root - 1);
    n_seen = 0, n_fail = n, error_code = code, for_good = good, with_reads = reads, last[0] = 0, armed = 1;
}
void disarm(void) { armed = 0; }
int counted(void) { return n_seen; }
const char *failed(void) { return last; }

static int below(int dir, const char *path) {
    char whole[PATH_MAX];
    if (!path) return 0;
    if (path[0] == '/') return !strncmp(path, root, strlen(root));
    if (dir == AT_FDCWD) {
        if (!getcwd(whole, sizeof whole)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, whole, sizeof whole - 1);
        if (n < 0) return 0;
        whole[n] = 0;
    }
    return !strncmp(whole, root, strlen(root));
}
static int below_file(int file) {
    char link[64], whole[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, whole, sizeof whole - 1);
    if (n < 0) return 0;
    whole[n] = 0;
    return !strncmp(whole, root, strlen(root));
}

/* Count an operation; return whether it must fail. */
static int fails(const char *name, const char *path, int needs_space) {
    int seen = __atomic_add_fetch(&n_seen, 1, __ATOMIC_SEQ_CST);
    if (n_fail > 0 && (seen == n_fail || (for_good && seen > n_fail && needs_space))) {
        if (!last[0]) snprintf(last, sizeof last, "%s %s", name, path ? path : "");
        errno = error_code;
        return 1;
    }
    return 0;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define CHECK(name, mine, path, space, value) if (armed && (mine) && fails(name, path, space)) return value

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); }
#define OPEN(symbol) \
    int symbol(const char *path, int flags, ...) { \
        REAL(int, symbol, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        CHECK("open", (writes(flags) || with_reads) && below(AT_FDCWD, path), path, writes(flags), -1); \
        return real(path, flags, mode); \
    }
OPEN(open) OPEN(open64)
#define OPENAT(symbol) \
    int symbol(int dir, const char *path, int flags, ...) { \
        REAL(int, symbol, int, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        CHECK("open", (writes(flags) || with_reads) && below(dir, path), path, writes(flags), -1); \
        return real(dir, path, flags, mode); \
    }
OPENAT(openat) OPENAT(openat64)
#define FOPEN(symbol) \
    FILE *symbol(const char *path, const char *mode) { \
        REAL(FILE *, symbol, const char *, const char *); \
        int writing = mode[0] != 'r' || strchr(mode, '+') != NULL; \
        CHECK("fopen", (writing || with_reads) && below(AT_FDCWD, path), path, writing, NULL); \
        return real(path, mode); \
    }
FOPEN(fopen) FOPEN(fopen64)

ssize_t write(int file, const void *data, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t);
    CHECK("write", below_file(file), NULL, 1, -1);
    return real(file, data, n);
}
ssize_t writev(int file, const struct iovec *parts, int n) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    CHECK("writev", below_file(file), NULL, 1, -1);
    return real(file, parts, n);
}
#define PWRITE(symbol) \
    ssize_t symbol(int file, const void *data, size_t n, off_t at) { \
        REAL(ssize_t, symbol, int, const void *, size_t, off_t); \
        CHECK("pwrite", below_file(file), NULL, 1, -1); \
        return real(file, data, n, at); \
    }
PWRITE(pwrite) PWRITE(pwrite64)
size_t fwrite(const void *data, size_t size, size_t n, FILE *file) {
    REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
    CHECK("fwrite", below_file(fileno(file)), NULL, 1, 0);
    return real(data, size, n, file);
}
ssize_t read(int file, void *data, size_t n) {
    REAL(ssize_t, read, int, void *, size_t);
    CHECK("read", with_reads && below_file(file), NULL, 0, -1);
    return real(file, data, n);
}
#define PREAD(symbol) \
    ssize_t symbol(int file, void *data, size_t n, off_t at) { \
        REAL(ssize_t, symbol, int, void *, size_t, off_t); \
        CHECK("pread", with_reads && below_file(file), NULL, 0, -1); \
        return real(file, data, n, at); \
    }
PREAD(pread) PREAD(pread64)
#define ON_FILE(symbol, space) \
    int symbol(int file) { REAL(int, symbol, int); CHECK(#symbol, below_file(file), NULL, space, -1); return real(file); }
ON_FILE(fsync, 1) ON_FILE(fdatasync, 1)
#define TRUNCATE(symbol) \
    int symbol(int file, off_t n) { \
        REAL(int, symbol, int, off_t); CHECK("ftruncate", below_file(file), NULL, 1, -1); return real(file, n); \
    }
TRUNCATE(ftruncate) TRUNCATE(ftruncate64)
int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    CHECK("rename", below(AT_FDCWD, to), to, 1, -1);
    return real(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    CHECK("rename", below(b, to), to, 1, -1);
    return real(a, from, b, to);
}
int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    CHECK("link", below(AT_FDCWD, to), to, 1, -1);
    return real(from, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    CHECK("link", below(b, to), to, 1, -1);
    return real(a, from, b, to, flags);
}
#define ON_PATH(symbol) \
    int symbol(const char *path) { \
        REAL(int, symbol, const char *); CHECK(#symbol, below(AT_FDCWD, path), path, 0, -1); return real(path); \
    }
ON_PATH(unlink) ON_PATH(rmdir)
int unlinkat(int dir, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    CHECK("unlink", below(dir, path), path, 0, -1);
    return real(dir, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    CHECK("mkdir", below(AT_FDCWD, path), path, 1, -1);
    return real(path, mode);
}
int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    CHECK("mkdir", below(dir, path), path, 1, -1);
    return real(dir, path, mode);
}
int chmod(const char *path, mode_t mode) {
    REAL(int, chmod, const char *, mode_t);
    CHECK("chmod", below(AT_FDCWD, path), path, 0, -1);
    return real(path, mode);
}
int fchmodat(int dir, const char *path, mode_t mode, int flags) {
    REAL(int, fchmodat, int, const char *, mode_t, int);
    CHECK("chmod", below(dir, path), path, 0, -1);
    return real(dir, path, mode, flags);
}
