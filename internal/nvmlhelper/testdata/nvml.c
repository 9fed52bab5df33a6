// A library that stands for NVIDIA's in tests: two cards, joined by NVLink, of an old driver that knows no MIG and no MPS. It has
// the functions that the helper calls and no others, so that a call of a missing one ends the test program. A measurement compiles it with
// more CARDS, each with a process; then it tells no event, and waits for the next as long as it is asked to.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef CARDS
enum { BUSY = CARDS, EVENTS = 0 };
#else
#define CARDS 2
enum { BUSY = 1, EVENTS = 1 };
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, SIZE = 7, TIMEOUT = 10 };

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char text[32]; } pci;
typedef struct { u64 total, free, used; } memory;
typedef struct { u32 version; u64 total, reserved, free, used; } memory2;
typedef struct { u32 gpu, memory; } rates;
typedef struct { u32 pid; u64 used; u32 gi, ci; } process;
typedef struct { u32 pid; u64 at; u32 sm, mem, enc, dec; } share;
typedef struct { void *card; u64 kind, data; u32 gi, ci; } event;

static char cards[CARDS];
static int number(void *card) { return (int)((char *)card - cards); }

int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "something else"; }
int nvmlSystemGetDriverVersion(char *out, u32 n) { snprintf(out, n, "%s", "390.157"); return OK; }
int nvmlSystemGetCudaDriverVersion(int *out) { *out = 9010; return OK; }
int nvmlDeviceGetCount_v2(u32 *out) { *out = CARDS; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, void **out) { *out = &cards[i]; return i < CARDS ? OK : INVALID; }
int nvmlDeviceGetUUID(void *card, char *out, u32 n) { snprintf(out, n, "GPU-stub-%d", number(card)); return OK; }
int nvmlDeviceGetName(void *card, char *out, u32 n) { (void)card; snprintf(out, n, "%s", "Tesla V100"); return OK; }
static int place(int i, pci *out) {
  memset(out, 0, sizeof *out);
  out->domain = 1, out->bus = 0x1a + i;
  snprintf(out->text, sizeof out->text, "%08X:%02X:00.0", out->domain, out->bus);
  return OK;
}
int nvmlDeviceGetPciInfo_v3(void *card, pci *out) { return place(number(card), out); }
int nvmlDeviceGetMinorNumber(void *card, u32 *out) { *out = CARDS - 1 - number(card); return OK; }
int nvmlDeviceGetMemoryInfo(void *card, memory *out) { (void)card; *out = (memory){16ull << 30, 0, 3}; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) { (void)card; *major = 7, *minor = 0; return OK; }
int nvmlDeviceGetNvLinkState(void *card, u32 link, u32 *out) { (void)card; *out = link == 1; return link < 6 ? OK : INVALID; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *card, u32 link, pci *out) { (void)link; return place(number(card) ^ 1, out); }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, u32 *out) { (void)a, (void)b; *out = 50; return OK; }
int nvmlDeviceGetUtilizationRates(void *card, rates *out) { *out = (rates){40 + number(card), 1}; return OK; }
int nvmlDeviceGetPowerUsage(void *card, u32 *out) { (void)card; *out = 42500; return OK; }
int nvmlDeviceGetTemperature(void *card, u32 sensor, u32 *out) { (void)card; *out = 30 + sensor; return OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, u32 *n, process *out) {
  u32 room = *n;
  *n = number(card) < BUSY;
  if (*n > room) return SIZE;
  if (*n) out[0] = (process){4242, 1ull << 30, 0xffffffff, 0xffffffff};
  return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *card, u32 *n, process *out) { (void)card, (void)out; *n = 0; return OK; }
int nvmlDeviceGetProcessUtilization(void *card, share *out, u32 *n, u64 since) {
  (void)card, (void)since;
  *n = 1;
  if (!out) return SIZE;
  out[0] = (share){4242, 1000, 25, 0, 0, 0};
  return OK;
}
static int told;
int nvmlEventSetCreate(void **out) { static char set; *out = &set; told = 0; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *card, u64 *out) { (void)card; *out = 8; return OK; }
int nvmlDeviceRegisterEvents(void *card, u64 kinds, void *set) { (void)card, (void)kinds, (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, event *out, u32 ms) {
  (void)set;
  if (!EVENTS) usleep(ms * 1000);
  if (told++ >= EVENTS) return TIMEOUT;
  *out = (event){&cards[1], 8, 48, 0xffffffff, 0xffffffff};
  return OK;
}
