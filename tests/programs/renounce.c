/* Gives something up, as servers do before they fork their workers, and forks four of them, two of
   which fork again: `./prog WHAT`. 77 where this user may not give that up. Each process calls leaf
   1000 times or 100; SIGSYS is the end of whoever does what a filter forbids. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define QUIET __attribute__((no_instrument_function))
#define COUNT(list) (sizeof list / sizeof *list)

static int leaf(int x) { return x + 1; }
static void work(int n) { while (n--) leaf(n); }
static void *thread(void *unused) { work(100); return unused; }

/* Allows the calls of the list, or all others; what is done of the rest is `action`. */
QUIET static int filter(const int *list, size_t count, int allowed, unsigned action, int by_syscall) {
    struct sock_filter code[64];
    size_t at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < count; i++)
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)list[i],
                                                  (unsigned char)(count - i), 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, allowed ? action : SECCOMP_RET_ALLOW);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, allowed ? SECCOMP_RET_ALLOW : action);
    struct sock_fprog program = { (unsigned short)at, code };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return by_syscall ? (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
                      : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* What opens, and what looks at files. */
static const int files[] = { SYS_openat, SYS_open, SYS_readlinkat, SYS_readlink, SYS_mkdirat,
                             SYS_linkat, SYS_unlinkat, SYS_ftruncate, SYS_fallocate };
/* All that this program itself needs. */
static const int needed[] = { SYS_write, SYS_exit_group, SYS_exit, SYS_clone, SYS_clone3, SYS_wait4,
                              SYS_set_robust_list, SYS_rseq, SYS_mmap, SYS_munmap, SYS_mprotect,
                              SYS_madvise, SYS_futex, SYS_brk };
/* The same, and what a thread of any libc needs. */
static const int thread_needs[] = { SYS_write, SYS_exit_group, SYS_exit, SYS_clone, SYS_clone3,
                                    SYS_wait4, SYS_set_robust_list, SYS_rseq, SYS_mmap, SYS_munmap,
                                    SYS_mprotect, SYS_madvise, SYS_futex, SYS_brk,
                                    SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_getpid, SYS_gettid, SYS_getrandom };

QUIET static int give_up(const char *what) {
    struct rlimit addresses = { 12 << 20, 12 << 20 }, descriptors = { 3, 3 };
    if (!strcmp(what, "rights")) return setgid(65534) || setuid(65534);
    if (!strcmp(what, "root")) return mkdir("jail", 0755) || chroot("jail") || chdir("/");
    if (!strcmp(what, "shm"))
        return unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)
               || mount("none", "/dev/shm", "tmpfs", 0, NULL);
    if (!strcmp(what, "addresses")) return setrlimit(RLIMIT_AS, &addresses);
    if (!strcmp(what, "descriptors")) return setrlimit(RLIMIT_NOFILE, &descriptors);
    if (!strcmp(what, "files")) return filter(files, COUNT(files), 0, SECCOMP_RET_ERRNO | EPERM, 0);
    if (!strcmp(what, "files-kill"))
        return filter(files, COUNT(files), 0, SECCOMP_RET_KILL_PROCESS, 0);
    if (!strcmp(what, "files-trap")) return filter(files, COUNT(files), 0, SECCOMP_RET_TRAP, 1);
    if (!strcmp(what, "most-kill"))
        return filter(thread_needs, COUNT(thread_needs), 1, SECCOMP_RET_KILL_PROCESS, 1);
    if (!strcmp(what, "all-kill"))
        return filter(needed, COUNT(needed), 1, SECCOMP_RET_KILL_PROCESS, 0);
    return 0;
}

QUIET static int family(void) {
    int bad = 0, state;
    for (int child = 0; child < 4; child++) {
        pid_t pid = fork();
        if (pid < 0) return 8;
        if (pid == 0) {
            work(1000);
            if (child < 2) {
                if (fork() == 0) { work(100); _exit(0); }
                if (wait(&state) < 0 || state) _exit(7);
            }
            if (child % 2) _exit(0);
            exit(0);
        }
    }
    while (wait(&state) > 0) bad |= state;
    return bad ? 9 : 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "family";
    work(100);
    /* In a root that is no mount there is none to keep apart either. */
    if (give_up(what)) return errno == EPERM || errno == EINVAL ? 77 : 78;
    int failed = 0;
    if (!strcmp(how, "family")) failed = family();
    if (!strcmp(how, "threads")) {
        pthread_t threads[4];
        for (size_t i = 0; i < COUNT(threads); i++)
            if (pthread_create(&threads[i], NULL, thread, NULL)) return 6;
        for (size_t i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    }
    work(100);
    return failed;
}
