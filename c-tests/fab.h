/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the conformance programs share on top of the frame: two real processes that open the library each for itself and
 * connect; memory of every kind; the paths; and waits for completions and events that end with words, not with a hang.
 */
#ifndef FAB_H
#define FAB_H

#include "test.h"

#include <gdrfab.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of providers of network adapters. */
#ifndef GDRFAB_PATH_NIC
#define GDRFAB_PATH_NIC (1ull << 4)
#define GDRFAB_PATH_DMABUF (1ull << 5)
#define GDRFAB_PATH_PEER_MEM (1ull << 6)
#endif
#ifndef GDRFAB_PATH_SOCKET
#define GDRFAB_PATH_SOCKET (1ull << 7)
#endif

#define REMOTE_ACCESS (GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE)
#define ANY_ACCESS (GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | REMOTE_ACCESS)

/* How the two sides are set up; zero is the default everywhere. */
struct setup {
	uint32_t progress;    /* GDRFAB_PROGRESS_*; 0: manual */
	uint32_t threading;   /* GDRFAB_THREAD_* */
	uint32_t cq_format;   /* 0: DATA */
	uint32_t cq_wait;     /* GDRFAB_WAIT_* */
	size_t cq_size;       /* 0: 1024 */
	uint64_t cq_flags;    /* beside TRANSMIT|RECV when the CQ is bound */
	uint64_t tx_op_flags; /* 0: COMPLETION, and DELIVERY_COMPLETE where there is that */
	uint64_t caps;        /* 0: MSG|RMA */
	uint64_t comp_order;  /* GDRFAB_ORDER_STRICT: also with TEST_COMP_ORDER=strict */
	bool offsets;         /* mr_mode without VIRT_ADDR: addresses start at 0 */
	bool given_keys;      /* mr_mode without PROV_KEY: keys are requested */
	bool by_address;      /* connect by exchanged addresses instead of listen and connect */
	uint64_t deadline_ms; /* GDRFAB_OPT_DEADLINE and GDRFAB_OPT_RECV_DEADLINE */
	const char *key[TEST_SIDES]; /* auth_key of that side; NULL: none */
	enum test_side victim; /* this side is expected to be killed by SIGKILL */
};

struct node {
	enum test_side side;
	const struct setup *setup;
	const void *arg;
	int oob;         /* a socket to the other side, beside the library */
	pid_t peer;
	char service[64];
	int fds;         /* open files before the library opened any */
	bool idle;       /* do not drive progress while waiting for the other side */
	bool drivers;    /* a vendor's driver may have been opened: it keeps descriptors to the end */
	gdrfab_info *info;
	gdrfab_info *request; /* the server's: what came with the connection request */
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_pep *pep;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	struct local *locals; /* what local_desc has registered */
};

typedef void (*side_fn)(struct node *n);

/* Forks both sides; each gets a node with nothing open. Returns when both have ended well. */
void pair(const struct setup *setup, side_fn server, side_fn client, const void *arg);

/* --- the provider under test: TEST_PROVIDER, or shm --- */

/* What no info tells. */
struct traits {
	const char *name;
	const char *scheme;     /* what its addresses begin with */
	uint64_t paths;         /* those that it knows */
	uint64_t delivery;      /* GDRFAB_DELIVERY_COMPLETE, or 0 */
	bool numbered;          /* services are port numbers, and TEST_NODE is the address */
	const char *node;       /* that address, if TEST_NODE is not set */
	bool adapter;           /* an adapter of the network does the work: its limits, its keys, its words */
	bool survives_failures; /* after an operation has failed the connection is as good as before; else it is over */
	bool knows_regions;     /* an initiator learns what a peer's region is and offers */
	bool keeps_messages;    /* that come before their receive */
	bool cancels;           /* gdrfab_cancel takes back what was posted, and deadlines only what is late */
};
const struct traits *traits(void);
const char *provider(void);
/* Skips the claim, with the provider's name and the reason, where something is not to be had of it. */
void skip_unless(bool possible, const char *why);
/* A name nobody else listens on, and the host where they listen (or NULL). */
void unique_service(char *to, size_t size);
const char *node_name(void);
/* What an address of that host begins with: "verbs://10.0.0.1:", "tcp://[::1]:", "shm://". */
void address_start(char *to, size_t size);
/* gdrfab_getinfo for this provider alone; and the one of a list that is of it, and of the device at TEST_NODE. */
int provider_getinfo(const char *service, uint64_t flags, gdrfab_info *hints, gdrfab_info **info);
gdrfab_info *provider_pick(gdrfab_info *list);
/* A key that names nothing, of the same sort as this one. */
uint64_t wrong_key(uint64_t key);
/* A send without a receive waits, here or there. Where it does not (iWARP), the two sides have to meet before. */
bool waits_for_receive(const struct node *n);
/* A write that the peer's side refuses ends as a failure. Over iWARP it has ended well when the refusal comes, which
 * ends the connection; a read is flushed with that. */
bool tells_failed_writes(const struct node *n);
/* The path to the host memory of gdrfab_mem_alloc, where nothing is in its way. */
uint64_t best_path(void);
/* The path to host memory that needs the target's progress; 0: there is none that is always to be had. */
uint64_t helped_path(void);
/* Endpoints connect by exchanged addresses as well. */
bool by_address_too(const struct node *n);
void meet_if_hasty(struct node *n);

/* Is it the failure that has this errno and code over shm? Of a message that was longer than its receive, seen by the
 * sender of a provider whose connection ends with it: EREMOTEIO, TOO_LONG. */
enum { TOO_LONG = -1 };
bool failure_is(const gdrfab_cq_err_entry *e, int err, int prov);
/* Does an operation that fails with this key take the connection along? */
bool failure_ends(uint64_t key);
/* An operation that ended because its connection did, where connections end with a failure. */
bool flushed(const gdrfab_cq_err_entry *e);

/* --- the two processes --- */

/* One process alone: everything but an endpoint is opened. */
void node_alone(struct node *n, const struct setup *setup);
/* Opens everything and connects; afterwards both sides hold a connected n->ep. */
void node_up(struct node *n);
/* The steps of node_up. */
gdrfab_info *hints_new(const struct setup *setup);
void node_info(struct node *n);
void node_open(struct node *n);   /* info, fabric, EQ; a client's also domain and CQ */
void node_domain(struct node *n, const gdrfab_info *info);
gdrfab_cq *cq_new(struct node *n, uint32_t format, size_t size, uint32_t wait);
gdrfab_ep *ep_new(struct node *n, const gdrfab_info *info, void *context); /* bound to n->cq and n->eq, enabled */
void node_listen(struct node *n);
gdrfab_info *node_await_request(struct node *n); /* the caller frees it */
void node_accept(struct node *n);
void ep_connect_by_address(struct node *n, gdrfab_ep *ep);
/* Both sides, after an operation has failed: where that ended the connection, a new one of a new endpoint. */
void recover(struct node *n);
/* The same where only one side knows when: the one leads, and the other follows until the first has no more, each time
 * with room for a write with data. */
void lead_recovery(struct node *n);
void lead_no_more(struct node *n);
void follow_recovery(struct node *n);
/* Meets the other side, closes everything, and finds as many files open as before. */
void node_down(struct node *n);
/* The same without the other side. */
void node_close(struct node *n);

/* Out of band. While it waits it drives n->cq, so that manual progress does not stop. */
void oob_send(struct node *n, const void *data, size_t len);
void oob_recv(struct node *n, void *data, size_t len);
void barrier(struct node *n);
/* Waits until the other side's process is gone. */
void await_gone(struct node *n);
/* SIGSTOP for the other side, and the wait until it stands still; and back. */
void peer_stop(struct node *n);
void peer_continue(struct node *n);
void peer_kill(struct node *n);

/* --- completions; the CQ must have format DATA --- */
typedef gdrfab_cq_data_entry done;

/* 1: an entry; -1: an error entry is next; 0: nothing within ms. */
int cq_next(gdrfab_cq *cq, done *entry, int ms);
struct failure {
	gdrfab_cq_err_entry entry;
	char words[256];
};
void cq_failure(const char *file, int line, gdrfab_cq *cq, struct failure *f);
void expect_done(const char *file, int line, gdrfab_cq *cq, const void *context, uint64_t flags, done *entry);
void expect_failed(const char *file, int line, gdrfab_cq *cq, const void *context, int err, int prov,
		   struct failure *f);
/* Drives progress for ms and wants no entry. */
void expect_quiet(const char *file, int line, gdrfab_cq *cq, int ms);

/* The next entry is this operation's success, with all these flags. entry may be NULL. */
#define DONE(cq, context, flags, entry) expect_done(__FILE__, __LINE__, cq, context, flags, entry)
/* The next entry is this operation's failure with this errno and provider code. f may be NULL. */
#define FAILED(cq, context, err, prov, f) expect_failed(__FILE__, __LINE__, cq, context, err, prov, f)
#define QUIET(cq, ms) expect_quiet(__FILE__, __LINE__, cq, ms)

/* Posts; while the queue is full it drives progress and tries again. */
#define POST(cq, call)                                                                                                 \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		uint64_t until_ = test_now_ms() + (uint64_t)test_ms(10000);                                            \
		ssize_t posted_;                                                                                       \
		while ((posted_ = (call)) == -EAGAIN && test_now_ms() < until_)                                        \
			gdrfab_cq_read(cq, NULL, 0);                                                                   \
		if (posted_ != 0)                                                                                      \
			test_fail(__FILE__, __LINE__, "%s is %s%s", #call, test_number(posted_),                       \
				  test_words(posted_));                                                                \
	} while (0)

/* The next entry is that of a peer's write with data, which takes a posted receive where the provider says so: then
 * data_room() must have posted one before the peer writes. */
bool data_takes_receive(const struct node *n);
void data_room(struct node *n);
void expect_data(const char *file, int line, struct node *n, done *entry);
#define DATA_CAME(n, entry) expect_data(__FILE__, __LINE__, n, entry)
/* As much of a value as remote CQ data holds. */
uint64_t cq_data(const struct node *n, uint64_t value);

/* --- events --- */
struct event {
	gdrfab_eq_cm_entry entry;
	unsigned char data[GDRFAB_CM_DATA_MAX];
	size_t data_len;
};
void expect_event(const char *file, int line, gdrfab_eq *eq, uint32_t event, const void *object, struct event *out);
struct eq_failure {
	gdrfab_eq_err_entry entry;
	unsigned char data[GDRFAB_CM_DATA_MAX];
};
void expect_eq_failure(const char *file, int line, gdrfab_eq *eq, const void *object, int err, int ms,
		       struct eq_failure *out);
#define EVENT(eq, event, object, out) expect_event(__FILE__, __LINE__, eq, event, object, out)
#define EQ_FAILED(eq, object, err, ms, out) expect_eq_failure(__FILE__, __LINE__, eq, object, err, ms, out)

/* --- memory --- */
struct mem;
struct memkind {
	const char *name;
	uint64_t paths; /* what this kind can offer where the kernel permits it; see kind_paths() */
	void (*alloc)(struct node *n, struct mem *m);
	void (*release)(struct node *n, struct mem *m);
	bool file;      /* registered by its file descriptor */
	bool dmabuf;    /* and it is a dma-buf */
	uint64_t maybe; /* of paths: those that are only a courtesy; see kind_maybe() */
	uint32_t iface; /* GDRFAB_HMEM_* */
	bool opaque;    /* not for the CPU: bytes go through the driver */
	int flavour;    /* for the vendor's functions */
};
#define MEM_HANDLES 4
struct mem {
	const struct memkind *kind;
	unsigned char *addr;
	size_t len;
	int fd;
	gdrfab_mr *mr;
	uint64_t key;
	uint64_t base; /* remote address of the registered part's first byte */
	size_t registered;
	uint32_t device;
	uint64_t handles[MEM_HANDLES]; /* of the vendor */
	size_t reserved;	       /* bytes that alloc took */
};
enum { KIND_MALLOC, KIND_MEM_ALLOC, KIND_MEMFD, EVERYWHERE, KIND_UDMABUF = EVERYWHERE, KIND_HEAP, KIND_VGEM, KINDS };
extern const struct memkind memkinds[KINDS];
/* Is this kind worth a claim? Those below EVERYWHERE are. */
bool kind_listed(int kind);
/* What it can offer with the provider under test, and what of that is a courtesy. */
uint64_t kind_paths(const struct memkind *kind);
uint64_t kind_maybe(const struct memkind *kind);
/* Those made by the kernel's exporters of dma-bufs; the claim is skipped where there is no such exporter. */
void udmabuf_new(struct node *n, struct mem *m);
void heap_new(struct node *n, struct mem *m);
void vgem_new(struct node *n, struct mem *m);
void dmabuf_end(struct node *n, struct mem *m);
/* Stands around the CPU's own accesses to a dma-buf. */
void dmabuf_access(const struct mem *m, bool begins);

/* Kinds of device memory, of the interfaces that TEST_IFACES names ("cuda,rocr"): the processes that make the list and
 * fork must not open a driver, which would not survive that. */
enum { DEVICE_KINDS = 32 };
extern const struct memkind *device_kinds[DEVICE_KINDS];
size_t device_kinds_list(void);
/* CUDA's, made by calls of its driver beside the library. */
enum { CUDA_PLAIN, CUDA_POOL, CUDA_PRIVATE_POOL, CUDA_VMM, CUDA_SEGMENTS, CUDA_MANAGED, CUDA_HOST, CUDA_KINDS };
extern const struct memkind cuda_kinds[CUDA_KINDS];
/* An entry of libcuda.so.1; the claim is skipped where there is none. */
void *cuda_entry(const char *name);
/* A call of the driver whose code must be 0. `types` are its parameters'. */
#define CU(name, types, ...)                                                                                           \
	do {                                                                                                           \
		int (*call_) types;                                                                                    \
		*(void **)(void *)&call_ = cuda_entry(#name);                                                          \
		test_at(__FILE__, __LINE__);                                                                           \
		int code_ = call_(__VA_ARGS__);                                                                        \
		if (code_ != 0)                                                                                        \
			test_fail(__FILE__, __LINE__, "%s is %d", #name, code_);                                       \
	} while (0)
/* Makes the primary context of a device current, for calls that need one. */
void cuda_use(uint32_t device);
/* How much of the memory one physical segment holds. */
size_t cuda_segment_size(uint32_t device);

struct path {
	const char *name;
	uint64_t bit;
};
enum { PATH_DIRECT, PATH_CMA, PATH_STAGED, PATH_IPC, PATH_NIC, PATH_DMABUF, PATH_PEER_MEM, PATH_SOCKET, PATHS };
extern const struct path paths[PATHS];
/* Does the provider know it? */
bool path_known(int path);
/* Bytes that an endpoint has moved by each path. */
void path_bytes(struct node *n, uint64_t bytes[PATHS]);

void mem_new(struct node *n, struct mem *m, const struct memkind *kind, size_t len);
/* Registers [offset, offset+len) of m; returns the library's result. require: GDRFAB_PATH_* or 0. */
int mem_try_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require,
		     uint64_t requested_key);
void mem_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require);
void mem_unregister(struct mem *m);
void mem_end(struct node *n, struct mem *m);
/* Devices of an interface in this process; the claim is skipped where it cannot be used. */
uint32_t device_count(struct node *n, uint32_t iface);
/* The library's descriptor for local operations; NULL if not registered. */
void *mem_desc(const struct mem *m);
/* What operations must be given: device memory has to be named, host memory only where the provider says so. */
void *mem_needed_desc(struct node *n, const struct mem *m);

/* The descriptor for a local buffer of host memory: NULL where none is needed. The region lasts as long as the domain,
 * or until the memory is forgotten, which it must be before its pages are given back (free() does not). */
bool local_needed(const struct node *n);
void *local_desc(struct node *n, const void *at, size_t len);
/* The same of several pieces: fills desc and returns it, or NULL. */
void **local_descs(struct node *n, const struct iovec *iov, size_t count, void **desc);
void local_forget(struct node *n, const void *at, size_t len);
void local_forget_all(struct node *n);
/* Before any memory is allocated that a process will name by local_desc. */
void local_prepare(void);

/* Bytes in and out of memory of any kind. */
void mem_write(struct mem *m, size_t offset, const void *from, size_t len);
void mem_read(struct mem *m, size_t offset, void *to, size_t len);
/* As fill() and check_filled(), of bytes that begin at offset. */
void mem_fill(struct mem *m, size_t offset, size_t len, size_t position, uint32_t seed);
void mem_check(const char *file, int line, const char *what, struct mem *m, size_t offset, size_t len, size_t position,
	       uint32_t seed);
#define CHECK_MEM(what, m, offset, len, position, seed)                                                                \
	mem_check(__FILE__, __LINE__, what, m, offset, len, position, seed)

/* What the other side needs to know of a region. */
struct remote {
	uint64_t key, base, len;
};
void mem_publish(struct node *n, const struct mem *m);
struct remote mem_fetch(struct node *n);

/* A (path, memory kind) that can exist. */
struct way {
	const struct path *path;
	const struct memkind *kind;
	char name[48];
};
/* The target's process has no part in it. */
bool one_sided(const struct way *way);
extern struct way ways[PATHS * (KINDS + DEVICE_KINDS)];
/* Fills ways with those to host memory; returns how many there are. */
size_t ways_list(void);
/* And with those to device memory behind them; returns how many there are in all. */
size_t all_ways_list(void);
/* At the target: registers so that only this way is offered; skips the claim where the kind need not offer it. */
void way_register(struct node *n, struct mem *m, size_t offset, size_t len, const struct way *way);
/* At the initiator: skips the claim where the kernel refuses the path, fails it where it does not. */
void way_check(struct node *n, const struct way *way, uint64_t key);
/* May this process copy the peer's memory with process_vm_readv? 0, or the errno. */
int cma_refused(struct node *n);

#ifdef __cplusplus
}
#endif
#endif
