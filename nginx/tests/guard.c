/*
 * Preloaded: an inaccessible page lies directly before each block of 32 KiB, the size of an OpenSSL job's stack. What
 * writes below such a stack dies there and then, which neither a sanitizer (PCRE's compiled code is not instrumented)
 * nor luck with the heap's layout shows reliably.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK 32768
#define PAGE  4096
#define MOST  8192

extern void *__libc_malloc(size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void __libc_free(void *block);

static void             *guarded[MOST];
static pthread_mutex_t   lock = PTHREAD_MUTEX_INITIALIZER;

/* Puts `to` where `from` is; 1, or 0 if there is none. */
static int replace(void *from, void *to)
{
    int  at, done = 0;

    pthread_mutex_lock(&lock);

    for (at = 0; at < MOST && !done; at++) {
        if (guarded[at] == from) {
            guarded[at] = to;
            done = 1;
        }
    }

    pthread_mutex_unlock(&lock);

    return done;
}

void *malloc(size_t size)
{
    char  *map;

    if (size != BLOCK) {
        return __libc_malloc(size);
    }

    map = mmap(NULL, PAGE + BLOCK, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED || mprotect(map, PAGE, PROT_NONE) != 0 || !replace(NULL, map + PAGE)) {
        errno = ENOMEM;
        return NULL;
    }

    return map + PAGE;
}

void free(void *block)
{
    if (block != NULL && (uintptr_t) block % PAGE == 0 && replace(block, NULL)) {
        munmap((char *) block - PAGE, PAGE + BLOCK);
        return;
    }

    __libc_free(block);
}

void *realloc(void *block, size_t size)
{
    void  *other;

    if (block == NULL || (uintptr_t) block % PAGE != 0 || !replace(block, block)) {
        return __libc_realloc(block, size);
    }

    other = malloc(size);

    if (other != NULL) {
        memcpy(other, block, size < BLOCK ? size : BLOCK);
        free(block);
    }

    return other;
}
