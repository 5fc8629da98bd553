/* fs/fs_i.h - private to the file system: nodes, open files, readings.
 *
 * A node is what the kernel knows by a node id: a file or folder of SOURCE
 * (real), the text of one version of one image (text), or something in the
 * control folder. A node has no descriptor; it has names, and every access
 * walks from SOURCE along them and checks that the right object was found.
 *
 * The open of a text that is not known yet is parked: the handler returns, and
 * a reading (one per node) hashes the image in the pool, looks into the cache,
 * or waits in the queue of the engine, and answers all who wait.
 *
 * Locks. Who holds one may take only those below it.
 *
 *   lock         guards                                   longest hold
 *   dir.lock     the snapshot of one open folder          reading a folder
 *   park.lock    readings, parked requests                a walk over them
 *   ahead.lock   opens to look at, guesses                a walk over them
 *   nodes.lock   nodes, names, counts, handles of nodes   a walk up the names
 *   list_lock    (of watch) changes to tell, writes       a copy of a name
 *   pool.lock    tasks of the hashing pool                a walk over them
 *   stats.lock   counters, failures, fingerprint          copying them
 *
 * dir.lock belongs to one handle, so only its own reader can wait for it. No
 * other is held across SOURCE, the cache, or an answer to the kernel, and none
 * at all when the kernel is notified. The queue's lock is below park.lock; the
 * queue calls back without it. Taken alone: watch.lock (descriptors of watches;
 * longest: placing one), newcomers.lock (what came; longest: a copy of a name).
 *
 * Layer:   fs. */
#ifndef OCR_FS_I_H
#define OCR_FS_I_H
#define FUSE_USE_VERSION 312
#include "cache/cache.h"
#include "engine/base/buf.h"
#include "engine/content.h"
#include "engine/queue.h"
#include "fs/count.h"
#include "fs/fs.h"
#include "fs/newcomers.h"
#include "fs/pause.h"
#include "fs/readahead.h"
#include "fs/remarks.h"
#include "fs/warm.h"
#include "fs/watch.h"

#include <fuse_lowlevel.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

enum {
    NAME_BYTES = 255,      /* of a file name at most */
    TEXT_BLOCK = 4096,     /* st_blksize of other files, a power of two (N10) */
    HASH_THREADS = 4,      /* of the hashing pool */
    FAILURES_LISTED = 20,  /* in status */
    FAILURES_RECENT = 256, /* remembered in memory */
    FAILURE_MEMORY_MS = 60 * 1000,
    INDEX_AGE_MS = 200,  /* what the index said is asked again after this */
    QUIET_FDS = 64,      /* images kept open while they have to stand still */
    REASON_BYTES = 1024, /* of a failure, as a text */
    KTHREAD_WAIT_MS = 1000, /* then EAGAIN: NFS asks again by itself */
};

/* ---- objects of SOURCE (source.c) ------------------------------------ */

/* born_ns: birth time, 0 where the file system has none. It tells a file from
 * a later one that was given its inode number. */
struct object {
    struct stat st;
    int64_t born_ns;
};

/* What changes when a file's bytes change. */
struct stamp {
    int64_t size, mtime_ns, ctime_ns;
};

struct source {
    int fd;                 /* O_PATH of SOURCE, borrowed */
    atomic_bool no_openat2; /* this kernel or sandbox has none */
};

/* The mount itself, if it lies below SOURCE: never entered (S10). */
struct own_mount {
    bool below; /* parent and name are set */
    dev_t parent_dev, covered_dev;
    ino_t parent_ino, covered_ino;
    char name[NAME_BYTES + 1];
    _Atomic dev_t dev; /* of the mount, 0 until it is there */
};

struct stamp stamp_of(const struct stat *st);
bool stamp_equal(const struct stamp *a, const struct stamp *b);

/* Opens `path` (relative, "." is SOURCE) below SOURCE without following any
 * link; O_NOFOLLOW, O_CLOEXEC, O_NOCTTY and O_NONBLOCK are added. Descriptor
 * or negative errno. */
int source_open(struct source *s, const char *path, int flags);

/* The same following links that stay below SOURCE. -ENOTSUP without openat2. */
int source_open_follow(struct source *s, const char *path, int flags);

/* For a regular file, without touching its access time where allowed (B16). */
int source_open_file(struct source *s, const char *path, bool follow);

/* What `fd`, or `name` (one component, not followed) in `dir`, is. */
int source_stat_fd(int fd, struct object *out);
int source_stat_at(int dir, const char *name, struct object *out);

/* Takes away what a POSIX ACL would refuse and plain mode bits would grant
 * (S4). `path` is followed if it is a descriptor's magic link. */
void source_apply_acl(const char *path, bool follow, struct stat *st);

/* Pure part of it: the mode to show for a file with this access ACL. */
mode_t source_acl_mode(mode_t mode, const void *acl, size_t len);

/* Fills in where `mountpoint` lies. Before it is mounted. */
void source_find_own_mount(struct own_mount *own, const char *mountpoint);

/* Device of the mount at `mountpoint` by the text of /proc/self/mountinfo; 0
 * if it is not there. */
dev_t source_mount_dev(const char *mountinfo, const char *mountpoint);

/* ---- names (names.c) ------------------------------------------------------
 */

/* True if `name` ends with an extension of images, in any case. */
bool names_is_image(const char *name);

/* Adds an ending of images, as ".tif". Before other threads are there. */
void names_add(const char *ending);

/* True if the image of this name may be a document of many pages. */
bool names_has_pages(const char *name);

/* The one rule (N11): an image `name` of this type has a text unless a real
 * file has the text's name or that would be too long. */
bool names_has_text(const char *name, mode_t type, const char *suffix,
                    bool taken);

/* Length of the image's name if `text` can be the name of a text, else 0. */
size_t names_image_len(const char *text, const char *suffix);

/* ---- nodes (node.c) --------------------------------------------------------
 */

enum node_kind {
    NODE_REAL,
    NODE_TEXT,
    NODE_CONTROL, /* the control folder and snapshots in it */
};

struct name {
    struct name *next, *next_key;
    struct node *node;   /* whose it is */
    struct node *parent; /* holds a reference */
    bool follow;         /* a link that leads to the object (-o follow) */
    char text[];         /* for a text: the name of its image */
};

/* Immutable bytes that open files share. */
struct text {
    atomic_uint refs;
    size_t len;
    uint64_t sum; /* XXH3 of the bytes */
    char *bytes;
};

/* The attributes of an image that its text shows. */
struct image {
    struct stamp stamp;
    int64_t atime_ns;
    uint64_t bytes;
    mode_t mode;
    uid_t uid;
    gid_t gid;
};

struct handle; /* below */

struct node {
    /* Immutable. */
    fuse_ino_t id;
    enum node_kind kind;
    dev_t dev; /* of the object; a text has those of its image */
    ino_t ino;
    int64_t born_ns;
    mode_t type; /* S_IFMT bits */

    /* Guarded by nodes.lock. */
    uint64_t lookups;   /* what the kernel will forget */
    uint64_t refs;      /* ours: requests, handles, names of children */
    bool retired;       /* stands for something that is gone: open is ESTALE */
    struct name *names; /* newest first */
    struct handle *handles;
    struct node *next_id, *next_key;
    int64_t lasting_ms; /* until then the kernel may not ask again */
    int64_t written_ms; /* until then it may be written, and has to */
    union {
        struct {
            struct stamp opened; /* at the last open */
            bool settled;        /* and it was old enough to tell changes */
            atomic_int wd;       /* of a folder (watch.h): 0: not watched */
            unsigned opens;      /* counted where there is passthrough only */
            uint32_t backing;    /* what they have; 0: read through us */
            bool held;           /* by the thread of newcomers.h, its own */
        } real;
        struct {
            struct image image;
            bool many;       /* by its name it may have many pages */
            bool has_digest; /* stands for these bytes for good */
            bool sized;      /* size is what the index or a text says */
            bool exact;      /* and was shown as final, or served */
            bool served;     /* a text with `sum` was opened */
            bool said;       /* its failure is in the log */
            struct ocr_digest digest;
            uint64_t size, sum;
            int64_t redone_ns;
            int64_t asked_ms;        /* when the index was asked for the size */
            struct reading *reading; /* guarded by park.lock */
            bool loading;            /* by readahead; guarded by park.lock */
            struct guess *_Atomic guess; /* set by readahead's thread */
        } text;
        struct {
            unsigned which;
            struct text *snapshot; /* immutable; NULL: the folder */
        } control;
    };
};

struct nodes {
    pthread_mutex_t lock;
    struct node **by_id, **by_key; /* [size], chained */
    struct name **by_name;         /* [size], by parent and text */
    size_t size, count;
    struct watch *watch; /* is told of watched folders that go; or NULL */
    fuse_ino_t next_id;
    uint64_t generation; /* 32 bits: what the kernel keeps of it */
    struct node *root;   /* refs never fall to 0 */
};

/* An open file or folder; fi->fh points to it. */
struct handle {
    struct node *node; /* holds a reference */
    int fd;            /* -1 for texts and the control folder */
    struct text *text; /* or NULL; holds a reference */
    struct dir *dir;   /* or NULL */
    pid_t warmer;      /* of the control folder: the thread that warms, or 0 */
    bool refresh;      /* and how; both guarded by nodes.lock */
    struct handle *next, *prev; /* of the node; guarded by nodes.lock */
};

int nodes_init(struct nodes *t, const struct object *root, int64_t now_ns);
void nodes_release(struct nodes *t);

/* A reference to the node with this id, NULL if there is none. */
struct node *node_get(struct nodes *t, fuse_ino_t id);
struct node *node_ref(struct nodes *t, struct node *n);
void node_unref(struct nodes *t, struct node *n);

/* Finds or makes the node of an object that was seen as `name` in `parent`,
 * adds the name, and returns a reference. A text of an image that changed is
 * another node, unless nobody has seen anything of the old one yet. NULL with
 * *rc: -ENOMEM, or -ELOOP for a folder inside itself. */
struct node *node_enter(struct nodes *t, struct node *parent, const char *name,
                        bool follow, enum node_kind kind,
                        const struct object *o, int *rc);

/* A node of the control folder, never found by node_enter. */
struct node *node_enter_control(struct nodes *t, unsigned which, mode_t type,
                                struct text *snapshot);

/* An answer with this node goes to the kernel; node_forget takes it back. */
void node_count(struct nodes *t, struct node *n);
void node_forget(struct nodes *t, fuse_ino_t id, uint64_t lookups);

/* Path of the n-th name below SOURCE ("." for the root), malloc'd; NULL if
 * there is no such name. */
char *node_path(struct nodes *t, struct node *n, unsigned nth, bool *follow);

/* The folder of a folder, with a reference; NULL if it has no name. */
struct node *node_parent(struct nodes *t, struct node *n);

/* What is known by a name. */
struct known {
    fuse_ino_t id;
    bool text, folder;
    bool open;    /* by somebody in the mount */
    bool lasting; /* the kernel may keep its attributes for long */
};

/* What has `name` in the folder with this id, texts by the name of their
 * image: at most `room`. written_ms: if not 0, until when it may be written,
 * so that what the kernel is told of it from now on does not last. */
size_t node_named(struct nodes *t, fuse_ino_t folder, const char *name,
                  int64_t written_ms, struct known *out, size_t room);

/* What had one name has another (of the same or another folder) as well. */
void node_moved(struct nodes *t, fuse_ino_t from, const char *old,
                fuse_ino_t to, const char *new);

/* One name of what the kernel was told for long. */
struct lasting {
    fuse_ino_t folder, id;
    bool text;
    char name[NAME_BYTES + 1];
};

/* The names in the buckets from *bucket on, as many as fit: 0 at the end. */
size_t node_lasting(struct nodes *t, size_t *bucket, int64_t now_ms,
                    struct lasting *out, size_t room);

/* Out of the table of keys: the next lookup makes another node. */
void node_retire(struct nodes *t, struct node *n);

/* `o` is what the image is now: 0, or -ESTALE if the node stands for another
 * version and is retired now. */
int node_check_version(struct nodes *t, struct node *n, const struct object *o);

/* The image's bytes have this digest: 0, or -ESTALE as above. */
int node_fix(struct nodes *t, struct node *n, const struct ocr_digest *digest);

/* The size the index knows; digest: of the bytes, NULL if that is not sure;
 * exact: it will not change. -ESTALE as above. */
int node_set_size(struct nodes *t, struct node *n,
                  const struct ocr_digest *digest, uint64_t size,
                  int64_t redone_ns, bool exact);

/* `text` is about to be opened through the node: 0, or -ESTALE if the kernel
 * was told of another text. */
int node_serve(struct nodes *t, struct node *n, const struct text *text,
               int64_t redone_ns);

/* The text of an open handle, if the node has one; with a reference. */
struct text *node_open_text(struct nodes *t, struct node *n);

/* A duplicate of the descriptor of an open handle, else -ESTALE. */
int node_open_fd(struct nodes *t, struct node *n);

/* Whether pages cached at the last open are still right; notes this open. */
bool node_keep_cache(struct nodes *t, struct node *n, const struct stat *st,
                     int64_t now_ns);

/* What a thread has said of its opens with OCR_WARM_IOCTL. */
struct warmth {
    bool warms, refresh;
};
void handle_warm(struct nodes *t, struct handle *h, pid_t tid, bool refresh);
struct warmth node_warmth(struct nodes *t, const struct node *control,
                          pid_t tid);

/* The handle takes fd, and references of its own to node and text. */
struct handle *handle_new(struct nodes *t, struct node *n, int fd,
                          struct text *text, struct dir *dir);
void handle_free(struct nodes *t, struct handle *h);

/* Takes `bytes` (malloc'd) over; NULL frees them. */
struct text *text_new(char *bytes, size_t len);
struct text *text_ref(struct text *text);
void text_unref(struct text *text);

/* st_ino of a file with this device and inode (N8). Within one file system
 * the order of inode numbers is kept, a text follows its image. */
uint64_t node_st_ino(dev_t root_dev, dev_t dev, ino_t ino, bool text);
uint64_t control_st_ino(unsigned which);

/* ---- the hashing pool (hashpool.c) ------------------------------------------
 */

struct hash_task {
    void (*run)(struct hash_task *task);  /* in a thread of the pool */
    void (*drop)(struct hash_task *task); /* at stop, instead; or NULL */
    int64_t due_ms;
    enum ocr_priority priority;
    struct hash_task *next;
};

struct hashpool {
    pthread_mutex_t lock;
    pthread_cond_t wake;     /* CLOCK_MONOTONIC */
    struct hash_task *tasks; /* by due time; guarded by lock */
    bool stop;               /* guarded by lock */
    unsigned running;        /* threads that did not end; guarded by lock */
    unsigned patient;        /* running tasks nobody waits for; guarded */
    pthread_cond_t ended;    /* a thread did */
    pthread_t threads[HASH_THREADS];
    unsigned started;
};

void hashpool_init(struct hashpool *pool);
int hashpool_start(struct hashpool *pool, struct ocr_err *err);
/* Runs the task at due_ms (ocr_now_ms), interactive ones first; the others
 * leave one thread free. After stop it is dropped. The task must not be
 * submitted twice at a time. */
void hashpool_submit(struct hashpool *pool, struct hash_task *task,
                     int64_t due_ms, enum ocr_priority priority);
/* Of a task that was submitted and did not end. */
void hashpool_raise(struct hashpool *pool, struct hash_task *task,
                    enum ocr_priority priority);
void hashpool_stop(struct hashpool *pool);
/* Joins the threads; false if one still hangs after timeout_ms. */
bool hashpool_join(struct hashpool *pool, int timeout_ms);
void hashpool_release(struct hashpool *pool);

/* ---- who asks (caller.c) --------------------------------------------- */

/* By the text of /proc/TID/status: a signal is pending that will end the
 * process (I7). */
bool caller_status_dying(const char *status);

/* The same for a process; true as well if it is gone or cannot be seen. */
bool caller_dying(pid_t tid);

/* Whether the process's name, or its first 15 bytes, is in the list "a:b". */
bool caller_listed(pid_t tid, const char *list);
bool caller_name_listed(const char *comm, const char *list);

bool caller_is_kthread(pid_t tid);

/* ---- parked requests (park.c) ---------------------------------------- */

struct parked {
    struct ocr_fs *fs;
    fuse_req_t req;
    struct fuse_file_info fi; /* a copy; unused for attributes */
    bool open;                /* OPEN, else GETATTR with size=wait */
    pid_t tid;
    int64_t since_ms, deadline_ms; /* INT64_MAX: none */
    int late;                      /* what to answer then */
    atomic_bool interrupted;
    atomic_uint refs; /* the list, the watching thread */
    /* Guarded by park.lock. */
    struct reading *reading; /* NULL: somebody is answering */
    struct parked *next, *prev;
    /* The watching thread's. */
    struct parked *batch;
    bool paused; /* would wait in the queue until ocrfs resume */
};

/* What the requests of a reading are answered with. */
struct outcome {
    int rc;            /* 0 or negative errno */
    struct text *text; /* a reference, if rc is 0 */
};

struct park {
    pthread_mutex_t lock;
    struct reading *readings; /* all; guarded by lock */
    unsigned waiting;         /* parked requests; guarded by lock */
    sem_t wake;               /* of the watching thread */
    pthread_t thread;
    bool running;
    atomic_uint kept_fds; /* reading.fd that are open */
    atomic_bool ending;   /* the thread's */
    atomic_bool stopping; /* the mount's: ENODEV from now on */
    atomic_bool paused;   /* EINTR for who would have to wait (fs/pause.h) */
};

void park_init(struct park *park);
int park_start(struct ocr_fs *fs, struct ocr_err *err);
void park_end(struct ocr_fs *fs); /* joins the thread */
/* When no other thread is left. */
void park_free_readings(struct ocr_fs *fs);
void park_release(struct park *park);

/* Parks `req` at the node's reading, which is begun if there is none; answers
 * it in any case. fi is NULL for GETATTR. */
void park_request(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                  const struct fuse_file_info *fi, struct warmth warmth);

/* Takes all requests off a reading and answers them. */
void park_answer_all(struct ocr_fs *fs, struct reading *r,
                     const struct outcome *o);

/* ENODEV for everybody, from now on. */
void park_stop(struct ocr_fs *fs);

/* EINTR for everybody, until resumed. */
void park_pause(struct ocr_fs *fs);
void park_resume(struct ocr_fs *fs);

/* ---- readings (reading.c) -------------------------------------------- */

enum reading_stage {
    READING_POOL,    /* hashed, or about to be */
    READING_JOINING, /* between the pool and the queue */
    READING_QUEUE,
    READING_OVER,
};

struct reading {
    struct ocr_fs *fs;
    struct node *node; /* holds a reference */
    struct hash_task task;
    struct ocr_waiter waiter;
    int64_t begun_ms;
    struct stamp seen; /* W8: what stood still since seen_ms; 0: not looked */
    int64_t seen_ms;
    int fd; /* the image, kept open meanwhile: it may be replaced; or -1 */
    struct ocr_job_key key; /* set before JOINING */
    /* Guarded by park.lock. */
    enum reading_stage stage;
    enum ocr_priority priority; /* the highest of those who wait */
    bool redo;                  /* texts of another version do not count */
    bool goes_on;               /* without waiters: one timed out */
    unsigned refs;              /* the pool's, the queue's */
    struct parked *first, *last;
    struct reading *next, *prev;
};

/* The reading of a node, begun if there is none; NULL without memory. With
 * park.lock held; *begun says that reading_begin must follow without it. */
struct reading *reading_of_locked(struct ocr_fs *fs, struct node *n,
                                  struct warmth warmth, bool *begun);
void reading_begin(struct reading *r);

/* With park.lock held: no request can join it any more; nobody waits. */
void reading_over_locked(struct reading *r);
void reading_abandon_locked(struct reading *r);

/* A request for the node's text waited too long. */
void reading_timed_out(struct ocr_fs *fs, struct node *n);

/* The text is not known and the program named in noocr. */
bool reading_refused(struct ocr_fs *fs, fuse_req_t req, struct node *n);

/* Opens a text: at once if it is known, else parked. */
void reading_open(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                  struct fuse_file_info *fi);

/* Answers an OPEN with a text (consumes nothing). */
void reading_reply(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                   struct fuse_file_info *fi, struct text *text);

/* In the pool: starts a job for the text that nobody waits for yet, unless it
 * is known, failed, or its image is still being written: then *written. True
 * if the waiter joined. */
bool reading_ahead(struct ocr_fs *fs, struct node *n,
                   enum ocr_priority priority, struct ocr_waiter *waiter,
                   bool *written);

/* With errors=text: what the text of a bad image says. Its length; `out` holds
 * REASON_BYTES bytes. */
size_t reading_reason(enum ocr_kind kind, const char *sentence, char *out);

/* Hooks of the queue. */
void reading_job_finished(void *arg, const struct ocr_job_key *key,
                          const char *label, const struct ocr_result *result);
char *reading_page_known(void *arg, const struct ocr_job_key *page,
                         size_t *len);
void reading_page_read(void *arg, const struct ocr_job_key *page,
                       const char *text, size_t len);
void reading_job_reload(void *arg, const struct ocr_job_key *key,
                        const char *label);

/* ---- counters and failures (stats.c) --------------------------------- */

enum {
    LATENCY_BUCKETS = 12,
    RATE_SECONDS = 60
};

struct failure {
    struct ocr_job_key key;
    enum ocr_kind kind;
    int64_t until_ms;
    unsigned epoch;
};

struct listed_failure {
    int64_t wall_ns;
    enum ocr_kind kind;
    char *path, *reason; /* malloc'd */
};

struct stats {
    struct ocr_remarks remarks;
    pthread_mutex_t lock;
    /* Guarded by lock. */
    uint64_t opens, quick, refused, interrupted;
    uint64_t errors[OCR_KIND_LAST + 1];
    uint64_t latency[LATENCY_BUCKETS], latency_count;
    int64_t latency_sum_ms;
    uint64_t pages_done, pages_failed;
    struct {
        int64_t second;
        unsigned pages;
    } rate[RATE_SECONDS]; /* pages done in each of the last seconds */
    struct listed_failure listed[FAILURES_LISTED]; /* ring */
    uint64_t listed_count;
    struct failure recent[FAILURES_RECENT]; /* ring */
    unsigned recent_count;
    unsigned epoch; /* of the engine: what failed for want of one is void */
    int64_t cache_said_ms;
    char *device, *version;
    /* The engine's; replaced, the old ones are kept until the end. */
    const char *_Atomic fingerprint;
    struct fingerprint *fingerprints;
};

extern const double latency_bounds_s[LATENCY_BUCKETS - 1];

int stats_init(struct stats *s);
void stats_release(struct stats *s);
void stats_opened(struct stats *s, bool quick);
void stats_refused(struct stats *s);
void stats_interrupted(struct stats *s);
void stats_answered(struct stats *s, int64_t waited_ms);
void stats_page(struct stats *s, bool done, unsigned pages);
/* Pages a second in the last RATE_SECONDS, or since begun_ms. With the lock. */
double stats_rate_locked(const struct stats *s, int64_t begun_ms);

/* Logs, counts and lists a failure; path is relative to SOURCE. */
void stats_fail(struct ocr_fs *fs, enum ocr_kind kind, const char *path,
                const char *reason);
/* Counts it only: the log has it already. */
void stats_fail_again(struct stats *s, enum ocr_kind kind);

/* Failures that may pass, for FAILURE_MEMORY_MS. */
void stats_remember(struct stats *s, const struct ocr_job_key *key,
                    enum ocr_kind kind);
enum ocr_kind stats_recall(struct stats *s, const struct ocr_job_key *key);

/* Says once a minute at most that texts are not kept. */
void stats_cache_trouble(struct stats *s, const struct ocr_err *why);

/* Hook of the queue. */
void stats_engine_ready(void *arg, const char *fingerprint, const char *device,
                        const char *version);

/* ---- the control folder (control.c) ---------------------------------- */

enum {
    CONTROL_FOLDER,
    CONTROL_STATUS,
    CONTROL_JSON,
    CONTROL_METRICS,
    CONTROL_COUNT
};

extern const char *const control_names[CONTROL_COUNT];

/* A new snapshot as a node with a reference; NULL and *rc. */
struct node *control_lookup(struct ocr_fs *fs, const char *name, int *rc);
void control_attr(struct ocr_fs *fs, const struct node *n, struct stat *st);
/* Appends what the file `which` shows. */
void control_write(struct ocr_fs *fs, unsigned which, struct ocr_buf *out);

/* ---- originals read by the kernel (passthrough.c) -------------------- */

struct passthrough {
    struct source root; /* fd is -1 without passthrough; set in init */
    atomic_bool said;   /* why a file is not passed through */
};

/* Asks the kernel for it, if this libfuse, the kernel and our rights allow. */
void passthrough_init(struct ocr_fs *fs, struct fuse_conn_info *conn);
void passthrough_release(struct ocr_fs *fs);

/* Before the answer to the open of a real file, which may fill in *fi; and
 * once for each of these when it is over, or was not taken. */
void passthrough_opened(struct ocr_fs *fs, struct node *n, int fd,
                        struct fuse_file_info *fi);
void passthrough_closed(struct ocr_fs *fs, struct node *n);

/* ---- attributes (attr.c) --------------------------------------------- */

/* Opens the object of a node by the first of its names that still leads to
 * it: O_PATH (with O_DIRECTORY for folders) and its attributes now; or, with
 * read, for reading. -ESTALE if no name does. For a text: its image. */
int attr_open(struct ocr_fs *fs, struct node *n, bool read, struct object *out);

/* How long the kernel need not ask again, in seconds. */
struct timeouts {
    double entry, attr;
};

/* Attributes and timeouts of a node whose object is `o` (for a text: its
 * image, checked with node_check_version), looked at under `trust`. `fd` is
 * some descriptor on the object's file system, for its id. -ESTALE: look up
 * again. */
int attr_fill(struct ocr_fs *fs, struct node *n, const struct object *o, int fd,
              struct trust trust, struct stat *st, struct timeouts *timeouts);

/* The same by the node's names, and for open handles of what is gone. */
int attr_get(struct ocr_fs *fs, struct node *n, struct stat *st,
             double *timeout);

/* What `fd` is now, limited by its ACL. */
int attr_stat(struct ocr_fs *fs, int fd, struct object *out);

/* Key of the index for an image. */
void attr_file_id(struct ocr_fs *fs, const struct stat *st, int fd,
                  struct ocr_file_id *id);

/* Whose texts those of this image are, in cache and queue. */
uint32_t owner_of(const struct ocr_fs *fs, uid_t uid);

/* Finds `name` in `parent`, whose descriptor is `dir`, fills `e` and returns
 * its node with a reference, not yet counted; NULL and *rc. */
struct node *attr_lookup(struct ocr_fs *fs, struct node *parent, int dir,
                         const char *name, struct fuse_entry_param *e, int *rc);

/* True if the folder entry is our own mount (S10). */
bool attr_is_own_mount(const struct ocr_fs *fs, const struct stat *parent,
                       const char *name);

/* ---- what is shown (select.c) ----------------------------------------- */

/* show=texts: whether something of SOURCE is seen at all. */
bool select_shown(const struct ocr_fs *fs, const char *name, mode_t type);

/* Path of a folder if select_text needs it, malloc'd, else NULL. */
char *select_folder(struct ocr_fs *fs, struct node *folder);

/* Whether the image `name` gets a text, as far as include, exclude, min_pixels
 * and errors=hide decide: looks at its first bytes for min_pixels, and into
 * the index for hide. `folder` as from select_folder, `dir` a descriptor of it;
 * follow: the name is a link; st NULL: not asked yet. */
bool select_text(struct ocr_fs *fs, const char *folder, int dir,
                 const char *name, bool follow, const struct stat *st);

/* ---- what is known of a text (facts.c) ------------------------------- */

enum text_state {
    TEXT_UNKNOWN,
    TEXT_READING, /* somebody waits for it */
    TEXT_KNOWN,
    TEXT_FAILED,
};

struct facts {
    enum text_state state;
    bool hashed; /* key is set, by the index */
    struct ocr_job_key key;
    enum ocr_kind kind;       /* of a failure */
    struct ocr_cached cached; /* of a known text, or of a failure for good */
};

/* By index, cache and memory: no image is read. */
void facts_of_text(struct ocr_fs *fs, struct node *n, struct facts *out);

/* They as extended attributes, with -o xattr: the value of user.ocrfs.NAME,
 * false if the node has none of this name; and the names it has, each with a
 * NUL: their length. */
bool facts_attribute(struct ocr_fs *fs, struct node *n, const char *name,
                     char *out, size_t size);
size_t facts_list(struct ocr_fs *fs, struct node *n, char *out, size_t size);

/* ---- folders (dir.c) ------------------------------------------------- */

struct dir;

void dir_open(struct ocr_fs *fs, fuse_req_t req, struct node *n,
              struct fuse_file_info *fi);
void dir_read(struct ocr_fs *fs, fuse_req_t req, struct handle *h, size_t size,
              off_t off, bool plus);
/* Replaces what *d holds by the folder as it is now: the dots, then all in the
 * order of st_ino. `dir` is a descriptor of it that may be read. */
int dir_snapshot(struct ocr_fs *fs, struct node *n, struct dir *d, int dir);
size_t dir_count(const struct dir *d);
/* The name of entry i; its number and type in *st. */
const char *dir_entry(const struct dir *d, size_t i, struct stat *st);
/* Counts the texts an open folder lists. */
void dir_count_texts(struct ocr_fs *fs, struct handle *h,
                     struct ocr_texts_count *out);
struct dir *dir_new(void);
void dir_free(struct dir *d); /* NULL is a no-op */

/* ---- all of it
 * ----------------------------------------------------------------------------------
 */

struct fsid {
    struct fsid *next;
    dev_t dev;
    uint64_t id;
};

/* What a bad image shows, as in the choices of -o errors. */
enum errors_mode {
    ERRORS_ERRNO,
    ERRORS_HIDE,
    ERRORS_TEXT,
};

struct ocr_fs {
    /* Immutable after create. */
    enum errors_mode errors;
    struct ocr_fs_config config;
    const struct ocr_options *options; /* borrowed */
    const char *suffix;
    const char *recogniser;  /* without arguments; of the options */
    struct ocr_buf settings; /* NUL-terminated */
    dev_t root_dev;
    uid_t uid; /* the mounter's */
    gid_t gid;
    int64_t begun_ns; /* wall clock */
    int64_t begun_ms; /* ocr_now_ms */

    struct source source;
    struct own_mount own;
    struct nodes nodes;
    struct watch watch;
    struct newcomers newcomers;
    struct hashpool pool;
    struct park park;
    struct ahead ahead;
    struct stats stats;
    struct ocr_cache *cache; /* borrowed */
    struct ocr_queue *queue; /* set by connect or start */
    struct fsid *fsids;      /* guarded by nodes.lock */
    struct node *control;    /* the control folder; NULL if off */
    struct fuse_session *session;
    struct passthrough passthrough;
    bool started;
};

/* Starts a thread that gets no signals (B10): 0 or a negative errno. */
int fs_thread_start(pthread_t *out, void *(*run)(void *), void *arg);
/* Joins a thread that sets *over under `lock` and tells `wake`, a condition on
 * CLOCK_MONOTONIC, just before it ends. False if it has not after timeout_ms:
 * it hangs in SOURCE, and is left behind. */
bool fs_thread_join(pthread_t thread, pthread_mutex_t *lock,
                    pthread_cond_t *wake, const bool *over, int timeout_ms);

/* Who makes texts in this mount, as far as known by now. */
struct ocr_maker fs_maker(struct ocr_fs *fs);

#endif
