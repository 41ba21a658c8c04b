// The functions of the NVIDIA driver that `pages.c` calls, over memory of the host: pages are of a memory file each.
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, PAGE = 1 << 16 };
static size_t room = SIZE_MAX, taken;  // bytes of the "GPU"
static size_t sizes[1 << 16];          // by handle

void fake_room(size_t bytes) { room = bytes; }
size_t fake_taken(void) { return taken; }

int cuMemGetAllocationGranularity(size_t *unit, const void *properties, int option) {
    return *unit = PAGE, 0;
}
int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wish, unsigned long long flags) {
    void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address = (uint64_t)(uintptr_t)found, found == MAP_FAILED;
}
int cuMemAddressFree(uint64_t address, size_t size) { return munmap((void *)address, size); }
int cuMemCreate(uint64_t *handle, size_t size, const void *properties, unsigned long long flags) {
    if (taken + size > room) return OUT_OF_MEMORY;
    int file = memfd_create("pages", 0);
    if (file < 0 || ftruncate(file, size)) return OUT_OF_MEMORY;
    sizes[file] = size;
    return *handle = (uint64_t)file, 0;
}
int cuMemRelease(uint64_t handle) { return close((int)handle); }
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    taken += size;
    return mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0) == MAP_FAILED;
}
int cuMemUnmap(uint64_t address, size_t size) {
    taken -= size;
    return mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
}
int cuMemSetAccess(uint64_t address, size_t size, const void *access, size_t count) {
    if (mprotect((void *)address, size, PROT_READ | PROT_WRITE)) return 1;
    return memset((void *)address, 0xA5, size), 0;  // pages come with anything in them
}
int cuMemcpyDtoH_v2(void *host, uint64_t device, size_t size) { return memcpy(host, (void *)device, size), 0; }
int cuMemcpyHtoD_v2(uint64_t device, const void *host, size_t size) { return memcpy((void *)device, host, size), 0; }
int cuMemsetD8_v2(uint64_t device, unsigned char value, size_t size) { return memset((void *)device, value, size), 0; }
static int pinned;
int fake_pinned(void) { return pinned; }
int cuMemHostRegister_v2(void *host, size_t size, unsigned flags) { return pinned++, 0; }
int cuMemHostUnregister(void *host) { return pinned--, 0; }
