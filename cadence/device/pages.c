// Memory of a GPU whose pages come and go while its addresses stay: an allocator for torch's memory pools. By the
// driver's own library, opened when it is first needed: no headers of CUDA, nothing to link with.
//
// A chunk is what torch asked for at once: reserved addresses, and pages mapped there or not. Its memory belongs to the
// mapping alone: who unmaps it gives it back.

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
enum { MOST_CHUNKS = 1 << 16, NO_LIBRARY = -1, TOO_MANY = -2, UNKNOWN_ADDRESS = -3 };
enum { PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, LEAST_GRANULARITY = 0 };

typedef uint64_t Address;
typedef uint64_t Handle;

typedef struct {
    int type, id;
} Location;

typedef struct {  // CUmemAllocationProp
    int type, handle_types;
    Location location;
    void *windows;
    unsigned char compression, direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
} Properties;

typedef struct {  // CUmemAccessDesc
    Location location;
    int flags;
} Access;

static int (*granularity_of)(size_t *, const Properties *, int);
static int (*reserve)(Address *, size_t, size_t, Address, unsigned long long);
static int (*unreserve)(Address, size_t);
static int (*create)(Handle *, size_t, const Properties *, unsigned long long);
static int (*release)(Handle);
static int (*map)(Address, size_t, size_t, Handle, unsigned long long);
static int (*unmap)(Address, size_t);
static int (*set_access)(Address, size_t, const Access *, size_t);
static int (*to_host)(void *, Address, size_t);
static int (*to_device)(Address, const void *, size_t);
static int (*set_bytes)(Address, unsigned char, size_t);
static int (*pin)(void *, size_t, unsigned);
static int (*unpin)(void *);

static const struct {
    const char *name;
    void **function;
} NAMES[] = {
    {"cuMemGetAllocationGranularity", (void **)&granularity_of},
    {"cuMemAddressReserve", (void **)&reserve},
    {"cuMemAddressFree", (void **)&unreserve},
    {"cuMemCreate", (void **)&create},
    {"cuMemRelease", (void **)&release},
    {"cuMemMap", (void **)&map},
    {"cuMemUnmap", (void **)&unmap},
    {"cuMemSetAccess", (void **)&set_access},
    {"cuMemcpyDtoH_v2", (void **)&to_host},
    {"cuMemcpyHtoD_v2", (void **)&to_device},
    {"cuMemsetD8_v2", (void **)&set_bytes},
    {"cuMemHostRegister_v2", (void **)&pin},
    {"cuMemHostUnregister", (void **)&unpin},
};

typedef struct {
    Address address;  // 0 = the place is free
    size_t size;
    int device, tag;
    int is_mapped, is_given_up;  // given up: its pages never come again
} Chunk;

static Chunk chunks[MOST_CHUNKS];
static int num_chunks;  // places that were ever used
static int current_tag;
static int last_error;  // of an allocation
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// 0, or NO_LIBRARY where the driver is not there, or lacks a function. driver: name or path of its library
EXPORT int cadence_pages_open(const char *driver) {
    void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
    if (!library) return NO_LIBRARY;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        *NAMES[i].function = dlsym(library, NAMES[i].name);
        if (!*NAMES[i].function) return NO_LIBRARY;
    }
    return 0;
}

static Properties properties(int device) {
    Properties found = {.type = PINNED, .location = {ON_DEVICE, device}};
    return found;
}

static int map_pages(const Chunk *chunk) {
    Properties wanted = properties(chunk->device);
    Access access = {{ON_DEVICE, chunk->device}, READ_WRITE};
    Handle handle;
    int status = create(&handle, chunk->size, &wanted, 0);
    if (status) return status;
    status = map(chunk->address, chunk->size, 0, handle, 0);
    release(handle);  // from now on the mapping alone holds the memory
    if (status) return status;
    status = set_access(chunk->address, chunk->size, &access, 1);
    if (status) unmap(chunk->address, chunk->size);
    return status;
}

static Chunk *find(Address address) {
    for (int i = 0; i < num_chunks; i++)
        if (chunks[i].address == address) return &chunks[i];
    return NULL;
}

static Chunk *free_place(void) {
    Chunk *found = find(0);
    if (!found && num_chunks < MOST_CHUNKS) found = &chunks[num_chunks++];
    return found;
}

static int allocate(Chunk *chunk, size_t size, int device) {
    Properties wanted = properties(device);
    size_t unit = 0;
    int status = granularity_of(&unit, &wanted, LEAST_GRANULARITY);
    if (status) return status;
    chunk->size = (size + unit - 1) / unit * unit;
    chunk->device = device;
    Address address = 0;
    status = reserve(&address, chunk->size, 0, 0, 0);
    if (status) return status;
    chunk->address = address;
    status = map_pages(chunk);
    if (status) {
        unreserve(address, chunk->size);
        chunk->address = 0;
        return status;
    }
    chunk->tag = current_tag;
    chunk->is_mapped = 1;
    chunk->is_given_up = 0;
    return 0;
}

// As torch calls it. NULL: it cannot be had, and `cadence_pages_error` says why.
EXPORT void *cadence_pages_allocate(ssize_t size, int device, void *stream) {
    (void)stream;
    if (size <= 0) return NULL;
    pthread_mutex_lock(&lock);
    Chunk *chunk = free_place();
    last_error = chunk ? allocate(chunk, (size_t)size, device) : TOO_MANY;
    void *found = last_error ? NULL : (void *)(uintptr_t)chunk->address;
    pthread_mutex_unlock(&lock);
    return found;
}

// As torch calls it, of memory that no work uses any more.
EXPORT void cadence_pages_free(void *pointer, size_t size, int device, void *stream) {
    (void)size, (void)device, (void)stream;
    pthread_mutex_lock(&lock);
    Chunk *chunk = pointer ? find((Address)(uintptr_t)pointer) : NULL;
    if (chunk) {
        if (chunk->is_mapped) unmap(chunk->address, chunk->size);
        unreserve(chunk->address, chunk->size);
        chunk->address = 0;
    }
    pthread_mutex_unlock(&lock);
}

EXPORT int cadence_pages_error(void) { return last_error; }

// What is allocated from now on.
EXPORT void cadence_pages_tag(int tag) { current_tag = tag; }

// (address, bytes, whether it has its pages) of the chunks of a tag that were not given up, three words each -> how many
// there are, of which the first `most` are written.
EXPORT int64_t cadence_pages_list(int tag, uint64_t *out, int64_t most) {
    int64_t count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_chunks; i++) {
        const Chunk *chunk = &chunks[i];
        if (!chunk->address || chunk->tag != tag || chunk->is_given_up) continue;
        if (count < most) {
            out[3 * count] = chunk->address;
            out[3 * count + 1] = chunk->size;
            out[3 * count + 2] = (uint64_t)chunk->is_mapped;
        }
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

// Of a chunk, by its address: its pages go, or come again with anything in them. `for_good`: they never do.
EXPORT int cadence_pages_unmap(Address address, int for_good) {
    pthread_mutex_lock(&lock);
    Chunk *chunk = find(address);
    int status = chunk ? 0 : UNKNOWN_ADDRESS;
    if (chunk && chunk->is_mapped) status = unmap(chunk->address, chunk->size);
    if (!status) {
        chunk->is_mapped = 0;
        chunk->is_given_up |= for_good;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

EXPORT int cadence_pages_map(Address address) {
    pthread_mutex_lock(&lock);
    Chunk *chunk = find(address);
    int status = chunk ? 0 : UNKNOWN_ADDRESS;
    if (chunk && !chunk->is_mapped) {
        status = map_pages(chunk);
        chunk->is_mapped = !status;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

EXPORT int cadence_pages_to_host(void *host, Address device, size_t size) { return to_host(host, device, size); }

EXPORT int cadence_pages_to_device(Address device, const void *host, size_t size) {
    return to_device(device, host, size);
}

EXPORT int cadence_pages_clear(Address device, size_t size) { return set_bytes(device, 0, size); }

EXPORT int cadence_pages_pin(void *host, size_t size) { return pin(host, size, 0); }

EXPORT int cadence_pages_unpin(void *host) { return unpin(host); }
