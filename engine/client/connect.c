#include "engine/client/connect.h"

#include "engine/base/io.h"
#include "engine/content.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LOG_BYTES_MAX = 1 << 20,
    CONNECT_TIMEOUT_S = 5,
    BACKLOG = 64
};

/* The runtime folder, open, and the names of one engine in it. */
struct place {
    int dir;
    char folder[PATH_MAX];
    char name[64]; /* without .sock, .lock, .log */
};

static int private_folder(const char *path, struct ocr_err *err)
{
    struct stat st;

    if (mkdir(path, 0700) && errno != EEXIST)
        return ocr_err_errno(err, "cannot make the folder %s", path);
    if (lstat(path, &st))
        return ocr_err_errno(err, "cannot use the folder %s", path);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return ocr_err_set(err, -EPERM,
                           "%s must be a folder of your own that nobody else "
                           "can write to",
                           path);
    return 0;
}

int ocr_runtime_folder(const char *runtime, char *out, size_t size,
                       struct ocr_err *err)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    const uid_t uid = geteuid();
    char user[64];
    int n;

    snprintf(user, sizeof user, "/run/user/%u", (unsigned)uid);
    if (runtime && runtime[0])
        n = snprintf(out, size, "%s", runtime);
    else if (uid == 0)
        n = snprintf(out, size, "/run/ocrfs");
    else if (xdg && xdg[0] == '/')
        n = snprintf(out, size, "%s/ocrfs", xdg);
    else if (access(user, W_OK) == 0)
        n = snprintf(out, size, "%s/ocrfs", user);
    else
        n = snprintf(out, size, "/tmp/ocrfs-%u", (unsigned)uid);
    if (n < 0 || (size_t)n >= size)
        return ocr_err_set(err, -ENAMETOOLONG,
                           "the path of the runtime folder is too long");
    return private_folder(out, err);
}

/* FNV-1a: only to give each configuration a name of its own. */
static uint64_t hash_string(uint64_t hash, const char *text)
{
    do {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    } while (*text++);
    return hash;
}

/* An engine keeps the environment of whoever started it, and one that talks to
 * servers lives by it: keys, proxies, certificates. So clients share an engine
 * only if these are the same for them: a mount with a new key does not meet an
 * engine with the old one. */
static const char *const network_variables[] = {
    "OPENAI_API_KEY", "http_proxy",   "https_proxy", "HTTPS_PROXY",
    "all_proxy",      "ALL_PROXY",    "no_proxy",    "NO_PROXY",
    "SSL_CERT_FILE",  "SSL_CERT_DIR",
};

/* What the names of engines are salted with, so that they tell nothing of a
 * key: random bytes in a file beside the sockets, made once. */
static int read_salt(int dir, uint8_t salt[OCR_SECRET_BYTES])
{
    const int fd =
        openat(dir, "salt", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc = fd < 0 ? -errno : 0;

    if (!rc && flock(fd, LOCK_EX))
        rc = -errno;
    if (!rc &&
        ocr_pread_full(fd, salt, OCR_SECRET_BYTES, 0) != OCR_SECRET_BYTES) {
        if (getrandom(salt, OCR_SECRET_BYTES, 0) != OCR_SECRET_BYTES)
            rc = -EIO;
        else
            rc = ocr_pwrite_full(fd, salt, OCR_SECRET_BYTES, 0);
    }
    ocr_close(fd);
    return rc;
}

static int hash_environment(uint64_t *hash, int dir, struct ocr_err *err)
{
    uint8_t salt[OCR_SECRET_BYTES];
    struct ocr_digest digest;
    const int rc = read_salt(dir, salt);

    if (rc)
        return ocr_err_set(err, rc,
                           "cannot make the file salt beside the "
                           "sockets of the engine: %s",
                           strerror(-rc));
    for (size_t i = 0; i < sizeof network_variables / sizeof *network_variables;
         i++) {
        const char *value = getenv(network_variables[i]);

        if (!value)
            value = "";
        ocr_digest_of(&digest, value, strlen(value), salt);
        for (size_t k = 0; k < sizeof digest.bytes; k++)
            *hash = (*hash ^ digest.bytes[k]) * 0x100000001b3u;
    }
    return 0;
}

static int name_engine(const struct ocr_engine_config *config, int dir,
                       char *out, size_t size, struct ocr_err *err)
{
    const size_t word = strcspn(config->recogniser, ":");
    uint64_t hash = 0xcbf29ce484222325u;
    int rc = 0;

    hash = hash_string(hash, config->recogniser);
    hash = hash_string(hash, config->device);
    hash = hash_string(hash, config->model);
    hash = hash_string(hash, config->program ? config->program : "");
    hash = hash_string(hash, OCR_VERSION);
    if (word == 4 && !strncmp(config->recogniser, "http", word))
        rc = hash_environment(&hash, dir, err);
    snprintf(out, size, "%.*s-%016llx", (int)(word < 30 ? word : 30),
             config->recogniser, (unsigned long long)hash);
    return rc;
}

static int open_place(struct place *at, const struct ocr_engine_config *config,
                      struct ocr_err *err)
{
    int rc =
        ocr_runtime_folder(config->runtime, at->folder, sizeof at->folder, err);

    if (rc)
        return rc;
    at->dir = open(at->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at->dir < 0)
        return ocr_err_errno(err, "cannot open the folder %s", at->folder);
    rc = name_engine(config, at->dir, at->name, sizeof at->name, err);
    if (rc)
        at->dir = ocr_close(at->dir);
    return rc;
}

/* A socket's path may have 107 bytes only; through the folder's descriptor
 * the folder may be as deep as it likes. */
static void socket_address(const struct place *at, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path,
             "/proc/self/fd/%d/%.64s.sock", at->dir, at->name);
}

static int take_lock(const struct place *at, struct ocr_err *err)
{
    char name[80];
    int fd;

    snprintf(name, sizeof name, "%s.lock", at->name);
    fd = openat(at->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return ocr_err_errno(err, "cannot make %s/%s", at->folder, name);
    while (flock(fd, LOCK_EX)) {
        if (errno != EINTR) {
            ocr_close(fd);
            return ocr_err_errno(err, "cannot lock %s/%s", at->folder, name);
        }
    }
    return fd;
}

static int new_socket(struct ocr_err *err)
{
    const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    return sock < 0 ? ocr_err_errno(err, "cannot make a socket") : sock;
}

/* Connects to a listening engine. -ECONNREFUSED or -ENOENT: there is none,
 * err stays untouched. */
static int try_connect(const struct place *at, struct ocr_err *err)
{
    const struct timeval patience = {.tv_sec = CONNECT_TIMEOUT_S};
    const int yes = 1;
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t size = sizeof peer;
    const int sock = new_socket(err);

    if (sock < 0)
        return sock;
    socket_address(at, &address);
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes); /* HELLO */
    if (connect(sock, (struct sockaddr *)&address, sizeof address)) {
        const int rc = -errno;

        ocr_close(sock);
        if (rc == -ECONNREFUSED || rc == -ENOENT)
            return rc;
        errno = -rc;
        return ocr_err_errno(err, "cannot reach the engine at %s/%s.sock",
                             at->folder, at->name);
    }
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) ||
        (peer.uid != geteuid() && peer.uid != 0)) {
        ocr_close(sock);
        return ocr_err_set(err, -EPERM, "%s/%s.sock belongs to somebody else",
                           at->folder, at->name);
    }
    fcntl(sock, F_SETFL, O_NONBLOCK);
    return sock;
}

static int bind_listener(const struct place *at, struct ocr_err *err)
{
    struct sockaddr_un address;
    char name[80];
    const int sock = new_socket(err);
    int rc;

    if (sock < 0)
        return sock;
    snprintf(name, sizeof name, "%s.sock", at->name);
    if (unlinkat(at->dir, name, 0) && errno != ENOENT)
        goto fail;
    socket_address(at, &address);
    /* The folder is 0700: nobody else reaches the socket whatever its mode. */
    if (bind(sock, (struct sockaddr *)&address, sizeof address) ||
        listen(sock, BACKLOG))
        goto fail;
    return sock;
fail:
    rc = ocr_err_errno(err, "cannot listen at %s/%s", at->folder, name);
    ocr_close(sock);
    return rc;
}

/* What the engine and its libraries say goes to a file beside the socket. It
 * must not keep our standard error open: a caller may wait for its end. */
static int open_log(const struct place *at)
{
    char name[80];
    struct stat st;
    int fd;

    snprintf(name, sizeof name, "%s.log", at->name);
    fd = openat(at->dir, name,
                O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > LOG_BYTES_MAX &&
        ftruncate(fd, 0))
        return ocr_close(fd);
    return fd;
}

int ocr_engine_program(const char *program, char *out, size_t size,
                       struct ocr_err *err)
{
    static const char *const places[] = {"ocrfs-engine",
                                         "../libexec/ocrfs/ocrfs-engine"};
    char self[PATH_MAX];
    ssize_t n;

    if (program && program[0]) {
        if (access(program, X_OK) ||
            (size_t)snprintf(out, size, "%s", program) >= size)
            return ocr_err_errno(err, "cannot run the engine %s", program);
        return 0;
    }
    n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return ocr_err_errno(err, "cannot read /proc/self/exe");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if ((size_t)snprintf(out, size, "%s/%s", self, places[i]) < size &&
            access(out, X_OK) == 0)
            return 0;
    }
    return ocr_err_set(err, -ENOENT,
                       "the program ocrfs-engine is neither in %.200s nor in "
                       "%.200s/../libexec/ocrfs: install it there",
                       self, self);
}

/* Runs `program` and waits for it to go into the background. */
static int spawn(const char *program, char **argv, int listener, int log,
                 struct ocr_err *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    pid_t pid;
    int status = 0, rc;

    sigemptyset(&none);
    sigfillset(&defaults);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (log >= 0)
        posix_spawn_file_actions_adddup2(&actions, log, 2);
    else
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, listener, OCR_ENGINE_LISTEN_FD);
    rc = posix_spawn(&pid, program, &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    if (rc) {
        errno = rc;
        return ocr_err_errno(err, "cannot start %s", program);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (status)
        return ocr_err_set(err, -EIO, "%s did not start (status %#x)", program,
                           (unsigned)status);
    return 0;
}

static int start_engine(const struct ocr_engine_config *config,
                        const struct place *at, struct ocr_err *err)
{
    char program[PATH_MAX], idle[16], gpu_idle[16];
    const char *argv[] = {"ocrfs-engine",
                          "--recogniser",
                          config->recogniser,
                          "--device",
                          config->start ? config->start : config->device,
                          "--model",
                          config->model,
                          "--idle",
                          idle,
                          "--gpu-idle",
                          gpu_idle,
                          "--runtime",
                          at->folder,
                          "--name",
                          at->name,
                          NULL};
    char *args[sizeof argv / sizeof *argv];
    int listener, log, rc;

    rc = ocr_engine_program(config->program, program, sizeof program, err);
    if (rc)
        return rc;
    listener = bind_listener(at, err);
    if (listener < 0)
        return listener;
    log = open_log(at);
    snprintf(idle, sizeof idle, "%u", config->idle_s);
    snprintf(gpu_idle, sizeof gpu_idle, "%u", config->gpu_idle_s);
    memcpy(args, argv, sizeof args); /* posix_spawn does not write to them */
    rc = spawn(program, args, listener, log, err);
    ocr_close(log);
    ocr_close(listener);
    return rc;
}

int ocr_connect(const struct ocr_engine_config *config, bool *started,
                struct ocr_err *err)
{
    struct place at;
    int lock, sock = open_place(&at, config, err);

    *started = false;
    if (sock)
        return sock;
    lock = take_lock(&at, err);
    sock = lock < 0 ? lock : try_connect(&at, err);
    if (sock == -ECONNREFUSED || sock == -ENOENT) {
        sock = start_engine(config, &at, err);
        *started = sock == 0;
        if (*started)
            sock = try_connect(&at, err);
        if (*started && sock < 0)
            ocr_err_set(err, sock, "the engine ended at once: see %s/%s.log",
                        at.folder, at.name);
    }
    ocr_close(lock);
    ocr_close(at.dir);
    return sock;
}

void ocr_connect_forget(const struct ocr_engine_config *config)
{
    struct place at;
    char name[80];
    int lock;

    if (open_place(&at, config, NULL))
        return;
    lock = take_lock(&at, NULL);
    snprintf(name, sizeof name, "%s.sock", at.name);
    unlinkat(at.dir, name, 0);
    ocr_close(lock);
    ocr_close(at.dir);
}
