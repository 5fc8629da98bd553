#include "fs/privileges.h"

#include "engine/base/log.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READS (1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER)
#define MOUNTS (1u << CAP_SYS_ADMIN)

static bool dropped; /* set before the first thread */

/* Of this thread: what it may use now, and what it may take up again. */
static int set(uint32_t effective, uint32_t permitted)
{
    struct __user_cap_header_struct header = {.version =
                                                  _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data))
        return -1;
    permitted &= data[0].permitted;
    memset(data, 0, sizeof data);
    data[0].permitted = permitted;
    data[0].effective = effective & permitted;
    return (int)syscall(SYS_capset, &header, data);
}

void ocr_privileges_drop(void)
{
    if (geteuid() != 0)
        return;
    if (set(READS, READS | MOUNTS) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        ocr_warning("cannot give up root's rights: %s", strerror(errno));
    else
        dropped = true;
}

void ocr_privileges_raise(void)
{
    if (dropped)
        set(READS | MOUNTS, READS | MOUNTS);
}

void ocr_privileges_lower(void)
{
    if (dropped)
        set(READS, READS | MOUNTS);
}
