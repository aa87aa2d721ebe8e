/* The ring as a file: found, checked, claimed, unlinked.
 *
 * In: a name. Out: a mapped ring whose sizes hold, and which no other drain reads. Who may write to
 * it, and how long it is, is asked of the kernel; its header must agree.
 */

struct ring {
    char path[320];
    int file;
    dev_t device;
    ino_t inode;
    unsigned char *map;
    size_t map_bytes;
    struct callsight_ring_header *header;
    struct callsight_ring_control *control; /* version 3 */
    uint32_t version;
    uint32_t capacity;
    struct layout layout; /* version 3 */
};

static void ring_refuse(const struct ring *ring, const char *why) __attribute__((noreturn));
static void ring_refuse(const struct ring *ring, const char *why)
{
    fail(EXIT_REFUSED, "read the ring %s: %s", ring->path, why);
}

static void ring_name(struct ring *ring, const char *name)
{
    const char *base = name[0] == '/' ? name + 1 : name;
    if (base[0] == 0 || strchr(base, '/') != NULL || strcmp(base, ".") == 0
        || strcmp(base, "..") == 0 || strlen(base) > NAME_MAX)
        fail(EXIT_REFUSED, "use the ring name \"%s\": it must be like /callsight0", name);
    /* shm_open would need -lrt on old systems; this is where it looks. */
    snprintf(ring->path, sizeof ring->path, "/dev/shm/%s", base);
}

static void ring_unmap(struct ring *ring)
{
    if (ring->map != NULL)
        munmap(ring->map, ring->map_bytes);
    if (ring->file >= 0)
        close(ring->file);
    ring->map = NULL;
    ring->file = -1;
}

/* Only a ring that nobody but us can have written: its words move our reads. */
static void ring_check_file(const struct ring *ring, const struct stat *stat)
{
    if (!S_ISREG(stat->st_mode))
        ring_refuse(ring, "it is no shared memory object");
    if (stat->st_uid != geteuid())
        ring_refuse(ring, "it belongs to another user; run trace_stream as the traced program's");
    if ((stat->st_mode & 077) != 0)
        ring_refuse(ring, "other users may open it; a ring has mode 0600");
}

/* Opens and maps the header; 0 when there is no ring, or one that is still being made. */
static int ring_open(struct ring *ring)
{
    struct stat stat;
    ring->file = open(ring->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (ring->file < 0 && errno == ENOENT)
        return 0;
    if (ring->file < 0 || fstat(ring->file, &stat) != 0)
        ring_refuse(ring, strerror(errno));
    ring_check_file(ring, &stat);
    ring->device = stat.st_dev;
    ring->inode = stat.st_ino;
    if (stat.st_size < CALLSIGHT_RING_HEADER_BYTES)
        return 0;
    if ((uint64_t)stat.st_size > SIZE_MAX / 2)
        ring_refuse(ring, "it is too large for this machine");
    ring->map_bytes = (size_t)stat.st_size;
    void *map = mmap(NULL, ring->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->file, 0);
    if (map == MAP_FAILED)
        ring_refuse(ring, strerror(errno));
    ring->map = map;
    ring->header = map;
    return 1;
}

static void ring_check_pages(struct ring *ring)
{
    struct callsight_ring_control control;
    ring->layout = layout_of(ring->capacity);
    if (ring->map_bytes < CALLSIGHT_RING_WRITERS_OFFSET
        || ring->layout.total_bytes > ring->map_bytes)
        ring_refuse(ring, "its header states more bytes than it has");
    ring->control = (struct callsight_ring_control *)(void *)(ring->map
                                                             + CALLSIGHT_RING_CONTROL_OFFSET);
    memcpy(&control, ring->control, sizeof control);
    if (ring->capacity != ring->layout.capacity || control.page_bytes != ring->layout.page_bytes
        || control.page_count != ring->layout.page_count
        || control.slot_count != ring->layout.slot_count
        || control.pages_offset != ring->layout.pages_offset)
        ring_refuse(ring, "its header is damaged: its sizes contradict each other");
    if (is_foreign(control.pid_namespace))
        ring_refuse(ring, FOREIGN);
}

/* Whether the header is whole; refuses what is wrong in it. 0 when it is not yet written. */
static int ring_check(struct ring *ring)
{
    struct callsight_ring_header header;
    static const unsigned char nothing[8];
    memcpy(&header, ring->header, sizeof header);
    if (memcmp(header.magic, nothing, 8) == 0)
        return 0;
    if (memcmp(header.magic, CALLSIGHT_RING_MAGIC, 8) != 0)
        ring_refuse(ring, "it is not a ring of callsight");
    ring->version = header.version;
    ring->capacity = header.capacity;
    if (header.version == CALLSIGHT_RING_VERSION)
        ring_check_pages(ring);
    else if (header.version != CALLSIGHT_RING_VERSION_STREAM)
        fail(EXIT_REFUSED, "read the ring %s: it has version %" PRIu32 ", this trace_stream reads "
             "2 and 3", ring->path, header.version);
    else if (header.capacity < EVENT_BYTES
             || ring->map_bytes - CALLSIGHT_RING_HEADER_BYTES < header.capacity)
        ring_refuse(ring, "its header states more bytes than it has");
    return 1;
}

static int ring_is_gone(const struct ring *ring)
{
    struct stat stat;
    if (fstat(ring->file, &stat) != 0 || (uint64_t)stat.st_size < ring->map_bytes)
        ring_refuse(ring, "its file was made smaller while it was in use");
    return stat.st_nlink == 0;
}

/* Removes rings that were never named: a traced process makes one as `.callsight-PID`, and one
 * that is killed meanwhile leaves it. The age is for processes that we cannot see. */
static void remove_unborn(void)
{
    static const char folder[] = "/dev/shm", prefix[] = CALLSIGHT_RING_UNBORN_PREFIX;
    struct dirent *entry;
    DIR *shm = opendir(folder);
    while (shm != NULL && (entry = readdir(shm)) != NULL) {
        const char *number = entry->d_name + sizeof prefix - 1;
        struct stat stat;
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) != 0 || strlen(number) > 10
            || number[0] == 0 || number[strspn(number, "0123456789")] != 0)
            continue;
        if (!is_alive_now((uint32_t)strtoul(number, NULL, 10), 0)
            && fstatat(dirfd(shm), entry->d_name, &stat, AT_SYMLINK_NOFOLLOW) == 0
            && S_ISREG(stat.st_mode) && stat.st_uid == geteuid()
            && time(NULL) - stat.st_mtime > UNBORN_S)
            unlinkat(dirfd(shm), entry->d_name, 0);
    }
    if (shm != NULL)
        closedir(shm);
}

/* Waits until there is a ring and it is ours to read; 0 when told to stop. */
static int ring_wait(struct ring *ring)
{
    uint64_t half_made_since = 0;
    int said = 0;
    if (proc_is_anothers())
        ring_refuse(ring, "/proc is that of another pid namespace, and would tell the dead for the "
                    "living: mount one of this namespace (as `unshare --mount-proc` does)");
    for (; !stop_asked; nap(5 * MS)) {
        int there = ring_open(ring);
        if (there && ring_check(ring)) {
            spare_remove();
            spare_remove_left(ring->path);
            return 1;
        }
        if (ring->file < 0) {
            half_made_since = 0;
        } else if (half_made_since == 0) {
            half_made_since = now_ns();
        } else if (now_ns() - half_made_since > HALF_MADE_NS) {
            ring_refuse(ring, "it has no header; remove it if no program is making it just now");
        }
        if (ring->file < 0 && !said)
            say("waiting for a program started with TRACE_ENABLE=1 TRACE_SHM=%s",
                strrchr(ring->path, '/'));
        if (ring->file < 0 && !said)
            spare_make(ring->path);
        said |= ring->file < 0;
        ring_unmap(ring);
    }
    return 0;
}

/* One drain a ring: the lock on the file ends with its holder, `drain_pid` is for others to see. */
static void ring_claim(struct ring *ring)
{
    uint64_t end = now_ns() + CLAIM_TRIES_NS;
    while (flock(ring->file, LOCK_EX | LOCK_NB) != 0) {
        if (now_ns() > end)
            ring_refuse(ring, "another trace_stream is reading it");
        nap(5 * MS);
    }
    if (ring->version != CALLSIGHT_RING_VERSION)
        return;
    uint32_t *pid = &ring->control->drain_pid;
    uint32_t other = load32(pid);
    uint64_t start = load64(&ring->control->drain_start);
    struct process_stat self = { 0, 0, 0 };
    if (other != (uint32_t)getpid() && other != 0 && is_alive_now(other, start))
        fail(EXIT_REFUSED, "read the ring %s: process %" PRIu32 " is reading it", ring->path,
             other);
    if (!replace32(pid, other, (uint32_t)getpid()))
        ring_refuse(ring, "another trace_stream is reading it");
    claimed = ring->control;
    /* A drain that died while it closed the ring has not finished it. */
    replace32(&ring->control->command, CALLSIGHT_COMMAND_CLOSED, CALLSIGHT_COMMAND_RECORD);
    read_process_stat((uint32_t)getpid(), &self);
    store64(&ring->control->drain_start, self.start);
}

/* Removes the name, unless it is another ring's by now, and leaves the rest to be forgotten. */
static void ring_unlink(const struct ring *ring)
{
    struct stat stat;
    claimed = NULL;
    if (lstat(ring->path, &stat) == 0 && stat.st_dev == ring->device
        && stat.st_ino == ring->inode)
        unlink(ring->path);
}

static int process_maps(const struct ring *ring, uint32_t pid)
{
    char path[64], line[1024];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/maps", pid);
    FILE *maps = fopen(path, "re");
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        unsigned major_number, minor_number;
        unsigned long long inode;
        found = sscanf(line, "%*s %*s %*s %x:%x %llu", &major_number, &minor_number, &inode) == 3
                && inode == ring->inode && major_number == major(ring->device)
                && minor_number == minor(ring->device);
    }
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* A process beside us that has the ring mapped, `likely` if it still has; 0 for none. */
static uint32_t ring_mapped_by(const struct ring *ring, uint32_t likely)
{
    if (likely != 0 && process_maps(ring, likely))
        return likely;
    uint32_t found = 0;
    struct dirent *entry;
    DIR *proc = opendir("/proc");
    while (proc != NULL && found == 0 && (entry = readdir(proc)) != NULL) {
        uint32_t pid = (uint32_t)strtoul(entry->d_name, NULL, 10);
        if (pid != 0 && pid != (uint32_t)getpid() && process_maps(ring, pid))
            found = pid;
    }
    if (proc != NULL)
        closedir(proc);
    return found;
}
