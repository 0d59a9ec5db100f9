/* Which instructions one call of a function executes: runs a program, steps through one call of the function instruction by
   instruction, and ends it. Prints "ADDRESS COUNT" for each instruction of the program itself, in the numbers of its own file
   (hexadecimal), and "elsewhere COUNT" for those in libraries. A step is a stop of the process, so this takes a microsecond or
   more an instruction, and the CPU itself executes them: it needs no emulator that knows them.

   count ADDRESS SKIP PROGRAM WORD...   ADDRESS in hexadecimal; SKIP calls are let pass before the one that is counted.
   For one thread, and position-independent programs of x86-64 Linux. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "count: %s: %s\n", what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

/* Waits for the next stop by a trap. */
static void stopped(pid_t child) {
    int status;
    errno = 0;
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
        fail("the program ended or got a signal before the call was counted");
}

static void request(int what, pid_t child, void *data) {
    if (ptrace(what, child, NULL, data) < 0) fail("ptrace");
}

/* Where the program's file begins in memory, and where its last mapping ends. */
static void mapped(pid_t child, const char *program, unsigned long *start, unsigned long *end) {
    char path[64], line[4096], *name = realpath(program, NULL);
    snprintf(path, sizeof path, "/proc/%d/maps", child);
    FILE *maps = fopen(path, "r");
    if (!maps || !name) fail("maps");
    *start = *end = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long low, high;
        line[strcspn(line, "\n")] = 0;
        char *found = strchr(line, '/');
        if (!found || strcmp(found, name) || sscanf(line, "%lx-%lx", &low, &high) != 2) continue;
        if (!*start) *start = low;
        *end = high;
    }
    fclose(maps);
    free(name);
    if (!*start) fail("the program's mapping");
}

int main(int count, char **words) {
    if (count < 4) return 2;
    unsigned long address = strtoul(words[1], NULL, 16), skip = strtoul(words[2], NULL, 10), start, end;
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(words[3], words + 3);
        _exit(127);
    }
    stopped(child);
    /* Where this program ends early, the other does, too. */
    request(PTRACE_SETOPTIONS, child, (void *)PTRACE_O_EXITKILL);
    mapped(child, words[3], &start, &end);
    struct user_regs_struct now;
    void *place = (void *)(start + address);
    errno = 0;
    long code = ptrace(PTRACE_PEEKTEXT, child, place, NULL);
    if (errno) fail("peek");
    long trap = (code & ~0xffL) | 0xcc;
    /* Each arrival: the byte goes back, and unless this is the call, the trap is set anew one step later. */
    for (;; skip--) {
        if (ptrace(PTRACE_POKETEXT, child, place, trap) < 0) fail("poke");
        request(PTRACE_CONT, child, NULL);
        stopped(child);
        request(PTRACE_GETREGS, child, &now);
        if (now.rip != start + address + 1) fail("a trap elsewhere");
        now.rip--;
        request(PTRACE_SETREGS, child, &now);
        if (ptrace(PTRACE_POKETEXT, child, place, code) < 0) fail("poke");
        if (!skip) break;
        request(PTRACE_SINGLESTEP, child, NULL);
        stopped(child);
    }
    /* Mostly never touched, so mostly no memory. */
    unsigned *executed = calloc(end - start, sizeof *executed), elsewhere = 0;
    if (!executed) fail("memory");
    /* The return address lies at the top; once the stack is above it, the function has returned. */
    for (unsigned long top = now.rsp; now.rsp <= top;) {
        if (now.rip >= start && now.rip < end)
            executed[now.rip - start]++;
        else
            elsewhere++;
        request(PTRACE_SINGLESTEP, child, NULL);
        stopped(child);
        request(PTRACE_GETREGS, child, &now);
    }
    kill(child, SIGKILL);
    for (unsigned long i = 0; i < end - start; i++)
        if (executed[i]) printf("%lx %u\n", i, executed[i]);
    printf("elsewhere %u\n", elsewhere);
    return 0;
}
