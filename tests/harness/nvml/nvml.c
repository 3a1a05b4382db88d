/* A stand-in for NVIDIA's management library, for tests on machines without a GPU.
 *
 * It has the symbols that the agent asks for, and reads its state anew at each call from the file
 * that OPTIMUS_NVML names: lines of a key and numbers. So a test can take a GPU away, let all
 * calls hang or change the driver under a running agent.
 *
 *   server N           marks the GPUs' names, so that two servers have different ones
 *   count N            GPUs
 *   init CODE          what nvmlInit answers (18: library and driver do not fit)
 *   calls CODE         what every call after it answers
 *   hang               no call returns
 *   hang.I             no call about GPU I returns
 *   lost.I             GPU I has fallen off the bus
 *   ecc.I N            uncorrected memory errors
 *   memory CODE        what asking for memory answers (3: not supported)
 *   used.I BYTES       memory in use
 *   process.I PID      a process with memory; several lines are several processes
 *   mig.I N            GPU I is split in N instances
 *   xid SERIAL I XID   an event; serials grow
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, SMALL = 7, TIMEOUT = 10, LOST = 15 };
enum { DEVICES = 16, SLICES = 8 };

typedef struct { int index; int slice; } Device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } Process;
typedef struct { Device *device; unsigned long long type, data; unsigned gpu, compute; } EventData;
typedef struct { int watched[DEVICES]; long serial; } EventSet;

static Device devices[DEVICES];
static Device slices[DEVICES][SLICES];

static FILE *state(void) {
    const char *path = getenv("OPTIMUS_NVML");
    return path ? fopen(path, "r") : NULL;
}

/* The n-th value of a key, or of key.index where index is not negative. */
static int find(const char *key, int index, int nth, long long *value) {
    char wanted[64], line[256], name[64];
    if (index < 0) snprintf(wanted, sizeof wanted, "%s", key);
    else snprintf(wanted, sizeof wanted, "%s.%d", key, index);
    FILE *file = state();
    if (!file) return 0;
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        long long number = 0;
        if (sscanf(line, "%63s %lld", name, &number) < 1 || strcmp(name, wanted)) continue;
        if (nth-- > 0) continue;
        *value = number;
        found = 1;
    }
    fclose(file);
    return found;
}

static long long value(const char *key, int index, long long otherwise) {
    long long found;
    return find(key, index, 0, &found) ? found : otherwise;
}

static int has(const char *key, int index) {
    long long ignored;
    return find(key, index, 0, &ignored);
}

/* Every call comes here first. */
static int call(const Device *device) {
    while (has("hang", -1) || (device && has("hang", device->index))) usleep(20000);
    int code = (int)value("calls", -1, SUCCESS);
    if (code) return code;
    return device && has("lost", device->index) ? LOST : SUCCESS;
}

int nvmlInit_v2(void) {
    while (has("hang", -1)) usleep(20000);
    for (int index = 0; index < DEVICES; index++) {
        devices[index] = (Device){index, -1};
        for (int slice = 0; slice < SLICES; slice++) slices[index][slice] = (Device){index, slice};
    }
    return (int)value("init", -1, SUCCESS);
}

int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    int code = call(NULL);
    if (!code) snprintf(version, length, "550.54.15");
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = call(NULL);
    if (!code) *count = (unsigned)value("count", -1, 0);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= DEVICES || (long long)index >= value("count", -1, 0)) return INVALID;
    int code = call(&devices[index]);
    if (!code) *device = &devices[index];
    return code;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    int code = call(device);
    if (code) return code;
    unsigned server = (unsigned)value("server", -1, 1);
    if (device->slice < 0) {
        snprintf(uuid, length, "GPU-%08x-0000-4000-8000-%012x", server, device->index);
    } else {
        int slice = device->slice;
        snprintf(uuid, length, "MIG-%08x-0000-4000-%04x-%012x", server, slice, device->index);
    }
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    int code = call(device);
    if (!code) snprintf(name, length, "Stand-in");
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory *memory) {
    int code = call(device);
    if (!code) code = (int)value("memory", -1, SUCCESS);
    if (code) return code;
    memory->total = 80ULL << 30;
    memory->reserved = 0;
    memory->used = (unsigned long long)value("used", device->index, 1 << 20);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    int code = call(device);
    if (!code) *rates = (Utilization){50, 10};
    return code;
}

int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, unsigned long long *count) {
    int code = call(device);
    (void)counter;
    /* 1: uncorrected */
    if (!code) *count = kind == 1 ? (unsigned long long)value("ecc", device->index, 0) : 0;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    int code = call(device);
    if (code) return code;
    unsigned room = processes ? *count : 0, number = 0;
    long long pid;
    while (find("process", device->index, (int)number, &pid)) {
        if (number < room) processes[number] = (Process){(unsigned)pid, 1 << 30, 0, 0};
        number++;
    }
    *count = number;
    return number > room ? SMALL : SUCCESS;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    int code = call(device);
    if (!code) *current = *pending = (unsigned)has("mig", device->index);
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    int code = call(device);
    if (!code) *count = SLICES - 1;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice) {
    int code = call(device);
    if (code) return code;
    /* 6: not found, as for a place without an instance */
    if (index >= SLICES || (long long)index >= value("mig", device->index, 0)) return 6;
    *slice = &slices[device->index][index];
    return SUCCESS;
}

/* The newest event after a serial; its serial, or none. */
static long event_after(const EventSet *set, long serial, int *device, long *xid) {
    FILE *file = state();
    if (!file) return 0;
    char line[256];
    long found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        long number, code;
        int index;
        if (sscanf(line, "xid %ld %d %ld", &number, &index, &code) != 3) continue;
        if (number <= serial || index < 0 || index >= DEVICES) continue;
        if (set && !set->watched[index]) continue;
        *device = index;
        *xid = code;
        found = number;
    }
    fclose(file);
    return found;
}

int nvmlEventSetCreate(EventSet **set) {
    int code = call(NULL), device;
    if (code) return code;
    long xid, next;
    *set = calloc(1, sizeof **set);
    /* What was before is nobody's news. */
    while ((next = event_after(NULL, (*set)->serial, &device, &xid))) (*set)->serial = next;
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    int code = call(device);
    (void)types;
    if (!code) set->watched[device->index] = 1;
    return code;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms) {
    int code = call(NULL), device = 0;
    if (code) return code;
    long xid = 0;
    for (unsigned waited = 0;; waited += 20) {
        long serial = event_after(set, set->serial, &device, &xid);
        if (serial) {
            set->serial = serial;
            /* 8: a critical Xid */
            *data = (EventData){&devices[device], 8, (unsigned long long)xid, 0, 0};
            return SUCCESS;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(20000);
    }
}
