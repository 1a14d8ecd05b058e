/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * gdrfab: register memory, write into another process's memory, learn that it is done.
 *
 * Generated from src/capi by `make header`; edit the Rust source, not this file. */

#ifndef GDRFAB_H
#define GDRFAB_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* ---- All calls -----------------------------------------------------------------------------------------
 * Names, arguments, bits and errno values follow libfabric. "Mirrors" names the counterpart there; a comment
 * without that word has none.
 *
 * Results of type int and ssize_t are 0 or a count, or a negative errno: one of <errno.h> or a GDRFAB_E*.
 * gdrfab_last_error() has the reason in words. An errno that a call lists without a cause has this one:
 *
 *   -EINVAL            a required pointer is NULL; a size, count or number is out of range; a reserved field
 *                      is not 0; struct_size is not set. Any call may return it
 *   -E2BIG             a struct is longer than the library knows it, and the unknown part is not zero
 *   -GDRFAB_EBADFLAGS  flags has a bit that the call does not define
 *   -ENOMEM, -EMFILE, -ENFILE, -ENOSPC
 *                      the kernel has no memory, no file descriptor, or no more of what it counts per user
 *                      (memory files, watched sockets). Without memory any call that posts, opens, connects,
 *                      registers, reads or waits may return -ENOMEM; nothing was done, and it can be made
 *                      again. An operation under way may end with ENOMEM in its entry
 *   -EPERM             the object was opened before this process was forked. Calls that open, close, connect,
 *                      register or wait return it; other uses of an inherited object are undefined
 *   -ENOTRECOVERABLE   a defect of the library, of any call; functions without an errno give NULL or 0
 *
 * Outputs are written on success only. A struct with struct_size grows in later versions: the caller sets it
 * to the sizeof of the struct, also where the library fills the rest. Zeros, or NULL instead of a struct of
 * attributes, are the defaults. Strings are UTF-8 and end with NUL. A call that writes text into buf writes
 * at most len bytes, NUL included, and returns the length of the whole text without NUL; NULL with len 0 asks
 * for that length. A call that gives an address reads the size of addr from *addrlen, and writes the bytes
 * used, NUL included; with -GDRFAB_ETOOSMALL it writes the bytes needed.
 *
 * Arguments that a comment leaves out: flags is 0; timeout_ms counts milliseconds, -1: no limit, 0: does not
 * sleep; context is a pointer of the caller's that the library only gives back.
 *
 * Units: waiting calls count milliseconds, as poll() does. Deadlines of operations and of connecting, in
 * structs and options, count nanoseconds, because most operations take less than a millisecond.
 *
 * Threads: with GDRFAB_THREAD_SAFE, the default, any thread may call anything at any time. With
 * GDRFAB_THREAD_DOMAIN the caller lets one thread at a time into a domain and what was opened from it. In
 * both, no thread uses an object while another closes it. A function without an object may be called by any
 * thread.
 *
 * Signals, cancellation, descriptors: the library changes no handler. Its threads take no signal of the
 * program's, and no SIGPIPE or SIGXFSZ comes of its system calls: a call returns -EFBIG if RLIMIT_FSIZE
 * leaves no room for memory files. gdrfab_cq_sread(), gdrfab_cq_sreadfrom(), gdrfab_eq_sread() and
 * gdrfab_cntr_wait() are cancellation points while they sleep, and a signal handler may end the thread there,
 * and nowhere else, by pthread_exit(); in any other call cancellation of the thread waits until it returns. A
 * thread calls nothing while its cancel type is asynchronous. The library's descriptors are 3 and more, also
 * where the program has closed 0, 1 or 2; calls that open, register or connect may use these numbers until
 * they return. docs/abi.md describes the effect on other threads.
 *
 * Handles: an open call stores a handle, and the close call of its kind frees it. Close in the reverse order
 * of opening; a close takes bounded time, and of an object that others still use it returns -EBUSY. Using a
 * handle after its close is undefined. An info that an open call reads is copied. */

typedef struct gdrfab_connreq gdrfab_connreq;  /**< Request in a GDRFAB_CONNREQ event, answered once. */
typedef struct gdrfab_fabric gdrfab_fabric;    /**< Processes that reach each other. */
typedef struct gdrfab_domain gdrfab_domain;    /**< Opens regions, queues, counters and endpoints. */
typedef struct gdrfab_ep gdrfab_ep;            /**< An endpoint. */
typedef struct gdrfab_pep gdrfab_pep;          /**< A passive endpoint: listens. */
typedef struct gdrfab_cq gdrfab_cq;            /**< A completion queue. */
typedef struct gdrfab_eq gdrfab_eq;            /**< An event queue. */
typedef struct gdrfab_cntr gdrfab_cntr;        /**< A counter. */
typedef struct gdrfab_av gdrfab_av;            /**< Numbers the peers of connectionless endpoints. */
typedef struct gdrfab_mr gdrfab_mr;            /**< A registered region. */
typedef struct gdrfab_list gdrfab_list;        /**< A list that is prepared. */

/* Errno values that errno.h lacks. */
#define GDRFAB_ETOOSMALL 257    /**< The buffer is too small. */
#define GDRFAB_EOPBADSTATE 258  /**< Not permitted in the object's state. */
#define GDRFAB_EAVAIL 259       /**< An error entry is next for readerr; gdrfab_last_error() has its words. */
#define GDRFAB_EBADFLAGS 260    /**< A flag that the call does not define. */
#define GDRFAB_ENOEQ 261        /**< No event queue is bound. */
#define GDRFAB_ENOCQ 263        /**< No completion queue or counter is bound. */
#define GDRFAB_ETRUNC 265       /**< A message was longer than its receive. */
#define GDRFAB_ENOKEY 266       /**< The requested key is in use. */
#define GDRFAB_EOVERRUN 268     /**< A queue was overrun. */
#define GDRFAB_ENORX 269        /**< The peer posted no receive in time. */

/* Version of this header. */
#define GDRFAB_VERSION_MAJOR 0  /**< Part of the SONAME. From 1 on: changes when the ABI breaks. */
#define GDRFAB_VERSION_MINOR 2  /**< Grows when functions or fields are added; while MAJOR is 0, also when
                                     the ABI breaks. */
#define GDRFAB_VERSION_PATCH 0  /**< Grows with corrections. */

/** Version of this header: major << 16 | minor, for gdrfab_getinfo(). Mirrors FI_VERSION. */
#define GDRFAB_VERSION (GDRFAB_VERSION_MAJOR * 65536u + GDRFAB_VERSION_MINOR)

/** Version of the library at run time, as GDRFAB_VERSION is that of the header. Mirrors fi_version. */
uint32_t gdrfab_version(void);

/** The same as text, "0.2.0". Static, not to be freed. */
const char *gdrfab_version_string(void);

/** Words for an errno or GDRFAB_E*, of either sign. Static, not to be freed. Mirrors fi_strerror. */
const char *gdrfab_strerror(int err);

/** Words of this thread's last call that failed with another errno than -EAGAIN: the attempt, the argument
 * or step that failed, and why each alternative was refused; cut to 1024 bytes, NUL included. "" if none has
 * failed; a call that succeeds does not clear it. Valid until the next failing call of the thread, not to be
 * freed. */
const char *gdrfab_last_error(void);

/* ---- Discovery -----------------------------------------------------------------------------------------
 * gdrfab_getinfo() lists the candidates of this host's providers; one of the list opens fabric, domain and
 * endpoint. */

/* Capabilities (gdrfab_info.caps). The bits return as access rights of a region, as bind flags of queues and
 * counters, and in the flags of a completion entry, where they tell the kind of operation: GDRFAB_SEND |
 * GDRFAB_MSG, and so on. */
#define GDRFAB_MSG (1ull << 1)            /**< Messages. Entry: the operation was a message. */
#define GDRFAB_RMA (1ull << 2)            /**< Remote memory access. Entry: the operation was RMA. */
#define GDRFAB_TAGGED (1ull << 3)         /**< Tagged messages. Entry: the operation was one. */
#define GDRFAB_ATOMIC (1ull << 4)         /**< Atomic operations. Entry: the operation was one. */
#define GDRFAB_READ (1ull << 8)           /**< Initiate reads. Right: a read may fill the region. */
#define GDRFAB_WRITE (1ull << 9)          /**< Initiate writes. Right: a write may read the region. */
#define GDRFAB_RECV (1ull << 10)          /**< Receive. Right: receives may fill it. Bind: receives. */
#define GDRFAB_SEND (1ull << 11)          /**< Send. Right: sends may read it. Bind to a counter: sends. */
#define GDRFAB_REMOTE_READ (1ull << 12)   /**< Right: peers may read the region. */
#define GDRFAB_REMOTE_WRITE (1ull << 13)  /**< Right: peers may write it. Entry: a peer wrote with data. */
#define GDRFAB_MULTI_RECV (1ull << 16)    /**< Receive of several messages. Entry: it is used up. */
#define GDRFAB_HMEM (1ull << 47)          /**< Device memory. */
#define GDRFAB_LOCAL_COMM (1ull << 51)    /**< Reaches processes of this host. */
#define GDRFAB_REMOTE_COMM (1ull << 52)   /**< Reaches other hosts. */
#define GDRFAB_RMA_EVENT (1ull << 56)     /**< Counters of remote writes. Of registration: peers report
                                               theirs from the first on. */

#define GDRFAB_DIRECTED_RECV (1ull << 59)  /**< src_addr of a receive may name the only peer. */

/** gdrfab_info.mode: a write with data consumes a posted receive of its target, whose context its entry
 * carries; without one the initiator waits. Set by verbs; an endpoint opened without GDRFAB_MSG and
 * GDRFAB_RECV has receives of the provider's own instead. */
#define GDRFAB_RX_CQ_DATA (1ull << 56)

/* gdrfab_info.mr_mode: the caller's duties with memory. Only connected endpoints over verbs require some:
 * GDRFAB_MR_LOCAL and GDRFAB_MR_PROV_KEY, iWARP also GDRFAB_MR_VIRT_ADDR. libfabric's other modes (FI_MR_*,
 * bits 2 to 12) may be set in hints, and change nothing. */
#define GDRFAB_MR_LOCAL (1u << 2)      /**< Local buffers need a gdrfab_mr_desc(), but for inject calls. */
#define GDRFAB_MR_VIRT_ADDR (1u << 4)  /**< Remote addresses are virtual; else they count from attr.offset. */
#define GDRFAB_MR_PROV_KEY (1u << 6)   /**< The provider chooses the keys; else requested_key is the key. */
#define GDRFAB_MR_HMEM (1u << 10)      /**< Device buffers are registered, as any provider requires. No
                                            result has it; alone in hints: keys of the caller's choice,
                                            offsets, no GDRFAB_MR_LOCAL. */

/* gdrfab_info.msg_order: which operations of an endpoint keep their order (RAW: a read after a write). */
#define GDRFAB_ORDER_RAR (1ull << 0)          /**< Read after read. */
#define GDRFAB_ORDER_RAW (1ull << 1)          /**< Read after write. */
#define GDRFAB_ORDER_RAS (1ull << 2)          /**< Read after send. */
#define GDRFAB_ORDER_WAR (1ull << 3)          /**< Write after read. */
#define GDRFAB_ORDER_WAW (1ull << 4)          /**< Write after write. */
#define GDRFAB_ORDER_WAS (1ull << 5)          /**< Write after send. */
#define GDRFAB_ORDER_SAR (1ull << 6)          /**< Send after read. */
#define GDRFAB_ORDER_SAW (1ull << 7)          /**< Send after write. */
#define GDRFAB_ORDER_SAS (1ull << 8)          /**< Send after send. */
#define GDRFAB_ORDER_STRICT 511               /**< Everything after everything. */
#define GDRFAB_ORDER_ATOMIC_RAR (1ull << 36)  /**< The same among atomics: one that fetches or reads is a
                                                   read, the others are writes. */
#define GDRFAB_ORDER_ATOMIC_RAW (1ull << 37)  /**< Read after write. */
#define GDRFAB_ORDER_ATOMIC_WAR (1ull << 38)  /**< Write after read. */
#define GDRFAB_ORDER_ATOMIC_WAW (1ull << 39)  /**< Write after write. */

/* gdrfab_info.ep_type, threading, progress and addr_format. */
#define GDRFAB_EP_UNSPEC 0        /**< Any kind of endpoint. */
#define GDRFAB_EP_MSG 1           /**< Connected, reliable endpoint. */
#define GDRFAB_EP_RDM 3           /**< Connectionless, reliable: reaches all peers of its address vector. */
#define GDRFAB_THREAD_UNSPEC 0    /**< Any threading level. */
#define GDRFAB_THREAD_SAFE 1      /**< Any thread may call anything at any time. */
#define GDRFAB_THREAD_DOMAIN 3    /**< The caller lets one thread at a time into a domain, without locks. */
#define GDRFAB_PROGRESS_UNSPEC 0  /**< Any progress model. */
#define GDRFAB_PROGRESS_AUTO 1    /**< A thread of the domain drives its endpoints. */
#define GDRFAB_PROGRESS_MANUAL 2  /**< Reading and waiting drive the endpoints bound to queue or counter. */
#define GDRFAB_ADDR_STR 9         /**< Text: "shm://name", "tcp://host:port", "verbs://host:port". */

/* Flags of gdrfab_getinfo(). */
#define GDRFAB_SOURCE (1ull << 57)       /**< node and service name the local address, to listen on. As a
                                              capability: gdrfab_cq_readfrom() gives the sender. */
#define GDRFAB_GETINFO_ALL (1ull << 60)  /**< Candidates that do not fit come too, with their reason. */

/** A candidate of a provider, or, as hints, the needs of a caller (mirrors fi_info, flattened).
 *
 * As hints: gdrfab_dupinfo(NULL), or zeros with struct_size set. Such hints ask for nothing, as NULL in
 * their place does; a field of 0 or NULL asks for nothing. A size or limit in hints is the least that the
 * caller needs. Strings that a caller sets stay the caller's. */
typedef struct gdrfab_info {
    size_t struct_size;             /**< sizeof(gdrfab_info) */
    struct gdrfab_info *next;       /**< Next candidate, NULL at the end. */
    uint64_t caps;                  /**< GDRFAB_MSG, GDRFAB_RMA and so on. Hint: all of these are needed. */
    uint64_t tx_op_flags;           /**< Operation flags (*_COMPLETE, ...) of calls without flags. */
    uint64_t msg_order;             /**< GDRFAB_ORDER_*. Hint: all of these are needed. */
    uint64_t paths;                 /**< GDRFAB_PATH_* that the provider has. Hint: one of these is needed. */
    /** GDRFAB_MR_*. Result: the caller's duties. Hint: duties that the caller accepts; 0: any. A hint that is
     * not 0 refuses the duties that it lacks: GDRFAB_MR_LOCAL alone asks for keys of the caller's choice and
     * for offsets. */
    uint32_t mr_mode;
    uint32_t ep_type;               /**< GDRFAB_EP_MSG or GDRFAB_EP_RDM */
    uint32_t threading;             /**< GDRFAB_THREAD_* */
    uint32_t progress;              /**< GDRFAB_PROGRESS_* */
    uint32_t addr_format;           /**< GDRFAB_ADDR_STR */
    uint32_t reason_errno;          /**< With GDRFAB_GETINFO_ALL: 0, or why the candidate does not fit. */
    size_t cq_data_size;            /**< Bytes of remote CQ data. */
    size_t inject_size;             /**< Bytes of the largest inject call. */
    size_t tx_size;                 /**< Operations that can be outstanding on an endpoint. */
    size_t rx_size;                 /**< Receives that can be posted on an endpoint. */
    size_t tx_iov_limit;            /**< Pieces of a send or of an RMA operation's local side. */
    size_t rx_iov_limit;            /**< Pieces of a receive. */
    size_t rma_iov_limit;           /**< Pieces of an RMA operation's remote side. */
    size_t mr_iov_limit;            /**< Pieces of a region. */
    size_t max_msg_size;            /**< Bytes of the largest operation. */
    size_t mr_key_size;             /**< Bytes of a key. */
    size_t mr_cnt;                  /**< Regions that can be open at once in a domain. */
    size_t cm_data_size;            /**< Bytes of private data with connect, accept and reject. */
    size_t src_addrlen;             /**< Bytes of src_addr, its NUL included. */
    size_t dest_addrlen;            /**< Bytes of dest_addr, its NUL included. */
    char *src_addr;                 /**< Address to listen on, or NULL. Of connectionless endpoints
                                         "rdm://IP:PORT", their card's unless another is asked for, and
                                         they listen by themselves. */
    char *dest_addr;                /**< Address to connect to, or NULL. In a GDRFAB_CONNREQ event: the
                                         peer's, or "shm://" alone if it has none. */
    char *prov_name;                /**< "shm", "tcp" or "verbs"; of connectionless endpoints those that
                                         they go over, as in "shm+tcp". */
    char *fabric_name;              /**< Name of the fabric. */
    char *domain_name;              /**< Name of the domain. */
    char *reason;                   /**< Words for reason_errno, or NULL. */
    struct gdrfab_connreq *handle;  /**< In a GDRFAB_CONNREQ event: the request. */
    uint64_t mode;                  /**< GDRFAB_RX_CQ_DATA. Ignored in hints. */
    /** GDRFAB_HMEM_* of an accelerator; 0: none. Hint: a provider's NICs come in the order of their distance
     * to it (same PCIe switch, same root complex, same NUMA node). Its driver is opened to find out where it
     * is. Kept in results. */
    uint32_t near_iface;
    uint32_t near_device;           /**< Number of that accelerator, as in gdrfab_mr_attr. */
    const void *auth_key;           /**< tcp: secret of 16 to 1024 bytes that both sides must know; NULL:
                                         GDRFAB_TCP_KEY_FILE's, if any. Copied, and kept in results. */
    size_t auth_key_size;           /**< Bytes of auth_key. */
    /** GDRFAB_ORDER_STRICT: entries of operations of this side come in the order of posting, so that small
     * operations wait for large ones before them (verbs: always). 0: as operations end. Hint:
     * GDRFAB_ORDER_STRICT if it is needed. Entries of arriving messages come in the order of the messages
     * either way. */
    uint64_t comp_order;
    size_t list_limit;              /**< Blocks of a list (gdrfab_readlist()). */
    uint64_t list_paths;            /**< GDRFAB_PATH_* that have means of their own for lists. */
    /** Operation flags of receive calls without flags (mirrors fi_rx_attr.op_flags). GDRFAB_COMPLETION: each
     * receive gives an entry with GDRFAB_SELECTIVE_COMPLETION too. GDRFAB_MULTI_RECV, which needs that
     * capability: untagged receives take several messages, as of gdrfab_recvmsg(). Hint: all of these are
     * needed. */
    uint64_t rx_op_flags;
} gdrfab_info;

/** Finds providers that fit. Starts no thread. Mirrors fi_getinfo.
 *
 * The candidates of a provider come in the order of hints->near_iface, then of speed, then of names. No
 * accelerator is opened but that of near_iface. An RDMA device is opened, asked and closed, unless hints or
 * GDRFAB_PROVIDER name another provider. Connectionless endpoints are offered, and first, to hints that ask
 * for GDRFAB_EP_RDM, GDRFAB_TAGGED, GDRFAB_MULTI_RECV, GDRFAB_DIRECTED_RECV or GDRFAB_SOURCE; only they
 * have the last two. Connected endpoints have tags and multi-receive, over shm and tcp, if caps ask for one
 * of them; domain, passive endpoint and peer are then opened with the same.
 *
 * @param version GDRFAB_VERSION: the header that the caller was compiled with
 * @param node    host name, or NULL; a name of another host leaves shm out. The call waits for name servers
 *   where there is a name to look up
 * @param service where to listen (GDRFAB_SOURCE) or to connect: a name (shm), a port (tcp, verbs), or an
 *   address with its scheme; or NULL
 * @param flags   0, GDRFAB_SOURCE, GDRFAB_GETINFO_ALL
 * @param hints   the caller's needs, or NULL
 * @param info    list of candidates, best first; freed by gdrfab_freeinfo()
 * @return 0, or
 *   -ENODATA nothing fits: gdrfab_last_error() names every candidate and why it does not;
 *   -EINVAL also a GDRFAB_ variable of the environment with a value that it cannot have (`gdrfab-info -e`
 *   lists them), one of an earlier version, or an unknown one that resembles a variable which decides who
 *   may connect;
 *   -ENOSYS version is newer than this library, or the driver of hints->near_iface is not there;
 *   -ENODEV hints->near_device does not exist; -E2BIG; -GDRFAB_EBADFLAGS */
int gdrfab_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct gdrfab_info *hints, struct gdrfab_info **info);

/** Frees a list, an event's info or a copy, not the caller's strings; or NULL. Mirrors fi_freeinfo. */
void gdrfab_freeinfo(struct gdrfab_info *info);

/** Copies one info (not the list) with its strings; NULL gives empty hints. Mirrors fi_dupinfo, fi_allocinfo.
 *
 * @return freed by gdrfab_freeinfo(); NULL if `info` is malformed (gdrfab_last_error() says how) */
struct gdrfab_info *gdrfab_dupinfo(const struct gdrfab_info *info);

/* The types that gdrfab_tostr() describes. */
#define GDRFAB_TYPE_INFO 0      /**< gdrfab_info */
#define GDRFAB_TYPE_CAPS 1      /**< uint64_t of capabilities or completion flags */
#define GDRFAB_TYPE_MR_MODE 2   /**< uint32_t of mr_mode bits */
#define GDRFAB_TYPE_PATHS 3     /**< uint64_t of GDRFAB_PATH_* bits */
#define GDRFAB_TYPE_OP_FLAGS 4  /**< uint64_t of operation flags */
#define GDRFAB_TYPE_EQ_EVENT 5  /**< uint32_t event of an event queue */
#define GDRFAB_TYPE_ACCESS 6    /**< uint64_t of access rights */

/** Describes a value in words. Mirrors fi_tostr_r.
 *
 * @param data the value, of the C type that `type` names
 * @param type GDRFAB_TYPE_*
 * @param buf  gets the text
 * @return length of the text, or -EINVAL */
ssize_t gdrfab_tostr(const void *data, uint32_t type, char *buf, size_t len);

/* gdrfab_nic_attr.state. */
#define GDRFAB_LINK_UNKNOWN 0  /**< Not known. */
#define GDRFAB_LINK_DOWN 1     /**< Nothing can be sent. */
#define GDRFAB_LINK_UP 2       /**< The port is active. */

/* gdrfab_nic_attr.odp: the uses of memory for which on-demand paging is possible. */
#define GDRFAB_ODP_SUPPORTED 1  /**< It is possible at all. */
#define GDRFAB_ODP_IMPLICIT 2   /**< Of the whole address space as one region. */
#define GDRFAB_ODP_SEND 4       /**< Of regions that are sent from. */
#define GDRFAB_ODP_RECV 8       /**< Of regions that are received into. */
#define GDRFAB_ODP_WRITE 16     /**< Of regions that are written to or from. */
#define GDRFAB_ODP_READ 32      /**< Of regions that are read from or into. */
#define GDRFAB_ODP_ATOMIC 64    /**< Of regions that are targets of atomics. */

/* gdrfab_nic_attr.near: the place of the accelerator that the info names. */
#define GDRFAB_NEAR_UNASKED 0  /**< near_iface is 0. */
#define GDRFAB_NEAR_SWITCH 1   /**< Below the same PCIe switch. */
#define GDRFAB_NEAR_ROOT 2     /**< Below the same PCIe root complex. */
#define GDRFAB_NEAR_NODE 3     /**< In the same NUMA node. */
#define GDRFAB_NEAR_FAR 4      /**< In another NUMA node, or unknown. */

/** The device and the port behind an info, as they describe themselves (mirrors fi_info->nic, flattened). */
typedef struct gdrfab_nic_attr {
    size_t struct_size;       /**< sizeof(gdrfab_nic_attr), set by the caller */
    uint64_t speed;           /**< Bits per second; 0: unknown. */
    uint64_t guid;            /**< The node's GUID. */
    uint64_t max_mr_size;     /**< Bytes of the largest region. */
    uint64_t max_mr;          /**< Regions of the whole device. */
    uint64_t max_message;     /**< Bytes of the largest message. */
    uint32_t state;           /**< GDRFAB_LINK_* */
    uint32_t port;            /**< Number of the port, from 1. */
    uint32_t mtu;             /**< Bytes of the largest packet. */
    uint32_t lid;             /**< Local identifier on InfiniBand; otherwise 0. */
    uint32_t gid_index;       /**< Index of the GID in the port's table. */
    int32_t numa_node;        /**< NUMA node; -1: unknown. */
    uint32_t vendor_id;       /**< PCI vendor. */
    uint32_t vendor_part_id;  /**< The vendor's number of the part. */
    uint32_t hw_version;      /**< The vendor's version of the hardware. */
    uint32_t atomics;         /**< Atomics: 0 none, 1 among this device's, 2 with the CPUs' as well. */
    uint32_t odp;             /**< GDRFAB_ODP_* */
    int dmabuf;               /**< 0: dma-bufs can be registered, by trial; else its negative errno. */
    uint32_t near;            /**< GDRFAB_NEAR_* to the accelerator that the info names. */
    uint32_t max_qp;          /**< Queue pairs (endpoints) of the device. */
    uint32_t max_qp_wr;       /**< Work requests of a queue. */
    uint32_t max_cq;          /**< Completion queues. */
    uint32_t max_cqe;         /**< Entries of a completion queue. */
    uint32_t max_sge;         /**< Pieces of a work request. */
    uint32_t max_pd;          /**< Protection domains. */
    uint32_t max_reads_in;    /**< Reads of a peer that one connection serves at once. */
    uint32_t max_reads_out;   /**< Reads of its own that one connection has under way at once. */
    uint32_t reserved;        /**< 0 */
    char device[64];          /**< Name of the device, "mlx5_0". */
    char firmware[64];        /**< Version of the firmware. */
    char gid[48];             /**< The GID, as an IPv6 address is written. */
    char gid_type[16];        /**< "InfiniBand", "RoCE v1", "RoCE v2" or "iWARP". */
    char address[48];         /**< IP address for rdma_cm; empty: connect by exchanged addresses. */
    char netdev[16];          /**< Network interface; empty: none, or unknown. */
    char link[16];            /**< "InfiniBand" or "Ethernet". */
    char pci[16];             /**< PCI address, "0000:3b:00.0"; empty: not on a PCI bus. */
} gdrfab_nic_attr;

/** Describes the NIC behind an info: opens its device, asks, and closes it. Mirrors fi_info->nic.
 *
 * @param info of a list of gdrfab_getinfo(); also one that does not fit (GDRFAB_GETINFO_ALL), if its
 *   domain_name is complete
 * @return 0, or
 *   -ENODATA the provider has no NIC (shm); -EINVAL also an info without a complete domain_name;
 *   -ENODEV the device is gone; -EADDRNOTAVAIL the port has lost the address;
 *   -ENOSYS no libibverbs; -EACCES, -EMFILE the device cannot be opened */
int gdrfab_info_nic(const struct gdrfab_info *info, struct gdrfab_nic_attr *attr);

/* ---- Fabric and domain ---------------------------------------------------------------------------------
 * A fabric stands for processes that reach each other through one provider; a domain holds regions, queues,
 * counters and endpoints that work together. */

/** Opens a fabric, freed by gdrfab_fabric_close(). Mirrors fi_fabric.
 *
 * @param info   a candidate of gdrfab_getinfo()
 * @return 0, -EINVAL (also: no provider name), -E2BIG, -ENODEV (no such provider) */
int gdrfab_fabric_open(const struct gdrfab_info *info, void *context, struct gdrfab_fabric **fabric);

/** Closes a fabric: 0, -EBUSY (objects opened from it are open), -EINVAL, -EPERM. Mirrors fi_close. */
int gdrfab_fabric_close(struct gdrfab_fabric *fabric);

/** The context of gdrfab_fabric_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_fabric_context(struct gdrfab_fabric *fabric);

/** Opens a domain, freed by gdrfab_domain_close(). Mirrors fi_domain.
 *
 * info->threading, progress and mr_mode decide how it behaves. GDRFAB_PROGRESS_AUTO starts a thread, and
 * the domain then has locks, whatever the threading level.
 *
 * @param info   a candidate of gdrfab_getinfo(), or the info of a connection request
 * @return 0, -EINVAL (also: the fabric was opened with the info of another provider or fabric), -E2BIG,
 *   -EPERM, -EMFILE or -ENOMEM (no shared memory), -EAGAIN (no thread can be started), -ENOENT or -EACCES
 *   (tcp: GDRFAB_TCP_KEY_FILE is not there, or others may read it), -ENODEV or -EADDRNOTAVAIL (verbs: the
 *   device or its address is gone) */
int gdrfab_domain_open(struct gdrfab_fabric *fabric, const struct gdrfab_info *info, void *context,
                       struct gdrfab_domain **domain);

/** Closes a domain: 0, -EBUSY (the words count its open objects, and its memory of gdrfab_mem_alloc()),
 * -EINVAL, -EPERM. Mirrors fi_close. */
int gdrfab_domain_close(struct gdrfab_domain *domain);

/** The context of gdrfab_domain_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_domain_context(struct gdrfab_domain *domain);

/* ---- Endpoints and connections -------------------------------------------------------------------------
 * One side listens on a passive endpoint, opens an endpoint from the info of each GDRFAB_CONNREQ event, and
 * accepts; the other connects. Or both exchange the addresses of their endpoints by other means, and call
 * gdrfab_ep_connect_addr(). Order: open, bind queues and counters, enable, connect or accept, wait for
 * GDRFAB_CONNECTED on the event queue. */

/* Flags of gdrfab_ep_bind_cq(), besides GDRFAB_RECV. */
#define GDRFAB_TRANSMIT (1ull << 11)              /**< All that the endpoint initiates (also GDRFAB_SEND). */
#define GDRFAB_SELECTIVE_COMPLETION (1ull << 59)  /**< Success gives an entry only with GDRFAB_COMPLETION. */

/* Limits. */
#define GDRFAB_ADDR_MAX 256     /**< Bytes that hold any address, its NUL included. */
#define GDRFAB_CM_DATA_MAX 256  /**< Bytes of private data with connect, accept and reject. */

/** Opens an endpoint, connected or connectionless as info->ep_type says, freed by gdrfab_ep_close(). Mirrors
 * fi_endpoint.
 *
 * @param info    a candidate, or the info of a GDRFAB_CONNREQ event, whose request this answers:
 *   gdrfab_ep_accept() follows
 * @param context returned in events of the endpoint, and by gdrfab_ep_context()
 * @return 0, -EINVAL (also: the request was answered before; the domain was opened with the info of another
 *   provider, fabric, domain or type), -E2BIG, -EPERM, -EADDRNOTAVAIL (tcp: info->src_addr names no host;
 *   a name is waited for), -EMFILE, -ENOMEM */
int gdrfab_ep_open(struct gdrfab_domain *domain, const struct gdrfab_info *info, void *context,
                   struct gdrfab_ep **ep);

/** Closes an endpoint. A connected peer gets GDRFAB_SHUTDOWN. Outstanding operations and receives complete
 * with ECANCELED before the call returns 0, and their buffers are not touched afterwards. Unread events of
 * the endpoint are dropped. Mirrors fi_close.
 *
 * @return 0, or
 *   -EBUSY a peer (stopped, perhaps) or a device still uses a buffer after GDRFAB_SHM_CLOSE_MS. The
 *   connection is over, the entry comes when the buffer is free, and the call is to be repeated;
 *   -EINVAL, -EPERM */
int gdrfab_ep_close(struct gdrfab_ep *ep);

/** The context of gdrfab_ep_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_ep_context(struct gdrfab_ep *ep);

/** Opens a passive endpoint, freed by gdrfab_pep_close(). Mirrors fi_passive_ep.
 *
 * @param info    its src_addr is where gdrfab_pep_listen() listens; NULL there: the library chooses a name
 * @param context returned in events of the passive endpoint, and by gdrfab_pep_context()
 * @return 0, -EINVAL (also: a malformed address; the fabric was opened with the info of another provider or
 *   fabric), -E2BIG, -EPERM, -EHOSTUNREACH (shm: an address of another host), -EMFILE; of tcp and verbs,
 *   which take their port now: -EADDRINUSE (somebody has it), -EADDRNOTAVAIL (no address of this host; a
 *   name is waited for), -EACCES (a port below net.ipv4.ip_unprivileged_port_start); of tcp -ENOENT or
 *   -EACCES (GDRFAB_TCP_KEY_FILE is not there, or others may read it) */
int gdrfab_pep_open(struct gdrfab_fabric *fabric, const struct gdrfab_info *info, void *context,
                    struct gdrfab_pep **pep);

/** Closes a passive endpoint, while other threads may wait on its event queue: its name is free, unanswered
 * requests are rejected, and no event names it any more. Mirrors fi_close.
 *
 * @return 0, -EINVAL, -EPERM */
int gdrfab_pep_close(struct gdrfab_pep *pep);

/** The context of gdrfab_pep_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_pep_context(struct gdrfab_pep *pep);

/** Binds a completion queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
 *
 * @param cq    queue of the same domain; it may serve many endpoints
 * @param flags GDRFAB_TRANSMIT, GDRFAB_RECV or both; GDRFAB_SELECTIVE_COMPLETION
 * @return 0, -EINVAL (also: another domain), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (bound already),
 *   -GDRFAB_EOPBADSTATE (enabled) */
int gdrfab_ep_bind_cq(struct gdrfab_ep *ep, struct gdrfab_cq *cq, uint64_t flags);

/** Binds an event queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
 *
 * @param eq    queue of the same fabric; it may serve many endpoints
 * @return 0, -EINVAL (also: another fabric), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (bound already),
 *   -GDRFAB_EOPBADSTATE (enabled) */
int gdrfab_ep_bind_eq(struct gdrfab_ep *ep, struct gdrfab_eq *eq, uint64_t flags);

/** Binds a counter, before gdrfab_ep_enable() or later; operations posted before then may go uncounted.
 * Mirrors fi_ep_bind.
 *
 * @param cntr  counter of the same domain
 * @param flags the operations counted: completions of GDRFAB_SEND, GDRFAB_RECV, GDRFAB_READ, GDRFAB_WRITE;
 *   GDRFAB_REMOTE_WRITE for writes with data that arrive. Peers' other operations, over mapped memory or by a
 *   card, pass no CPU of this side that could count them; gdrfab_mr_bind_cntr() counts a region's writes
 * @return 0, -EINVAL (also: another domain), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (one of these has a counter),
 *   -EOPNOTSUPP (GDRFAB_REMOTE_READ) */
int gdrfab_ep_bind_cntr(struct gdrfab_ep *ep, struct gdrfab_cntr *cntr, uint64_t flags);

/** gdrfab_ep_bind_eq() of a passive endpoint, before gdrfab_pep_listen(). Mirrors fi_pep_bind.
 *
 * @return as gdrfab_ep_bind_eq() */
int gdrfab_pep_bind_eq(struct gdrfab_pep *pep, struct gdrfab_eq *eq, uint64_t flags);

/** Makes an endpoint ready for receives and for connecting. Mirrors fi_enable.
 *
 * @return 0, -EINVAL, -EPERM, -GDRFAB_ENOCQ (no queue or counter is bound for transmits), -GDRFAB_EOPBADSTATE
 *   (enabled already), -EMFILE or -ENOMEM (no shared memory) */
int gdrfab_ep_enable(struct gdrfab_ep *ep);

/** Starts to listen; requests come as GDRFAB_CONNREQ on the event queue. Mirrors fi_listen.
 *
 * @return 0, -EINVAL, -EPERM, -GDRFAB_ENOEQ, -EADDRINUSE (another one listens there), -GDRFAB_EOPBADSTATE
 *   (listens already), -EMFILE; of shm by a path: -EACCES, -ENOENT, -ENOTDIR (its directory) */
int gdrfab_pep_listen(struct gdrfab_pep *pep);

/** Begins to connect to a passive endpoint; never waits: a thread of the library looks up a host's name
 * meanwhile. Mirrors fi_connect.
 *
 * The outcome is an event: GDRFAB_CONNECTED with the acceptor's data, or an error entry with ECONNREFUSED
 * (nobody listens; or rejected: GDRFAB_PROV_REJECTED, with the rejecting side's data), ETIMEDOUT
 * (GDRFAB_OPT_CONNECT_TIMEOUT, also of the look-up), EADDRNOTAVAIL (no such host), EHOSTUNREACH or
 * ENETUNREACH (tcp: no way leads there), EACCES (shm: the listener does not let this user in; tcp: the keys
 * differ, or one side has none), EKEYREJECTED (tcp: keys of hosts that do not know each other),
 * EPROTONOSUPPORT (the peer has another version), EPROTO (its answer makes no sense).
 *
 * @param ep       enabled endpoint with an event queue
 * @param addr     "shm://name", "tcp://host:port" or "verbs://host:port", as of gdrfab_pep_getname() or
 *   info->dest_addr
 * @param addrlen  bytes of addr, NUL included
 * @param param    private data for the peer's GDRFAB_CONNREQ, or NULL
 * @param paramlen bytes of param, up to info->cm_data_size
 * @return 0, -EINVAL, -EPERM, -EHOSTUNREACH (the address was made on another host), -GDRFAB_ENOEQ, -EISCONN,
 *   -GDRFAB_EOPBADSTATE (not enabled, or connected before), -EOPNOTSUPP (connectionless) */
int gdrfab_ep_connect(struct gdrfab_ep *ep, const void *addr, size_t addrlen, const void *param,
                      size_t paramlen);

/** Accepts the connection request that the endpoint was opened from. Mirrors fi_accept.
 *
 * GDRFAB_CONNECTED follows on the event queue. If the peer is gone meanwhile, the request is lost.
 *
 * @param ep       enabled endpoint with an event queue, opened from a request's info
 * @param param    private data for the peer's GDRFAB_CONNECTED, or NULL
 * @param paramlen bytes of param, up to info->cm_data_size
 * @return 0, -EINVAL, -EPERM, -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE (not enabled; no request, or answered),
 *   -ECONNRESET (the peer is gone), -EPROTO (the peer's message makes no sense), -EMFILE */
int gdrfab_ep_accept(struct gdrfab_ep *ep, const void *param, size_t paramlen);

/** Rejects a connection request. Mirrors fi_reject.
 *
 * @param handle   info->handle of the event; used up by this call
 * @param param    private data for the peer's error entry, or NULL
 * @param paramlen bytes of param, up to info->cm_data_size
 * @return 0 (also if the peer is gone), -EINVAL (also: the request was answered before), -EPERM */
int gdrfab_pep_reject(struct gdrfab_pep *pep, struct gdrfab_connreq *handle, const void *param,
                      size_t paramlen);

/** Ends a connection. The peer gets GDRFAB_SHUTDOWN after everything that was written before. Outstanding
 * operations and receives of this side complete with ECANCELED before the call returns. Mirrors fi_shutdown.
 *
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EPERM, -ENOTCONN (not connected yet), -ESHUTDOWN (not connected any
 *   more) */
int gdrfab_ep_shutdown(struct gdrfab_ep *ep, uint64_t flags);

/** Begins to connect to an endpoint whose address was exchanged by other means; never waits.
 *
 * Both sides call it, in any order, with the address that the other's gdrfab_ep_getname() gave. The outcome
 * is an event, as with gdrfab_ep_connect(), without private data.
 *
 * @param ep      enabled endpoint with an event queue, after gdrfab_ep_getname()
 * @param addr    the peer's address
 * @param addrlen bytes of addr, NUL included
 * @return 0, -EINVAL (also: its own address), -EPERM, -EHOSTUNREACH (an address of another host),
 *   -GDRFAB_ENOEQ, -EISCONN, -GDRFAB_EOPBADSTATE (not enabled, or connected before), -EOPNOTSUPP
 *   (connectionless) */
int gdrfab_ep_connect_addr(struct gdrfab_ep *ep, const void *addr, size_t addrlen);

/** Gives the endpoint's own address, for gdrfab_ep_connect_addr() of the peer; of a connectionless endpoint
 * its name, for gdrfab_av_insert() of any process. Mirrors fi_getname.
 *
 * @param ep      endpoint that is not connected yet; a connectionless one is enabled
 * @param addr    gets text, GDRFAB_ADDR_MAX bytes suffice; or the name, GDRFAB_NAME_LEN bytes that are no
 *   text
 * @param addrlen in: bytes of addr; out: bytes used
 * @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -EPERM, -GDRFAB_EOPBADSTATE (connecting, or over), -EMFILE */
int gdrfab_ep_getname(struct gdrfab_ep *ep, void *addr, size_t *addrlen);

/** Gives the address of a passive endpoint: 0, or -GDRFAB_ETOOSMALL, -EINVAL, -EPERM. Parameters as of
 * gdrfab_ep_getname(). Mirrors fi_getname. */
int gdrfab_pep_getname(struct gdrfab_pep *pep, void *addr, size_t *addrlen);

/** Gives the peer's address, or that of its listener; "shm://" alone if the peer that connected has none.
 * Parameters as of gdrfab_ep_getname(). Mirrors fi_getpeer.
 *
 * @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -ENOTCONN (not connected yet), -ESHUTDOWN (not connected any more)
 */
int gdrfab_ep_getpeer(struct gdrfab_ep *ep, void *addr, size_t *addrlen);

/* ---- Address vectors -----------------------------------------------------------------------------------
 * An endpoint of ep_type GDRFAB_EP_RDM reaches many peers. An address vector numbers them: its indexes are
 * the dest_addr and src_addr of operations. Indexes count from 0 in the order of insertion, so that
 * processes that insert and remove the same names in the same order have the same indexes. Insertion makes
 * no connection; that happens when the peer is first used. Order: open, bind queues and one vector, enable,
 * gdrfab_ep_getname(), exchange the names by other means, insert them.
 *
 * A name has GDRFAB_NAME_LEN bytes, is not text, and is good on every host. It holds the address at which
 * the endpoint listens, and a number that tells this endpoint from others that listened there before or
 * after it. An operation to the name of an endpoint that is gone fails, and never reaches an endpoint that
 * listens there now. A name of gdrfab_av_insertsvc(), of node and service alone, means any endpoint that
 * listens there. */

/* Limits. */
#define GDRFAB_NAME_LEN 48  /**< Bytes of the name of a connectionless endpoint. */

/* Values of fi_addr besides indexes. */
#define GDRFAB_ADDR_UNSPEC UINT64_MAX    /**< No index. As src_addr of a receive: any peer. */
#define GDRFAB_ADDR_NOTAVAIL UINT64_MAX  /**< The same, where an index was asked for and there is none. */

/** Attributes of an address vector (mirrors fi_av_attr). */
typedef struct gdrfab_av_attr {
    size_t struct_size;  /**< sizeof(gdrfab_av_attr) */
    size_t count;        /**< A hint: names that will be inserted. Address vectors grow. */
    uint64_t flags;      /**< 0 */
} gdrfab_av_attr;

/** Opens an address vector, freed by gdrfab_av_close(). Its fi_addr values are always indexes, as those of
 * FI_AV_TABLE. Mirrors fi_av_open.
 *
 * @param attr attributes, or NULL
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM */
int gdrfab_av_open(struct gdrfab_domain *domain, const struct gdrfab_av_attr *attr, void *context,
                   struct gdrfab_av **av);

/** Closes an address vector: 0, -EBUSY (endpoints are bound to it), -EINVAL, -EPERM. Mirrors fi_close. */
int gdrfab_av_close(struct gdrfab_av *av);

/** The context of gdrfab_av_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_av_context(struct gdrfab_av *av);

/** Binds an address vector, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
 *
 * @param ep    endpoint of ep_type GDRFAB_EP_RDM
 * @param av    address vector of the same domain; it may serve many endpoints
 * @return 0, -EINVAL (also: another domain, or a connected endpoint), -GDRFAB_EBADFLAGS, -EPERM, -EBUSY (one
 *   is bound already), -GDRFAB_EOPBADSTATE (enabled) */
int gdrfab_ep_bind_av(struct gdrfab_ep *ep, struct gdrfab_av *av, uint64_t flags);

/** Adds names, each with the next index, or with the one removed last. No connection is made, and the peer
 * need not exist. A name may be added several times; its messages then count as those of the lowest index.
 * Mirrors fi_av_insert.
 *
 * @param addr    `count` names, GDRFAB_NAME_LEN bytes each, one behind the other, without alignment
 * @param fi_addr gets the index of each, GDRFAB_ADDR_NOTAVAIL of one that is refused; may be NULL
 * @param flags   0 or GDRFAB_MORE, which changes nothing; nor does context
 * @return number of names that were added, in the order of addr; if it is less than count,
 *   gdrfab_last_error() tells of the first name that was refused (cut off, of another version, not from
 *   gdrfab_ep_getname(), beyond 2^32 names, or no memory for it). Or -EINVAL, -GDRFAB_EBADFLAGS */
ssize_t gdrfab_av_insert(struct gdrfab_av *av, const void *addr, size_t count, uint64_t *fi_addr,
                         uint64_t flags, void *context);

/** Adds the endpoint that listens at a port of a host, known by that alone: messages go to the endpoint that
 * listens there when the index is first used. May ask the DNS, and wait for it. Mirrors fi_av_insertsvc.
 *
 * @param node    host name or IP address; NULL: 127.0.0.1, or service has it
 * @param service port; or with node NULL "rdm://IP:PORT", as gdrfab_av_straddr() writes it
 * @param fi_addr gets the index; may be NULL
 * @param flags   0 or GDRFAB_MORE, which changes nothing; nor does context
 * @return 1, or -EINVAL (also: not the address of one host), -GDRFAB_EBADFLAGS, -EADDRNOTAVAIL (no such
 *   host), -ENOSPC (2^32 names) */
ssize_t gdrfab_av_insertsvc(struct gdrfab_av *av, const char *node, const char *service, uint64_t *fi_addr,
                            uint64_t flags, void *context);

/** Removes peers; their indexes go to the next ones inserted, the last removed first. Operations posted to
 * them go on, and operations posted later to the index never reach them. Mirrors fi_av_remove.
 *
 * @return 0, -EINVAL (also: one names no peer; those in front of it are out), -GDRFAB_EBADFLAGS */
int gdrfab_av_remove(struct gdrfab_av *av, const uint64_t *fi_addr, size_t count, uint64_t flags);

/** Gives the name that an index stands for. Mirrors fi_av_lookup.
 *
 * @param addr    gets the name, whole or not at all
 * @param addrlen in: bytes of addr; out: GDRFAB_NAME_LEN
 * @return 0, -GDRFAB_ETOOSMALL, -EINVAL (also: the index names no peer) */
int gdrfab_av_lookup(struct gdrfab_av *av, uint64_t fi_addr, void *addr, size_t *addrlen);

/** Describes a name in words: "rdm://192.0.2.1:7000", and the endpoint's own number, if the name has it.
 * Mirrors fi_av_straddr.
 *
 * @param addr a name, GDRFAB_NAME_LEN bytes
 * @param buf  gets the text; GDRFAB_ADDR_MAX bytes suffice
 * @return length of the text, or -EINVAL (also: no name) */
ssize_t gdrfab_av_straddr(struct gdrfab_av *av, const void *addr, char *buf, size_t len);

/* ---- Memory --------------------------------------------------------------------------------------------
 * A region gives peers access to memory by key and address. It is registered with a domain, of host or device
 * memory. */

#define GDRFAB_MR_DMABUF (1ull << 40)  /**< Flag of gdrfab_mr_regattr(): attr->dmabuf names the memory. */

/* Paths that the bytes can take between local memory and a peer's region. */
#define GDRFAB_PATH_DIRECT (1ull << 0)    /**< Both map the pages, and the initiator's CPU copies. */
#define GDRFAB_PATH_CMA (1ull << 1)       /**< The initiator's kernel copies, where ptrace is permitted. */
#define GDRFAB_PATH_STAGED (1ull << 2)    /**< Bounce buffers, with the target's progress: for any memory. */
#define GDRFAB_PATH_IPC (1ull << 3)       /**< The initiator's device driver copies, through a mapping of
                                               the peer's device memory. */
#define GDRFAB_PATH_NIC (1ull << 4)       /**< The RDMA device reaches pinned host pages (ibv_reg_mr). */
#define GDRFAB_PATH_DMABUF (1ull << 5)    /**< The RDMA device reaches a dma-buf (ibv_reg_dmabuf_mr). */
#define GDRFAB_PATH_PEER_MEM (1ull << 6)  /**< The RDMA device reaches device memory by peer-memory. */
#define GDRFAB_PATH_SOCKET (1ull << 7)    /**< A socket's kernel copies, with the target's progress. */

#define GDRFAB_PATHS_MAX 16  /**< Entries of an array by path; those of indexes without a path are 0. */

/** Index of one GDRFAB_PATH_* in an array by path (gdrfab_stats.by_path, gdrfab_path_info.reasons). 0, no
 * path, has the last index, which no path has. */
#define GDRFAB_PATH_INDEX(path) (__builtin_ctzll((path) | 1ull << (GDRFAB_PATHS_MAX - 1)))

/** Memory behind a descriptor: a dma-buf, or a file that can be mapped, such as a memfd (mirrors
 * fi_mr_dmabuf).
 *
 * The region is [offset, offset + len) of the file. With GDRFAB_MR_VIRT_ADDR its first byte has the remote
 * address base_addr + offset. The descriptor is duplicated; the caller may close its own. A memfd that is not
 * sealed yet gets F_SEAL_SHRINK, so that no truncation can kill a peer that maps it. */
typedef struct gdrfab_mr_dmabuf {
    int fd;             /**< Descriptor. */
    uint32_t reserved;  /**< 0 */
    uint64_t offset;    /**< First byte of the region in the file. */
    size_t len;         /**< Bytes of the region. */
    void *base_addr;    /**< Address that stands for the start of the file, or NULL for 0. */
} gdrfab_mr_dmabuf;

/** The memory to register, and how (mirrors fi_mr_attr). */
typedef struct gdrfab_mr_attr {
    size_t struct_size;                     /**< sizeof(gdrfab_mr_attr) */
    const struct iovec *mr_iov;             /**< Pieces of the region, in order; not with GDRFAB_MR_DMABUF. */
    const struct gdrfab_mr_dmabuf *dmabuf;  /**< With GDRFAB_MR_DMABUF: the file. */
    size_t iov_count;                       /**< Pieces, up to mr_iov_limit; 1 with GDRFAB_MR_DMABUF. */
    uint64_t access;                        /**< GDRFAB_SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE;
                                                 ATOMIC: atomics by a card (verbs). */
    uint64_t offset;                        /**< Without GDRFAB_MR_VIRT_ADDR: remote address of the first
                                                 byte; else 0. */
    uint64_t requested_key;                 /**< The key, without GDRFAB_MR_PROV_KEY; else ignored. */
    void *context;                          /**< Any pointer; gdrfab_mr_context() returns it. */
    uint64_t device;                        /**< Number of the memory's device; 0 with GDRFAB_HMEM_SYSTEM,
                                                 ignored with GDRFAB_HMEM_AUTO. */
    /** GDRFAB_HMEM_*. GDRFAB_HMEM_AUTO: asks each driver of this host for the owner of the first address. A
     * file does not tell the device of its memory: with GDRFAB_MR_DMABUF, AUTO counts as GDRFAB_HMEM_SYSTEM,
     * and the CPU may read the bytes of small operations. If it must not, name the device
     * (gdrfab_hmem_detect()). */
    uint32_t iface;
    uint32_t reserved;                      /**< 0 */
    uint64_t require;                       /**< Peers use only these GDRFAB_PATH_*; 0: any. */
    uint64_t forbid;                        /**< GDRFAB_PATH_* that peers never use. */
} gdrfab_mr_attr;

/** A region's attributes and paths. */
typedef struct gdrfab_mr_info {
    size_t struct_size;  /**< sizeof(gdrfab_mr_info), set by the caller */
    uint64_t key;        /**< The key by which peers name it. */
    uint64_t base;       /**< Remote address of the first byte. */
    uint64_t len;        /**< Bytes. */
    uint64_t access;     /**< Access rights. */
    uint64_t paths;      /**< GDRFAB_PATH_* that it offers to peers. */
    uint64_t path;       /**< The fastest of them. */
    uint64_t device;     /**< Number of the device. */
    uint32_t iface;      /**< GDRFAB_HMEM_* */
    uint32_t iov_count;  /**< Pieces. */
} gdrfab_mr_info;

/** Registers one range of host memory. Handle and errors as of gdrfab_mr_regattr(). Mirrors fi_mr_reg.
 *
 * @param buf           first byte; the memory must stay mapped until gdrfab_mr_close() has returned
 * @param len           bytes, not 0
 * @param access        rights, as in gdrfab_mr_attr
 * @param offset        as in gdrfab_mr_attr
 * @param requested_key as in gdrfab_mr_attr
 * @param flags         0, GDRFAB_RMA_EVENT */
int gdrfab_mr_reg(struct gdrfab_domain *domain, const void *buf, size_t len, uint64_t access, uint64_t offset,
                  uint64_t requested_key, uint64_t flags, void *context, struct gdrfab_mr **mr);

/** Registers several ranges of host memory as one region. Errors as of gdrfab_mr_regattr(). Mirrors
 * fi_mr_regv.
 *
 * @param iov   the pieces; peers see them joined, beginning at the first one's address
 * @param count number of pieces, up to info->mr_iov_limit; all else as in gdrfab_mr_reg() */
int gdrfab_mr_regv(struct gdrfab_domain *domain, const struct iovec *iov, size_t count, uint64_t access,
                   uint64_t offset, uint64_t requested_key, uint64_t flags, void *context,
                   struct gdrfab_mr **mr);

/** Registers memory of any kind; gdrfab_mr_close() frees the handle. Mirrors fi_mr_regattr.
 *
 * shm and tcp pin nothing and touch no page (a driver may pin host memory when shm first copies between it
 * and a device). verbs pins host memory, unless GDRFAB_VERBS_ODP is set, and device memory by its dma-buf.
 * For device memory the driver makes a handle for other processes, where the vendor has one; the range may
 * span allocations of one device and kind. gdrfab_mr_query() and gdrfab_mr_explain() tell which paths the
 * region offers, and why not the others.
 *
 * @param flags 0, GDRFAB_MR_DMABUF, GDRFAB_RMA_EVENT
 * @return 0, or
 *   -EINVAL also length 0, overflow, unknown rights, an offset beyond the file, memory that is not of iface
 *   and device to its end;
 *   -ENOSYS, -ENODEV the driver or its devices are not here; -EPERM also a driver that was opened before a
 *   fork;
 *   -EOPNOTSUPP no path is left after require and forbid: gdrfab_last_error() tells why for each;
 *   -GDRFAB_ENOKEY requested_key is in use; -ENOSPC info->mr_cnt regions are open;
 *   -EBADF, -EACCES, -ENODEV the descriptor is none, is not open for the access, or cannot be mapped;
 *   -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE, -ENOMEM */
int gdrfab_mr_regattr(struct gdrfab_domain *domain, const struct gdrfab_mr_attr *attr, uint64_t flags,
                      struct gdrfab_mr **mr);

/** Closes a region. When it returns 0, no peer that runs this library reaches the memory: copies in flight
 * have ended, those of broken connections too, and later operations on the key fail at their initiator with
 * EKEYREJECTED. A hostile process of the same user can keep what it has mapped. Mirrors fi_close.
 *
 * @return 0, -EINVAL, -EPERM, or -EBUSY: a peer (stopped, perhaps) or a thread of this process has been
 *   inside a copy for GDRFAB_SHM_CLOSE_MS, and gdrfab_last_error() says which. The region stays closed to new
 *   operations; the call is to be repeated */
int gdrfab_mr_close(struct gdrfab_mr *mr);

/** The context that a region was registered with; NULL for NULL. Mirrors fid->context. */
void *gdrfab_mr_context(struct gdrfab_mr *mr);

/** The key by which peers name the region; 0 for NULL. Mirrors fi_mr_key.
 *
 * Of the keys that shm and tcp choose, 44 bits are random; of those of staged regions of verbs, 43. Knowing
 * some keys of a domain does not help to compute others. The device's own keys over verbs have 32 bits, as
 * random as the device makes them. */
uint64_t gdrfab_mr_key(struct gdrfab_mr *mr);

/** The descriptor (desc) by which operations name local buffers inside the region; NULL for NULL. It is a
 * number, not memory. Mirrors fi_mr_desc.
 *
 * Device memory needs it: without it an operation expects host memory. For host memory it lets a peer help
 * with large copies, and a driver pin the memory. Pieces of one operation are all host memory, or all in the
 * region of the first descriptor. */
void *gdrfab_mr_desc(struct gdrfab_mr *mr);

/** Binds a counter that grows by one with each complete write of a peer into the region. Mirrors fi_mr_bind.
 *
 * @param mr    region; if peers have used it already, it was registered with GDRFAB_RMA_EVENT, or their
 *   writes may go uncounted
 * @param cntr  counter; closed after the region
 * @param flags GDRFAB_REMOTE_WRITE
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EPERM, -EOPNOTSUPP (connected endpoints over verbs: a card does not
 *   report plain writes) */
int gdrfab_mr_bind_cntr(struct gdrfab_mr *mr, struct gdrfab_cntr *cntr, uint64_t flags);

/** Tells a region's attributes and paths: 0 or -EINVAL. */
int gdrfab_mr_query(struct gdrfab_mr *mr, struct gdrfab_mr_info *info);

/** Tells in words which paths a region offers, and why not the others: length of the text, or -EINVAL. */
ssize_t gdrfab_mr_explain(struct gdrfab_mr *mr, char *buf, size_t len);

/** Allocates memory that peers can map; gdrfab_mem_free() frees it. The caller registers it afterwards, by
 * gdrfab_mr_reg(), or memory of a device by gdrfab_mr_regattr() with the same iface and device.
 *
 * Host memory is zeroed, and peers on this host reach it by GDRFAB_PATH_DIRECT. It is a memory file, whose
 * descriptor is held until gdrfab_mem_free(). Memory of a device is of a kind that the vendor lets other
 * processes map, where it has one; it is not zeroed, and works with the vendor's own functions.
 *
 * @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO
 * @param device number of the device in this process; 0 with GDRFAB_HMEM_SYSTEM
 * @param len    bytes, not 0; rounded up to pages of the host, or to the granularity of the driver
 * @param addr   gets the address; that of host memory is page aligned
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EPERM, -ENODEV (no such device), -ENOMEM, -EMFILE, -ENOSPC (too
 *   many memory files); of devices also -EPERM (the driver was opened before a fork), -ENOSYS, -EIO (see
 *   Device memory), and -EOPNOTSUPP (the vendor's driver lets no library allocate for it) */
int gdrfab_mem_alloc(struct gdrfab_domain *domain, uint32_t iface, uint32_t device, size_t len,
                     uint64_t flags, void **addr);

/** Frees memory of gdrfab_mem_alloc().
 *
 * @param domain the domain that allocated it
 * @param addr   the address that was given
 * @return 0, -EBUSY (an open region covers it), -EINVAL (also: no such address), -EPERM; of device memory
 *   also an errno of the driver, and then it is still there */
int gdrfab_mem_free(struct gdrfab_domain *domain, void *addr);

/* ---- Device memory -------------------------------------------------------------------------------------
 * Pointers to device memory are numbers here: the CPU never follows them. Drivers are loaded when their
 * memory is first named or asked about. They do not survive fork(): a child gets -EPERM for a driver that its
 * parent opened. A call leaves the thread's current device context as it was. All calls here may be made by
 * any thread. device is the number of the device in this process; 0 with GDRFAB_HMEM_SYSTEM.
 *
 * Causes of errnos that a call lists without one:
 *
 *   -ENOSYS   the driver is not installed, is too old, or is ruled out by GDRFAB_HMEM
 *   -ENODEV   the driver finds no device, or has none of that number
 *   -ENOSYS, -ENODEV
 *             also: GDRFAB_HMEM_DRIVER=adopt, and the process has not loaded and initialised the driver
 *   -EIO      the driver failed; or another errno that stands for what the driver said */

/* Interfaces, with the numbers of libfabric's fi_hmem_iface. */
#define GDRFAB_HMEM_SYSTEM 0         /**< Host memory. */
#define GDRFAB_HMEM_CUDA 1           /**< CUDA. */
#define GDRFAB_HMEM_ROCR 2           /**< ROCm. */
#define GDRFAB_HMEM_ZE 3             /**< Level Zero. */
#define GDRFAB_HMEM_NEURON 4         /**< AWS Neuron. */
#define GDRFAB_HMEM_SYNAPSEAI 5      /**< Intel Gaudi. */
#define GDRFAB_HMEM_AUTO 4294967295  /**< Asks each driver of this host. Not in libfabric. */

/* The way in which an allocation was made; it decides which paths the memory has. */
#define GDRFAB_HMEM_KIND_HOST 0      /**< Host memory that no vendor knows. */
#define GDRFAB_HMEM_KIND_PLAIN 1     /**< The vendor's plain device allocator (cudaMalloc). */
#define GDRFAB_HMEM_KIND_POOL 2      /**< A stream-ordered pool (cudaMallocAsync). */
#define GDRFAB_HMEM_KIND_SEGMENT 3   /**< A physical segment of a mapped range (CUDA VMM). */
#define GDRFAB_HMEM_KIND_MANAGED 4   /**< Memory that migrates between host and device. */
#define GDRFAB_HMEM_KIND_PINNED 5    /**< Host memory that the vendor allocated or pinned. */
#define GDRFAB_HMEM_KIND_IMPORTED 6  /**< Device memory of another process, mapped here. */

#define GDRFAB_DMABUF_PCIE (1ull << 0)  /**< gdrfab_hmem_export_dmabuf(): map through the PCIe BAR. */

/** An interface and one of its devices. */
typedef struct gdrfab_hmem_info {
    size_t struct_size;  /**< sizeof(gdrfab_hmem_info), set by the caller */
    uint32_t iface;      /**< GDRFAB_HMEM_* */
    uint32_t device;     /**< Number of the device in this process; UINT32_MAX if none was asked for. */
    uint32_t devices;    /**< Devices of the interface; 0 for GDRFAB_HMEM_SYSTEM. */
    int dmabuf;          /**< 0: its memory can be exported as dma-buf; else a negative errno. */
    int ipc;             /**< 0: other processes can map its memory; else a negative errno. */
    /** 1: this process uses the device already, so that work on it makes no new context (GDRFAB_HMEM_CUDA:
     * the primary context is active, whoever made it so; contexts of cuCtxCreate are not seen). 0: it does
     * not, or the interface cannot tell (all others), or no device was asked for. */
    uint32_t active;
    uint64_t memory;     /**< Bytes of memory; 0: unknown. */
    uint64_t peers;      /**< Bit per device below 64 that copies to and from it directly. */
    uint64_t rate_to;    /**< Bytes per second of a copy from the host; 0: not measured. */
    uint64_t rate_from;  /**< Bytes per second of a copy to the host; 0: not measured. */
    uint64_t rate_peer;  /**< Bytes per second of a copy to the first of its peers; 0: not measured. */
    uint8_t id[16];      /**< Names the device in every process: a UUID, or the PCI address as text. */
    char pci[16];        /**< PCI address as text, "0000:4d:00.0"; empty: unknown. */
    char name[64];       /**< Name, cut to 63 bytes. */
} gdrfab_hmem_info;

/** The memory that a pointer points into. */
typedef struct gdrfab_hmem_place {
    size_t struct_size;  /**< sizeof(gdrfab_hmem_place), set by the caller */
    uint32_t iface;      /**< GDRFAB_HMEM_*; GDRFAB_HMEM_SYSTEM: no vendor that is here knows the pointer. */
    uint32_t device;     /**< Number of the device in this process. */
    uint32_t kind;       /**< GDRFAB_HMEM_KIND_* */
    uint32_t reserved;   /**< 0 */
    uint64_t base;       /**< First byte of the allocation or physical segment; 0: host memory. */
    uint64_t len;        /**< Bytes of the allocation or segment; 0 for host memory. */
    uint64_t id;         /**< Never another allocation's in this process; 0: unknown. */
    uint64_t covered;    /**< Bytes from the pointer on that are this device's without a gap, its
                              allocation's neighbours too, up to the length that was asked for. Of host
                              memory: that length. */
} gdrfab_hmem_place;

/** Tells whether an interface can be used, how many devices it has, and what one of them can do.
 *
 * Loads and initialises the vendor's driver, unless GDRFAB_HMEM or GDRFAB_HMEM_DRIVER=adopt forbids it. With
 * CUDA it calls cuInit() and only such functions as need no context, so it makes none.
 *
 * @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO
 * @param device number of the device; UINT32_MAX asks for the interface alone: only iface and devices are set
 * @return 0, -EINVAL, -ENOSYS, -ENODEV (of host memory too, which has no devices), -EPERM, -EIO */
int gdrfab_hmem_query(uint32_t iface, uint32_t device, struct gdrfab_hmem_info *info);

/** Tells in words whether an interface can be used or why not, and describes each device: its name and
 * memory, the devices that it reaches without the host, and whether its memory can be exported as dma-buf
 * and mapped by other processes. It may open the driver, as gdrfab_hmem_query(); an interface that cannot
 * be used is no error.
 *
 * @param iface GDRFAB_HMEM_*; GDRFAB_HMEM_AUTO: all of them
 * @return length of the text, or -EINVAL */
ssize_t gdrfab_hmem_explain(uint32_t iface, char *buf, size_t len);

/** Tells which memory a pointer points into, by asking each vendor's driver of this host. A pointer that no
 * vendor knows is host memory; whether it can be accessed is not examined. The answer holds until the
 * memory is freed. Mirrors ofi_get_hmem_iface, which is internal to libfabric.
 *
 * @param ptr   any address but NULL
 * @param len   bytes from it that `covered` looks at; 0: only the allocation of ptr
 * @return 0, -EINVAL (also: ptr + len overflows), -EIO */
int gdrfab_hmem_detect(const void *ptr, size_t len, struct gdrfab_hmem_place *place);

/** Exports device memory as a dma-buf, for other drivers and for gdrfab_mr_regattr() with GDRFAB_MR_DMABUF.
 * The driver exports whole pages; `out` says where the range begins in them, and that its first byte has the
 * address ptr. The dma-buf keeps the memory alive, but not its address. Mirrors ofi_hmem_get_dmabuf_fd, which
 * is internal to libfabric.
 *
 * @param ptr   first byte, in memory of a device
 * @param len   bytes, not 0; they may span allocations where the vendor can export that
 * @param flags 0, GDRFAB_DMABUF_PCIE
 * @param out   gets the descriptor (close-on-exec; the caller closes it), offset, len and base_addr
 * @return 0, -GDRFAB_EBADFLAGS, -ENOSYS, -EPERM, -EMFILE, -ENOMEM, -EIO, or
 *   -EINVAL also memory that ends before the range does;
 *   -EOPNOTSUPP host memory, or memory that its vendor or device cannot export: gdrfab_last_error() tells
 *   which */
int gdrfab_hmem_export_dmabuf(const void *ptr, size_t len, uint64_t flags, struct gdrfab_mr_dmabuf *out);

/** Copies host memory into memory of a device; when it returns 0, the bytes are there. It waits for no stream
 * of the caller's, and copies of other threads that touch the same bytes are the callers' to order. Mirrors
 * ofi_copy_to_hmem.
 *
 * @param iface  GDRFAB_HMEM_* of dest; GDRFAB_HMEM_SYSTEM: both sides are host memory; GDRFAB_HMEM_AUTO: asks
 *   the drivers
 * @param device number of the device of dest; 0 with GDRFAB_HMEM_SYSTEM, ignored with GDRFAB_HMEM_AUTO
 * @param src    must not overlap dest
 * @param len    bytes; 0 checks iface and device and copies nothing
 * @return 0, -ENOSYS, -ENODEV, -EPERM, or
 *   -EINVAL also dest that is not memory of that device to its end, or src in device memory;
 *   -EIO, and then the content of dest is undefined */
int gdrfab_hmem_copy_to(uint32_t iface, uint32_t device, void *dest, const void *src, size_t len);

/** gdrfab_hmem_copy_to() the other way; iface and device are those of src. Mirrors ofi_copy_from_hmem. */
int gdrfab_hmem_copy_from(uint32_t iface, uint32_t device, void *dest, const void *src, size_t len);

/** Makes bytes that a NIC wrote into device memory before this call visible to the device's kernels, running
 * ones too. For memory that a NIC reaches by itself (verbs: GDRFAB_PATH_DMABUF, GDRFAB_PATH_PEER_MEM): call
 * it after the completion of the operation that brought the bytes, and before a kernel is told.
 *
 * CUDA: returns at once where the device orders these writes itself
 * (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING). Else the driver flushes with the device's primary
 * context current, which is made if need be: for its memory, mapped segments and pools. For memory of
 * contexts of cuCtxCreate the program calls cuFlushGPUDirectRDMAWrites itself. Waits for no stream.
 *
 * @param iface GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO; GDRFAB_HMEM_SYSTEM needs no flush: 0
 * @return 0, -EINVAL, -ENOSYS, -ENODEV, -EPERM, -EIO, or
 *   -EOPNOTSUPP the device neither orders the writes nor has such a flush: all interfaces but CUDA, and CUDA
 *   before 11.3 */
int gdrfab_hmem_flush(uint32_t iface, uint32_t device);

/* ---- RMA -----------------------------------------------------------------------------------------------
 * One-sided writes and reads. The rules for all calls that post an operation, here and under Messages:
 *
 *   ep           an endpoint that is connected; for receives, and of ep_type GDRFAB_EP_RDM, enabled
 *   buf, len     local memory and its bytes. It is not changed, and of a read or receive not used, until the
 *                completion. RMA of 0 bytes checks the key and moves nothing; a message may have 0 bytes
 *   iov, count   pieces of local memory, joined: up to info->tx_iov_limit, of receives rx_iov_limit. The
 *                array is read during the call only
 *   desc         gdrfab_mr_desc() of a region that holds the buffer, or NULL; with pieces an array of them,
 *                or NULL. Required for device memory and if info->mr_mode has GDRFAB_MR_LOCAL, else a hint
 *   addr, key    the remote address, and the key of the peer's region
 *   data         64 bits for the peer's completion entry
 *   dest_addr    the peer's index in the address vector; not used on connected endpoints
 *   src_addr     of a read the same; of a receive, with GDRFAB_DIRECTED_RECV among the caps, the only peer
 *                that it takes messages of, or GDRFAB_ADDR_UNSPEC
 *   context      returned in the completion entry
 *   msg, flags   the operation with all its parameters, read during the call only; its operation flags, in
 *                place of tx_op_flags and rx_op_flags
 *
 * Inject calls take up to info->inject_size bytes. Their buffer is the caller's again at once, and only a
 * failure gives an entry. If the connection of a connected endpoint is lost, operations that had left before
 * give none.
 *
 * A result of 0 says that the operation is posted; it then gives one entry, error entry or count. Any other
 * result says that nothing was posted, for a reason on this side:
 *
 *   -EAGAIN      too many operations are outstanding, or the queue could overrun: read completions and
 *                repeat. Connectionless endpoints return it only if progress on this side frees what is
 *                missing, never for something that a peer has to do
 *   -ENOTCONN    not connected yet
 *   -ESHUTDOWN   not connected any more
 *   -EINVAL      also: dest_addr names no peer of the address vector
 *   -EMSGSIZE    longer than info->max_msg_size, of inject calls than info->inject_size
 *   -GDRFAB_EOPBADSTATE, -GDRFAB_ENOCQ
 *                of ep_type GDRFAB_EP_RDM: not enabled; no queue or counter is bound for transmits
 *   -E2BIG, -GDRFAB_EBADFLAGS   as for all calls
 *
 * Several threads may post on one endpoint (GDRFAB_THREAD_SAFE).
 *
 * An operation that the target refuses (key, bounds, right, path) gives an error entry, and leaves the
 * target's memory untouched. info->msg_order names the operations of an endpoint that take effect in the
 * order of posting. Over shm's path direct, between host memory, the last 8 bytes of a write become visible
 * last; nothing else promises that: wait for a completion, or for a write with data. */

/* Flags of operations, in flags arguments and in gdrfab_info.tx_op_flags and rx_op_flags. */
#define GDRFAB_REMOTE_CQ_DATA (1ull << 17)     /**< Carries data for the peer. Entry: data is valid. */
#define GDRFAB_MORE (1ull << 18)               /**< A hint that more follow: the doorbell may ring later. */
#define GDRFAB_FENCE (1ull << 21)              /**< Starts when the endpoint's earlier operations have
                                                    completed. */
#define GDRFAB_COMPLETION (1ull << 24)         /**< Gives an entry with GDRFAB_SELECTIVE_COMPLETION too. */
#define GDRFAB_INJECT (1ull << 25)             /**< As inject calls: the buffer is the caller's at once. */
#define GDRFAB_INJECT_COMPLETE (1ull << 26)    /**< Complete when the buffer is free; may fail after that. */
#define GDRFAB_TRANSMIT_COMPLETE (1ull << 27)  /**< Complete when it needs this side no more (default). */
#define GDRFAB_DELIVERY_COMPLETE (1ull << 28)  /**< Complete when the target, or a receive, has the bytes. */

/** A piece of a peer's region (mirrors fi_rma_iov). */
typedef struct gdrfab_rma_iov {
    uint64_t addr;  /**< Remote address. */
    size_t len;     /**< Bytes. */
    uint64_t key;   /**< The region's key. */
} gdrfab_rma_iov;

/** An RMA operation with all its parameters (mirrors fi_msg_rma). */
typedef struct gdrfab_msg_rma {
    size_t struct_size;                    /**< sizeof(gdrfab_msg_rma) */
    const struct iovec *msg_iov;           /**< Local pieces. */
    void **desc;                           /**< One for each local piece, or NULL. */
    size_t iov_count;                      /**< Number of local pieces. */
    uint64_t addr;                         /**< dest_addr. */
    const struct gdrfab_rma_iov *rma_iov;  /**< Remote pieces, together as long as the local. */
    size_t rma_iov_count;                  /**< Number of remote pieces. */
    void *context;                         /**< Returned in the completion. */
    uint64_t data;                         /**< For the peer, with GDRFAB_REMOTE_CQ_DATA. */
    uint64_t timeout_ns;                   /**< ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's. */
} gdrfab_msg_rma;

/** Posts a write of local memory into a peer's region. Mirrors fi_write. */
ssize_t gdrfab_write(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t dest_addr,
                     uint64_t addr, uint64_t key, void *context);

/** Posts a write of several local pieces, joined. Mirrors fi_writev. */
ssize_t gdrfab_writev(struct gdrfab_ep *ep, const struct iovec *iov, void **desc, size_t count,
                      uint64_t dest_addr, uint64_t addr, uint64_t key, void *context);

/** Posts a write with pieces on both sides, flags, data and a deadline. Mirrors fi_writemsg. */
ssize_t gdrfab_writemsg(struct gdrfab_ep *ep, const struct gdrfab_msg_rma *msg, uint64_t flags);

/** Posts a write that then puts an entry with `data` into the peer's completion queue for receives. Mirrors
 * fi_writedata.
 *
 * The entry (GDRFAB_REMOTE_WRITE | GDRFAB_RMA | GDRFAB_REMOTE_CQ_DATA) never overtakes the bytes. Over verbs
 * it consumes a posted receive, if info->mode has GDRFAB_RX_CQ_DATA. */
ssize_t gdrfab_writedata(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
                         uint64_t dest_addr, uint64_t addr, uint64_t key, void *context);

/** Posts a write of at most inject_size bytes, which are copied. Mirrors fi_inject_write. */
ssize_t gdrfab_inject_write(struct gdrfab_ep *ep, const void *buf, size_t len, uint64_t dest_addr,
                            uint64_t addr, uint64_t key);

/** gdrfab_inject_write() with the data of gdrfab_writedata(). Mirrors fi_inject_writedata. */
ssize_t gdrfab_inject_writedata(struct gdrfab_ep *ep, const void *buf, size_t len, uint64_t data,
                                uint64_t dest_addr, uint64_t addr, uint64_t key);

/** Posts a read of a peer's region into local memory. Mirrors fi_read. */
ssize_t gdrfab_read(struct gdrfab_ep *ep, void *buf, size_t len, void *desc, uint64_t src_addr, uint64_t addr,
                    uint64_t key, void *context);

/** Posts a read of one remote range into several local pieces. Mirrors fi_readv. */
ssize_t gdrfab_readv(struct gdrfab_ep *ep, const struct iovec *iov, void **desc, size_t count,
                     uint64_t src_addr, uint64_t addr, uint64_t key, void *context);

/** Posts a read with pieces on both sides, flags and a deadline. Mirrors fi_readmsg.
 *
 * @param flags GDRFAB_COMPLETION, GDRFAB_FENCE, GDRFAB_MORE, and the completion levels (*_COMPLETE) */
ssize_t gdrfab_readmsg(struct gdrfab_ep *ep, const struct gdrfab_msg_rma *msg, uint64_t flags);

/** A block of a list. */
typedef struct gdrfab_block {
    void *buf;      /**< Local address. */
    uint64_t addr;  /**< Remote address. */
    size_t len;     /**< Bytes; a block of 0 is passed over. */
} gdrfab_block;

/** Blocks that one operation moves, with all its parameters. */
typedef struct gdrfab_msg_list {
    size_t struct_size;                 /**< sizeof(gdrfab_msg_list) */
    const struct gdrfab_block *blocks;  /**< The blocks. */
    size_t count;                       /**< Number of blocks, 1 to info->list_limit. */
    void *const *desc;                  /**< Local descriptors, or NULL. */
    size_t desc_count;                  /**< 1: one for all; count: one for each block; 0: none. */
    const uint64_t *key;                /**< Keys of the peer's regions. */
    size_t key_count;                   /**< 1: one for all; count: one for each block. */
    uint64_t addr;                      /**< The peer's index; not used on connected endpoints. */
    void *context;                      /**< Returned in the completion. */
    uint64_t data;                      /**< For the peer, with GDRFAB_REMOTE_CQ_DATA. */
    uint64_t timeout_ns;                /**< ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's. */
} gdrfab_msg_list;

/** Posts a read of many blocks, from anywhere in the peer's regions to anywhere here, as one operation.
 *
 * The blocks move in any order, and side by side. One entry reports the end: the bytes of all, or the first
 * error and its block (gdrfab_cq_err_entry::block); in that case some blocks may have moved, and none moves
 * any more. If targets overlap, their content is undefined. Blocks that adjoin on both sides are moved as
 * one. With GDRFAB_FENCE the list begins after everything posted before it; operations posted after it may
 * overtake it. The deadline is that of the whole list. gdrfab_cancel() ends it: its entry comes when the
 * parts under way have ended.
 *
 * @param msg   the list; read during the call only, with its arrays
 * @param flags as of gdrfab_readmsg()
 * @return 0, -EAGAIN (nothing was posted), -EINVAL, -E2BIG, -EMSGSIZE (a block), -GDRFAB_EBADFLAGS,
 *   -ENOTCONN, -ESHUTDOWN */
ssize_t gdrfab_readlist(struct gdrfab_ep *ep, const struct gdrfab_msg_list *msg, uint64_t flags);

/** Posts a write of many blocks as one operation: gdrfab_readlist() the other way. With GDRFAB_REMOTE_CQ_DATA
 * the peer's entry comes after the last byte; its len is that of the list over shm, and 0 elsewhere.
 *
 * @param flags as of gdrfab_writemsg(), without GDRFAB_INJECT
 * @return as gdrfab_readlist() */
ssize_t gdrfab_writelist(struct gdrfab_ep *ep, const struct gdrfab_msg_list *msg, uint64_t flags);

/** Prepares a list for being posted many times: its blocks are read, checked and joined once.
 *
 * @param msg  the list; context and data are those of each gdrfab_list_post()
 * @param list the handle, freed by gdrfab_list_close()
 * @return 0, -EINVAL, -E2BIG, -EMSGSIZE (a block) */
int gdrfab_list_open(struct gdrfab_ep *ep, const struct gdrfab_msg_list *msg, struct gdrfab_list **list);

/** Posts a prepared list, which may be under way already.
 *
 * @param flags GDRFAB_READ or GDRFAB_WRITE, and the flags of gdrfab_readlist() or gdrfab_writelist()
 * @param data  for the peer, with GDRFAB_REMOTE_CQ_DATA
 * @return as gdrfab_readlist() */
ssize_t gdrfab_list_post(struct gdrfab_list *list, uint64_t flags, uint64_t data, void *context);

/** Closes a prepared list: 0 or -EINVAL. Posts of it that are under way go on. */
int gdrfab_list_close(struct gdrfab_list *list);

/* ---- Atomics -------------------------------------------------------------------------------------------
 * Operations on elements of a peer's region. No other atomic operation on an element comes between the steps
 * of one. A CPU's instruction changes the element: this process's if the region is mapped
 * (GDRFAB_PATH_DIRECT), else the target's, in its progress. So an operation is atomic with those of all
 * peers over any provider, and with atomic instructions of the target's program, but not with RMA. In device
 * memory, which the target's CPU copies out and back, it is atomic only with other atomics of the target's
 * process. As RMA, but:
 *
 *   buf, compare  elements in host memory, read during the call
 *   result        gets the elements' values before the operation; host memory, not used until the completion
 *   count         up to the number that the queries give, 1024 bytes in all, else -EMSGSIZE; 0 checks the key
 *   addr          a multiple of the element's size, else -EINVAL; if the memory there is misaligned, it fails
 *   -EOPNOTSUPP   the datatype, call, provider or peer (tcp, before 0.2) lacks it; device memory on this side
 *
 * The region's rights are GDRFAB_REMOTE_WRITE and, to fetch, GDRFAB_REMOTE_READ; for GDRFAB_ATOMIC_READ only
 * the latter. For orders and counters, an operation that fetches is a read, and any other is a write.
 *
 * Over verbs the card carries atomics out (IBV_WR_ATOMIC_*) on regions whose access has GDRFAB_ATOMIC. That
 * is the only right they need, and no CPU carries out a peer's atomics on such a region. A card has
 * GDRFAB_SUM, CSWAP and ATOMIC_READ of one GDRFAB_INT64 or GDRFAB_UINT64, and no count of 0: the rest is
 * -EOPNOTSUPP. Its operations are atomic with others of the same card; with CPUs' instructions and with
 * other cards only if gdrfab_nic_attr of the target's card has atomics 2. No domain without a card registers
 * such a region, and none with keys of the caller's choice: -EOPNOTSUPP. By kind of endpoint:
 *
 *   connected, verbs   the card's only: other regions have none, as the queries and caps say
 *   connected, other   the CPU's only
 *   connectionless     the CPU's, and the queries are about those; over verbs also the card's, on such
 *                      regions. Over shm or tcp, and to oneself, operations on them fail: EOPNOTSUPP */

/* Datatypes. */
#define GDRFAB_INT8 0    /**< int8_t */
#define GDRFAB_UINT8 1   /**< uint8_t */
#define GDRFAB_INT16 2   /**< int16_t */
#define GDRFAB_UINT16 3  /**< uint16_t */
#define GDRFAB_INT32 4   /**< int32_t */
#define GDRFAB_UINT32 5  /**< uint32_t */
#define GDRFAB_INT64 6   /**< int64_t */
#define GDRFAB_UINT64 7  /**< uint64_t */
#define GDRFAB_FLOAT 8   /**< float */
#define GDRFAB_DOUBLE 9  /**< double */

/* Operations: the new value of an element t, given b of buf and c of compare. The bitwise ones are not for
 * float and double. Those that compare are for gdrfab_compare_atomic() alone, and the others not for it. */
#define GDRFAB_MIN 0            /**< The smaller of t and b. */
#define GDRFAB_MAX 1            /**< The larger of t and b. */
#define GDRFAB_SUM 2            /**< t + b; integers wrap around. */
#define GDRFAB_PROD 3           /**< t * b */
#define GDRFAB_LOR 4            /**< t || b */
#define GDRFAB_LAND 5           /**< t && b */
#define GDRFAB_BOR 6            /**< t | b */
#define GDRFAB_BAND 7           /**< t & b */
#define GDRFAB_LXOR 8           /**< !t != !b */
#define GDRFAB_BXOR 9           /**< t ^ b */
#define GDRFAB_ATOMIC_READ 10   /**< t; of gdrfab_fetch_atomic() alone, without buf. */
#define GDRFAB_ATOMIC_WRITE 11  /**< b; with gdrfab_fetch_atomic(): swap. */
#define GDRFAB_CSWAP 12         /**< b if c == t. */
#define GDRFAB_CSWAP_NE 13      /**< b if c != t. */
#define GDRFAB_CSWAP_LE 14      /**< b if c <= t. */
#define GDRFAB_CSWAP_LT 15      /**< b if c < t. */
#define GDRFAB_CSWAP_GE 16      /**< b if c >= t. */
#define GDRFAB_CSWAP_GT 17      /**< b if c > t. */
#define GDRFAB_MSWAP 18         /**< (b & c) | (t & ~c) */

/** An atomic operation with all its parameters (mirrors fi_msg_atomic). */
typedef struct gdrfab_msg_atomic {
    size_t struct_size;   /**< sizeof(gdrfab_msg_atomic) */
    const void *buf;      /**< Elements b; may be NULL with GDRFAB_ATOMIC_READ. */
    const void *compare;  /**< Elements c, or NULL. */
    void *result;         /**< Gets the elements t, or NULL. */
    size_t count;         /**< Number of elements. */
    uint64_t addr;        /**< dest_addr. */
    uint64_t rma_addr;    /**< Remote address. */
    uint64_t key;         /**< The region's key. */
    uint32_t datatype;    /**< GDRFAB_INT8, ... */
    uint32_t op;          /**< GDRFAB_MIN, ... */
    void *context;        /**< Returned in the completion. */
    uint64_t timeout_ns;  /**< ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's. */
    void *desc;           /**< gdrfab_mr_desc() of buf, or NULL. */
    void *compare_desc;   /**< The same of compare. */
    void *result_desc;    /**< The same of result. */
} gdrfab_msg_atomic;

/** Posts an operation on `count` elements of a peer's region, which gives nothing back. Mirrors fi_atomic. */
ssize_t gdrfab_atomic(struct gdrfab_ep *ep, const void *buf, size_t count, void *desc, uint64_t dest_addr,
                      uint64_t addr, uint64_t key, uint32_t datatype, uint32_t op, void *context);

/** gdrfab_atomic() without an entry unless it fails. Mirrors fi_inject_atomic. */
ssize_t gdrfab_inject_atomic(struct gdrfab_ep *ep, const void *buf, size_t count, uint64_t dest_addr,
                             uint64_t addr, uint64_t key, uint32_t datatype, uint32_t op);

/** Posts an operation that also fetches the old values of the elements, into `result`. Mirrors
 * fi_fetch_atomic. */
ssize_t gdrfab_fetch_atomic(struct gdrfab_ep *ep, const void *buf, size_t count, void *desc, void *result,
                            void *result_desc, uint64_t dest_addr, uint64_t addr, uint64_t key,
                            uint32_t datatype, uint32_t op, void *context);

/** Posts an operation that compares, and fetches as gdrfab_fetch_atomic(). Mirrors fi_compare_atomic. */
ssize_t gdrfab_compare_atomic(struct gdrfab_ep *ep, const void *buf, size_t count, void *desc,
                              const void *compare, void *compare_desc, void *result, void *result_desc,
                              uint64_t dest_addr, uint64_t addr, uint64_t key, uint32_t datatype, uint32_t op,
                              void *context);

/** Posts one with flags and a deadline: with compare as gdrfab_compare_atomic(), else with result as
 * gdrfab_fetch_atomic(), else as gdrfab_atomic(). Mirrors fi_atomicmsg, fi_fetch_atomicmsg and
 * fi_compare_atomicmsg. */
ssize_t gdrfab_atomicmsg(struct gdrfab_ep *ep, const struct gdrfab_msg_atomic *msg, uint64_t flags);

/** Asks for an operation of gdrfab_atomic(): 0 if it exists, with the most elements in *count, which may be
 * NULL; else -EOPNOTSUPP, -EINVAL (no such number). Mirrors fi_atomicvalid. */
int gdrfab_atomicvalid(struct gdrfab_ep *ep, uint32_t datatype, uint32_t op, size_t *count);

/** The same of gdrfab_fetch_atomic(). Mirrors fi_fetch_atomicvalid. */
int gdrfab_fetch_atomicvalid(struct gdrfab_ep *ep, uint32_t datatype, uint32_t op, size_t *count);

/** The same of gdrfab_compare_atomic(). Mirrors fi_compare_atomicvalid. */
int gdrfab_compare_atomicvalid(struct gdrfab_ep *ep, uint32_t datatype, uint32_t op, size_t *count);

/* ---- Messages ------------------------------------------------------------------------------------------
 * Two-sided: each message goes into one posted receive of the peer, in the order of posting. Parameters,
 * results and threads of all calls: see RMA. */

/** A message or a receive with all its parameters (mirrors fi_msg). */
typedef struct gdrfab_msg {
    size_t struct_size;           /**< sizeof(gdrfab_msg) */
    const struct iovec *msg_iov;  /**< Pieces of the buffer. */
    void **desc;                  /**< One for each piece, or NULL. */
    size_t iov_count;             /**< Number of pieces. */
    uint64_t addr;                /**< dest_addr; of a receive src_addr. */
    void *context;                /**< Returned in the completion. */
    uint64_t data;                /**< For the peer, with GDRFAB_REMOTE_CQ_DATA. */
    uint64_t timeout_ns;          /**< ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's. */
} gdrfab_msg;

/** Posts a message; when it completes, the buffer may be reused. Mirrors fi_send. */
ssize_t gdrfab_send(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t dest_addr,
                    void *context);

/** Posts several pieces as one message. Mirrors fi_sendv. */
ssize_t gdrfab_sendv(struct gdrfab_ep *ep, const struct iovec *iov, void **desc, size_t count,
                     uint64_t dest_addr, void *context);

/** Posts a message with pieces, flags, data and a deadline. Mirrors fi_sendmsg. */
ssize_t gdrfab_sendmsg(struct gdrfab_ep *ep, const struct gdrfab_msg *msg, uint64_t flags);

/** Posts a message with 64 bits of data for the peer's completion entry. Mirrors fi_senddata. */
ssize_t gdrfab_senddata(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
                        uint64_t dest_addr, void *context);

/** Posts a message of at most inject_size bytes, which leave with the call. Mirrors fi_inject. */
ssize_t gdrfab_inject(struct gdrfab_ep *ep, const void *buf, size_t len, uint64_t dest_addr);

/** gdrfab_inject() with data for the peer's completion entry. Mirrors fi_injectdata. */
ssize_t gdrfab_injectdata(struct gdrfab_ep *ep, const void *buf, size_t len, uint64_t data,
                          uint64_t dest_addr);

/** Posts a receive: a buffer for one message. Mirrors fi_recv.
 *
 * A longer message fills the buffer and gives an error entry, GDRFAB_ETRUNC, with the lost bytes in olen.
 * When the connection ends, the receive completes with ECONNRESET (by the peer) or ECANCELED (by this side).
 *
 * @return 0, -EAGAIN (info->rx_size receives are posted), -EINVAL, -GDRFAB_ENOCQ (none is bound for
 *   receives), -GDRFAB_EOPBADSTATE (not enabled), -ESHUTDOWN (not connected any more) */
ssize_t gdrfab_recv(struct gdrfab_ep *ep, void *buf, size_t len, void *desc, uint64_t src_addr,
                    void *context);

/** Posts a receive into several pieces. Results as of gdrfab_recv(). Mirrors fi_recvv. */
ssize_t gdrfab_recvv(struct gdrfab_ep *ep, const struct iovec *iov, void **desc, size_t count,
                     uint64_t src_addr, void *context);

/** Posts a receive with pieces, flags and a deadline. Mirrors fi_recvmsg.
 *
 * With GDRFAB_MULTI_RECV the buffer, of one piece, takes messages one behind the other. Each gives an
 * entry, whose buf tells where it lies (GDRFAB_CQ_FORMAT_DATA or TAGGED). The last one has
 * GDRFAB_MULTI_RECV in its flags: fewer than GDRFAB_OPT_MIN_MULTI_RECV bytes are left, or the receive was
 * cancelled, and the buffer is the caller's again. A message longer than the rest of the buffer is cut off.
 *
 * @param flags any of GDRFAB_COMPLETION, GDRFAB_MORE, GDRFAB_MULTI_RECV
 * @return as gdrfab_recv(); -E2BIG; -GDRFAB_EBADFLAGS; -EOPNOTSUPP (GDRFAB_MULTI_RECV, without that
 *   capability) */
ssize_t gdrfab_recvmsg(struct gdrfab_ep *ep, const struct gdrfab_msg *msg, uint64_t flags);

/** Cancels the first receive with this context, tagged or not; if there is none, the first waiting operation
 * or unmatched message, in the order of posting. It completes with ECANCELED, and its buffer is not touched
 * after the call. Mirrors fi_cancel.
 *
 * @return 0, -EINVAL, -ENOENT (none with that context can still be cancelled), -EOPNOTSUPP (verbs: a queue
 *   pair returns no single request; shut the endpoint down, or give operations a deadline, which ends the
 *   connection) */
ssize_t gdrfab_cancel(struct gdrfab_ep *ep, void *context);

/* ---- Tagged messages -----------------------------------------------------------------------------------
 * Messages that a receive chooses by a tag of 64 bits. A receive takes a message whose tag is equal in all
 * bits that are not set in ignore, and whose sender is src_addr, if that names one. Messages of one sender
 * are matched in the order of sending, receives in the order of posting. Tagged and untagged messages never
 * meet. They need an endpoint whose info->caps has GDRFAB_TAGGED; others answer -EOPNOTSUPP. Parameters,
 * results and threads of all calls: see RMA; those of receives: gdrfab_recv().
 *
 *   tag, ignore  chosen by the caller; bits set in ignore are not compared, ~0: any message
 *
 * Messages of up to some KiB wait for their receive at the receiver, longer ones at the sender. A message
 * that is longer than its receive fills it and gives an error entry there, GDRFAB_ETRUNC, with its whole
 * length in len + olen; the sender succeeds. */

/* Flags of a gdrfab_trecvmsg() that looks for a message that has come, besides GDRFAB_PEEK. */
#define GDRFAB_CLAIM (1ull << 59)    /**< With GDRFAB_PEEK: keep the found message; then: receive it. */
#define GDRFAB_DISCARD (1ull << 58)  /**< With GDRFAB_PEEK or GDRFAB_CLAIM: drop the message. */

/** A tagged message or a receive of one with all its parameters (mirrors fi_msg_tagged). */
typedef struct gdrfab_msg_tagged {
    size_t struct_size;           /**< sizeof(gdrfab_msg_tagged) */
    const struct iovec *msg_iov;  /**< Pieces of the buffer. */
    void **desc;                  /**< One for each piece, or NULL. */
    size_t iov_count;             /**< Number of pieces. */
    uint64_t addr;                /**< dest_addr; of a receive src_addr. */
    uint64_t tag;                 /**< The tag. */
    uint64_t ignore;              /**< Of a receive: bits of the tag that are not compared. */
    void *context;                /**< Returned in the completion. */
    uint64_t data;                /**< For the peer, with GDRFAB_REMOTE_CQ_DATA. */
    uint64_t timeout_ns;          /**< ns to ETIMEDOUT; UINT64_MAX: never; 0: the endpoint's. */
} gdrfab_msg_tagged;

/** Posts a tagged message; when it completes, the buffer may be reused. Mirrors fi_tsend. */
ssize_t gdrfab_tsend(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t dest_addr,
                     uint64_t tag, void *context);

/** Posts several pieces as one tagged message. Mirrors fi_tsendv. */
ssize_t gdrfab_tsendv(struct gdrfab_ep *ep, const struct iovec *iov, void **desc, size_t count,
                      uint64_t dest_addr, uint64_t tag, void *context);

/** Posts a tagged message with pieces, flags, data and a deadline. Mirrors fi_tsendmsg. */
ssize_t gdrfab_tsendmsg(struct gdrfab_ep *ep, const struct gdrfab_msg_tagged *msg, uint64_t flags);

/** Posts a tagged message with 64 bits of data for the peer's completion entry. Mirrors fi_tsenddata. */
ssize_t gdrfab_tsenddata(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
                         uint64_t dest_addr, uint64_t tag, void *context);

/** Posts a tagged message of at most inject_size bytes, which are copied. Mirrors fi_tinject. */
ssize_t gdrfab_tinject(struct gdrfab_ep *ep, const void *buf, size_t len, uint64_t dest_addr, uint64_t tag);

/** gdrfab_tinject() with data for the peer's completion entry. Mirrors fi_tinjectdata. */
ssize_t gdrfab_tinjectdata(struct gdrfab_ep *ep, const void *buf, size_t len, uint64_t data,
                           uint64_t dest_addr, uint64_t tag);

/** Posts a receive of one tagged message. Any number may be posted, as memory allows. Mirrors fi_trecv.
 *
 * @return 0, -EINVAL, -GDRFAB_ENOCQ (none is bound for receives), -GDRFAB_EOPBADSTATE (not enabled),
 *   -EOPNOTSUPP (opened without GDRFAB_TAGGED) */
ssize_t gdrfab_trecv(struct gdrfab_ep *ep, void *buf, size_t len, void *desc, uint64_t src_addr, uint64_t tag,
                     uint64_t ignore, void *context);

/** Posts a tagged receive into several pieces. Results as of gdrfab_trecv(). Mirrors fi_trecvv. */
ssize_t gdrfab_trecvv(struct gdrfab_ep *ep, const struct iovec *iov, void **desc, size_t count,
                      uint64_t src_addr, uint64_t tag, uint64_t ignore, void *context);

/** Posts a receive of a tagged message with pieces, flags and a deadline; or looks for one that has come
 * already, or drops it. Mirrors fi_trecvmsg.
 *
 * With GDRFAB_PEEK nothing is received and the pieces are not used: an entry has tag, whole length, data and
 * sender of the first message that matches and has come, or an error entry ENOMSG says that there is none.
 *
 * - GDRFAB_PEEK | GDRFAB_CLAIM: the message that is found matches no other receive from then on, and waits
 *   for gdrfab_trecvmsg() of the same context with GDRFAB_CLAIM, which receives it, or GDRFAB_CLAIM |
 *   GDRFAB_DISCARD, which drops it.
 * - GDRFAB_PEEK | GDRFAB_DISCARD: the message that is found is dropped, and the entry tells of it.
 *
 * @param flags any of GDRFAB_COMPLETION, GDRFAB_MORE, GDRFAB_PEEK, GDRFAB_CLAIM, GDRFAB_DISCARD
 * @return as gdrfab_trecv(); -E2BIG; -GDRFAB_EBADFLAGS (also: GDRFAB_DISCARD alone); -EINVAL also: nothing is
 *   claimed by this context */
ssize_t gdrfab_trecvmsg(struct gdrfab_ep *ep, const struct gdrfab_msg_tagged *msg, uint64_t flags);

/* ---- Completion queue ----------------------------------------------------------------------------------
 * A post reserves its entry, so a queue cannot overrun: a full one makes posts return -EAGAIN. Reading drives
 * the endpoints that are bound to the queue (GDRFAB_PROGRESS_MANUAL). Connectionless endpoints reserve
 * nothing: the queue grows. */

/* gdrfab_cq_attr.format: the type of the entries. */
#define GDRFAB_CQ_FORMAT_UNSPEC 0   /**< GDRFAB_CQ_FORMAT_CONTEXT. */
#define GDRFAB_CQ_FORMAT_CONTEXT 1  /**< gdrfab_cq_entry. */
#define GDRFAB_CQ_FORMAT_MSG 2      /**< gdrfab_cq_msg_entry. */
#define GDRFAB_CQ_FORMAT_DATA 3     /**< gdrfab_cq_data_entry. */
#define GDRFAB_CQ_FORMAT_TAGGED 4   /**< gdrfab_cq_tagged_entry. */

/* wait_obj of completion queues, event queues and counters; other values are -EINVAL (FI_WAIT_UNSPEC too).
 * gdrfab_cq_sread(), gdrfab_eq_sread() and gdrfab_cntr_wait() work with both. */
#define GDRFAB_WAIT_NONE 0  /**< No descriptor to poll (default). */
#define GDRFAB_WAIT_FD 3    /**< A descriptor for poll(): gdrfab_cq_fd(), gdrfab_eq_fd(), gdrfab_cntr_fd(). */

/** Attributes of a completion queue (mirrors fi_cq_attr). */
typedef struct gdrfab_cq_attr {
    size_t struct_size;  /**< sizeof(gdrfab_cq_attr) */
    size_t size;         /**< Entries; 0: 1024. At most 4194304. */
    uint64_t flags;      /**< 0 */
    uint32_t format;     /**< GDRFAB_CQ_FORMAT_* */
    uint32_t wait_obj;   /**< GDRFAB_WAIT_* */
} gdrfab_cq_attr;

/** Opens a completion queue, freed by gdrfab_cq_close(). Mirrors fi_cq_open.
 *
 * @param attr attributes, or NULL: 1024 entries of GDRFAB_CQ_FORMAT_CONTEXT, no descriptor
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM, -EMFILE (no descriptor for GDRFAB_WAIT_FD) */
int gdrfab_cq_open(struct gdrfab_domain *domain, const struct gdrfab_cq_attr *attr, void *context,
                   struct gdrfab_cq **cq);

/** Closes a queue with its entries: 0, -EBUSY (endpoints are bound), -EINVAL, -EPERM. Mirrors fi_close. */
int gdrfab_cq_close(struct gdrfab_cq *cq);

/** The context of gdrfab_cq_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_cq_context(struct gdrfab_cq *cq);

/* prov_errno of error entries: the failure, more closely than errno. */
#define GDRFAB_PROV_KEY 1         /**< EKEYREJECTED: the key is stale, foreign, or its region closed. */
#define GDRFAB_PROV_BOUNDS 2      /**< ERANGE: outside the peer's region. */
#define GDRFAB_PROV_ACCESS 3      /**< EACCES: the peer's region lacks the right. */
#define GDRFAB_PROV_PATH 4        /**< EOPNOTSUPP: no path is both possible and permitted. */
#define GDRFAB_PROV_FAULT 5       /**< EFAULT: memory vanished under a copy. */
#define GDRFAB_PROV_PEER_GONE 6   /**< ECONNRESET: the peer closed or died. */
#define GDRFAB_PROV_PEER_BROKE 7  /**< EPROTO: the peer wrote invalid data. */
#define GDRFAB_PROV_DEADLINE 8    /**< ETIMEDOUT: the deadline passed. */
#define GDRFAB_PROV_CANCELED 9    /**< ECANCELED: by gdrfab_cancel(), or by close or shutdown of this side. */
#define GDRFAB_PROV_TRUNC 10      /**< GDRFAB_ETRUNC: the message was longer than the receive. */
#define GDRFAB_PROV_REJECTED 11   /**< ECONNREFUSED: rejected; err_data is the peer's private data. */
#define GDRFAB_PROV_BUSY 12       /**< ECONNREFUSED: the listener has no room for another connection now. */
#define GDRFAB_PROV_VERBS 100     /**< This plus the ibv_wc_status of a failed work request. */

/** GDRFAB_CQ_FORMAT_CONTEXT (mirrors fi_cq_entry). */
typedef struct gdrfab_cq_entry {
    void *op_context;  /**< Context of the operation; NULL for a peer's write with data. */
} gdrfab_cq_entry;

/** GDRFAB_CQ_FORMAT_MSG (mirrors fi_cq_msg_entry). */
typedef struct gdrfab_cq_msg_entry {
    void *op_context;  /**< Context of the operation. */
    uint64_t flags;    /**< Kind of operation: GDRFAB_SEND | GDRFAB_MSG, and so on. */
    size_t len;        /**< Bytes received, or of the operation. */
} gdrfab_cq_msg_entry;

/** GDRFAB_CQ_FORMAT_DATA (mirrors fi_cq_data_entry). */
typedef struct gdrfab_cq_data_entry {
    void *op_context;  /**< Context of the operation. */
    uint64_t flags;    /**< Kind of operation. */
    size_t len;        /**< Bytes received, or of the operation. */
    void *buf;         /**< First byte of the operation's local buffer. */
    uint64_t data;     /**< The peer's data, if flags has GDRFAB_REMOTE_CQ_DATA. */
} gdrfab_cq_data_entry;

/** GDRFAB_CQ_FORMAT_TAGGED (mirrors fi_cq_tagged_entry). */
typedef struct gdrfab_cq_tagged_entry {
    void *op_context;  /**< Context of the operation. */
    uint64_t flags;    /**< Kind of operation. */
    size_t len;        /**< Bytes received, or of the operation. */
    void *buf;         /**< First byte of the operation's local buffer. */
    uint64_t data;     /**< The peer's data, if flags has GDRFAB_REMOTE_CQ_DATA. */
    uint64_t tag;      /**< The message's tag, if it is a receive and flags has GDRFAB_TAGGED. */
} gdrfab_cq_tagged_entry;

/** An operation that failed (mirrors fi_cq_err_entry). */
typedef struct gdrfab_cq_err_entry {
    size_t struct_size;    /**< sizeof(gdrfab_cq_err_entry), set by the caller */
    void *op_context;      /**< Context of the operation. */
    uint64_t flags;        /**< Kind of operation. */
    size_t len;            /**< Bytes that are in place. */
    void *buf;             /**< First byte of the operation's local buffer. */
    uint64_t data;         /**< The peer's data, if flags has GDRFAB_REMOTE_CQ_DATA. */
    size_t olen;           /**< With GDRFAB_ETRUNC: bytes that did not fit; len + olen is the whole
                                message. */
    int err;               /**< Errno, positive. */
    int prov_errno;        /**< GDRFAB_PROV_*, for gdrfab_cq_strerror(). */
    void *err_data;        /**< In: a buffer for words, or NULL. */
    size_t err_data_size;  /**< In: bytes of err_data; out: bytes written, NUL included. */
    uint64_t tag;          /**< The message's tag, if it is a receive and flags has GDRFAB_TAGGED. */
    uint64_t src_addr;     /**< The peer's index in the address vector, or GDRFAB_ADDR_NOTAVAIL. */
    size_t block;          /**< Of a list: the block that failed, from 0. */
} gdrfab_cq_err_entry;

/** Reads completions, or drives the endpoints bound to the queue if there are none. Mirrors fi_cq_read.
 *
 * @param count entries that buf holds; 0 only drives
 * @return entries read, at least 1 (0 if count is 0 and entries wait), or -EAGAIN (none), -GDRFAB_EAVAIL
 *   (gdrfab_cq_readerr() has the next), -EINVAL */
ssize_t gdrfab_cq_read(struct gdrfab_cq *cq, void *buf, size_t count);

/** gdrfab_cq_read() that also gives the sender of each entry. Mirrors fi_cq_readfrom.
 *
 * @param count    entries that buf and src_addr hold
 * @param src_addr gets for each entry the sender's index in the address vector, or GDRFAB_ADDR_NOTAVAIL: the
 *   sender was not in it when the message came, this side began the operation, or the endpoint is connected;
 *   may be NULL
 * @return as gdrfab_cq_read() */
ssize_t gdrfab_cq_readfrom(struct gdrfab_cq *cq, void *buf, size_t count, uint64_t *src_addr);

/** gdrfab_cq_read() that waits for the first entry. Polls for the microseconds of GDRFAB_SPIN_US, then
 * sleeps; needs no GDRFAB_WAIT_FD. Several threads may wait on one queue. Mirrors fi_cq_sread, without cond.
 *
 * @param count entries that buf holds, not 0
 * @return as gdrfab_cq_read(); -EAGAIN also after the timeout or gdrfab_cq_signal(); -EINTR (a signal);
 *   -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on) */
ssize_t gdrfab_cq_sread(struct gdrfab_cq *cq, void *buf, size_t count, int timeout_ms);

/** gdrfab_cq_sread() with the src_addr of gdrfab_cq_readfrom(). Mirrors fi_cq_sreadfrom. */
ssize_t gdrfab_cq_sreadfrom(struct gdrfab_cq *cq, void *buf, size_t count, uint64_t *src_addr,
                            int timeout_ms);

/** Reads the error entry that is next. Mirrors fi_cq_readerr.
 *
 * @param entry gets the entry; the caller sets struct_size, err_data and err_data_size
 * @return 1, or -EAGAIN (the next entry is no error), -EINVAL, -GDRFAB_EBADFLAGS */
ssize_t gdrfab_cq_readerr(struct gdrfab_cq *cq, struct gdrfab_cq_err_entry *entry, uint64_t flags);

/** Makes one waiting gdrfab_cq_sread() return, or else the next one at once; a thread that waits by
 * gdrfab_cq_trywait() and poll gets it as an -EAGAIN of gdrfab_cq_trywait(). Any thread may call it, with
 * GDRFAB_THREAD_DOMAIN too: 0, -EINVAL, -EPERM. Mirrors fi_cq_signal. */
int gdrfab_cq_signal(struct gdrfab_cq *cq);

/** Words for a provider code. Mirrors fi_cq_strerror.
 *
 * @param cq         not used; may be NULL
 * @param prov_errno of the error entry
 * @param err_data   of the error entry: the words of that very failure; NULL: the code's general words
 * @param buf        gets the words, at most len bytes, or NULL
 * @return buf; if that is NULL, a copy of at most 1024 bytes that belongs to the calling thread, valid until
 *   its next gdrfab_cq_strerror() or gdrfab_eq_strerror(), and is not to be freed */
const char *gdrfab_cq_strerror(struct gdrfab_cq *cq, int prov_errno, const void *err_data, char *buf,
                               size_t len);

/** Gives the descriptor of a queue opened with GDRFAB_WAIT_FD: readable when the queue may have something.
 * Mirrors fi_control with FI_GETWAIT.
 *
 * Wait in this order, and no wake-up is lost: gdrfab_cq_read() until -EAGAIN, gdrfab_cq_trywait(), and poll
 * if that returned 0. Deadlines make it readable too, and so does another thread that reads the queue
 * meanwhile. It stays readable until the next gdrfab_cq_trywait().
 *
 * @param fd gets the descriptor, which is the queue's and closed with it
 * @return 0, -EINVAL, -EPERM, -ENOSYS (opened without GDRFAB_WAIT_FD) */
int gdrfab_cq_fd(struct gdrfab_cq *cq, int *fd);

/** Prepares for waiting on the descriptor, before each poll; opens none. Mirrors fi_trywait.
 *
 * @return 0 (poll now), -EAGAIN (something came, or may have, or gdrfab_cq_signal() was called: read first),
 *   -EINVAL, -EPERM, -ENOSYS (opened without GDRFAB_WAIT_FD), -ENOMEM or -ENOSPC (the kernel watches no more
 *   sockets for this user); with verbs also the driver's errno when it cannot be armed */
int gdrfab_cq_trywait(struct gdrfab_cq *cq);

/* ---- Event queue ---------------------------------------------------------------------------------------
 * Reports events of connections. Reading it drives connecting and listening. */

/* Events. */
#define GDRFAB_NOTIFY 0     /**< A port or rail of an endpoint is up again; words without NUL follow the
                                 gdrfab_eq_cm_entry. Or the program's own (gdrfab_eq_write()). */
#define GDRFAB_CONNREQ 1    /**< A peer asks a passive endpoint for a connection. */
#define GDRFAB_CONNECTED 2  /**< An endpoint is connected. */
#define GDRFAB_SHUTDOWN 3   /**< The peer closed, shut down or died. */

#define GDRFAB_PEEK (1ull << 19)  /**< Flag of gdrfab_eq_read() and gdrfab_eq_sread(): the event stays. Of
                                       gdrfab_trecvmsg(): see there. */

/** Attributes of an event queue (mirrors fi_eq_attr). */
typedef struct gdrfab_eq_attr {
    size_t struct_size;  /**< sizeof(gdrfab_eq_attr) */
    size_t size;         /**< A hint; event queues grow. */
    uint64_t flags;      /**< 0 */
    uint32_t wait_obj;   /**< GDRFAB_WAIT_* */
    uint32_t reserved;   /**< 0 */
} gdrfab_eq_attr;

/** Opens an event queue, freed by gdrfab_eq_close(). Mirrors fi_eq_open.
 *
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM, -EMFILE (no descriptor) */
int gdrfab_eq_open(struct gdrfab_fabric *fabric, const struct gdrfab_eq_attr *attr, void *context,
                   struct gdrfab_eq **eq);

/** Closes a queue with its events: 0, -EBUSY (endpoints are bound), -EINVAL, -EPERM. Mirrors fi_close. */
int gdrfab_eq_close(struct gdrfab_eq *eq);

/** The context of gdrfab_eq_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_eq_context(struct gdrfab_eq *eq);

/** A connection event; the peer's private data follows it (mirrors fi_eq_cm_entry). */
typedef struct gdrfab_eq_cm_entry {
    void *object;              /**< To be cast (libfabric: fid): the gdrfab_pep of GDRFAB_CONNREQ, else the
                                    gdrfab_ep. */
    void *context;             /**< The object's context. */
    struct gdrfab_info *info;  /**< Of GDRFAB_CONNREQ, else NULL: for gdrfab_ep_open(), or its handle for
                                    gdrfab_pep_reject(); freed by gdrfab_freeinfo(). */
} gdrfab_eq_cm_entry;

/** The peer's private data behind an entry; its length is the result of the read less the entry's size. */
#define GDRFAB_EQ_CM_DATA(entry) ((const unsigned char *)((const gdrfab_eq_cm_entry *)(entry) + 1))

/** A failed connection attempt, or why a connection broke (mirrors fi_eq_err_entry). */
typedef struct gdrfab_eq_err_entry {
    size_t struct_size;    /**< sizeof(gdrfab_eq_err_entry), set by the caller */
    void *object;          /**< To be cast: the gdrfab_pep if data is GDRFAB_CONNREQ, else the gdrfab_ep. */
    void *context;         /**< The object's context. */
    /** The event that failed. GDRFAB_CONNECTED: an attempt to connect failed. GDRFAB_SHUTDOWN: the connection
     * broke. GDRFAB_NOTIFY: the connection goes on, but a port or rail went down, or an address changed.
     * GDRFAB_CONNREQ, of two causes: a passive endpoint of shm or tcp cannot accept peers (err EMFILE,
     * ENFILE, ENOMEM...), which is told once until it can again; it still listens, and refuses or holds
     * them. Or one of tcp refused a peer for its key (err EACCES, EKEYREJECTED; the words have the peer's
     * address), which is told once a second at most for all peers. */
    uint64_t data;
    int err;               /**< Errno, positive. */
    int prov_errno;        /**< GDRFAB_PROV_* */
    void *err_data;        /**< In: a buffer, or NULL. Gets words, or with GDRFAB_PROV_REJECTED the peer's
                                private data. */
    size_t err_data_size;  /**< In: bytes of err_data; out: bytes written, of words with their NUL. */
} gdrfab_eq_err_entry;

/** Reads an event, and drives connecting, listening and the endpoints bound to the queue. Mirrors fi_eq_read.
 *
 * @param event gets GDRFAB_CONNREQ, GDRFAB_CONNECTED, GDRFAB_SHUTDOWN, GDRFAB_NOTIFY, or the number of
 *   gdrfab_eq_write()
 * @param buf   gets a gdrfab_eq_cm_entry and private data, or the bytes of gdrfab_eq_write()
 * @param len   bytes of buf; sizeof(gdrfab_eq_cm_entry) + GDRFAB_CM_DATA_MAX hold any connection event
 * @param flags 0, or GDRFAB_PEEK: the event stays, and buf, which may be NULL, is not written
 * @return bytes written (GDRFAB_PEEK: that reading writes), -EAGAIN (none), -GDRFAB_EAVAIL
 *   (gdrfab_eq_readerr() has the next), -GDRFAB_ETOOSMALL (the event stays), -EINVAL, -GDRFAB_EBADFLAGS */
ssize_t gdrfab_eq_read(struct gdrfab_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags);

/** gdrfab_eq_read() that waits for an event; with GDRFAB_PEEK it only waits. Mirrors fi_eq_sread.
 *
 * @return as gdrfab_eq_read(); -EAGAIN also after the timeout, or because a passive endpoint of the queue was
 *   closed meanwhile; -EINTR (a signal); -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on) */
ssize_t gdrfab_eq_sread(struct gdrfab_eq *eq, uint32_t *event, void *buf, size_t len, int timeout_ms,
                        uint64_t flags);

/** gdrfab_cq_readerr() of an event queue. Mirrors fi_eq_readerr. */
ssize_t gdrfab_eq_readerr(struct gdrfab_eq *eq, struct gdrfab_eq_err_entry *entry, uint64_t flags);

/** Puts an event of the caller's into the queue, and wakes those that wait on it. Mirrors fi_eq_write.
 *
 * @param event any number; one above GDRFAB_SHUTDOWN is no event of the library's
 * @param buf   bytes for the reader
 * @param len   bytes of buf, up to 4096
 * @return len, or -EINVAL, -GDRFAB_EBADFLAGS, -EPERM */
ssize_t gdrfab_eq_write(struct gdrfab_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags);

/** gdrfab_cq_strerror() of an event queue. With GDRFAB_PROV_REJECTED it does not read err_data, which is the
 * peer's private data. Mirrors fi_eq_strerror. */
const char *gdrfab_eq_strerror(struct gdrfab_eq *eq, int prov_errno, const void *err_data, char *buf,
                               size_t len);

/** gdrfab_cq_fd() of an event queue: readable when an event may be there, or a timeout of connecting has
 * passed. In this order: read until -EAGAIN, gdrfab_eq_trywait(), poll. Mirrors fi_control with FI_GETWAIT.
 */
int gdrfab_eq_fd(struct gdrfab_eq *eq, int *fd);

/** gdrfab_cq_trywait() of an event queue; -EAGAIN: an event is there, or may be. Mirrors fi_trywait. */
int gdrfab_eq_trywait(struct gdrfab_eq *eq);

/* ---- Counter -------------------------------------------------------------------------------------------
 * Counts completions of the endpoints, or remote writes into the regions, that it is bound to. Reading and
 * waiting drive those endpoints. */

/** Attributes of a counter (mirrors fi_cntr_attr). */
typedef struct gdrfab_cntr_attr {
    size_t struct_size;  /**< sizeof(gdrfab_cntr_attr) */
    uint64_t flags;      /**< 0 */
    uint32_t wait_obj;   /**< GDRFAB_WAIT_* */
    uint32_t reserved;   /**< 0 */
} gdrfab_cntr_attr;

/** Opens a counter, freed by gdrfab_cntr_close(). Mirrors fi_cntr_open.
 *
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EPERM, -EMFILE (no descriptor) */
int gdrfab_cntr_open(struct gdrfab_domain *domain, const struct gdrfab_cntr_attr *attr, void *context,
                     struct gdrfab_cntr **cntr);

/** Closes a counter: 0, -EBUSY (endpoints or regions are bound), -EINVAL, -EPERM. Mirrors fi_close. */
int gdrfab_cntr_close(struct gdrfab_cntr *cntr);

/** The context of gdrfab_cntr_open(); NULL for NULL. Mirrors fid->context. */
void *gdrfab_cntr_context(struct gdrfab_cntr *cntr);

/** The count of successes; drives the endpoints bound to the counter. 0 for NULL. Mirrors fi_cntr_read. */
uint64_t gdrfab_cntr_read(struct gdrfab_cntr *cntr);

/** The count of failures; drives as gdrfab_cntr_read(). 0 for NULL. Mirrors fi_cntr_readerr. */
uint64_t gdrfab_cntr_readerr(struct gdrfab_cntr *cntr);

/** Adds to the count of successes: 0 or -EINVAL. Mirrors fi_cntr_add. */
int gdrfab_cntr_add(struct gdrfab_cntr *cntr, uint64_t value);

/** Sets the count of successes: 0 or -EINVAL. Mirrors fi_cntr_set. */
int gdrfab_cntr_set(struct gdrfab_cntr *cntr, uint64_t value);

/** Adds to the count of failures: 0 or -EINVAL. Mirrors fi_cntr_adderr. */
int gdrfab_cntr_adderr(struct gdrfab_cntr *cntr, uint64_t value);

/** Sets the count of failures: 0 or -EINVAL. Mirrors fi_cntr_seterr. */
int gdrfab_cntr_seterr(struct gdrfab_cntr *cntr, uint64_t value);

/** Waits until the count of successes is at least `threshold`. Mirrors fi_cntr_wait.
 *
 * @return 0, -ETIMEDOUT, -GDRFAB_EAVAIL (the count of failures changed meanwhile), -EINTR (a signal),
 *   -EINVAL, -EPERM; -EMFILE, -ENFILE, -ENOMEM, -ENOSPC (nothing to sleep on) */
int gdrfab_cntr_wait(struct gdrfab_cntr *cntr, uint64_t threshold, int timeout_ms);

/** gdrfab_cq_fd() of a counter: readable when the count may have changed. One thread at a time waits, in this
 * order: gdrfab_cntr_read(), gdrfab_cntr_trywait(), poll. Mirrors fi_control with FI_GETWAIT. */
int gdrfab_cntr_fd(struct gdrfab_cntr *cntr, int *fd);

/** gdrfab_cq_trywait() of a counter. -EAGAIN: the count is not the one that gdrfab_cntr_read() gave last (0
 * before the first), there are failures that neither gdrfab_cntr_readerr() nor an earlier -EAGAIN reported,
 * or something may have come. Mirrors fi_trywait. */
int gdrfab_cntr_trywait(struct gdrfab_cntr *cntr);

/* ---- Options, paths, statistics ------------------------------------------------------------------------
 * Options of an endpoint, the path that its operations take, the rails of its connections, and its counts. */

#define GDRFAB_OPT_ENDPOINT 0           /**< Level of all options. */
#define GDRFAB_OPT_MIN_MULTI_RECV 0     /**< size_t, with GDRFAB_MULTI_RECV only: a receive of several
                                             messages posted from now on ends when fewer bytes are left;
                                             default 64. */
#define GDRFAB_OPT_CM_DATA_SIZE 1       /**< size_t, read only: bytes of private data to connect. */

/** uint64_t ns after which operations, not receives, posted from now on end with ETIMEDOUT; 0 (default),
 * UINT64_MAX: never. An operation does not end while the kernel copies (cma) and waits for the target's
 * pages (userfaultfd). */
#define GDRFAB_OPT_DEADLINE 256

#define GDRFAB_OPT_CONNECT_TIMEOUT 257  /**< uint64_t ns to connect, or of a connectionless endpoint to
                                             reach a peer by any of its providers; 0, UINT64_MAX: no limit;
                                             default 10 s. */

/** uint64_t of GDRFAB_PATH_*: RMA that can use none of these fails with EOPNOTSUPP (GDRFAB_PROV_PATH); 0:
 * any. With verbs the path is that of this side's memory, or staged if either side's memory is. */
#define GDRFAB_OPT_REQUIRE_PATH 258

#define GDRFAB_OPT_FORBID_PATH 259      /**< uint64_t of GDRFAB_PATH_*: RMA never uses these. */
#define GDRFAB_OPT_COOP 260             /**< uint32_t, a GDRFAB_COOP_*, of shm: whether the target takes
                                             part in large copies. Elsewhere it is GDRFAB_COOP_OFF, and
                                             other values are -EOPNOTSUPP. */
#define GDRFAB_COOP_OFF 0               /**< The initiator copies alone. */
#define GDRFAB_COOP_POLLING 1           /**< A target that polls helps (default). If it is stopped
                                             meanwhile, the operation waits. */
#define GDRFAB_COOP_WAKING 2            /**< A target that sleeps in a wait helps too; it is woken for a
                                             MiB or more. */

/** uint64_t, a stream of the caller's (CUstream, ...) as a number: copies by a device's driver, for
 * operations posted from now on, begin after the work that is in that stream at the post; 0 (default):
 * none. Fails with ENOSYS if the vendor has no such order. Verbs and connectionless endpoints take only 0,
 * else -EOPNOTSUPP: synchronise with the stream before posting. */
#define GDRFAB_OPT_STREAM 261

/* Of verbs only, set before connecting or accepting; they mirror timeout, retry_cnt, rnr_retry and
 * min_rnr_timer of ibv_qp_attr. The defaults are in parentheses; GDRFAB_VERBS_TIMEOUT and
 * GDRFAB_VERBS_RETRIES change the first two. */
#define GDRFAB_OPT_ACK_TIMEOUT 262    /**< uint32_t 0 to 31 (14): an unacknowledged packet is repeated
                                           after 4.096 us * 2^value; 0: never. */
#define GDRFAB_OPT_RETRY_COUNT 263    /**< uint32_t 0 to 7 (7): so many repeats before the connection
                                           fails. */
#define GDRFAB_OPT_RNR_RETRY 264      /**< uint32_t 0 to 7 (7): repeats if the peer has posted no receive;
                                           7: no end. */
#define GDRFAB_OPT_MIN_RNR_TIMER 265  /**< uint32_t 0 to 31 (12), verbs' code (12: 0.64 ms): the wait of
                                           peers between such repeats. */

/** uint32_t 0 or 1 (default), of shm, set before connecting or accepting. 0: operations and progress of this
 * endpoint call no device driver in this process. It is for callers whose kernels wait for copies: a
 * driver's call may wait for the kernels. A process of the library's, gdrfab-copier, which setting the
 * option starts, then makes copies between device memory (ipc). Whatever needs a driver here fails with
 * EOPNOTSUPP: copies between host and device memory, messages in device memory, a peer's staged access to
 * it. Registration still calls the driver. GDRFAB_HMEM_DRIVER=process makes 0 the default. Mirrors
 * FI_OPT_CUDA_API_PERMITTED. */
#define GDRFAB_OPT_DRIVER_CALLS 266

/** uint64_t ns after which receives posted from now on end with ETIMEDOUT, whether a message has begun to
 * arrive or not; 0 (default), UINT64_MAX: never. Over verbs a late one ends the connection. */
#define GDRFAB_OPT_RECV_DEADLINE 267

#define GDRFAB_OPT_WHOLE_NAME 268     /**< uint32_t 0 (default) or, connectionless only, 1: a peer that
                                           lacks the whole name (gdrfab_ep_getname()) gets ECONNREFUSED. */

/** uint32_t 0 to 16, tcp only: transfers of 256 KiB and more, on connections made from now on, use this many
 * further sockets, or as many as the peer wants if those are fewer; 1: none; 0: automatic, between hosts
 * where the network limits one connection and several are faster. Default: GDRFAB_TCP_STREAMS. */
#define GDRFAB_OPT_TCP_STREAMS 269

/** char[], interfaces and addresses with commas, nearest first, a NUL at the end or none; tcp only, set
 * before connecting or accepting (connectionless: of peers that are reached from now on): the rails of this
 * endpoint's connections, if the peer wants some too; "": one connection. Read back as addresses, with a
 * NUL. Default: GDRFAB_TCP_RAILS. */
#define GDRFAB_OPT_RAILS 270

/** Sets an option. Mirrors fi_setopt.
 *
 * @param level   GDRFAB_OPT_ENDPOINT
 * @param optname GDRFAB_OPT_*
 * @param optval  the value, of the option's type; read during the call only
 * @param optlen  bytes of optval
 * @return 0, -EINVAL, -ENOPROTOOPT (no such option, or not of this provider), -EOPNOTSUPP (a value that this
 *   provider cannot keep to), -GDRFAB_EOPBADSTATE (an option that is set before connecting, and the endpoint
 *   has begun to); of GDRFAB_OPT_RAILS also -ENODEV, -EADDRNOTAVAIL (no interface or address of this host);
 *   of GDRFAB_OPT_DRIVER_CALLS also -ENOENT (no gdrfab-copier is found), -EPROTO (it is of another build),
 *   -EIO (it has ended), -ETIMEDOUT (no answer for a minute), or an errno of its driver (-EBUSY, -ENOMEM,
 *   ...) */
int gdrfab_ep_setopt(struct gdrfab_ep *ep, int level, int optname, const void *optval, size_t optlen);

/** Reads an option. Mirrors fi_getopt.
 *
 * @param level   GDRFAB_OPT_ENDPOINT
 * @param optname GDRFAB_OPT_*
 * @param optval  gets the value, of the option's type
 * @param optlen  in: bytes of optval; out: bytes of the value, also with -GDRFAB_ETOOSMALL
 * @return 0, -EINVAL, -ENOPROTOOPT (no such option), -GDRFAB_ETOOSMALL */
int gdrfab_ep_getopt(struct gdrfab_ep *ep, int level, int optname, void *optval, size_t *optlen);

#define GDRFAB_KEY_MESSAGES 0  /**< As the key of gdrfab_ep_query() or gdrfab_ep_explain(): asks for the
                                    path of messages. A region to which its owner gave the key 0 cannot be
                                    asked about. */

/** The path that operations take, the reasons against the others, and the connection's rails. */
typedef struct gdrfab_path_info {
    size_t struct_size;              /**< sizeof(gdrfab_path_info), set by the caller */
    uint64_t path;                   /**< The GDRFAB_PATH_* that operations take; 0: none is possible and
                                          permitted. */
    uint64_t paths;                  /**< All GDRFAB_PATH_* that are possible and permitted. */
    uint64_t offered;                /**< GDRFAB_PATH_* that the peer's region offers, as far as this side
                                          can tell. */
    int reasons[GDRFAB_PATHS_MAX];   /**< By GDRFAB_PATH_INDEX(): the reason against that path, a positive
                                          errno; 0: it is possible and permitted, or no path has that
                                          index. */
    const void *desc;                /**< In: gdrfab_mr_desc() of the operations' local memory; NULL: host
                                          memory. tcp and verbs choose by it; shm does so for messages
                                          only. */
    uint64_t short_path;             /**< Of messages (GDRFAB_KEY_MESSAGES): the GDRFAB_PATH_* of those
                                          with up to short_size bytes; 0: messages of all lengths take
                                          path. */
    size_t short_size;               /**< Bytes of the longest message that takes short_path; 0 if that is
                                          0. */
    struct gdrfab_rail_info *rails;  /**< In: an array of the caller's that gets the connection's rails,
                                          the nearest first; or NULL. */
    uint32_t rails_max;              /**< In: entries of the array rails; 0 if rails is NULL. */
    uint32_t rails_count;            /**< Out: rails of the connection, also if they are more than
                                          rails_max; 0: it has none. */
} gdrfab_path_info;

/** Counts of one path. */
typedef struct gdrfab_path_stats {
    uint64_t ops;    /**< RMA and atomic operations of this side. */
    uint64_t bytes;  /**< Their bytes. */
} gdrfab_path_stats;

/** Counts of an endpoint since it was opened; of a connectionless one, with all its peers together. */
typedef struct gdrfab_stats {
    size_t struct_size;        /**< sizeof(gdrfab_stats), set by the caller */
    /** Operations by path: stats.by_path[GDRFAB_PATH_INDEX(GDRFAB_PATH_CMA)].bytes, and so on. An operation
     * of an RDMA device counts by the way in which the device reaches this side's memory. */
    struct gdrfab_path_stats by_path[GDRFAB_PATHS_MAX];
    uint64_t sends;            /**< Messages sent. */
    uint64_t recvs;            /**< Messages received. */
    uint64_t unexpected;       /**< Messages that arrived before their receive was posted, and were kept. */
    uint64_t errors;           /**< Operations and receives that failed. */
    uint64_t bytes_helped;     /**< Of the bytes in by_path, those that the peer's CPU copied
                                    (GDRFAB_OPT_COOP). */
    uint64_t rails_lost;       /**< Losses of rails, summed over all rails of the connection
                                    (gdrfab_rail_info.losses). */
    uint64_t cache_hits;       /**< Of the whole domain of a connectionless endpoint, over verbs: messages
                                    that the receiver's card read from device memory in a region without
                                    GDRFAB_REMOTE_READ, by a registration kept from an earlier message. */
    uint64_t cache_misses;     /**< Messages of the same kind for which a registration was made. */
    uint64_t cache_evictions;  /**< Kept registrations that were closed before their region: to make room,
                                    or because the memory was freed. */
} gdrfab_stats;

/** One rail of a connection that uses several networks or ports at once (GDRFAB_OPT_RAILS, GDRFAB_TCP_RAILS,
 * GDRFAB_VERBS_RAILS). The library fills all fields; the struct keeps its size in later versions. */
typedef struct gdrfab_rail_info {
    uint32_t up;           /**< 1: the rail is up; 0: it is down, and the library keeps connecting it. */
    uint32_t losses;       /**< Number of times that the rail was lost. */
    uint64_t bytes_out;    /**< tcp: bytes sent, those sent twice counted twice. verbs: bytes that this
                                side wrote over the rail, on the first rail only those of operations that
                                go over several. */
    uint64_t bytes_in;     /**< tcp: bytes received. verbs: bytes that this side read over the rail,
                                likewise. */
    char own[48];          /**< Text: this side's address without a port, on InfiniBand its GID; empty: not
                                known yet. */
    char peer[48];         /**< Text: the peer's address, likewise. */
    uint64_t reserved[4];  /**< 0; for later versions. */
} gdrfab_rail_info;

/** Tells which path the next operation of this endpoint to a peer's region takes, for each other path the
 * reason against it, and the state of the rails to the peer. Nothing is sent.
 *
 * shm looks the key up in the peer's table of regions. tcp and verbs decide by the key and by this side's
 * memory; only an operation finds out whether the peer has such a region. A key of verbs does not tell
 * whether the peer's device reaches the memory by nic, dmabuf or peer-mem. So the answer,
 * GDRFAB_OPT_REQUIRE_PATH and GDRFAB_OPT_FORBID_PATH are about this side's memory, and for staged about both
 * sides'.
 *
 * Reasons against a path: EOPNOTSUPP (the provider has no such path, or not for this memory), EACCES (the
 * endpoint's options or GDRFAB_PATHS rule it out), ENODEV (shm: the peer's region does not offer it),
 * another errno of the system or a driver, or EAGAIN while it cannot be known: shm waits for the peer's
 * memory file, if this process may not fetch it; tcp: a key that its owner chose (no GDRFAB_MR_PROV_KEY)
 * does not tell the kind of its memory.
 *
 * With GDRFAB_KEY_MESSAGES the answer is about messages from the memory that desc names. path is that of
 * long messages. The receiver may fetch their bytes once it has a receive (shm, connectionless endpoints);
 * the receiver's own options then count too. Messages may use staged even if GDRFAB_OPT_FORBID_PATH forbids
 * it.
 *
 * @param peer the peer's index in the address vector; not used on connected endpoints
 * @param key  key of the peer's region, or GDRFAB_KEY_MESSAGES
 * @param info gets the answer; the caller sets struct_size, desc, rails and rails_max, which are kept
 * @return 0, -EINVAL (also: peer names none; desc, where it counts, is none of this domain), -ENOTCONN (not
 *   connected yet; of a connectionless endpoint also: nothing has connected the peer yet), -ESHUTDOWN (not
 *   connected any more), -EKEYREJECTED (shm: the peer has no such region; verbs: no verbs key), -EPROTO
 *   (shm: the peer's table makes no sense); connectionless: -GDRFAB_EOPBADSTATE (not enabled), -EOPNOTSUPP
 *   (the provider that reaches the peer does not reach the device memory of desc) */
int gdrfab_ep_query(struct gdrfab_ep *ep, uint64_t peer, uint64_t key, struct gdrfab_path_info *info);

/** gdrfab_ep_query() in words, for host memory on this side (desc NULL); lists the rails too.
 *
 * @param peer as of gdrfab_ep_query()
 * @param key  as of gdrfab_ep_query()
 * @param buf  gets the text
 * @return length of the text, or an errno of gdrfab_ep_query() */
ssize_t gdrfab_ep_explain(struct gdrfab_ep *ep, uint64_t peer, uint64_t key, char *buf, size_t len);

/** Tells the counts of an endpoint, in any state: 0 or -EINVAL.
 *
 * @param stats gets the counts; the caller sets struct_size */
int gdrfab_ep_stats(struct gdrfab_ep *ep, struct gdrfab_stats *stats);

/* ---- Log, faults ---------------------------------------------------------------------------------------
 * Nothing is logged unless GDRFAB_LOG or gdrfab_log_set() asks for it. GDRFAB_FAULT injects faults
 * (docs/faults.md). */

/** Receives a log line, without its end. May be called by any thread that is inside the library, with its
 * locks held: it must not call gdrfab, and a C++ exception must not leave it. */
typedef void (*gdrfab_log_fn)(void *arg, int level, const char *message);

/** Sets which lines are logged, and where to; overrides GDRFAB_LOG. Mirrors fi_import_log.
 *
 * Lines on stderr begin with the time (UTC), the process and the level. A line that cannot be written is
 * lost.
 *
 * @param level 0 off, 1 error, 2 warn, 3 info, 4 debug
 * @param fn    receives the lines, without time, process and level; NULL: stderr
 * @param arg   passed to fn
 * @return 0, -EINVAL */
int gdrfab_log_set(int level, gdrfab_log_fn fn, void *arg);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GDRFAB_H */
