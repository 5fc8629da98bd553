#include "engine/server/sandbox.h"

#include "engine/server/landlock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#if HAVE_SECCOMP
#include <seccomp.h>
#endif

/* ---- privileges --------------------------------------------------------- */

/* Keeps of its capabilities only those in `keep`. */
static bool drop_privileges(uint32_t keep)
{
    struct __user_cap_header_struct header = {.version =
                                                  _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_capget, &header, data))
        return false;
    keep &= data[0].permitted;
    memset(data, 0, sizeof data);
    data[0].permitted = data[0].effective = keep;
    return syscall(SYS_capset, &header, data) == 0;
}

/* ---- files of the engine ------------------------------------------------ */

/* Programs and libraries, and what the loader, the C library and drivers look
 * at. */
static const char *const run[] = {"/usr",   "/bin", "/lib",       "/lib32",
                                  "/lib64", "/opt", "/nix/store", "/gnu/store"};
static const char *const looked_at[] = {"/proc", "/sys", "/etc/ld.so.cache",
                                        "/etc/localtime", "/etc/nvidia"};
/* Where fonts, their configuration and its caches are, and the tables that a
 * PDF with Chinese, Japanese or Korean text names. */
static const char *const fonts[] = {
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "/usr/share/texmf/fonts", /* links lead from the first to these */
    "/usr/share/texlive/texmf-dist/fonts",
    "/usr/share/ghostscript",
    "/usr/share/fontconfig",
    "/etc/fonts",
    "/var/cache/fontconfig",
    "/usr/share/poppler"};
static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full",
                                      "/dev/random", "/dev/urandom"};

static void allow_all(const struct ocr_landlock *rules,
                      const char *const *paths, size_t count,
                      enum ocr_landlock_use use)
{
    for (size_t i = 0; i < count; i++)
        ocr_landlock_allow(rules, paths[i], use);
}
#define ALLOW_ALL(rules, paths, use)                                           \
    allow_all(rules, paths, sizeof(paths) / sizeof *(paths), use)

/* A folder of models may consist of links to a store elsewhere. */
static void allow_model(const struct ocr_landlock *rules, const char *folder)
{
    const struct dirent *entry;
    char path[PATH_MAX];
    DIR *dir;

    ocr_landlock_allow(rules, folder, OCR_LANDLOCK_READ);
    dir = opendir(folder);
    while (dir && (entry = readdir(dir))) {
        if (entry->d_type != DT_LNK ||
            (size_t)snprintf(path, sizeof path, "%s/%s", folder,
                             entry->d_name) >= sizeof path)
            continue;
        ocr_landlock_allow(rules, path, OCR_LANDLOCK_READ);
    }
    if (dir)
        closedir(dir);
}

/* The program's folder, plugins beside it, and where a user put libraries. */
static void allow_programs(const struct ocr_landlock *rules)
{
    const char *libraries = getenv("LD_LIBRARY_PATH");
    char path[PATH_MAX], *all = strdup(libraries ? libraries : "");
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);

    ALLOW_ALL(rules, run, OCR_LANDLOCK_RUN);
    for (char *rest = all, *folder; all && (folder = strsep(&rest, ":"));)
        if (folder[0] == '/')
            ocr_landlock_allow(rules, folder, OCR_LANDLOCK_RUN);
    free(all);
    if (n <= 0)
        return;
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    ocr_landlock_allow(rules, path, OCR_LANDLOCK_RUN);
    strcat(path, "/../../lib/ocrfs"); /* as engine/base/dynamic.c looks */
    ocr_landlock_allow(rules, path, OCR_LANDLOCK_RUN);
}

/* Where the driver keeps the kernels that it made for this card. */
static bool kernel_cache(char *out, size_t size)
{
    const char *named = getenv("CUDA_CACHE_PATH"), *home = getenv("HOME");

    if (named && named[0] == '/')
        return (size_t)snprintf(out, size, "%s", named) < size;
    return home && home[0] == '/' &&
           (size_t)snprintf(out, size, "%s/.nv", home) < size;
}

static void allow_gpu(const struct ocr_landlock *rules)
{
    static const char *const driver[] = {"/run/nvidia",
                                         "/run/nvidia-persistenced"};
    const char *server = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char cache[PATH_MAX];
    glob_t found;

    if (glob("/dev/nvidia*", 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            ocr_landlock_allow(rules, found.gl_pathv[i], OCR_LANDLOCK_DEVICE);
        if (kernel_cache(cache, sizeof cache)) {
            mkdir(cache, 0700); /* now or never; mostly it is there */
            ocr_landlock_allow(rules, cache, OCR_LANDLOCK_CHANGE);
        }
        globfree(&found);
    }
    ALLOW_ALL(rules, driver, OCR_LANDLOCK_RUN);
    ocr_landlock_allow(rules, "/dev/shm", OCR_LANDLOCK_CHANGE);
    ocr_landlock_allow(rules, server ? server : "/tmp/nvidia-mps",
                       OCR_LANDLOCK_DEVICE);
}

/* What a variable of the environment names. */
static void allow_named(const struct ocr_landlock *rules, const char *variable)
{
    const char *path = getenv(variable);

    if (path && path[0] == '/')
        ocr_landlock_allow(rules, path, OCR_LANDLOCK_READ);
}

/* Resolver and certificates, and the key, which may be replaced by another
 * file of that name. */
static void allow_network(const struct ocr_landlock *rules,
                          const char *key_file)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(key_file, '/');

    ocr_landlock_allow(rules, "/etc", OCR_LANDLOCK_READ);
    ocr_landlock_allow(rules, "/run/systemd/resolve", OCR_LANDLOCK_READ);
    allow_named(rules, "SSL_CERT_FILE");
    allow_named(rules, "SSL_CERT_DIR");
    if (!slash || slash - key_file >= PATH_MAX)
        return;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - key_file), key_file);
    ocr_landlock_allow(rules, folder, OCR_LANDLOCK_READ);
}

static bool refuse_other_files(const struct ocr_sandbox_engine *engine)
{
    struct ocr_landlock rules;

    ocr_landlock_begin(&rules, !engine->network);
    if (rules.set < 0)
        return false;
    allow_programs(&rules);
    ALLOW_ALL(&rules, looked_at, OCR_LANDLOCK_READ);
    ALLOW_ALL(&rules, fonts, OCR_LANDLOCK_READ); /* for the helpers */
    ALLOW_ALL(&rules, devices, OCR_LANDLOCK_DEVICE);
    /* A helper raises its oom_score_adj. Root could do more there. */
    if (geteuid() != 0)
        ocr_landlock_allow(&rules, "/proc", OCR_LANDLOCK_DEVICE);
    ocr_landlock_allow(&rules, engine->runtime, OCR_LANDLOCK_CHANGE);
    if (engine->model[0] == '/')
        allow_model(&rules, engine->model);
    if (engine->gpu)
        allow_gpu(&rules);
    if (engine->network)
        allow_network(&rules, engine->key_file);
    return ocr_landlock_end(&rules);
}

/* A set-uid program makes the device nodes when the first user of the GPU
 * comes. The driver would call it, which it cannot without new privileges. */
static void make_gpu_devices(void)
{
    char name[] = "nvidia-modprobe", unified[] = "-u", first[] = "-c=0";
    char *const argv[] = {name, unified, first, NULL};
    pid_t pid;

    if (access("/dev/nvidia-uvm", F_OK) == 0 ||
        access("/proc/driver/nvidia", F_OK) != 0 ||
        posix_spawn(&pid, "/usr/bin/nvidia-modprobe", NULL, NULL, argv,
                    environ) != 0)
        return;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

/* ---- seccomp ------------------------------------------------------------ */

/* Comparisons with two values get a third, 0: the macros initialise a struct,
 * and clang wants all of its fields. */
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

/* Reading files; which ones is Landlock's part. */
static const int reading[] = {
    SCMP_SYS(read),       SCMP_SYS(lseek),      SCMP_SYS(fstat),
    SCMP_SYS(newfstatat), SCMP_SYS(stat),       SCMP_SYS(statx),
    SCMP_SYS(access),     SCMP_SYS(faccessat),  SCMP_SYS(faccessat2),
    SCMP_SYS(readlink),   SCMP_SYS(readlinkat), SCMP_SYS(getdents64),
    SCMP_SYS(statfs),     SCMP_SYS(fstatfs)};

static int add_reading(scmp_filter_ctx filter)
{
    const scmp_datum_t changing = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND;
    const struct scmp_arg_cmp reads =
        SCMP_A2(SCMP_CMP_MASKED_EQ, changing, O_RDONLY);
    const struct scmp_arg_cmp asks = SCMP_A1(SCMP_CMP_EQ, F_GETFL, 0);
    const struct scmp_arg_cmp closes = SCMP_A1(SCMP_CMP_EQ, F_SETFD, 0);
    int rc = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                                    &reads);

    if (rc == 0)
        rc = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                                    &asks);
    if (rc == 0)
        rc = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                                    &closes);
    for (size_t i = 0; rc == 0 && i < sizeof reading / sizeof *reading; i++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, reading[i], 0);
        if (rc == -EDOM || rc == -EINVAL) /* unknown to this processor */
            rc = 0;
    }
    return rc;
}

/* clone3 has its flags in memory, where no filter sees them; without it the C
 * library takes clone. */
static int add_threads(scmp_filter_ctx filter)
{
    const struct scmp_arg_cmp thread =
        SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD);
    const struct scmp_arg_cmp process =
        SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0);
    int rc = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                                    &thread);

    if (rc == 0)
        rc = seccomp_rule_add_array(filter, SCMP_ACT_KILL_PROCESS,
                                    SCMP_SYS(clone), 1, &process);
    if (rc == 0)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3),
                              0);
    if (rc == 0)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(set_robust_list),
                              0);
    if (rc == 0) /* without it the C library ends the process */
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(rseq), 0);
    return rc;
}

static int add_needs(scmp_filter_ctx filter, unsigned needs)
{
    int rc = 0;

    if (needs & OCR_SANDBOX_FONTS)
        rc = add_reading(filter);
    if (rc == 0 && (needs & OCR_SANDBOX_THREADS))
        rc = add_threads(filter);
    return rc;
}

static bool is_clone(int call)
{
    return call == SCMP_SYS(clone) || call == SCMP_SYS(clone3);
}

static int add_rules(scmp_filter_ctx filter, int sock, unsigned needs)
{
    const struct scmp_arg_cmp to_sock = SCMP_A0(SCMP_CMP_EQ, (unsigned)sock, 0);
    const struct scmp_arg_cmp to_errors =
        SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO, 0);
    const struct scmp_arg_cmp to_itself =
        SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0);
    const struct scmp_arg_cmp is_data =
        SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
    const struct scmp_arg_cmp asks_for_seals =
        SCMP_A1(SCMP_CMP_EQ, F_GET_SEALS, 0);
    const struct {
        int call;
        const struct scmp_arg_cmp *only;
    } limited[] = {
        {SCMP_SYS(recvmsg), &to_sock},  {SCMP_SYS(sendmsg), &to_sock},
        {SCMP_SYS(write), &to_errors},  {SCMP_SYS(writev), &to_errors},
        {SCMP_SYS(tgkill), &to_itself}, {SCMP_SYS(mmap), &is_data},
        {SCMP_SYS(mprotect), &is_data}, {SCMP_SYS(fcntl), &asks_for_seals},
    };
    int rc = add_needs(filter, needs);

    for (size_t i = 0; rc == 0 && i < sizeof allowed / sizeof *allowed; i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
    for (size_t i = 0; rc == 0 && i < sizeof limited / sizeof *limited; i++)
        rc = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, limited[i].call, 1,
                                    limited[i].only);
    for (size_t i = 0; rc == 0 && i < sizeof deadly / sizeof *deadly; i++) {
        if ((needs & OCR_SANDBOX_THREADS) && is_clone(deadly[i]))
            continue;
        rc = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, deadly[i], 0);
        if (rc == -EDOM || rc == -EINVAL) /* unknown to this processor */
            rc = 0;
    }
    return rc;
}

static bool filter_helper(int sock, unsigned needs)
{
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    int rc = filter ? add_rules(filter, sock, needs) : -ENOMEM;

    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    return rc == 0;
}

/* The engine runs libraries of others, so it is told what it may not do. */
static bool filter_engine(bool network)
{
    static const int refused[] = {SCMP_SYS(io_uring_setup),
                                  SCMP_SYS(ptrace),
                                  SCMP_SYS(process_vm_readv),
                                  SCMP_SYS(process_vm_writev),
                                  SCMP_SYS(bpf),
                                  SCMP_SYS(userfaultfd),
                                  SCMP_SYS(keyctl),
                                  SCMP_SYS(add_key),
                                  SCMP_SYS(unshare),
                                  SCMP_SYS(setns),
                                  SCMP_SYS(mount),
                                  SCMP_SYS(kexec_load)};
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int rc = filter ? 0 : -ENOMEM;

    for (size_t i = 0; rc == 0 && i < sizeof refused / sizeof *refused; i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
    if (rc == 0 && !network)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket),
                              1, SCMP_A0(SCMP_CMP_NE, AF_UNIX, 0));
    if (rc == 0)
        rc = seccomp_load(filter);
    seccomp_release(filter);
    return rc == 0;
}

#else

static bool filter_helper(int sock, unsigned needs)
{
    (void)sock;
    (void)needs;
    return false;
}

static bool filter_engine(bool network)
{
    (void)network;
    return false;
}

#endif

/* ---- both --------------------------------------------------------------- */

unsigned ocr_sandbox_engine(const struct ocr_sandbox_engine *engine)
{
    const char *wish = getenv("OCRFS_SANDBOX");
    unsigned holds = 0;

    if (wish && !strcmp(wish, "off"))
        return 0;
    if (engine->gpu)
        make_gpu_devices();
    /* Root's engine still reads a model in a private home. */
    if (drop_privileges(UINT32_C(1) << CAP_DAC_READ_SEARCH))
        holds |= OCR_SANDBOX_PRIVILEGES;
    if (refuse_other_files(engine))
        holds |= OCR_SANDBOX_LANDLOCK;
    if (!OCR_SANITIZED && filter_engine(engine->network))
        holds |= OCR_SANDBOX_SECCOMP;
    return holds;
}

unsigned ocr_sandbox_helper(int sock, unsigned needs)
{
    struct ocr_landlock rules;
    unsigned holds = 0;

    if (drop_privileges(0))
        holds |= OCR_SANDBOX_PRIVILEGES;
    if (!OCR_SANITIZED) {
        ocr_landlock_begin(&rules, true);
        if (needs & OCR_SANDBOX_FONTS)
            ALLOW_ALL(&rules, fonts, OCR_LANDLOCK_READ);
        if (ocr_landlock_end(&rules))
            holds |= OCR_SANDBOX_LANDLOCK;
        else
            needs &= ~(unsigned)OCR_SANDBOX_FONTS;
        if (filter_helper(sock, needs))
            holds |= OCR_SANDBOX_SECCOMP;
    }
    return holds;
}
