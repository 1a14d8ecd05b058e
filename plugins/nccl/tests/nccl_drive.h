/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Drives gdrfab's plugin for NCCL as NCCL does: opens the file that TEST_NCCL_PLUGIN names, takes one version of the
 * interface from it (TEST_NCCL_ABI=8..12), and calls it without waiting inside any call. The claims are the same for
 * every version and for the providers shm and tcp (TEST_PROVIDER).
 */
#ifndef NCCL_DRIVE_H
#define NCCL_DRIVE_H

#include "fab.h"

#include "../nccl_net.h"

enum { GROUP = 8 };
enum { OLDEST = 8, NEWEST = 12 };

/* True if there is no plugin to test; then the program's only claim says so. */
bool nccl_absent(void);
/* The version of the interface under test. */
int nccl_version(void);

/* --- one process's plugin --- */

/* Properties in the form of the newest version, with -1 for fields that the version under test lacks. */
struct props {
	const char *name, *pci_path;
	uint64_t guid;
	int ptr_support, reg_is_global, force_flush, speed, port;
	double latency;
	int max_comms, max_recvs, device_type, device_version;
	int ndevs, first_dev;
	long long max_p2p, max_coll, max_multi;
	int rail, plane;
};

struct net {
	int version;
	void *library;
	const void *table;
	const char *name;
	void *ctx;
	int fds; /* open files before the plugin was opened */
	int devices;
	/* Functions that have the same types in every version. */
	ncclResult_t (*count)(int *ndev);
	ncclResult_t (*accept)(void *listener, void **comm, ncclNetDeviceHandle_t **dev);
	ncclResult_t (*reg)(void *comm, void *data, size_t size, int type, void **mhandle);
	ncclResult_t (*reg_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				   void **mhandle);
	ncclResult_t (*dereg)(void *comm, void *mhandle);
	ncclResult_t (*flush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
	ncclResult_t (*test)(void *request, int *done, int *sizes);
	ncclResult_t (*close_send)(void *comm);
	ncclResult_t (*close_recv)(void *comm);
	ncclResult_t (*close_listen)(void *listener);
};
extern struct net net;
/* For claims of hundreds of connections that test something else: a call may be slow on a slow machine. */
extern bool net_unhurried;

/* Opens the plugin with this provider alone and initialises it once. A claim sets its environment before.
 * GDRFAB_NCCL_PROVIDERS is the provider under test unless it is set. */
void net_open(void);
/* Called before the sides are forked: from a GPU to host memory the driver has to copy in the sender's process. */
void mixed_memory(int from, int to);
/* Does the same as net_open() in a process that uses memory of this kind, so that the plugin finds a device in use;
 * the claim is skipped if there is none. */
void net_open_with(struct node *n, int kind);
/* The two steps of net_open(): opening the file, and taking the table of this version. */
void net_load(void);
ncclResult_t net_init(void **ctx);
/* Does nothing before version 11, which has no finalize. */
ncclResult_t net_finalize(void *ctx);
/* Finalizes and closes the file. From version 11 on no descriptor may be left. */
void net_close(const struct node *n);
ncclResult_t net_props(int dev, struct props *p);
ncclResult_t net_listen(void *ctx, int dev, void *handle, void **listener);
ncclResult_t net_connect(void *ctx, int dev, void *handle, void **comm);
ncclResult_t net_accept(void *listener, void **comm);
ncclResult_t net_isend(void *comm, const void *data, size_t size, int tag, void *mhandle, void **request);
/* *request may hold NCCL's hint. */
ncclResult_t net_irecv(void *comm, int n, void **data, const size_t *sizes, int *tags, void **mhandles, void **request);

const char *nccl_word(int result);
/* The plugin's log lines since log_forget(), of this level and above, or all of them; "" if there are none. */
const char *log_warnings(void);
const char *log_all(void);
void log_forget(void);

/* A call of the plugin that must succeed. */
#define NET(call)                                                                                                      \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		int result_ = (int)(call);                                                                             \
		if (result_ != ncclSuccess)                                                                            \
			test_fail(__FILE__, __LINE__, "%s is %s; it said \"%s\"", #call, nccl_word(result_),           \
				  log_warnings());                                                                     \
	} while (0)
/* A call that must fail with this error, and with a reason in the log. */
#define NET_FAILS(call, want)                                                                                          \
	do {                                                                                                           \
		log_forget();                                                                                          \
		test_at(__FILE__, __LINE__);                                                                           \
		int result_ = (int)(call);                                                                             \
		if (result_ != (want))                                                                                 \
			test_fail(__FILE__, __LINE__, "%s is %s, not %s; it said \"%s\"", #call, nccl_word(result_),   \
				  nccl_word(want), log_warnings());                                                    \
		if (!log_warnings()[0])                                                                                \
			test_fail(__FILE__, __LINE__, "%s is %s, and nothing was said", #call, nccl_word(result_));    \
	} while (0)

/* --- memory --- */

enum { HOST_MEM, CUDA_MEM, CUDA_VMM_MEM, DMABUF_MEM, MEM_KINDS };
extern const char *const mem_names[MEM_KINDS];

/* --- connections --- */

/* The communicators of one process; NULL for those it has not. */
struct link {
	void *send, *recv;
};
enum { TO_SERVER = 1, TO_CLIENT = 2, BOTH_WAYS = 3 };
struct handle {
	char bytes[NCCL_NET_HANDLE_MAXSIZE];
};

/* Listens, and checks that only the handle was written. */
void *listen_at(int dev, struct handle *h);
/* Polls until there is a communicator, and checks that no call waits. */
void *connect_to(int dev, struct handle *h);
void *accept_from(void *listener);
/* Connects both sides: one direction after the other, or both. The listen communicator is closed as soon as it has
 * accepted. */
struct link link_up(struct node *n, int ways);
void link_down(struct link *l);
/* Opens and connects the two sides of most claims; sides_down() closes everything. */
struct link sides_up(struct node *n, int kind, int ways);
void sides_down(struct node *n, struct link *l);

/* Opens one process that has both ends. */
void net_alone(struct node *n);
struct link link_to_itself(struct handle *h, void *listener);
/* Sets GDRFAB_NCCL_TIMEOUT; called before net_open(). */
void timeout_is(const char *seconds);

/* --- buffers --- */

#define GUARD ((size_t)4096)
struct buf {
	struct node *n;
	struct mem mem;        /* with a guard before and behind */
	unsigned char *at;
	size_t len;
	void *comm, *mhandle;  /* the communicator and the handle of its registration */
	bool by_dmabuf;
};
void buf_new(struct node *n, struct buf *b, int kind, size_t len);
void buf_reg(struct buf *b, void *comm);
void buf_dereg(struct buf *b);
/* Unregisters the buffer and frees it. */
void buf_end(struct buf *b);
void buf_fill(struct buf *b, size_t offset, size_t len, uint32_t seed);
/* Fills all of it and the guards with a pattern that no message has. */
void buf_blank(struct buf *b);
/* Checks that these bytes have arrived; that those are untouched; that only these have arrived and both guards are
 * intact. */
void buf_check(const char *file, int line, struct buf *b, size_t offset, size_t len, uint32_t seed);
void buf_check_blank(const char *file, int line, struct buf *b, size_t offset, size_t len);
void buf_check_only(const char *file, int line, struct buf *b, size_t offset, size_t len, uint32_t seed);
#define BUF_CHECK(b, offset, len, seed) buf_check(__FILE__, __LINE__, b, offset, len, seed)
#define BUF_BLANK(b, offset, len) buf_check_blank(__FILE__, __LINE__, b, offset, len)
#define BUF_ONLY(b, offset, len, seed) buf_check_only(__FILE__, __LINE__, b, offset, len, seed)

/* --- requests --- */

/* A send, or a receive of up to eight. */
struct op {
	void *comm;
	bool send;
	int n;
	void *data[GROUP];
	size_t sizes[GROUP];
	int tags[GROUP];
	void *mhandles[GROUP];
	bool hint; /* NCCL_NET_OPTIONAL_RECV_COMPLETION */
	/* The state of the operation. */
	void *request;
	bool done;
	int got[GROUP];
};
struct op send_op(void *comm, struct buf *b, size_t offset, size_t size, int tag);
struct op recv_op(void *comm, struct buf *b, size_t offset, size_t size, int tag);
void op_add(struct op *group, struct buf *b, size_t offset, size_t size, int tag);

/* Each calls the plugin once. True: accepted; false: call again. */
bool op_post(struct op *op);
/* True if it is done, now or before. */
bool op_done(struct op *op);
/* Repeats until the operation is accepted, or done. Fails with a message instead of hanging. */
void op_push(struct op *op);
void op_wait(struct op *op);
void op_finish(struct op *op);
/* Runs all operations: receives are posted in order, sends in order for each tag. At most `window` of each
 * communicator are under way. */
void ops_run(struct op *ops, size_t count, size_t window);
/* Posts the operation, or tests it if it is posted. */
ncclResult_t op_step(struct op *op);
/* Drives the operation until it ends, which must happen within ms, with a success or an error. */
bool op_ends(const char *file, int line, struct op *op, int ms);
void op_fails(const char *file, int line, struct op *op, int ms);
#define OP_ENDS(op, ms) op_ends(__FILE__, __LINE__, op, ms)
#define OP_FAILS(op, ms) op_fails(__FILE__, __LINE__, op, ms)
/* Checks for an error that NCCL takes for the network's, and for a reason in the log since log_forget(). */
void network_error(const char *file, int line, ncclResult_t result);
/* Meets the other side at a barrier, and tests a request until then, whatever its result. */
void barrier_beside(struct node *n, struct op *op);

/* A message of host memory that is registered for this message only: sends it, or receives it whole and checks the
 * bytes around it. */
void message_out(struct node *n, void *comm, size_t len, uint32_t seed);
void message_in(struct node *n, void *comm, size_t len, uint32_t seed);
void message_to_itself(struct node *n, struct link *l, size_t len, uint32_t seed);

#endif
