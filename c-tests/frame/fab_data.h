/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The data types that the helpers share: the two sides of a pair, memory, paths, and the results of operations. */
#ifndef FAB_DATA_H
#define FAB_DATA_H

#include "claim.h"
#include <gdrfab.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REMOTE_ACCESS (GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE)
#define ANY_ACCESS (GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | REMOTE_ACCESS)

/* The set-up of the two sides; zero is the default everywhere. */
struct setup {
	uint32_t progress;    /* GDRFAB_PROGRESS_*; 0: manual */
	uint32_t threading;   /* GDRFAB_THREAD_* */
	uint32_t cq_format;   /* 0: DATA */
	uint32_t cq_wait;     /* GDRFAB_WAIT_* */
	size_t cq_size;       /* 0: 1024 */
	uint64_t cq_flags;    /* beside TRANSMIT|RECV when the CQ is bound */
	uint64_t tx_op_flags; /* 0: COMPLETION, and DELIVERY_COMPLETE where there is that */
	uint64_t rx_op_flags;
	uint64_t caps;        /* 0: MSG|RMA */
	bool counts_receives; /* node->received counts them */
	uint64_t comp_order;  /* GDRFAB_ORDER_STRICT: also with TEST_COMP_ORDER=strict */
	bool offsets;         /* mr_mode without VIRT_ADDR: addresses start at 0 */
	bool given_keys;      /* mr_mode without PROV_KEY: keys are requested */
	bool rdm;             /* connectionless endpoints: the own index is 0, the peer's PEER */
	bool by_address;      /* connect by exchanged addresses instead of listen and connect */
	uint64_t deadline_ms; /* GDRFAB_OPT_DEADLINE and GDRFAB_OPT_RECV_DEADLINE */
	uint32_t tcp_streams[TEST_SIDES]; /* GDRFAB_OPT_TCP_STREAMS of that side; 0: as the environment says */
	const char *rails[TEST_SIDES]; /* GDRFAB_OPT_RAILS of that side; NULL: as the environment says */
	const char *key[TEST_SIDES]; /* auth_key of that side; NULL: none */
	const char *env[TEST_SIDES][2]; /* variables of that side, NAME=VALUE: before the library is first used */
	enum test_side victim; /* this side is expected to be killed by SIGKILL */
};

enum { PEER = 1 };

struct node {
	enum test_side side;
	const struct setup *setup;
	const void *arg;
	int oob;         /* a socket to the other side, beside the library */
	pid_t peer;
	char service[64];
	int fds;         /* open files before the library opened any */
	bool idle;       /* do not drive progress while waiting for the other side */
	bool drivers;    /* a vendor's driver may have been opened, which keeps descriptors until the process ends */
	gdrfab_info *info;
	gdrfab_info *request; /* of the server: the info of the connection request */
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_pep *pep;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	gdrfab_av *av; /* with rdm */
	gdrfab_cntr *received;
	struct local *locals; /* the regions that local_desc() has registered */
};

typedef void (*side_fn)(struct node *n);

/* A completion, in the format of every CQ here unless a claim asks for another. */
typedef gdrfab_cq_data_entry done;

struct failure {
	gdrfab_cq_err_entry entry;
	char words[256];
};

struct event {
	gdrfab_eq_cm_entry entry;
	unsigned char data[GDRFAB_CM_DATA_MAX];
	size_t data_len;
};

struct eq_failure {
	gdrfab_eq_err_entry entry;
	unsigned char data[GDRFAB_CM_DATA_MAX];
};

struct mem;
struct memkind {
	const char *name;
	uint64_t paths; /* the paths that this kind can offer if the kernel permits them; see kind_paths() */
	void (*alloc)(struct node *n, struct mem *m);
	void (*release)(struct node *n, struct mem *m);
	bool file;      /* registered by its file descriptor */
	bool dmabuf;    /* the file is a dma-buf */
	uint64_t maybe; /* the paths among them that are not promised; see kind_maybe() */
	uint32_t iface; /* GDRFAB_HMEM_* */
	bool opaque;    /* the CPU cannot access it: bytes go through the driver */
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
	size_t reserved;	       /* bytes that alloc() allocated */
};

/* A region as the other side addresses it. */
struct remote {
	uint64_t key, base, len;
};

struct path {
	const char *name;
	uint64_t bit;
};
/* Indexes as of GDRFAB_PATH_INDEX(). */
enum { PATH_DIRECT, PATH_CMA, PATH_STAGED, PATH_IPC, PATH_NIC, PATH_DMABUF, PATH_PEER_MEM, PATH_SOCKET, PATHS };

/* A combination of a path and a kind of memory that can exist. */
struct way {
	const struct path *path;
	const struct memkind *kind;
	char name[48];
};

#ifdef __cplusplus
}
#endif
#endif
