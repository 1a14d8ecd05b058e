/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the parts of the provider share. libfabric calls through the tables of operations of these objects; each function
 * converts and calls gdrfab.h, and the data path only casts: bits, errnos and entries have libfabric's values there.
 *
 *   init.c     what libfabric loads, our parameters              mr.c       memory regions
 *   caller.c   the libfabric that calls, its log                 eq.c       event queues
 *   info.c     fi_getinfo: hints against gdrfab's candidates     connreq.c  connection requests
 *   attr.c     candidates' attributes for libfabric              cm.c       connecting: endpoints and passive ones
 *   hints.c    hints and infos for gdrfab                        wait.c     waiting
 *   address.c  socket addresses and gdrfab's text                cq.c       completion queues
 *   nic.c      fi_info->nic                                      cntr.c     counters
 *   fabric.c   fabrics                                           ep.c       endpoints
 *   domain.c   domains                                           data.c     messages and RMA
 *   av.c       address vectors, names                            tagged.c   tagged messages
 *   missing.c  operations that there are not                     atomic.c   atomics
 */
#ifndef GDRFAB_FI_PROVIDER_H
#define GDRFAB_FI_PROVIDER_H

#include <gdrfab.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The API that this source was written for; what newer versions added is left alone. */
#define PROVIDER_API FI_VERSION(1, 17)

/* ---- caller.c */

/* Connected endpoints over one of gdrfab's providers; and connectionless ones, over a set of them. */
enum kind { KIND_SHM, KIND_VERBS, KIND_TCP, KINDS, KIND_RDM = KINDS };
extern const char *const kind_names[KINDS + 1];
/* What the name of a connectionless fabric has before gdrfab's, which is that of a connected one if the set has one lane. */
#define RDM_FABRIC "rdm:"
/* Whether an address is a socket's. */
static inline bool kind_has_sockets(enum kind kind)
{
	return kind == KIND_TCP || kind == KIND_RDM;
}
/* By the name of a fabric. */
enum kind info_kind(const char *fabric_name);
/* A bit for each kind that connectionless endpoints of that name go over, as "shm+tcp"; bit KINDS: one that is unknown. */
unsigned lanes_of(const char *set);

/* A libfabric that has loaded this file: its functions, and the provider that it knows us by. It may be one of several in
 * the process, and need not be visible to us: mpich brings its own under another name, and Open MPI loads it privately. So
 * nothing is linked; and once it has taken us down, nothing of it is called. */
struct libfabric {
	struct fi_provider provider;
	void *base; /* where it lies */
	int loads;  /* by it, and not taken down; 0: its functions are gone */
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	void (*freeinfo)(struct fi_info *info);
	int (*log_enabled)(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys);
	void (*log)(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys, const char *func,
		    int line, const char *fmt, ...);
	int (*param_define)(const struct fi_provider *prov, const char *name, enum fi_param_type type, const char *help,
			    ...);
	int (*param_get)(struct fi_provider *prov, const char *name, void *value);
	struct offer {
		enum kind order[KINDS];
		int count;
		const char *because; /* in words */
	} offer; /* which of gdrfab's providers are offered, in this order; decided once */
	pthread_once_t decided;
};
/* The one whose call this thread is in. Each function that libfabric calls through an object, and that may log or make an
 * fi_info, begins with entering the object's. */
extern __thread struct libfabric *caller;
static inline void enter(struct libfabric *lib)
{
	caller = lib;
}

#define LOG_AT(level, subsys, ...)                                                                                     \
	((void)(caller->log_enabled(&caller->provider, level, subsys) &&                                               \
		(caller->log(&caller->provider, level, subsys, __func__, __LINE__, __VA_ARGS__), 0)))
/* A line ends with \n, as libfabric's own do. */
#define WARN(subsys, ...) LOG_AT(FI_LOG_WARN, subsys, __VA_ARGS__)
#define INFO(subsys, ...) LOG_AT(FI_LOG_INFO, subsys, __VA_ARGS__)
/* What a call of gdrfab gave, with its words in the log if it failed. */
int told(int result, enum fi_log_subsys subsys, const char *doing);
/* Nothing of its is called any more. */
void caller_gone(struct libfabric *lib);
/* Negative errno with words for bad arguments. */
#define REFUSE(err, subsys, ...) (INFO(subsys, __VA_ARGS__), -(err))

const struct offer *offered(void);

/* ---- address.c */

/*
 * libfabric's layers above us know socket addresses, gdrfab has text: "tcp://host:port", "verbs://host:port",
 * "shm://name"; "rdm://host:port" of connectionless endpoints. shm's name "fi-<port>" is a sockaddr_in6 whose address stands for this host since it was booted, so that
 * another host's is recognised, as by a network.
 */

/* Bytes of any address. */
#define ADDRESS_MAX 256
/* The format of connectionless endpoints' addresses unless another is asked for: a name of gdrfab's, or a socket address; the
 * rest of GDRFAB_NAME_LEN bytes is 0. */
#define ADDR_NAME (FI_PROV_SPECIFIC | 0x6764u)

/* gdrfab's text into what addr_format asks for, malloc'ed. NULL: it has no such form, or no memory. A shm name that is not
 * "fi-<port>" has port 0. */
void *address_export(const char *text, uint32_t addr_format, size_t *len);
/* And back, into ADDRESS_MAX bytes. -FI_EINVAL with words in the log if it is none of kind, or another host's shm. len 0:
 * the length is what the family says. FI_FORMAT_UNSPEC: what the first bytes look like. shm's port 0 is "shm://fi-0", a
 * name that nobody has. */
int address_import(enum kind kind, const void *addr, size_t len, uint32_t addr_format, char *text);
/* FI_ADDR_STR, or the family's format. */
uint32_t address_format(const void *addr, uint32_t addr_format);
/* AF_INET, AF_INET6, or AF_UNSPEC. */
int address_family(uint32_t addr_format);
/* Whether an IPv6 address is one that stands for a host, and for which. */
enum shm_place { SHM_NOT, SHM_HERE, SHM_ELSEWHERE };
struct in6_addr;
enum shm_place address_shm_place(const struct in6_addr *at);

/* ---- info.c, hints.c, attr.c, nic.c */

int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
	     struct fi_info **info);

/* A gdrfab info for opening: a copy of base with what a caller's info says of threading, progress, mr_mode, sizes, flags
 * and addresses. Strings are in text, which lives as long. */
struct opening {
	gdrfab_info *info;
	char src[ADDRESS_MAX], dest[ADDRESS_MAX];
};
int opening_make(struct opening *opening, const gdrfab_info *base, const struct fi_info *info);
void opening_free(struct opening *opening);

/* One for each kind, as peers that meet agree on it. */
#define PROTOCOL(kind) (FI_PROV_SPECIFIC | 0x67646600u | (uint32_t)(kind))
#define PROTOCOL_VERSION 1

/* What gdrfab is to judge of a caller's hints (NULL: none). Strings stay the caller's. */
void hints_make(enum kind kind, uint32_t version, const struct fi_info *hints, gdrfab_info *want);
/* A candidate as libfabric sees it, without addresses. -FI_ENODATA with words in the log if it does not fit the hints. */
int attr_make(enum kind kind, uint32_t version, const gdrfab_info *from, const struct fi_info *hints,
	      struct fi_info **made);

/* fi_info->nic, or NULL if there is none. */
struct fid_nic *nic_of(const gdrfab_info *info);
/* Its two steps: asks (false: there is none), and makes one of the answer. */
bool nic_read(const gdrfab_info *info, gdrfab_nic_attr *attr);
struct fid_nic *nic_make(const gdrfab_nic_attr *attr);

/* ---- objects: each begins with what libfabric sees */

struct fabric {
	struct fid_fabric fabric;
	struct libfabric *lib;
	enum kind kind;
	gdrfab_info *info; /* any candidate of it */
	gdrfab_fabric *it;
	pthread_mutex_t lock;
	struct connreq *requests; /* nobody has opened an endpoint from these yet */
	struct pep *peps;
};

/* fi_atomic, fi_fetch_atomic, fi_compare_atomic; FI_INT8 to FI_DOUBLE. */
enum { ATOMIC_FORMS = 3, ATOMIC_TYPES = 10 };

struct domain {
	struct fid_domain domain;
	struct fabric *fabric;
	uint32_t addr_format; /* of address vectors */
	bool hmem; /* FI_HMEM was asked for: what a region says of its memory counts */
	gdrfab_info *info;
	gdrfab_domain *it;
	/* What its endpoints have, by call and datatype: a bit for each operation, and the most elements. Under the fabric's lock. */
	struct {
		bool known;
		uint32_t ops[ATOMIC_FORMS][ATOMIC_TYPES];
		size_t count[ATOMIC_TYPES];
	} atomics;
};

struct mr {
	struct fid_mr mr;
	struct libfabric *lib;
	gdrfab_mr *it;
};

/* Bytes of an event that the application writes. */
enum { WRITTEN_MAX = 4096 };

struct eq {
	struct fid_eq eq;
	struct libfabric *lib;
	bool old; /* as struct cq's */
	gdrfab_eq *it;
	pthread_mutex_t lock; /* of what follows; nobody sleeps with it */
	bool holds;	      /* the slot has the event that is next */
	bool held_is_connection;
	uint32_t held_event;
	size_t held_len, held_least; /* bytes, and how many of them must be read together */
	unsigned char held[WRITTEN_MAX];
	bool failed;	      /* an error entry was taken from the queue and not read yet */
	gdrfab_eq_err_entry error;
	unsigned char error_data[GDRFAB_CM_DATA_MAX]; /* a rejecting peer's */
	char words[512];			      /* of the last error */
	unsigned char given[GDRFAB_CM_DATA_MAX];      /* err_data that the reader was given */
	struct ep *ended;			      /* endpoints that this side shut down, and nobody was told yet */
};

struct cq {
	struct fid_cq cq;
	struct libfabric *lib;
	bool rdm;
	bool old; /* error entries end before err_data_size, as they did before version 1.5 */
	gdrfab_cq *it;
	pthread_mutex_t lock;	 /* of the list */
	struct unreadable *lost; /* sends that failed here, not read yet */
	char words[512];
};

struct cntr {
	struct fid_cntr cntr;
	struct libfabric *lib;
	gdrfab_cntr *it;
};

struct av {
	struct fid_av av;
	struct domain *domain;
	gdrfab_av *it;
};

struct ep {
	struct fid_ep ep;
	gdrfab_ep *it;
	uint64_t caps;
	struct av *av;
	struct domain *domain;
	struct eq *eq;
	struct cq *tx_cq;
	struct ep *next_ended;
	char src[ADDRESS_MAX], dest[ADDRESS_MAX]; /* of its info */
	uint32_t addr_format;
	uint64_t tx_op_flags, rx_op_flags;
	size_t pieces; /* remote ones of an operation, beyond which it is a list; SIZE_MAX: none is */
};

struct pep {
	struct fid_pep pep;
	gdrfab_pep *it; /* NULL: an endpoint has taken its address over */
	struct pep *next;
	struct fabric *fabric;
	struct fi_info *info; /* of which connection requests get a copy */
	struct opening opening;
	struct eq *eq;
	bool picks; /* shm: no port was asked for */
	bool listens;
};

/* A connection request: what fi_info->handle points to. */
struct connreq {
	struct fid fid;
	gdrfab_info *info;
	struct fabric *fabric;
	const struct pep *pep; /* that was called; compared only */
	struct connreq *next;
};

int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context);
int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context);
int pep_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context);
int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);
int ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
extern struct fi_ops_mr mr_ops;
extern struct fi_ops_msg msg_ops;
extern struct fi_ops_rma rma_ops;
extern struct fi_ops_tagged tagged_ops;
extern struct fi_ops_atomic atomic_ops;
int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags);
extern struct fi_ops_cm ep_cm_ops, rdm_cm_ops;

/* Words for what a data call refuses. */
ssize_t data_refused(struct fid_ep *ep, ssize_t result, const char *call);
static inline ssize_t data_said(struct fid_ep *ep, ssize_t result, const char *call)
{
	return __builtin_expect(result < 0, 0) ? data_refused(ep, result, call) : result;
}

/* An address goes out as libfabric wants it: cut off and -FI_ETOOSMALL if there is no room. */
int address_give(const void *made, size_t len, void *addr, size_t *addrlen);

/* A send whose memory cannot be read ends with an error entry. False: no memory for it. */
bool cq_add_unreadable(struct cq *q, void *context, uint64_t flags, size_t len, const char *words);
/* Whether such an entry is next. */
static inline bool cq_has_unreadable(const struct cq *q)
{
	return __builtin_expect(__atomic_load_n(&q->lost, __ATOMIC_RELAXED) != NULL, 0);
}

/* This side has shut the connection of an endpoint of the queue down. */
void eq_tell_end(struct eq *eq, struct ep *ep);
/* An endpoint is being closed. */
void eq_forget(struct eq *eq, const struct fid *fid);

/* Takes the request, of this listener unless it is NULL, out of the list: it is answered now. NULL if it was already. */
gdrfab_info *connreq_take(struct fabric *fabric, const struct pep *pep, fid_t handle);
/* Whether handle is a passive endpoint. Then it gives its address up, and src gets it; -FI_EINVAL if it cannot. */
bool pep_is(struct fabric *fabric, fid_t handle);
int pep_give_address(fid_t handle, char *src);
/* That came to nothing: it has its address again. */
void pep_take_back(fid_t handle);
/* Makes one. Owns info, also if it fails (NULL). */
struct connreq *connreq_make(struct pep *pep, gdrfab_info *info);
/* The passive endpoint's info with the request in handle and the peer's address. */
struct fi_info *connreq_info(struct pep *pep, struct connreq *request);

/* gdrfab's wait object; -FI_ENOSYS for those that there are not. */
int wait_object(enum fi_wait_obj wanted, uint32_t *wait_obj);
/* FI_GETWAIT and FI_GETWAITOBJ of a queue whose descriptor is fd (or a negative errno). */
int wait_control(int command, void *arg, int fd);

/* ---- missing.c */

int no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int no_control(struct fid *fid, int command, void *arg);
int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
int no_tostr(const struct fid *fid, char *buf, size_t len);
int no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context);
#define NO_FID_EXTRAS .ops_open = no_ops_open, .tostr = no_tostr, .ops_set = no_ops_set
extern struct fi_ops_tagged no_tagged;
extern struct fi_ops_collective no_collective;
int no_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void *context);
int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **pollset);
int no_stx_ctx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context);
int no_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **rx_ep, void *context);
int no_query_collective(struct fid_domain *domain, enum fi_collective_op coll, struct fi_collective_attr *attr,
			uint64_t flags);
int no_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **tx_ep, void *context);
int no_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **rx_ep, void *context);
ssize_t no_size_left(struct fid_ep *ep);
int no_setname(fid_t fid, void *addr, size_t addrlen);
int no_listen(struct fid_pep *pep);
int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen);
int no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen);
int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen);
int no_accept(struct fid_ep *ep, const void *param, size_t paramlen);
int no_shutdown(struct fid_ep *ep, uint64_t flags);
int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context);
ssize_t no_cancel(fid_t fid, void *context);
int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **waitset);

#endif
