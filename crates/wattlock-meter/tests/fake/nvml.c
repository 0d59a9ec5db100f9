/* A stand-in for the NVIDIA management library: just the calls that Wattlock makes. The numbers come from a file
 * (STATE, set by the compiler's command line), a line for each board: energy in mJ, power in mW, either of them a
 * negated return code instead. A missing file is a driver that is not loaded.
 *
 * Clocks outlive the process, as a board's do: STATE.clocks has a line for each call that changed one, "lock BOARD MIN
 * MAX" or "reset BOARD", "memory BOARD MIN MAX" or "reset-memory BOARD". Lines of STATE.pairs, memory and core clock in
 * MHz, are what every board supports instead of its own. A number in STATE.fixed is what a call for the memory's clock
 * returns. A number in STATE.refuse is what such a call returns instead; one in STATE.lost is what it
 * returns although it was done. STATE.confidential has the features of confidential computing: the feature itself and
 * the mode of several GPUs, as numbers of nvml.h. -DWITHOUT_CONFIDENTIAL: a library that does not know it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_SUCCESS = 0, NVML_INVALID = 2, NVML_NOT_FOUND = 6, NVML_DRIVER_NOT_LOADED = 9 };

static int board(unsigned index, long long *energy, long long *power) {
    FILE *file = fopen(STATE, "r");
    int found = 0;
    if (!file)
        return NVML_DRIVER_NOT_LOADED;
    for (unsigned at = 0; fscanf(file, "%lld %lld", energy, power) == 2; at++)
        if (at == index) {
            found = 1;
            break;
        }
    fclose(file);
    return found ? NVML_SUCCESS : NVML_NOT_FOUND;
}

int nvmlInit_v2(void) {
    long long ignored;
    return board(0, &ignored, &ignored) == NVML_DRIVER_NOT_LOADED ? NVML_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

int nvmlShutdown(void) { return NVML_SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    long long ignored;
    *count = 0;
    while (board(*count, &ignored, &ignored) == NVML_SUCCESS)
        ++*count;
    return NVML_SUCCESS;
}

/* A handle is an index plus one, so that none is null. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    if (length < 16)
        return NVML_INVALID;
    strcpy(name, "Fake H000");
    return device ? NVML_SUCCESS : NVML_INVALID;
}

static int number(void *device, int which, unsigned long long *out) {
    long long values[2];
    int result = board((unsigned)((size_t)device - 1), &values[0], &values[1]);
    if (result != NVML_SUCCESS)
        return result;
    if (values[which] < 0)
        return (int)-values[which];
    *out = (unsigned long long)values[which];
    return NVML_SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) { return number(device, 0, energy); }

int nvmlDeviceGetPowerUsage(void *device, unsigned *power) {
    unsigned long long value = 0;
    int result = number(device, 1, &value);
    *power = (unsigned)value;
    return result;
}

/* Board N is at 0000:1N:00.0; a domain may have eight digits. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    unsigned domain, at;
    long long ignored;
    if (sscanf(bus, "%x:1%x:00.0", &domain, &at) != 2 || domain)
        return NVML_INVALID;
    *device = (void *)(size_t)(at + 1);
    return board(at, &ignored, &ignored);
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:1%X:00.0", (unsigned)((size_t)device - 1));
    return NVML_SUCCESS;
}

/* The first number of the file STATE.name; 0 without it. */
static int told(const char *name, int *second) {
    char path[4096];
    int first = 0, ignored;
    snprintf(path, sizeof path, "%s.%s", STATE, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (fscanf(file, "%d %d", &first, second ? second : &ignored) < 1)
        first = 0;
    fclose(file);
    return first;
}

enum { NVML_INSUFFICIENT_SIZE = 7, LOWEST = 345, HIGHEST = 1980, STEP = 15 };

/* Pairs of memory and core clock: of STATE.pairs, or else the board's own, beside whose lower memory clock there are
 * fewer. */
static unsigned pairs(unsigned (*list)[2]) {
    unsigned count = 0;
    FILE *file = fopen(STATE ".pairs", "r");
    if (file) {
        while (count < 4096 && fscanf(file, "%u %u", &list[count][0], &list[count][1]) == 2)
            count++;
        fclose(file);
        return count;
    }
    for (unsigned core = HIGHEST; core >= LOWEST; core -= STEP)
        list[count][0] = 2619, list[count++][1] = core;
    for (unsigned core = 1200; core >= LOWEST; core -= STEP)
        list[count][0] = 1593, list[count++][1] = core;
    return count;
}

/* Those of one column, where the other is WANTED or that is 0. */
static int listed(unsigned column, unsigned wanted, unsigned *count, unsigned *clocks) {
    unsigned list[4096][2], all = pairs(list), found = 0, values[4096];
    for (unsigned i = 0; i < all; i++) {
        int known = wanted && list[i][!column] != wanted;
        for (unsigned j = 0; j < found; j++)
            known |= values[j] == list[i][column];
        if (!known)
            values[found++] = list[i][column];
    }
    unsigned room = *count;
    *count = found;
    if (!found)
        return NVML_INVALID;
    if (room < found)
        return NVML_INSUFFICIENT_SIZE;
    memcpy(clocks, values, found * sizeof *clocks);
    return NVML_SUCCESS;
}

int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *clocks) {
    return device ? listed(0, 0, count, clocks) : NVML_INVALID;
}

int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory, unsigned *count, unsigned *clocks) {
    return device && memory ? listed(1, memory, count, clocks) : NVML_INVALID;
}

static int is_listed(unsigned column, unsigned mhz) {
    unsigned list[4096][2], all = pairs(list);
    for (unsigned i = 0; i < all; i++)
        if (list[i][column] == mhz)
            return 1;
    return 0;
}

static int change(const char *line) {
    int refused = told("refuse", NULL);
    if (refused)
        return refused;
    FILE *file = fopen(STATE ".clocks", "a");
    if (!file)
        return NVML_DRIVER_NOT_LOADED;
    fputs(line, file);
    fclose(file);
    return told("lost", NULL);
}

int nvmlDeviceSetGpuLockedClocks(void *device, unsigned min, unsigned max) {
    char line[64];
    if (min > max || !is_listed(1, min) || !is_listed(1, max))
        return NVML_INVALID;
    snprintf(line, sizeof line, "lock %u %u %u\n", (unsigned)((size_t)device - 1), min, max);
    return change(line);
}

int nvmlDeviceResetGpuLockedClocks(void *device) {
    char line[64];
    snprintf(line, sizeof line, "reset %u\n", (unsigned)((size_t)device - 1));
    return change(line);
}

int nvmlDeviceSetMemoryLockedClocks(void *device, unsigned min, unsigned max) {
    char line[64];
    int fixed = told("fixed", NULL);
    if (min > max || !is_listed(0, min) || !is_listed(0, max))
        return NVML_INVALID;
    snprintf(line, sizeof line, "memory %u %u %u\n", (unsigned)((size_t)device - 1), min, max);
    return fixed ? fixed : change(line);
}

int nvmlDeviceResetMemoryLockedClocks(void *device) {
    char line[64];
    int fixed = told("fixed", NULL);
    snprintf(line, sizeof line, "reset-memory %u\n", (unsigned)((size_t)device - 1));
    return fixed ? fixed : change(line);
}

#ifndef WITHOUT_CONFIDENTIAL
struct confidential {
    unsigned version, environment, feature, devtools, several;
};

int nvmlSystemGetConfComputeSettings(struct confidential *settings) {
    if (settings->version != (sizeof *settings | 1 << 24))
        return NVML_INVALID;
    int several = 0;
    settings->environment = 2;
    settings->feature = (unsigned)told("confidential", &several);
    settings->devtools = 0;
    settings->several = (unsigned)several;
    return NVML_SUCCESS;
}
#endif
