#include "engine/server/landlock.h"

#include "engine/base/io.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in the kernel, whose header may be newer than ours. */
struct attributes {
    uint64_t files, network, scope;
};

enum {
    ABI_TRUNCATE = 3,
    ABI_NETWORK = 4,
    ABI_DEVICES = 5,
    ABI_SCOPE = 6,
    FILES_BITS_FIRST = 13, /* of the first version */
    NETWORK_TCP = 3,       /* bind, connect */
    SCOPE_ALL = 3,         /* abstract sockets, signals */
};

#define TRUNCATE (UINT64_C(1) << 14)
#define IOCTL_DEVICE (UINT64_C(1) << 15)
#define FILE_READ LANDLOCK_ACCESS_FS_READ_FILE
#define FILE_WRITE (LANDLOCK_ACCESS_FS_WRITE_FILE | TRUNCATE)
/* All that makes sense for what is no folder. */
#define OF_FILES                                                               \
    (FILE_READ | FILE_WRITE | LANDLOCK_ACCESS_FS_EXECUTE | IOCTL_DEVICE)

static const uint64_t uses[] = {
    [OCR_LANDLOCK_READ] = FILE_READ | LANDLOCK_ACCESS_FS_READ_DIR,
    [OCR_LANDLOCK_RUN] =
        FILE_READ | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_EXECUTE,
    [OCR_LANDLOCK_CHANGE] =
        FILE_READ | FILE_WRITE | LANDLOCK_ACCESS_FS_READ_DIR |
        LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_DIR |
        LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
        LANDLOCK_ACCESS_FS_REFER,
    [OCR_LANDLOCK_DEVICE] =
        FILE_READ | FILE_WRITE | IOCTL_DEVICE | LANDLOCK_ACCESS_FS_READ_DIR,
};

/* All kinds of access to files that this kernel can refuse and that are known
 * here. */
static uint64_t refusable(long abi)
{
    unsigned bits = FILES_BITS_FIRST;

    if (abi >= ABI_DEVICES)
        bits += 3;
    else if (abi > 1)
        bits += abi >= ABI_TRUNCATE ? 2 : 1;
    return (UINT64_C(1) << bits) - 1;
}

static size_t attributes_size(long abi)
{
    if (abi < ABI_NETWORK)
        return offsetof(struct attributes, network);
    return abi < ABI_SCOPE ? offsetof(struct attributes, scope)
                           : sizeof(struct attributes);
}

void ocr_landlock_begin(struct ocr_landlock *rules, bool quiet)
{
    const long abi = syscall(SYS_landlock_create_ruleset, NULL, 0,
                             LANDLOCK_CREATE_RULESET_VERSION);
    struct attributes attributes = {.files = refusable(abi)};

    *rules = (struct ocr_landlock){-1, attributes.files};
    if (abi < 1)
        return;
    if (quiet && abi >= ABI_NETWORK)
        attributes.network = NETWORK_TCP;
    if (quiet && abi >= ABI_SCOPE)
        attributes.scope = SCOPE_ALL;
    rules->set = (int)syscall(SYS_landlock_create_ruleset, &attributes,
                              attributes_size(abi), 0);
}

void ocr_landlock_allow(const struct ocr_landlock *rules, const char *path,
                        enum ocr_landlock_use use)
{
    struct landlock_path_beneath_attr rule = {.allowed_access =
                                                  uses[use] & rules->files};
    struct stat st;

    if (rules->set < 0)
        return;
    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0)
        return;
    if (fstat(rule.parent_fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rule.allowed_access &= OF_FILES;
    syscall(SYS_landlock_add_rule, rules->set, LANDLOCK_RULE_PATH_BENEATH,
            &rule, 0);
    ocr_close(rule.parent_fd);
}

bool ocr_landlock_end(struct ocr_landlock *rules)
{
    const bool done = rules->set >= 0 &&
                      syscall(SYS_landlock_restrict_self, rules->set, 0) == 0;

    rules->set = ocr_close(rules->set);
    return done;
}
