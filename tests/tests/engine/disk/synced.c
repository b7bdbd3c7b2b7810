/* A simulated disk that keeps only synced data, for tests of power failures.
 *
 * The host preloads this library (LD_PRELOAD). The library follows the files below the folder ORDAIN_DISK_FOLDER, and
 * writes its records into the folder ORDAIN_DISK_SIDE, which must be on the same file system. After a kill of the host,
 * the test computes from these records the data that the disk holds (synced.rs). The records name files and folders by
 * their inodes, so that they stay valid after a rename:
 *
 *   INODE.file      a second name of the file, so that its inode is not used again when the file is removed
 *   INODE.dirty     the ranges that were written since the last sync, as pairs of position and length
 *   INODE.durable   the content that the disk holds
 *   INODE.names     the entries of a folder that the disk holds, one per line: `d` (folder) or `f`, inode, name
 *   fail            written by the test: the ending of a path; the next sync of a file or folder with such a path fails
 *   fail-open       written by the test: a number N and a part of a path. While this file exists, each process counts
 *                   its opens of existing files with such a path. The Nth of these opens fails
 *   fail-read       the same for reads
 *   read-only       written by the test: a part of a path; all writes to files with such a path fail, as on a file
 *                   system that the system has made read-only after an error of the disk
 *   log             one line for each sync: `synced PATH` or `failed PATH`
 *
 * A sync of a file makes the written ranges and the length of the file durable. A sync of a folder makes the names in
 * it durable. A sync of a new file does not make the name of the file durable here: most file systems also make the
 * name durable, but POSIX does not promise it. A failed sync behaves as on Linux: only this call returns an error, and
 * the written ranges count as clean. All processes still read these ranges from memory, and later syncs succeed. But
 * the disk never gets these ranges, unless they are written again.
 *
 * The library follows the calls that the host makes: open, read, pread, write, writev, pwrite, ftruncate, fsync,
 * fdatasync and mkdir. Data that a program writes in another way never becomes durable. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct file {
    char link[64];
    char path[PATH_MAX];
    struct stat state;
};

struct range {
    int64_t from;
    int64_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static const char *side;

__attribute__((constructor)) static void begin(void)
{
    side = getenv("ORDAIN_DISK_SIDE");
    folder = side ? getenv("ORDAIN_DISK_FOLDER") : NULL;
}

static int is_below(const char *path)
{
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

/* Finds the file or folder of a descriptor. Returns whether the file or folder belongs to the disk. */
static int is_on_disk(int fd, struct file *file)
{
    if (!folder || fstat(fd, &file->state))
        return 0;
    if (!S_ISREG(file->state.st_mode) && !S_ISDIR(file->state.st_mode))
        return 0;
    snprintf(file->link, sizeof file->link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(file->link, file->path, sizeof file->path - 1);
    file->path[length < 0 ? 0 : length] = 0;
    return is_below(file->path);
}

/* Returns the path of one of the records of an inode. */
static const char *side_path(ino_t inode, const char *kind, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%ju.%s", side, (uintmax_t)inode, kind);
    return path;
}

/* Opens one of the records of a file of the disk. Also gives the file its second name, INODE.file. */
static int open_side(const struct file *file, const char *kind, int flags)
{
    char path[PATH_MAX];
    side_path(file->state.st_ino, "file", path);
    linkat(AT_FDCWD, file->link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
    side_path(file->state.st_ino, kind, path);
    return open(path, flags | O_CREAT | O_CLOEXEC, 0600);
}

static void add_range(const struct file *file, int64_t from, int64_t length)
{
    struct range range = { from, length };
    int dirty = open_side(file, "dirty", O_WRONLY | O_APPEND);
    if (syscall(SYS_write, dirty, &range, sizeof range) != sizeof range)
        abort();
    close(dirty);
}

/* Returns the position of the next write to a descriptor. */
static int64_t position(int fd)
{
    struct stat state;
    if (fcntl(fd, F_GETFL) & O_APPEND)
        return fstat(fd, &state) ? 0 : state.st_size;
    return lseek(fd, 0, SEEK_CUR);
}

/* Makes the written ranges of a file and its length durable. */
static void keep_content(const struct file *file)
{
    static char piece[1 << 20];
    struct stat state;
    struct range range;
    int from = open(file->link, O_RDONLY | O_CLOEXEC);
    int to = open_side(file, "durable", O_WRONLY);
    int dirty = open_side(file, "dirty", O_RDWR);
    while (read(dirty, &range, sizeof range) == sizeof range) {
        while (range.length > 0) {
            size_t most = sizeof piece;
            if (range.length < (int64_t)most)
                most = range.length;
            ssize_t got = pread(from, piece, most, range.from);
            if (got <= 0)
                break;
            if (syscall(SYS_pwrite64, to, piece, got, range.from) != got)
                abort();
            range.from += got;
            range.length -= got;
        }
    }
    if (fstat(from, &state) || ftruncate(to, state.st_size) || ftruncate(dirty, 0))
        abort();
    close(from);
    close(to);
    close(dirty);
}

/* Makes the current names in a folder durable. */
static void keep_names(int fd, const struct file *file)
{
    char draft[PATH_MAX], names[PATH_MAX];
    side_path(file->state.st_ino, "names", names);
    side_path(file->state.st_ino, "draft", draft);
    DIR *entries = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    FILE *out = fopen(draft, "we");
    struct dirent *entry;
    while ((entry = readdir(entries)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            fprintf(out, "%c %ju %s\n", entry->d_type == DT_DIR ? 'd' : 'f',
                    (uintmax_t)entry->d_ino, entry->d_name);
    closedir(entries);
    if (fclose(out) || rename(draft, names))
        abort();
}

/* Returns whether the sync of a file must fail because the test has requested a failure. If so, marks the written
 * ranges of the file as clean. */
static int must_fail(const struct file *file)
{
    char control[PATH_MAX], ending[NAME_MAX] = "";
    snprintf(control, sizeof control, "%s/fail", side);
    FILE *wish = fopen(control, "re");
    if (!wish)
        return 0;
    size_t length = fread(ending, 1, sizeof ending - 1, wish);
    fclose(wish);
    size_t all = strlen(file->path);
    if (length == 0 || length > all || strcmp(file->path + all - length, ending))
        return 0;
    unlink(control);
    close(open_side(file, "dirty", O_WRONLY | O_TRUNC));
    return 1;
}

/* Returns whether the test has made the part of the disk with this file read-only. */
static int is_read_only(const struct file *file)
{
    char control[PATH_MAX], part[PATH_MAX] = "";
    snprintf(control, sizeof control, "%s/read-only", side);
    FILE *wish = fopen(control, "re");
    if (!wish)
        return 0;
    size_t length = fread(part, 1, sizeof part - 1, wish);
    fclose(wish);
    return length > 0 && strstr(file->path, part) != NULL;
}

static int sync_with(long call, int fd)
{
    struct file file;
    char log[PATH_MAX];
    if (!is_on_disk(fd, &file))
        return syscall(call, fd);
    pthread_mutex_lock(&lock);
    int failed = must_fail(&file) ? EIO : syscall(call, fd) ? errno : 0;
    if (!failed && S_ISDIR(file.state.st_mode))
        keep_names(fd, &file);
    else if (!failed)
        keep_content(&file);
    snprintf(log, sizeof log, "%s/log", side);
    FILE *out = fopen(log, "ae");
    fprintf(out, "%s %s\n", failed ? "failed" : "synced", file.path);
    fclose(out);
    pthread_mutex_unlock(&lock);
    errno = failed;
    return failed ? -1 : 0;
}

int fsync(int fd)
{
    return sync_with(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_with(SYS_fdatasync, fd);
}

/* Records the range of `length` bytes from `from` on, and makes the call that changes this range. A lock prevents a
 * sync between the record and the call. */
#define CHANGE(fd, from, length, call)          \
    struct file file;                           \
    if (!is_on_disk(fd, &file))                 \
        return call;                            \
    if (is_read_only(&file)) {                  \
        errno = EROFS;                          \
        return -1;                              \
    }                                           \
    pthread_mutex_lock(&lock);                  \
    add_range(&file, from, length);             \
    long done = call;                           \
    pthread_mutex_unlock(&lock);                \
    return done

ssize_t write(int fd, const void *bytes, size_t length)
{
    CHANGE(fd, position(fd), length, syscall(SYS_write, fd, bytes, length));
}

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    int64_t length = 0;
    for (int piece = 0; piece < count; piece++)
        length += pieces[piece].iov_len;
    CHANGE(fd, position(fd), length, syscall(SYS_writev, fd, pieces, count));
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t from)
{
    CHANGE(fd, from, length, syscall(SYS_pwrite64, fd, bytes, length, from));
}

/* Records the removed range, because these bytes become zeros if the file grows again before the next sync. */
int ftruncate64(int fd, off64_t length)
{
    CHANGE(fd, length, file.state.st_size - length, syscall(SYS_ftruncate, fd, length));
}

/* A new folder has no durable names, even if it has the inode of an earlier folder. */
int mkdir(const char *path, mode_t mode)
{
    char whole[PATH_MAX], names[PATH_MAX];
    struct stat state;
    if (syscall(SYS_mkdirat, AT_FDCWD, path, mode))
        return -1;
    if (folder && realpath(path, whole) && is_below(whole) && !stat(whole, &state))
        unlink(side_path(state.st_ino, "names", names));
    return 0;
}

/* Returns whether the test has requested the failure of a call of this kind, `open` or `read`. */
static int is_wished(const char *kind, char control[PATH_MAX])
{
    if (!folder)
        return 0;
    snprintf(control, PATH_MAX, "%s/fail-%s", side, kind);
    return access(control, F_OK) == 0;
}

/* Returns whether this call on the file `path` must fail. Counts the call. */
static int must_fail_call(const char *control, atomic_long *calls, const char *path)
{
    char part[PATH_MAX] = "";
    long number = 0;
    FILE *wish = fopen(control, "re");
    if (!wish)
        return 0;
    int fields = fscanf(wish, "%ld %4095s", &number, part);
    fclose(wish);
    if (fields != 2 || !strstr(path, part) || atomic_fetch_add(calls, 1) + 1 != number)
        return 0;
    unlink(control);
    errno = EIO;
    return 1;
}

int open64(const char *path, int flags, ...)
{
    static atomic_long calls;
    char control[PATH_MAX], whole[PATH_MAX];
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (is_wished("open", control) && realpath(path, whole) && is_below(whole)
        && must_fail_call(control, &calls, whole))
        return -1;
    return syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

static int must_fail_read(int fd)
{
    static atomic_long calls;
    char control[PATH_MAX];
    struct file file;
    return is_wished("read", control) && is_on_disk(fd, &file)
           && must_fail_call(control, &calls, file.path);
}

ssize_t read(int fd, void *bytes, size_t length)
{
    return must_fail_read(fd) ? -1 : syscall(SYS_read, fd, bytes, length);
}

ssize_t pread64(int fd, void *bytes, size_t length, off64_t from)
{
    return must_fail_read(fd) ? -1 : syscall(SYS_pread64, fd, bytes, length, from);
}
