#include "engine/server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#if HAVE_SECCOMP
#include <seccomp.h>
#endif

/* ---- privileges --------------------------------------------------------- */

/* A helper of root's engine keeps its uid, which without capabilities opens
 * doors only in the file system, and there it may open nothing. */
static bool drop_privileges(void)
{
    struct __user_cap_header_struct header = {.version =
                                                  _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_capset, &header, none) == 0;
}

/* ---- Landlock ----------------------------------------------------------- */

/* As in the kernel; the header may be older than the kernel. */
struct rules {
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

/* All that this kernel can refuse, as far as it is known here. */
static struct rules refusable(long abi)
{
    unsigned bits = FILES_BITS_FIRST;

    if (abi >= ABI_DEVICES)
        bits += 3;
    else if (abi > 1)
        bits += abi >= ABI_TRUNCATE ? 2 : 1;
    return (struct rules){.files = (UINT64_C(1) << bits) - 1,
                          .network = abi >= ABI_NETWORK ? NETWORK_TCP : 0,
                          .scope = abi >= ABI_SCOPE ? SCOPE_ALL : 0};
}

static size_t rules_size(long abi)
{
    if (abi < ABI_NETWORK)
        return offsetof(struct rules, network);
    return abi < ABI_SCOPE ? offsetof(struct rules, scope)
                           : sizeof(struct rules);
}

static bool refuse_all_files(void)
{
    const long abi = syscall(SYS_landlock_create_ruleset, NULL, 0,
                             LANDLOCK_CREATE_RULESET_VERSION);
    struct rules rules;
    long set;
    bool done;

    if (abi < 1)
        return false;
    rules = refusable(abi);
    set = syscall(SYS_landlock_create_ruleset, &rules, rules_size(abi), 0);
    if (set < 0)
        return false;
    done = syscall(SYS_landlock_restrict_self, (int)set, 0) == 0;
    close((int)set);
    return done;
}

/* ---- seccomp ------------------------------------------------------------ */

#if HAVE_SECCOMP

/* Memory, and what the C library does on its own. */
static const int allowed[] = {
    SCMP_SYS(brk),          SCMP_SYS(munmap),         SCMP_SYS(mremap),
    SCMP_SYS(madvise),      SCMP_SYS(pread64),        SCMP_SYS(close),
    SCMP_SYS(futex),        SCMP_SYS(getrandom),      SCMP_SYS(clock_gettime),
    SCMP_SYS(gettimeofday), SCMP_SYS(getpid),         SCMP_SYS(gettid),
    SCMP_SYS(exit),         SCMP_SYS(exit_group),     SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sched_yield),  SCMP_SYS(restart_syscall)};

/* Only somebody who took the process over asks for these. Signals cannot be
 * blocked or caught either, so the limit on processor time holds. */
static const int deadly[] = {SCMP_SYS(execve),
                             SCMP_SYS(execveat),
                             SCMP_SYS(fork),
                             SCMP_SYS(vfork),
                             SCMP_SYS(clone),
                             SCMP_SYS(clone3),
                             SCMP_SYS(socket),
                             SCMP_SYS(socketpair),
                             SCMP_SYS(connect),
                             SCMP_SYS(bind),
                             SCMP_SYS(listen),
                             SCMP_SYS(accept),
                             SCMP_SYS(accept4),
                             SCMP_SYS(sendto),
                             SCMP_SYS(ptrace),
                             SCMP_SYS(process_vm_readv),
                             SCMP_SYS(process_vm_writev),
                             SCMP_SYS(pidfd_open),
                             SCMP_SYS(pidfd_getfd),
                             SCMP_SYS(bpf),
                             SCMP_SYS(io_uring_setup),
                             SCMP_SYS(userfaultfd),
                             SCMP_SYS(perf_event_open),
                             SCMP_SYS(keyctl),
                             SCMP_SYS(add_key),
                             SCMP_SYS(unshare),
                             SCMP_SYS(setns),
                             SCMP_SYS(mount),
                             SCMP_SYS(init_module),
                             SCMP_SYS(finit_module)};

static int add_rules(scmp_filter_ctx filter, int sock)
{
    const struct scmp_arg_cmp to_sock = SCMP_A0(SCMP_CMP_EQ, (unsigned)sock);
    const struct scmp_arg_cmp to_errors = SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO);
    const struct scmp_arg_cmp to_itself =
        SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid());
    const struct scmp_arg_cmp is_data =
        SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
    const struct scmp_arg_cmp asks_for_seals =
        SCMP_A1(SCMP_CMP_EQ, F_GET_SEALS);
    const struct {
        int call;
        const struct scmp_arg_cmp *only;
    } limited[] = {
        {SCMP_SYS(recvmsg), &to_sock},  {SCMP_SYS(sendmsg), &to_sock},
        {SCMP_SYS(write), &to_errors},  {SCMP_SYS(writev), &to_errors},
        {SCMP_SYS(tgkill), &to_itself}, {SCMP_SYS(mmap), &is_data},
        {SCMP_SYS(mprotect), &is_data}, {SCMP_SYS(fcntl), &asks_for_seals},
    };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof allowed / sizeof *allowed; i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
    for (size_t i = 0; rc == 0 && i < sizeof limited / sizeof *limited; i++)
        rc = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, limited[i].call, 1,
                                    limited[i].only);
    for (size_t i = 0; rc == 0 && i < sizeof deadly / sizeof *deadly; i++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, deadly[i], 0);
        if (rc == -EDOM || rc == -EINVAL) /* unknown to this processor */
            rc = 0;
    }
    return rc;
}

static bool filter_calls(int sock)
{
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int rc = filter ? add_rules(filter, sock) : -ENOMEM;

    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    return rc == 0;
}

#else

static bool filter_calls(int sock)
{
    (void)sock;
    return false;
}

#endif

unsigned ocr_sandbox_helper(int sock)
{
    unsigned holds = 0;

    if (drop_privileges())
        holds |= OCR_SANDBOX_PRIVILEGES;
    if (!OCR_SANITIZED && refuse_all_files())
        holds |= OCR_SANDBOX_LANDLOCK;
    if (!OCR_SANITIZED && filter_calls(sock))
        holds |= OCR_SANDBOX_SECCOMP;
    return holds;
}
