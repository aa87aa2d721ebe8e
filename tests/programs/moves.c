/* A process in a pid namespace, and one that it forks into another, which forks one more there:
 * 1004, 200 and 30 calls of leaf. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int leaf(int x) { return x + 1; }
static void work(int n) { for (int sum = 0; n--;) sum = leaf(sum); }

int main(void)
{
    int status = 1;
    work(1000);
    if (unshare(CLONE_NEWPID) != 0)
        return 9;
    if (fork() == 0) {
        work(200);
        if (fork() == 0) {
            work(30);
            exit(0);
        }
        wait(NULL);
        exit(0);
    }
    wait(&status);
    work(4);
    printf("%d\n", status);
    return 0;
}
