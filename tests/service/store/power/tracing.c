/* Records what a program does to the files of one folder, in order, with contents.
 *
 * Loaded before the C library (LD_PRELOAD). RMAB_TRACE_FOLDER is the folder, RMAB_TRACE_FILE where
 * the records go, outside of it. A record is, little-endian,
 *
 *     char what; uint32 file; int64 offset; uint32 length; then `length` bytes
 *
 *     C  the file was created; bytes: its name          W  bytes were written at the offset
 *     T  it was cut or stretched to `offset` bytes      S  it was synced (fsync, fdatasync)
 *     U  a name was removed; bytes: the name            D  the folder itself was synced
 *     R  a name was changed; bytes: old, zero, new
 *
 * A file has a number of its own from its creation on, so that a name can be used again. Syncing is
 * recorded and not done: the disk is imagined by whoever reads the records.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_DESCRIPTORS 4096
#define MOST_NAMES 64
#define FOLDER UINT32_MAX

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static char folder[4096];
static uint32_t file_of[MOST_DESCRIPTORS]; /* 0: not in the folder */
static struct { char name[256]; uint32_t file; } names[MOST_NAMES];
static uint32_t last_file;

static void fail(const char *why) {
    fprintf(stderr, "tracing: %s\n", why);
    _exit(99);
}

__attribute__((constructor)) static void start(void) {
    const char *where = getenv("RMAB_TRACE_FOLDER"), *out = getenv("RMAB_TRACE_FILE");
    if (!where || !out || !realpath(where, folder)) fail("no folder or file to trace");
    trace = (int)syscall(SYS_openat, AT_FDCWD, out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace < 0) fail("cannot write the trace");
}

static void record(char what, uint32_t file, int64_t offset, const void *bytes, size_t length) {
    char head[17];
    uint32_t short_length = (uint32_t)length;
    head[0] = what;
    memcpy(head + 1, &file, 4);
    memcpy(head + 5, &offset, 8);
    memcpy(head + 13, &short_length, 4);
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, length}};
    if (syscall(SYS_writev, trace, parts, 2) != (long)(sizeof head + length)) fail("short record");
}

/* The name of a path that is directly in the folder, "" for the folder itself, else NULL. */
static const char *inside(const char *path) {
    static __thread char full[4096];
    size_t length = strlen(folder);
    if (path[0] == '/') snprintf(full, sizeof full, "%s", path);
    else if (getcwd(full, sizeof full)) {
        size_t at = strlen(full);
        snprintf(full + at, sizeof full - at, "/%s", path);
    } else return NULL;
    if (strncmp(full, folder, length)) return NULL;
    if (full[length] == 0) return "";
    if (full[length] != '/' || strchr(full + length + 1, '/')) return NULL;
    return full + length + 1;
}

static int name_at(const char *name) {
    for (int i = 0; i < MOST_NAMES; i++)
        if (names[i].file && !strcmp(names[i].name, name)) return i;
    return -1;
}

static uint32_t named(const char *name) {
    int at = name_at(name);
    if (at >= 0) return names[at].file;
    for (at = 0; at < MOST_NAMES && names[at].file; at++) {}
    if (at == MOST_NAMES || strlen(name) > 255) fail("too many names, or too long a one");
    strcpy(names[at].name, name);
    names[at].file = ++last_file;
    record('C', last_file, 0, name, strlen(name));
    return last_file;
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    const char *name = at == AT_FDCWD || path[0] == '/' ? inside(path) : NULL;
    if (name == NULL) return (int)syscall(SYS_openat, at, path, flags, mode);
    pthread_mutex_lock(&gate);
    int descriptor = (int)syscall(SYS_openat, at, path, flags, mode);
    if (descriptor >= MOST_DESCRIPTORS) fail("too many descriptors");
    if (descriptor >= 0) {
        file_of[descriptor] = *name ? named(name) : FOLDER;
        if (*name && flags & O_TRUNC) record('T', file_of[descriptor], 0, "", 0);
    }
    pthread_mutex_unlock(&gate);
    return descriptor;
}

#define OPEN(name)                                                  \
    int name(const char *path, int flags, ...) {                    \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;   \
        va_end(more);                                               \
        return opened(AT_FDCWD, path, flags, mode);                 \
    }
#define OPENAT(name)                                                \
    int name(int at, const char *path, int flags, ...) {            \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;   \
        va_end(more);                                               \
        return opened(at, path, flags, mode);                       \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static uint32_t file_at(int descriptor) {
    return descriptor >= 0 && descriptor < MOST_DESCRIPTORS ? file_of[descriptor] : 0;
}

int close(int descriptor) {
    if (descriptor >= 0 && descriptor < MOST_DESCRIPTORS) file_of[descriptor] = 0;
    return (int)syscall(SYS_close, descriptor);
}

ssize_t write(int descriptor, const void *bytes, size_t length) {
    uint32_t file = file_at(descriptor);
    if (!file) return syscall(SYS_write, descriptor, bytes, length);
    pthread_mutex_lock(&gate);
    int64_t offset = lseek(descriptor, 0, SEEK_CUR);
    if (fcntl(descriptor, F_GETFL) & O_APPEND) {
        struct stat now;
        fstat(descriptor, &now);
        offset = now.st_size;
    }
    ssize_t done = syscall(SYS_write, descriptor, bytes, length);
    if (done > 0) record('W', file, offset, bytes, (size_t)done);
    pthread_mutex_unlock(&gate);
    return done;
}

#define PWRITE(name)                                                                  \
    ssize_t name(int descriptor, const void *bytes, size_t length, off_t offset) {    \
        uint32_t file = file_at(descriptor);                                          \
        if (!file) return syscall(SYS_pwrite64, descriptor, bytes, length, offset);   \
        pthread_mutex_lock(&gate);                                                    \
        ssize_t done = syscall(SYS_pwrite64, descriptor, bytes, length, offset);      \
        if (done > 0) record('W', file, offset, bytes, (size_t)done);                 \
        pthread_mutex_unlock(&gate);                                                  \
        return done;                                                                  \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                                        \
    int name(int descriptor, off_t size) {                                    \
        uint32_t file = file_at(descriptor);                                  \
        if (!file) return (int)syscall(SYS_ftruncate, descriptor, size);      \
        pthread_mutex_lock(&gate);                                            \
        int done = (int)syscall(SYS_ftruncate, descriptor, size);             \
        if (done == 0) record('T', file, size, "", 0);                        \
        pthread_mutex_unlock(&gate);                                          \
        return done;                                                          \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

/* What would go past the records: better to end than to miss it. */
#define UNSEEN(name)                                                          \
    ssize_t name(int descriptor, const struct iovec *parts, int n, off_t o) { \
        if (file_at(descriptor)) fail(#name " is not recorded");              \
        return syscall(SYS_pwritev, descriptor, parts, n, o, 0);              \
    }
UNSEEN(pwritev)
UNSEEN(pwritev64)

ssize_t writev(int descriptor, const struct iovec *parts, int n) {
    if (file_at(descriptor)) fail("writev is not recorded");
    return syscall(SYS_writev, descriptor, parts, n);
}

static int synced(int descriptor, long call) {
    uint32_t file = file_at(descriptor);
    if (!file) return (int)syscall(call, descriptor);
    pthread_mutex_lock(&gate);
    record(file == FOLDER ? 'D' : 'S', file, 0, "", 0);
    pthread_mutex_unlock(&gate);
    return 0;
}

int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }

int unlink(const char *path) {
    const char *name = inside(path);
    if (name == NULL || !*name) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&gate);
    int done = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    int at = name_at(name);
    if (done == 0 && at >= 0) {
        record('U', names[at].file, 0, name, strlen(name));
        names[at].file = 0;
    }
    pthread_mutex_unlock(&gate);
    return done;
}

int rename(const char *from, const char *to) {
    char both[513];
    const char *old = inside(from);
    if (old == NULL) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&gate);
    int at = name_at(old);
    int length = snprintf(both, sizeof both, "%s", old) + 1;
    const char *new = inside(to);
    if (at < 0 || new == NULL) fail("a file was moved out of the folder");
    length += snprintf(both + length, sizeof both - (size_t)length, "%s", new);
    int done = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (done == 0) {
        int replaced = name_at(new);
        if (replaced >= 0) names[replaced].file = 0;
        strcpy(names[at].name, new);
        record('R', names[at].file, 0, both, (size_t)length);
    }
    pthread_mutex_unlock(&gate);
    return done;
}
