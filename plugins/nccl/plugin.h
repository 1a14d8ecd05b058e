/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the parts of the plugin share. NCCL calls abi.c, which converts between versions of its interface and calls the
 * functions below; they know one version only, and reach the network through gdrfab.h alone.
 *
 *   settings.c   the environment              devices.c   what can be offered, and what NCCL is told of it
 *   tune.c       NCCL's own variables         tuner.c     channels per collective and size (NCCL calls it as well)
 *   log.c        NCCL's log                   comm.c      a connection's objects
 *   inventory.c  contexts, who holds devices  accept.c    listening, accepting
 *   memory.c     registered memory            connect.c   connecting, closing
 *   hello.c      what both sides say first    transfer.c  the protocol: receives offered, data written
 *   helpers.c    threads for long messages    arrivals.c  what comes of it
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

/* Who copies memory of GPUs: nobody, a process of the library's own, or this process by its driver. */
enum gpu_copies { GPU_BY_NOBODY, GPU_ELSEWHERE, GPU_HERE };

struct settings {
	bool may[KINDS];	 /* a provider that may be used */
	enum kind order[KINDS];	 /* which devices are offered, in this order */
	int offered;
	bool named;		 /* by GDRFAB_NCCL_PROVIDERS */
	const char *because;	 /* why these, in words */
	uint64_t timeout_ns;	 /* for connecting, and for every operation */
	size_t eager;		 /* bytes of host memory that are sent before they are asked for */
	enum gpu_copies gpu;	 /* where no card reaches memory of GPUs by itself */
	bool tune;		 /* whether NCCL's own variables may be set */
	int threads;		 /* that move long messages between memories of the host, of any rank that all CPUs are open to */
	int own_threads;	 /* of this rank */
};

enum { MAX_THREADS = 16, USUAL_THREADS = 8, USUAL_RANKS = 8 };

/* False with words in the log if a variable makes no sense. */
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

/* One way to peers: a provider, and with verbs a port of a card. Its domain is opened when it is first needed, and serves
 * all communicators of the process. */
struct way {
	struct inventory *of;
	int number; /* in it */
	enum kind kind;
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	bool sees_devices; /* memory of accelerators can be registered */
	int times;	   /* that NCCL is offered it, if it is the first */
};

/* What NCCL calls a network device. Peers of this host are reached by the first way, if it is shm. */
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

/* Has another process copy this endpoint's device memory; false with the library's words. */
bool copies_elsewhere(gdrfab_ep *ep);

/* Opens the domain. */
ncclResult_t way_open(struct way *way);
void way_close(struct way *way);
void devices_find(struct inventory *it);

/* ---- inventory.c */

/* What an init found, and those that came before its finalize share. It goes with the last that holds it: contexts,
 * connections, listeners and memory, which NCCL gives back in any order. */
struct inventory {
	int contexts, holders;
	pid_t pid;
	struct settings settings;
	struct way ways[MAX_DEVICES];
	struct device devices[MAX_DEVICES];
	int ways_count, devices_count;
};

/* What init gives since version 11; before, there is none (NULL), and no finalize. */
struct context {
	struct inventory *of;
	struct context *next;
};

/* The first finds the devices. ctx may be NULL. asks_tuner: this NCCL looks for a tuner in this library. */
ncclResult_t devices_begin(struct context **ctx, bool asks_tuner);
/* False: no such context, or no more. */
bool devices_end(struct context *ctx, void (*forget)(const struct context *ctx));
int devices_count(void);
/* Of the context, or of the last init; its inventory is held. NULL with words if there is no such device. */
struct device *device_hold(const struct context *ctx, int number);
void inventory_hold(struct inventory *it);
void inventory_drop(struct inventory *it);
/* As of a device held, for as long as NCCL looks at it: until finalize. */
struct device *device_get(int number);

/* ---- tune.c */

#define TUNE_WIDTH "16"
#define TUNE_WIDTH_TCP "8"

/* Whether the NCCL that calls looks for a tuner in this library, if it takes the oldest version of the net's interface. */
bool tune_is_asked_for(void);

/* Whose measurements the tuner goes by: of memory of GPUs over shm, or of the host over shm or tcp. */
enum tune_way { TUNE_NOTHING, TUNE_GPUS, TUNE_HOST, TUNE_TCP };

/* At each init, as NCCL reads some of these for each communicator: before the devices are found, and after. */
void tune_begin(const struct settings *s, bool asks_tuner);
void tune_level(const struct inventory *it);
/* Channels that communicators were given for the tuner to narrow; 0: none. */
int tune_width(void);
enum tune_way tune_way(void);
/* Whether collectives are better off without memory that the user has registered. */
bool tune_prefers_own_buffers(void);
/* Whether NCCL_PROTO forbids LL. */
bool no_ll(void);

/* ---- memory.c */

/* Registered memory: a region in the domain of each way that has needed one. */
struct memory {
	unsigned char *data;
	size_t size;
	bool host;
	uint32_t iface;
	uint64_t device;
	struct inventory *of;
	gdrfab_mr *regions[MAX_DEVICES]; /* as of->ways */
	pthread_mutex_t lock;
};

struct comm;
ncclResult_t memory_register(struct comm *comm, void *data, size_t size, int type, struct memory **out);
ncclResult_t memory_register_dmabuf(struct comm *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				    struct memory **out);
ncclResult_t memory_release(struct memory *memory);
/* The region in the communicator's domain; NULL with words in the log. */
gdrfab_mr *memory_region(struct memory *memory, const struct comm *comm);

/* ---- connect.c, accept.c */

enum {
	MAX_RECVS = 8, /* receives of a group */
	EAGERS = 16,   /* places for eager messages */
	/* Room for all records that the sender has not looked at: of groups that wait for data, and of groups that eager
	 * messages have filled, NCCL_NET_MAX_REQUESTS + EAGERS at most. All three are powers of two: counters wrap. */
	RECORDS = 64,
	MAX_SENDS = NCCL_NET_MAX_REQUESTS * MAX_RECVS,
};

/* One receive of a group: where the sender writes. Both sides have the same byte order, or shm's and tcp's versions and
 * the hello's magic distinguish them. */
struct offer {
	uint64_t addr, key, size;
	uint32_t tag;
	uint32_t host; /* 1: memory of the host */
};

/* A group of receives, written into the sender's mailbox. */
struct record {
	uint32_t number; /* counts the groups */
	uint32_t n;
	uint32_t eagers_taken; /* eager messages whose places are free again, counted from the first */
	uint32_t reserved;
	struct offer offers[MAX_RECVS];
};

/* A small message that was not waited for; its bytes follow. */
struct eager {
	uint32_t number, tag;
	uint64_t size;
};

struct request {
	struct comm *comm; /* NULL: free. Atomic, as done is: they are looked at without the lock */
	int n;		   /* of a receive: its group; of a send: 1 */
	bool done, sends, direct;
	bool helped; /* counted in its connection's long_ones */
	uint32_t number;
	/* a send that is not posted yet */
	struct request *next;
	const void *from;
	void *desc;
	struct gdrfab_rma_iov to;
	uint32_t place;
	uint32_t missing; /* receives without data, a bit each */
	size_t sizes[MAX_RECVS];
	uint32_t tags[MAX_RECVS];
	unsigned char *data[MAX_RECVS];
	size_t room[MAX_RECVS];
	struct memory *memory[MAX_RECVS];
};

/* A connection that helpers look after. */
struct slot {
	pthread_mutex_t lock;
	struct comm *comm; /* NULL: free */
	int long_ones;	   /* requests under way that are the helpers'; atomic */
} __attribute__((aligned(64)));

/* A connection. isend, irecv and test of one communicator are called from one thread at a time; a helper may take its
 * completions and post its writes at the same time. Locked in this order: reader, lock. */
struct comm {
	pthread_mutex_t reader; /* whoever posts what waits, and takes completions: these drive the endpoint, and may take long */
	pthread_mutex_t lock;	/* what follows, for moments only */
	struct request *posts, **posts_end; /* sends that are not posted yet */
	struct slot *slot; /* NULL: none of its requests has been a helper's */
	bool gets_long; /* the last message was long: what room its receive had says nothing */
	bool sends;
	struct device *device;
	int way; /* of device->ways */
	gdrfab_eq *eq;
	gdrfab_cq *cq;
	gdrfab_ep *ep;

	/* Of the sender: mailbox, and eager messages on their way out. Of the receiver: records on their way out, and the
	 * places of eager messages. The other side writes into one half and never looks at the other. */
	unsigned char *board;
	gdrfab_mr *board_region;
	struct record *records; /* [RECORDS] */
	unsigned char *eagers;	/* [EAGERS] of eager_room bytes */
	size_t eager_room;
	uint64_t peer_addr, peer_key;
	size_t peer_eager_room;
	size_t eager_max; /* bytes of an eager message's body that both sides agree to */

	ncclResult_t verdict; /* not ncclSuccess: the connection is over; atomic */
	bool peer_left;	      /* the other side has closed it, or takes no more records */
	int left_err;	      /* why, if not because it said so */
	bool explained;
	int own[2];   /* regions of NCCL's first buffers: of the host, of GPUs */
	bool refused; /* a user's */
	unsigned idle;
	struct request *requests;
	int requests_count, request_next;

	/* sender; what the peer can write is copied before it is looked at */
	struct record *asked;		   /* [RECORDS], as they came */
	uint32_t record_head, record_end;  /* records with receives left, up to what has arrived */
	uint8_t taken[RECORDS];		   /* receives of each that are served */
	uint32_t direct;		   /* writes on their way */
	uint32_t eager_sent, eager_freed;
	size_t early, early_limit; /* bytes of eager messages that the receiver has not taken, and their limit */
	size_t eager_sizes[EAGERS];
	uint32_t unasked[EAGERS];	   /* tags of eager messages for which no record came yet, oldest first */
	int unasked_count;
	bool peer_takes_host; /* the last record was about host memory alone */

	/* receiver */
	uint32_t group_next;		      /* the next group's number */
	uint32_t eager_seen, eager_done;      /* arrived; taken, counted without gaps */
	struct eager eager_heads[EAGERS];     /* as they came */
	bool eager_kept[EAGERS];	      /* arrived, and nobody has asked for it yet */

	/* while connecting */
	const struct context *context;
	uint64_t ticket, nonce;
	int64_t since; /* ms: NCCL has last asked; of an accepted one, when it came */
	struct comm *next;
	char addresses[2][104];
	int addresses_count;
	char words[512]; /* why the ways before this one failed; later, why the other side takes no more */
};

struct listener;
ncclResult_t net_listen(const struct context *ctx, int dev, void *handle, struct listener **out);
ncclResult_t net_connect(const struct context *ctx, int dev, void *handle, struct comm **out);
/* Ends what was begun with this context; NULL: what NCCL has not asked for in twice its time, and so has given up. */
void net_forget(const struct context *ctx);
ncclResult_t net_accept(struct listener *listener, struct comm **out);
ncclResult_t net_close(struct comm *comm);
ncclResult_t net_close_listener(struct listener *listener);

/* ---- comm.c */

/* With nothing open; NULL: no memory. */
struct comm *comm_new(struct device *device, bool sends);
/* Opens everything but the connection; false with words. */
bool comm_open(struct comm *comm, const gdrfab_info *info, char *words, size_t size);
void comm_free(struct comm *comm);
/* A place for an eager message, its head included. */
size_t room_of(size_t eager_max);
int64_t now_ms(void);
int64_t timeout_ms(const struct device *device);
/* Ends the connection for its requests, with words in the log; gives what NCCL is to be told. */
ncclResult_t comm_fail(struct comm *comm, int err, const char *doing, const char *words);

static inline ncclResult_t verdict_of(const struct comm *comm)
{
	return __atomic_load_n(&comm->verdict, __ATOMIC_ACQUIRE);
}

/* ---- helpers.c */

enum { LONG = 64 << 10 }; /* bytes from which on handing a message over pays */

/* Whether a helper is to move this communicator's long messages from or to this memory. */
bool help_is_wanted(const struct comm *comm, const struct memory *memory);
/* A long request more is under way: helpers look after the connection until it has none. False: nobody can. */
bool help_begin(struct comm *comm);
/* The connection, if there is one, is about to be closed. */
void help_end(struct comm *comm);

/* ---- transfer.c, with arrivals.c behind it */

ncclResult_t net_isend(struct comm *comm, void *data, size_t size, int tag, struct memory *memory,
		       struct request **out);
ncclResult_t net_irecv(struct comm *comm, int n, void **data, const size_t *sizes, const int *tags,
		       struct memory **memory, struct request **out);
ncclResult_t net_iflush(struct comm *comm, int n, const int *sizes, struct memory **memory);
ncclResult_t net_test(struct request *request, int *done, int *sizes);

#endif
