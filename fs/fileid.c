#include "fs/fileid.h"

#include <string.h>
#include <sys/statfs.h>

uint64_t ocr_file_system_id(int fd, dev_t dev)
{
    struct statfs fs;
    uint64_t id;

    if (fstatfs(fd, &fs))
        return dev;
    _Static_assert(sizeof fs.f_fsid == sizeof id, "f_fsid has 64 bits");
    memcpy(&id, &fs.f_fsid, sizeof id);
    return id ? id : dev;
}

void ocr_file_id_fill(struct ocr_file_id *out, const struct stat *st, int fd)
{
    *out = (struct ocr_file_id){
        .fs = ocr_file_system_id(fd, st->st_dev),
        .ino = st->st_ino,
        .size = (uint64_t)st->st_size,
        .mtime_ns = st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns = st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
    };
}
