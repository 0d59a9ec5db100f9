/* Key pairs of a process and of its child, which is made in one of the ways that the kernel and the C library offer.
 *
 *   children fork|_Fork|clone|clone3 X25519|P-256|P-384
 *
 * Prints 16 keys, "parent HEX" and "child HEX": what both generate after forty were generated; and "found" if the child's
 * memory holds a private key that its parent generates next. Exit status: 0 good, 2 it could not be set up.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 8
#define LENGTH 48

static const char *sort;
static unsigned char keys[COUNT][LENGTH];
static size_t length;

static int generate(unsigned char *out)
{
    EVP_PKEY *key = strcmp(sort, "X25519") == 0 ? EVP_PKEY_Q_keygen(NULL, NULL, "X25519") : EVP_PKEY_Q_keygen(NULL, NULL, "EC", sort);
    if (!key)
        return 0;
    memset(out, 0, LENGTH);
    if (strcmp(sort, "X25519") == 0) {
        length = 32;
        if (EVP_PKEY_get_raw_private_key(key, out, &length) != 1)
            return 0;
    } else {
        BIGNUM *number = NULL;
        length = strcmp(sort, "P-256") == 0 ? 32 : 48;
        if (EVP_PKEY_get_bn_param(key, "priv", &number) != 1 || BN_bn2binpad(number, out, length) < 0)
            return 0;
        BN_clear_free(number);
    }
    EVP_PKEY_free(key);
    return 1;
}

static void tell(const char *who)
{
    for (int at = 0; at < COUNT; at++) {
        printf("%s ", who);
        for (size_t i = 0; i < length; i++)
            printf("%02x", keys[at][i]);
        printf("\n");
    }
    fflush(stdout);
}

static pid_t make(const char *how)
{
    if (strcmp(how, "fork") == 0)
        return fork();
    if (strcmp(how, "_Fork") == 0)
        return _Fork();
    if (strcmp(how, "clone") == 0)
        return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    struct clone_args args = { .exit_signal = SIGCHLD };
    return syscall(SYS_clone3, &args, sizeof args);
}

/* Whether any writable memory of this process holds a key; the given places apart. Bytes are compared both ways round:
 * numbers may lie the other way in a machine's words. The first and the last byte are left out: X25519 sets bits in them. */
static int holds(const unsigned char *key)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int memory = open("/proc/self/mem", O_RDONLY), found = 0;
    char line[500];
    unsigned char turned[LENGTH];
    for (size_t i = 0; i < length; i++)
        turned[i] = key[length - 1 - i];
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[1] != 'w' || strstr(line, "[stack]"))
            continue;
        unsigned char *copy = malloc(to - from);
        ssize_t got = pread(memory, copy, to - from, from);
        for (unsigned char *at = copy; got > 0 && (at = memmem(at, copy + got - at, key + 1, length - 2)); at++) {
            uintptr_t place = from + (at - copy);
            found |= place < (uintptr_t)keys || place >= (uintptr_t)keys + sizeof keys;
        }
        found |= got > 0 && memmem(copy, got, turned + 1, length - 2) != NULL;
        /* Nothing of it is to be found again. */
        explicit_bzero(copy, to - from);
        free(copy);
    }
    return found;
}

int main(int count, char **words)
{
    int pipes[2];
    unsigned char key[LENGTH];
    if (count != 3 || pipe(pipes))
        return 2;
    sort = words[2];
    if (OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1)
        return 2;
    for (int at = 0; at < 42; at++)
        if (!generate(key))
            return 2;
    memset(key, 0, sizeof key);
    pid_t child = make(words[1]);
    if (child < 0)
        return 2;
    if (child == 0) {
        /* First the memory as it was inherited, then the pairs. */
        if (read(pipes[0], keys, sizeof keys) != sizeof keys)
            _exit(2);
        length = strcmp(sort, "P-384") == 0 ? 48 : 32;
        for (int at = 0; at < COUNT; at++)
            if (holds(keys[at]))
                printf("found\n");
        for (int at = 0; at < COUNT; at++)
            if (!generate(keys[at]))
                _exit(2);
        tell("child");
        _exit(0);
    }
    for (int at = 0; at < COUNT; at++)
        if (!generate(keys[at]))
            return 2;
    if (write(pipes[1], keys, sizeof keys) != sizeof keys)
        return 2;
    int status;
    if (waitpid(child, &status, 0) != child || status)
        return 2;
    tell("parent");
    return 0;
}
