/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The declarations that the plugin's files share. NCCL calls abi.c, which converts between the versions of its
 * interface and calls the functions below. These functions know one version only, and reach the network through
 * gdrfab.h alone.
 *
 *   settings.c   the environment's variables  devices.c   finds the devices and describes them to NCCL
 *   tune.c       sets NCCL's own variables    tuner.c     channels by collective and size (called by NCCL)
 *   log.c        NCCL's log                   comm.c      the objects of one connection
 *   inventory.c  lifetime of the devices      accept.c    listening, accepting
 *   memory.c     registered memory            connect.c   connecting, closing
 *   hello.c      connection set-up messages   transfer.c  the protocol: receives offered, data written
 *   helpers.c    threads for long messages    arrivals.c  handles completions and incoming writes
 */
#ifndef GDRFAB_NCCL_PLUGIN_H
#define GDRFAB_NCCL_PLUGIN_H

#include "nccl_net.h"

#include <gdrfab.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- settings.c */

enum kind { KIND_SHM, KIND_VERBS, KIND_TCP, KINDS };

/* The copier of GPU memory: none, a process of the library's own, or this process through its driver. */
enum gpu_copies { GPU_BY_NOBODY, GPU_ELSEWHERE, GPU_HERE };

struct settings {
	bool may[KINDS];	 /* providers that may be used */
	enum kind order[KINDS];	 /* devices are offered in this order */
	int offered;
	bool named;		 /* the user chose by GDRFAB_NCCL_PROVIDERS */
	const char *because;	 /* the reason for this choice, for the log */
	uint64_t timeout_ns;	 /* limit for connecting and for each operation */
	size_t eager;		 /* host messages up to this many bytes may be sent before their receive is known */
	enum gpu_copies gpu;	 /* where no network card reaches the memory of GPUs by itself */
	bool tune;		 /* NCCL's own variables may be set */
	int threads;		 /* helper threads for long host messages of a rank that may use all CPUs */
	int own_threads;	 /* helper threads that this rank starts */
};

enum { MAX_THREADS = 16, USUAL_THREADS = 8, USUAL_RANKS = 8 };

/* Reads the environment. Logs and returns false if a variable's value is invalid. */
bool settings_read(struct settings *s);
extern const char *const kind_names[KINDS];

/* ---- log.c */

void log_set(ncclDebugLogger_t log);
__attribute__((format(printf, 5, 6))) void log_line(ncclDebugLogLevel level, unsigned long subsystem, const char *file,
						    int line, const char *format, ...);
#define WARN(...) log_line(NCCL_LOG_WARN, ~0ul, __FILE__, __LINE__, __VA_ARGS__)
#define INFO(...) log_line(NCCL_LOG_INFO, NCCL_SUBSYS_INIT | NCCL_SUBSYS_NET, __FILE__, __LINE__, __VA_ARGS__)

/* ---- devices.c */

struct inventory;

/* One way to reach peers: a provider and, with verbs, one port of a card. The domain is opened at first use and
 * serves all communicators of the process. */
struct way {
	struct inventory *of;
	int number; /* index in of->ways */
	enum kind kind;
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	bool sees_devices; /* memory of accelerators can be registered */
	int times;	   /* number of NCCL devices made of this way if it comes first */
};

/* A network device as NCCL sees it. If the first way is shm, it reaches the peers of this host. */
struct device {
	struct inventory *of;
	char name[80];
	char pci[256]; /* directory in sysfs, or empty */
	struct way *ways[2];
	int ways_count;
	int ptr_support;
	int speed; /* Mbit/s */
	int port;
	float latency; /* us */
	uint64_t guid;
	size_t max_bytes;
};

enum { MAX_DEVICES = 32 };

/* Makes another process copy this endpoint's device memory. On failure returns false; gdrfab_last_error() has the
 * reason. */
bool copies_elsewhere(gdrfab_ep *ep);

/* Opens the way's fabric and domain, if they are not open yet. */
ncclResult_t way_open(struct way *way);
void way_close(struct way *way);
void devices_find(struct inventory *it);

/* ---- inventory.c */

/* The devices that one init found. Later inits share them until the matching finalize. The last holder frees the
 * inventory; holders are contexts, connections, listeners and registered memory, which NCCL closes in any order. */
struct inventory {
	int contexts, holders;
	pid_t pid;
	struct settings settings;
	struct way ways[MAX_DEVICES];
	struct device devices[MAX_DEVICES];
	int ways_count, devices_count;
};

/* The context that init returns since version 11 of the interface. Earlier versions have neither a context (NULL)
 * nor a finalize. */
struct context {
	struct inventory *of;
	struct context *next;
};

/* Called by each init; the first call finds the devices. `ctx` may be NULL. `asks_tuner`: this NCCL looks for a
 * tuner in this library. */
ncclResult_t devices_begin(struct context **ctx, bool asks_tuner);
/* Called by finalize. Returns false if there is no such context, or if it was finalized already. */
bool devices_end(struct context *ctx, void (*forget)(const struct context *ctx));
int devices_count(void);
/* Finds device `number` of the context (of the last init if `ctx` is NULL) and holds its inventory. Returns NULL,
 * with a line in the log, if there is none. */
struct device *device_hold(const struct context *ctx, int number);
void inventory_hold(struct inventory *it);
void inventory_drop(struct inventory *it);
/* Like device_hold(), but without a hold: the device is valid until finalize. */
struct device *device_get(int number);

/* ---- tune.c */

#define TUNE_WIDTH "16"
#define TUNE_WIDTH_TCP "8"

/* True if the calling NCCL looks for a tuner in this library; asked when NCCL uses the oldest version of the net
 * interface. */
bool tune_is_asked_for(void);

/* The measurements that the tuner uses: GPU memory over shm, host memory over shm, or host memory over tcp. */
enum tune_way { TUNE_NOTHING, TUNE_GPUS, TUNE_HOST, TUNE_TCP };

/* Both run at each init, because NCCL reads some of the variables again for each communicator: tune_begin() before
 * the devices are found, tune_level() after. */
void tune_begin(const struct settings *s, bool asks_tuner);
void tune_level(const struct inventory *it);
/* Number of channels that communicators were given and that the tuner may reduce. 0: none was set. */
int tune_width(void);
enum tune_way tune_way(void);
/* True if collectives are faster without the memory that the user has registered. */
bool tune_prefers_own_buffers(void);
/* True if NCCL_PROTO forbids LL. */
bool no_ll(void);

/* ---- memory.c */

/* Registered memory: one region in the domain of each way that has needed one. */
struct memory {
	unsigned char *data;
	size_t size;
	bool host;
	uint32_t iface;
	uint64_t device;
	struct inventory *of;
	gdrfab_mr *regions[MAX_DEVICES]; /* same index as of->ways */
	pthread_mutex_t lock;
};

struct comm;
ncclResult_t memory_register(struct comm *comm, void *data, size_t size, int type, struct memory **out);
ncclResult_t memory_register_dmabuf(struct comm *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				    struct memory **out);
ncclResult_t memory_release(struct memory *memory);
/* Returns the region in the communicator's domain, made if there is none yet. NULL, with a line in the log, on
 * failure. */
gdrfab_mr *memory_region(struct memory *memory, const struct comm *comm);

/* ---- connect.c, accept.c */

enum {
	MAX_RECVS = 8, /* receives in one group */
	EAGERS = 16,   /* slots for eager messages */
	/* Room for all records that the sender has not read: groups that wait for data, and groups that eager
	 * messages have filled, together at most NCCL_NET_MAX_REQUESTS + EAGERS. All three numbers are powers of
	 * two, because the counters wrap around. */
	RECORDS = 64,
	MAX_SENDS = NCCL_NET_MAX_REQUESTS * MAX_RECVS,
};

/* One receive of a group: the memory that the sender writes to. Both sides have the same byte order: shm's and tcp's
 * protocol versions and the hello's magic number reject any other peer. */
struct offer {
	uint64_t addr, key, size;
	uint32_t tag;
	uint32_t host; /* 1: host memory */
};

/* A group of receives. The receiver writes the record into the sender's mailbox. */
struct record {
	uint32_t number; /* sequence number of the group */
	uint32_t n;
	uint32_t eagers_taken; /* count of eager messages, from the first one on, whose slots are free again */
	uint32_t reserved;
	struct offer offers[MAX_RECVS];
};

/* Header of an eager message: a small message sent before its receive is known. The bytes follow. */
struct eager {
	uint32_t number, tag;
	uint64_t size;
};

struct request {
	struct comm *comm; /* NULL: free. Atomic, like `done`: both are read without the lock */
	int n;		   /* receives in the group; 1 for a send */
	bool done, sends, direct;
	bool helped; /* counted in the slot's long_ones */
	uint32_t number;
	/* a send that is not posted yet */
	struct request *next;
	const void *from;
	void *desc;
	struct gdrfab_rma_iov to;
	uint32_t place;
	uint32_t missing; /* one bit for each receive that lacks its data */
	size_t sizes[MAX_RECVS];
	uint32_t tags[MAX_RECVS];
	unsigned char *data[MAX_RECVS];
	size_t room[MAX_RECVS];
	struct memory *memory[MAX_RECVS];
};

/* A connection that helper threads serve. */
struct slot {
	pthread_mutex_t lock;
	struct comm *comm; /* NULL: free */
	int long_ones;	   /* requests under way that the helpers complete; atomic */
} __attribute__((aligned(64)));

/* A connection. NCCL calls isend, irecv and test of one communicator from one thread at a time. A helper may take
 * its completions and post its writes at the same time. Lock order: `reader`, then `lock`. */
struct comm {
	pthread_mutex_t reader; /* held to post queued sends and to take completions, which may take long */
	pthread_mutex_t lock;	/* protects the fields below; held for moments only */
	struct request *posts, **posts_end; /* sends that are not posted yet */
	struct slot *slot; /* NULL: no request was ever given to the helpers */
	bool gets_long; /* the last message was long; the size of its receive does not show that */
	bool sends;
	struct device *device;
	int way; /* index in device->ways */
	gdrfab_eq *eq;
	gdrfab_cq *cq;
	gdrfab_ep *ep;

	/* The board is registered memory of two halves. The sender's half holds the mailbox and outgoing eager
	 * messages; the receiver's half holds outgoing records and the slots of eager messages. The peer writes into
	 * one half and never reads the other. */
	unsigned char *board;
	gdrfab_mr *board_region;
	struct record *records; /* [RECORDS] */
	unsigned char *eagers;	/* [EAGERS] of eager_room bytes */
	size_t eager_room;
	uint64_t peer_addr, peer_key;
	size_t peer_eager_room;
	size_t eager_max; /* largest eager message body that both sides accept */

	ncclResult_t verdict; /* once not ncclSuccess, the connection is over; atomic */
	bool peer_left;	      /* the peer closed the connection or accepts no more records */
	int left_err;	      /* the errno, unless the peer closed it by itself */
	bool explained;
	int own[2];   /* number of regions of NCCL's own buffers: [0] host, [1] GPU */
	bool refused; /* memory that the user registered was refused */
	unsigned idle;
	struct request *requests;
	int requests_count, request_next;

	/* Fields of the sender. All that the peer can write is copied before it is read. */
	struct record *asked;		   /* [RECORDS], copies of the records received */
	uint32_t record_head, record_end;  /* the records received that still have receives to serve */
	uint8_t taken[RECORDS];		   /* a bit for each receive of the record that is served */
	uint32_t direct;		   /* direct writes under way */
	uint32_t eager_sent, eager_freed;
	size_t early, early_limit; /* bytes of eager messages not yet consumed, and their limit */
	size_t eager_sizes[EAGERS];
	uint32_t unasked[EAGERS];	   /* tags of eager messages whose record has not come yet, oldest first */
	int unasked_count;
	bool peer_takes_host; /* the last record named host memory only */

	/* Fields of the receiver. */
	uint32_t group_next;		      /* sequence number of the next group */
	uint32_t eager_seen, eager_done;      /* eager messages that arrived; of these, consumed without a gap */
	struct eager eager_heads[EAGERS];     /* copies of the headers received */
	bool eager_kept[EAGERS];	      /* arrived, and no receive has asked for it yet */

	/* Fields used while connecting. */
	const struct context *context;
	uint64_t ticket, nonce;
	int64_t since; /* ms: the last time that NCCL asked; for an accepted connection, its arrival */
	struct comm *next;
	char addresses[2][104];
	int addresses_count;
	char words[512]; /* errors of the addresses tried before; later, why the peer accepts no more records */
};

struct listener;
ncclResult_t net_listen(const struct context *ctx, int dev, void *handle, struct listener **out);
ncclResult_t net_connect(const struct context *ctx, int dev, void *handle, struct comm **out);
/* Ends the connection attempts that were begun with this context. With NULL, ends those that NCCL has not asked
 * about for twice its timeout, and so has given up. */
void net_forget(const struct context *ctx);
ncclResult_t net_accept(struct listener *listener, struct comm **out);
ncclResult_t net_close(struct comm *comm);
ncclResult_t net_close_listener(struct listener *listener);

/* ---- comm.c */

/* Makes a connection with nothing open. NULL: no memory. */
struct comm *comm_new(struct device *device, bool sends);
/* Opens all objects of the connection without connecting it. On failure returns false and writes the reason to
 * `words`. */
bool comm_open(struct comm *comm, const gdrfab_info *info, char *words, size_t size);
void comm_free(struct comm *comm);
/* The size of one slot for an eager message, header included. */
size_t room_of(size_t eager_max);
int64_t now_ms(void);
int64_t timeout_ms(const struct device *device);
/* Ends the connection and all its requests, and logs the reason. Returns the result to give to NCCL. */
ncclResult_t comm_fail(struct comm *comm, int err, const char *doing, const char *words);

static inline ncclResult_t verdict_of(const struct comm *comm)
{
	return __atomic_load_n(&comm->verdict, __ATOMIC_ACQUIRE);
}

/* ---- helpers.c */

enum { LONG = 64 << 10 }; /* messages from this many bytes on go to a helper thread */

/* True if helpers should move this connection's long messages from or to this memory. */
bool help_is_wanted(const struct comm *comm, const struct memory *memory);
/* Counts one more long request: the helpers serve the connection until none is left. Returns false if no helper can
 * take it. */
bool help_begin(struct comm *comm);
/* Takes the connection (NULL is allowed) away from the helpers before it is closed. */
void help_end(struct comm *comm);

/* ---- transfer.c, and arrivals.c that it calls */

ncclResult_t net_isend(struct comm *comm, void *data, size_t size, int tag, struct memory *memory,
		       struct request **out);
ncclResult_t net_irecv(struct comm *comm, int n, void **data, const size_t *sizes, const int *tags,
		       struct memory **memory, struct request **out);
ncclResult_t net_iflush(struct comm *comm, int n, const int *sizes, struct memory **memory);
ncclResult_t net_test(struct request *request, int *done, int *sizes);

#endif
