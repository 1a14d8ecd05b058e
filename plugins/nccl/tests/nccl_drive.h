/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Drives gdrfab's plugin for NCCL as NCCL does: opens the file that TEST_NCCL_PLUGIN names, takes one version of the
 * interface out of it (TEST_NCCL_ABI=8..12), and calls it without waiting inside any call. The claims are the same for
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

/* Properties as the newest version has them, with -1 for what the version under test leaves out. */
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
	/* What has the same types in every version. */
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
/* For claims of hundreds of connections about something else: a call may be slow where the machine is. */
extern bool net_unhurried;

/* Opens the plugin with this provider alone and initialises it once. Before it a claim sets what it wants of the
 * environment; GDRFAB_NCCL_PROVIDERS is the provider under test unless it is set. */
void net_open(void);
/* The same of a process that uses memory of this kind, so that the plugin finds a device in use; the claim is skipped
 * where there is none. */
/* Before the sides are forked: from a GPU to host memory the driver has to copy in the sender's process. */
void mixed_memory(int from, int to);
void net_open_with(struct node *n, int kind);
/* The steps of it: the file, and the table of this version. */
void net_load(void);
ncclResult_t net_init(void **ctx);
/* Only from version 11 on is there anything to do. */
ncclResult_t net_finalize(void *ctx);
/* finalize, and the file is closed; from version 11 on no descriptor is left. */
void net_close(const struct node *n);
ncclResult_t net_props(int dev, struct props *p);
ncclResult_t net_listen(void *ctx, int dev, void *handle, void **listener);
ncclResult_t net_connect(void *ctx, int dev, void *handle, void **comm);
ncclResult_t net_accept(void *listener, void **comm);
ncclResult_t net_isend(void *comm, const void *data, size_t size, int tag, void *mhandle, void **request);
/* *request is also what NCCL hints. */
ncclResult_t net_irecv(void *comm, int n, void **data, const size_t *sizes, int *tags, void **mhandles, void **request);

const char *nccl_word(int result);
/* What the plugin has said at this level and above since log_forget(): all its lines, or "". */
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
/* One that must give this error, and say why. */
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

/* What one process holds of them; NULL for what it does not. */
struct link {
	void *send, *recv;
};
enum { TO_SERVER = 1, TO_CLIENT = 2, BOTH_WAYS = 3 };
struct handle {
	char bytes[NCCL_NET_HANDLE_MAXSIZE];
};

/* Listens, and sees that no more than the handle was written. */
void *listen_at(int dev, struct handle *h);
/* Polls until there is a communicator, and never finds a call that waits. */
void *connect_to(int dev, struct handle *h);
void *accept_from(void *listener);
/* Both sides: one direction after the other, or both. The listen communicator is closed as soon as it has accepted. */
struct link link_up(struct node *n, int ways);
void link_down(struct link *l);
/* The two sides of most claims: opened and connected, and all of it back. */
struct link sides_up(struct node *n, int kind, int ways);
void sides_down(struct node *n, struct link *l);

/* One process with both ends. */
void net_alone(struct node *n);
struct link link_to_itself(struct handle *h, void *listener);
/* GDRFAB_NCCL_TIMEOUT, before net_open(). */
void timeout_is(const char *seconds);

/* --- buffers --- */

#define GUARD ((size_t)4096)
struct buf {
	struct node *n;
	struct mem mem;        /* with a guard before and behind */
	unsigned char *at;
	size_t len;
	void *comm, *mhandle;  /* where it is registered */
	bool by_dmabuf;
};
void buf_new(struct node *n, struct buf *b, int kind, size_t len);
void buf_reg(struct buf *b, void *comm);
void buf_dereg(struct buf *b);
/* Unregistered and given back. */
void buf_end(struct buf *b);
void buf_fill(struct buf *b, size_t offset, size_t len, uint32_t seed);
/* Fills all of it and the guards with what no message is made of. */
void buf_blank(struct buf *b);
/* These bytes have come; those have not been touched; only these have come, and both guards are whole. */
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
	/* What became of it. */
	void *request;
	bool done;
	int got[GROUP];
};
struct op send_op(void *comm, struct buf *b, size_t offset, size_t size, int tag);
struct op recv_op(void *comm, struct buf *b, size_t offset, size_t size, int tag);
void op_add(struct op *group, struct buf *b, size_t offset, size_t size, int tag);

/* One call each. True: it was taken; false: come again. */
bool op_post(struct op *op);
/* True: it is done, or was. */
bool op_done(struct op *op);
/* Until it is taken, or done, with words in place of a hang. */
void op_push(struct op *op);
void op_wait(struct op *op);
void op_finish(struct op *op);
/* All of them: receives are posted in order, sends in order for each tag; at most `window` are under way of each
 * communicator. */
void ops_run(struct op *ops, size_t count, size_t window);
/* A post, or a test. */
ncclResult_t op_step(struct op *op);
/* Drives it until it ends, which it must within ms: well, or by an error. */
bool op_ends(const char *file, int line, struct op *op, int ms);
void op_fails(const char *file, int line, struct op *op, int ms);
#define OP_ENDS(op, ms) op_ends(__FILE__, __LINE__, op, ms)
#define OP_FAILS(op, ms) op_fails(__FILE__, __LINE__, op, ms)
/* An error that NCCL takes for the network's, and words since log_forget(). */
void network_error(const char *file, int line, ncclResult_t result);
/* Meets the other side, and goes on testing a request until then, whatever comes of it. */
void barrier_beside(struct node *n, struct op *op);

/* A message of host memory, registered for it alone: sent and done; come whole, and nothing beside it. */
void message_out(struct node *n, void *comm, size_t len, uint32_t seed);
void message_in(struct node *n, void *comm, size_t len, uint32_t seed);
void message_to_itself(struct node *n, struct link *l, size_t len, uint32_t seed);

#endif
