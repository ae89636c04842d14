// A file system upon a directory, as weak as shared ones are, for tests/site/shared.sh:
// - no locks: flock and fcntl answer ENOLCK, as Lustre without flock and NFS without its daemon do
// - attributes and names, also those of what is not there, are kept for SECONDS by each mount (NFS's actimeo)
// - what is written stays with the mount until the file is flushed, synced, closed or looked at, the last first
// - times are of whole seconds, by a clock that is 100 seconds ahead
// - what another mount has removed or replaced is ESTALE to who has it open
// - no exchange or refusal in renames, no room set aside, no sync of directories; with "nolink" no second names
//
// cc weak.c $(pkg-config --cflags --libs fuse3) -o weak && ./weak DIRECTORY SECONDS link|nolink MOUNT [FUSE'S FLAGS]
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int root;
static double seconds;
static int links;

struct piece {
    struct piece *before;
    ino_t inode;
    int file;
    off_t at;
    size_t size;
    char bytes[];
};
static struct piece *pending;

static const char *below(const char *path) { return path[1] ? path + 1 : "."; }
static int answer(int code) { return code < 0 ? -errno : 0; }

// Writes what is pending of a file: the newest first, but where pieces meet in their order.
static int settle(ino_t inode) {
    int code = 0, again = 1;
    while (again) {
        again = 0;
        for (struct piece **place = &pending; *place; place = &(*place)->before) {
            struct piece *piece = *place, *other;
            if (piece->inode != inode) continue;
            for (other = piece->before; other; other = other->before)
                if (other->inode == inode && other->at < piece->at + (off_t)piece->size &&
                    piece->at < other->at + (off_t)other->size)
                    break;
            if (other) continue;
            if (pwrite(piece->file, piece->bytes, piece->size, piece->at) != (ssize_t)piece->size) code = -EIO;
            close(piece->file);
            *place = piece->before;
            free(piece);
            again = 1;
            break;
        }
    }
    return code;
}
static int settle_file(int file) {
    struct stat found;
    return fstat(file, &found) ? -errno : settle(found.st_ino);
}

static void *start(struct fuse_conn_info *connection, struct fuse_config *config) {
    (void)connection;
    config->attr_timeout = config->entry_timeout = config->negative_timeout = seconds;
    config->auto_cache = 1;
    config->use_ino = 1;
    return NULL;
}
static int look(const char *path, struct stat *found, struct fuse_file_info *open) {
    (void)open;
    for (int twice = 0; twice < 2; twice++) {
        if (fstatat(root, below(path), found, AT_SYMLINK_NOFOLLOW)) return -errno;
        settle(found->st_ino);
    }
    found->st_mtim.tv_sec += 100;
    found->st_ctim.tv_sec += 100;
    found->st_mtim.tv_nsec = found->st_ctim.tv_nsec = found->st_atim.tv_nsec = 0;
    return 0;
}
static int list(const char *path, void *into, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *open,
                enum fuse_readdir_flags flags) {
    (void)at, (void)open, (void)flags;
    int file = openat(root, below(path), O_RDONLY | O_DIRECTORY);
    DIR *directory = file < 0 ? NULL : fdopendir(file);
    if (!directory) return -errno;
    for (struct dirent *entry; (entry = readdir(directory));) fill(into, entry->d_name, NULL, 0, 0);
    closedir(directory);
    return 0;
}
static int open_file(const char *path, struct fuse_file_info *open) {
    // Written in pieces at their places, whatever the flags: the mount knows where the end is.
    int mode = (open->flags & O_ACCMODE) == O_RDONLY ? O_RDONLY : O_RDWR;
    int file = openat(root, below(path), mode | (open->flags & O_TRUNC));
    open->fh = file;
    return file < 0 ? -errno : 0;
}
static int create_file(const char *path, mode_t mode, struct fuse_file_info *open) {
    int file = openat(root, below(path), O_RDWR | O_CREAT | (open->flags & (O_EXCL | O_TRUNC)), mode);
    open->fh = file;
    return file < 0 ? -errno : 0;
}
static int is_stale(int file) {
    struct stat found;
    return fstat(file, &found) || found.st_nlink == 0;
}
static int read_file(const char *path, char *to, size_t size, off_t at, struct fuse_file_info *open) {
    (void)path;
    if (is_stale(open->fh)) return -ESTALE;
    settle_file(open->fh);
    ssize_t got = pread(open->fh, to, size, at);
    return got < 0 ? -errno : got;
}
static int write_file(const char *path, const char *from, size_t size, off_t at, struct fuse_file_info *open) {
    (void)path;
    struct stat found;
    if (fstat(open->fh, &found) || found.st_nlink == 0) return -ESTALE;
    struct piece *piece = malloc(sizeof *piece + size);
    if (!piece) return -ENOMEM;
    *piece = (struct piece){pending, found.st_ino, dup(open->fh), at, size};
    memcpy(piece->bytes, from, size);
    pending = piece;
    return size;
}
static int flush_file(const char *path, struct fuse_file_info *open) { return (void)path, settle_file(open->fh); }
static int sync_file(const char *path, int data, struct fuse_file_info *open) {
    (void)path, (void)data;
    int code = settle_file(open->fh);
    return code ? code : answer(fsync(open->fh));
}
static int close_file(const char *path, struct fuse_file_info *open) {
    (void)path;
    settle_file(open->fh);
    return answer(close(open->fh));
}
static int sync_directory(const char *path, int data, struct fuse_file_info *open) {
    return (void)path, (void)data, (void)open, -EINVAL;
}
static int cut(const char *path, off_t size, struct fuse_file_info *open) {
    (void)open;
    int file = openat(root, below(path), O_WRONLY);
    if (file < 0) return -errno;
    settle_file(file);
    int code = answer(ftruncate(file, size));
    close(file);
    return code;
}
static int lock(const char *path, struct fuse_file_info *open, int command, struct flock *what) {
    return (void)path, (void)open, (void)command, (void)what, -ENOLCK;
}
static int lock_whole(const char *path, struct fuse_file_info *open, int how) {
    return (void)path, (void)open, (void)how, -ENOLCK;
}
static int rename_file(const char *from, const char *to, unsigned flags) {
    return flags ? -EINVAL : answer(renameat(root, below(from), root, below(to)));
}
static int link_file(const char *from, const char *to) {
    return links ? answer(linkat(root, below(from), root, below(to), 0)) : -EPERM;
}
static int symlink_file(const char *to, const char *path) { return answer(symlinkat(to, root, below(path))); }
static int read_link(const char *path, char *to, size_t size) {
    ssize_t got = readlinkat(root, below(path), to, size - 1);
    if (got < 0) return -errno;
    to[got] = 0;
    return 0;
}
static int make_directory(const char *path, mode_t mode) { return answer(mkdirat(root, below(path), mode)); }
static int remove_directory(const char *path) { return answer(unlinkat(root, below(path), AT_REMOVEDIR)); }
static int remove_file(const char *path) { return answer(unlinkat(root, below(path), 0)); }
static int set_mode(const char *path, mode_t mode, struct fuse_file_info *open) {
    return (void)open, answer(fchmodat(root, below(path), mode, 0));
}
static int set_times(const char *path, const struct timespec times[2], struct fuse_file_info *open) {
    return (void)open, answer(utimensat(root, below(path), times, AT_SYMLINK_NOFOLLOW));
}
static int room(const char *path, struct statvfs *found) { return (void)path, answer(fstatvfs(root, found)); }

static const struct fuse_operations operations = {
    .init = start, .getattr = look, .readdir = list, .open = open_file, .create = create_file, .read = read_file,
    .write = write_file, .flush = flush_file, .fsync = sync_file, .release = close_file, .fsyncdir = sync_directory,
    .truncate = cut, .lock = lock, .flock = lock_whole, .rename = rename_file, .link = link_file,
    .symlink = symlink_file, .readlink = read_link, .mkdir = make_directory, .rmdir = remove_directory,
    .unlink = remove_file, .chmod = set_mode, .utimens = set_times, .statfs = room,
};

int main(int count, char **words) {
    if (count < 5 || (root = open(words[1], O_RDONLY | O_DIRECTORY)) < 0) return 2;
    seconds = atof(words[2]);
    links = strcmp(words[3], "nolink");
    words[3] = words[0];
    return fuse_main(count - 3, words + 3, &operations, NULL);
}
