/* A stand-in for the NVIDIA management library: just the calls that the meter makes. The numbers come from a file
 * (STATE, set by the compiler's command line), a line for each board: energy in mJ, power in mW, either of them a
 * negated return code instead. A missing file is a driver that is not loaded. */
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
