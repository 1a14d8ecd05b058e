/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * gdrfab: register memory, write into another process's memory, learn that it is done.
 *
 * Generated from src/capi by `make header`; edit the Rust source, not this file.
 * docs/abi.md has the rules that hold for every function: results, outputs, ownership, threads, struct_size. */

#ifndef GDRFAB_H
#define GDRFAB_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

/**
 * The peer's private data in an event read by gdrfab_eq_read() or gdrfab_eq_sread(): it follows the entry, and its
 * length is the count that the call returned less `sizeof(gdrfab_eq_cm_entry)`.
 */
#define GDRFAB_EQ_CM_DATA(entry) ((const unsigned char *)((const gdrfab_eq_cm_entry *)(entry) + 1))

/**
 * Messages (FI_MSG); in completions: the operation was a message.
 */
#define GDRFAB_MSG (1ull << 1)

/**
 * Remote memory access (FI_RMA); in completions: the operation was RMA.
 */
#define GDRFAB_RMA (1ull << 2)

/**
 * Initiate reads; access right of a buffer that a read fills.
 */
#define GDRFAB_READ (1ull << 8)

/**
 * Initiate writes; access right of a buffer that a write takes from.
 */
#define GDRFAB_WRITE (1ull << 9)

/**
 * Receive; bind flag of a queue or counter for receives.
 */
#define GDRFAB_RECV (1ull << 10)

/**
 * Send; bind flag of a counter for sends.
 */
#define GDRFAB_SEND (1ull << 11)

/**
 * Bind flag of a queue for everything that an endpoint initiates (the same bit as GDRFAB_SEND).
 */
#define GDRFAB_TRANSMIT (1ull << 11)

/**
 * Access right: peers may read the region.
 */
#define GDRFAB_REMOTE_READ (1ull << 12)

/**
 * Access right: peers may write the region; in completions: a peer wrote with data.
 */
#define GDRFAB_REMOTE_WRITE (1ull << 13)

/**
 * The operation carries 64 bits of data to the peer's completion queue.
 */
#define GDRFAB_REMOTE_CQ_DATA (1ull << 17)

/**
 * More operations follow at once (a hint; shm has no doorbell to save).
 */
#define GDRFAB_MORE (1ull << 18)

/**
 * Flag of gdrfab_eq_read() and gdrfab_eq_sread(): the event stays in the queue.
 */
#define GDRFAB_PEEK (1ull << 19)

/**
 * Start only after all earlier operations of the endpoint have completed.
 */
#define GDRFAB_FENCE (1ull << 21)

/**
 * Give an entry even where the queue is bound with GDRFAB_SELECTIVE_COMPLETION.
 */
#define GDRFAB_COMPLETION (1ull << 24)

/**
 * The buffer is the caller's again when the call returns; up to inject_size bytes.
 */
#define GDRFAB_INJECT (1ull << 25)

/**
 * Complete when the buffer may be reused. What fails afterwards gives an error entry besides.
 */
#define GDRFAB_INJECT_COMPLETE (1ull << 26)

/**
 * Complete when the operation no longer depends on this side (the default).
 */
#define GDRFAB_TRANSMIT_COMPLETE (1ull << 27)

/**
 * Complete when the bytes are in the target's memory, visible to it; a message: when a receive has it.
 */
#define GDRFAB_DELIVERY_COMPLETE (1ull << 28)

/**
 * Flag of gdrfab_mr_regattr(): attr->dmabuf names the memory.
 */
#define GDRFAB_MR_DMABUF (1ull << 40)

/**
 * Device memory (FI_HMEM).
 */
#define GDRFAB_HMEM (1ull << 47)

/**
 * Reaches processes of this host.
 */
#define GDRFAB_LOCAL_COMM (1ull << 51)

/**
 * Reaches other hosts.
 */
#define GDRFAB_REMOTE_COMM (1ull << 52)

/**
 * Capability, and flag of registration: the region can be bound to a counter of remote writes.
 */
#define GDRFAB_RMA_EVENT (1ull << 56)

/**
 * getinfo flag: node and service name the local address, to listen on.
 */
#define GDRFAB_SOURCE (1ull << 57)

/**
 * Flag of gdrfab_ep_bind_cq(): successes give an entry only with GDRFAB_COMPLETION.
 */
#define GDRFAB_SELECTIVE_COMPLETION (1ull << 59)

/**
 * getinfo flag: also return candidates that do not fit, with info->reason.
 */
#define GDRFAB_GETINFO_ALL (1ull << 60)

/**
 * gdrfab_info.mode: a write with data takes a posted receive of its target, whose context its entry carries; without a
 * posted receive the initiator waits. verbs, unless the endpoint is opened without GDRFAB_MSG and GDRFAB_RECV: then the
 * provider keeps receives of its own (FI_RX_CQ_DATA).
 */
#define GDRFAB_RX_CQ_DATA (1ull << 56)

/**
 * Local buffers of operations lie in regions, and gdrfab_mr_desc() of those is passed, except to inject calls. Required by
 * verbs, never by shm.
 */
#define GDRFAB_MR_LOCAL (1u << 2)

/**
 * Remote addresses are the target's virtual addresses; without it they count from attr->offset.
 */
#define GDRFAB_MR_VIRT_ADDR (1u << 4)

/**
 * Memory has its pages when it is registered. Never required by shm.
 */
#define GDRFAB_MR_ALLOCATED (1u << 5)

/**
 * The provider chooses unguessable keys; without it requested_key is the key.
 */
#define GDRFAB_MR_PROV_KEY (1u << 6)

/**
 * Regions for counters are registered with GDRFAB_RMA_EVENT.
 */
#define GDRFAB_MR_RMA_EVENT (1u << 8)

/**
 * Regions belong to endpoints. Never required by shm.
 */
#define GDRFAB_MR_ENDPOINT (1u << 9)

/**
 * Device buffers are registered. Never required by shm.
 */
#define GDRFAB_MR_HMEM (1u << 10)

/**
 * Read after read.
 */
#define GDRFAB_ORDER_RAR (1ull << 0)

/**
 * Read after write.
 */
#define GDRFAB_ORDER_RAW (1ull << 1)

/**
 * Read after send.
 */
#define GDRFAB_ORDER_RAS (1ull << 2)

/**
 * Write after read.
 */
#define GDRFAB_ORDER_WAR (1ull << 3)

/**
 * Write after write.
 */
#define GDRFAB_ORDER_WAW (1ull << 4)

/**
 * Write after send.
 */
#define GDRFAB_ORDER_WAS (1ull << 5)

/**
 * Send after read.
 */
#define GDRFAB_ORDER_SAR (1ull << 6)

/**
 * Send after write.
 */
#define GDRFAB_ORDER_SAW (1ull << 7)

/**
 * Send after send.
 */
#define GDRFAB_ORDER_SAS (1ull << 8)

/**
 * Everything after everything.
 */
#define GDRFAB_ORDER_STRICT 511

/**
 * Both processes map the pages; the initiator's CPU copies. For memory of gdrfab_mem_alloc() and mappable descriptors.
 */
#define GDRFAB_PATH_DIRECT (1ull << 0)

/**
 * The initiator's kernel copies (process_vm_readv, process_vm_writev). For any memory, where ptrace would be permitted.
 */
#define GDRFAB_PATH_CMA (1ull << 1)

/**
 * Through buffers of the library (the shared ring, pinned slots), with the target's progress. For any memory, always
 * possible.
 */
#define GDRFAB_PATH_STAGED (1ull << 2)

/**
 * The initiator's device driver copies through a mapping of the peer's device memory. For memory that the vendor lets
 * another process map.
 */
#define GDRFAB_PATH_IPC (1ull << 3)

/**
 * The RDMA device reads and writes host pages that it has pinned (ibv_reg_mr).
 */
#define GDRFAB_PATH_NIC (1ull << 4)

/**
 * The RDMA device reaches the memory through a dma-buf (ibv_reg_dmabuf_mr).
 */
#define GDRFAB_PATH_DMABUF (1ull << 5)

/**
 * The RDMA device reaches device memory through the vendor's peer-memory module (ibv_reg_mr).
 */
#define GDRFAB_PATH_PEER_MEM (1ull << 6)

/**
 * The kernel copies between the memory and a socket, with the target's progress. For memory that the CPU reaches.
 */
#define GDRFAB_PATH_SOCKET (1ull << 7)

/**
 * Host memory.
 */
#define GDRFAB_HMEM_SYSTEM 0

/**
 * CUDA memory.
 */
#define GDRFAB_HMEM_CUDA 1

/**
 * ROCm memory.
 */
#define GDRFAB_HMEM_ROCR 2

/**
 * Level Zero memory.
 */
#define GDRFAB_HMEM_ZE 3

/**
 * AWS Neuron memory.
 */
#define GDRFAB_HMEM_NEURON 4

/**
 * Intel Gaudi memory.
 */
#define GDRFAB_HMEM_SYNAPSEAI 5

/**
 * Whatever the pointer says: every vendor that is here is asked. Libfabric has no such number.
 */
#define GDRFAB_HMEM_AUTO 4294967295

/**
 * Host memory that no vendor knows.
 */
#define GDRFAB_HMEM_KIND_HOST 0

/**
 * Device memory of the vendor's plain allocator (cudaMalloc).
 */
#define GDRFAB_HMEM_KIND_PLAIN 1

/**
 * Device memory of a stream-ordered pool (cudaMallocAsync).
 */
#define GDRFAB_HMEM_KIND_POOL 2

/**
 * A physical segment of a mapped address range (CUDA's virtual memory management, expandable segments).
 */
#define GDRFAB_HMEM_KIND_SEGMENT 3

/**
 * Memory that migrates between host and device.
 */
#define GDRFAB_HMEM_KIND_MANAGED 4

/**
 * Host memory that the vendor allocated or pinned.
 */
#define GDRFAB_HMEM_KIND_PINNED 5

/**
 * Device memory of another process, mapped here.
 */
#define GDRFAB_HMEM_KIND_IMPORTED 6

/**
 * Flag of gdrfab_hmem_export_dmabuf(): the mapping that goes through the PCIe BAR, where the vendor has two.
 */
#define GDRFAB_DMABUF_PCIE (1ull << 0)

/**
 * Any kind of endpoint.
 */
#define GDRFAB_EP_UNSPEC 0

/**
 * Connected, reliable endpoint.
 */
#define GDRFAB_EP_MSG 1

/**
 * Any threading level.
 */
#define GDRFAB_THREAD_UNSPEC 0

/**
 * Any thread may call anything at any time.
 */
#define GDRFAB_THREAD_SAFE 1

/**
 * The caller lets only one thread at a time into a domain and its objects; saves the locks.
 */
#define GDRFAB_THREAD_DOMAIN 3

/**
 * Any progress model.
 */
#define GDRFAB_PROGRESS_UNSPEC 0

/**
 * A thread of the domain drives its endpoints.
 */
#define GDRFAB_PROGRESS_AUTO 1

/**
 * Reading or waiting on queues, event queues and counters drives the endpoints bound to them.
 */
#define GDRFAB_PROGRESS_MANUAL 2

/**
 * GDRFAB_CQ_FORMAT_CONTEXT.
 */
#define GDRFAB_CQ_FORMAT_UNSPEC 0

/**
 * Entries are gdrfab_cq_entry.
 */
#define GDRFAB_CQ_FORMAT_CONTEXT 1

/**
 * Entries are gdrfab_cq_msg_entry.
 */
#define GDRFAB_CQ_FORMAT_MSG 2

/**
 * Entries are gdrfab_cq_data_entry.
 */
#define GDRFAB_CQ_FORMAT_DATA 3

/**
 * No descriptor is asked for; the blocking calls work all the same.
 */
#define GDRFAB_WAIT_NONE 0

/**
 * As GDRFAB_WAIT_NONE.
 */
#define GDRFAB_WAIT_UNSPEC 1

/**
 * A descriptor that poll() can wait on.
 */
#define GDRFAB_WAIT_FD 3

/**
 * Addresses are NUL-terminated text: "shm://name", "tcp://host:port", "verbs://host:port", and what gdrfab_ep_getname() gives.
 */
#define GDRFAB_ADDR_STR 9

/**
 * Event: written by gdrfab_eq_write(); or of an endpoint, whose RDMA port is active again: words, without NUL, follow the
 * gdrfab_eq_cm_entry.
 */
#define GDRFAB_NOTIFY 0

/**
 * Event: a peer asks a passive endpoint for a connection.
 */
#define GDRFAB_CONNREQ 1

/**
 * Event: an endpoint is connected.
 */
#define GDRFAB_CONNECTED 2

/**
 * Event: the peer closed, shut down or died.
 */
#define GDRFAB_SHUTDOWN 3

/**
 * The provided buffer is too small.
 */
#define GDRFAB_ETOOSMALL 257

/**
 * Not permitted in the object's state.
 */
#define GDRFAB_EOPBADSTATE 258

/**
 * An error entry is next: read it with the readerr call.
 */
#define GDRFAB_EAVAIL 259

/**
 * Flags that are not supported.
 */
#define GDRFAB_EBADFLAGS 260

/**
 * No event queue is bound.
 */
#define GDRFAB_ENOEQ 261

/**
 * No completion queue is bound.
 */
#define GDRFAB_ENOCQ 263

/**
 * A message was longer than its receive.
 */
#define GDRFAB_ETRUNC 265

/**
 * The requested key is taken.
 */
#define GDRFAB_ENOKEY 266

/**
 * A queue was overrun.
 */
#define GDRFAB_EOVERRUN 268

/**
 * The peer posted no receive in time.
 */
#define GDRFAB_ENORX 269

/**
 * EKEYREJECTED: the peer has no region with this key; it is stale, foreign or closed.
 */
#define GDRFAB_PROV_KEY 1

/**
 * ERANGE: outside the peer's region.
 */
#define GDRFAB_PROV_BOUNDS 2

/**
 * EACCES: the peer's region lacks the right.
 */
#define GDRFAB_PROV_ACCESS 3

/**
 * EOPNOTSUPP: no path is both possible and permitted.
 */
#define GDRFAB_PROV_PATH 4

/**
 * EFAULT: memory vanished under a copy.
 */
#define GDRFAB_PROV_FAULT 5

/**
 * ECONNRESET: the peer closed or died.
 */
#define GDRFAB_PROV_PEER_GONE 6

/**
 * EPROTO: the peer wrote nonsense into shared memory or its socket.
 */
#define GDRFAB_PROV_PEER_BROKE 7

/**
 * ETIMEDOUT: the deadline passed.
 */
#define GDRFAB_PROV_DEADLINE 8

/**
 * ECANCELED: by gdrfab_cancel(), or by close or shutdown of this side.
 */
#define GDRFAB_PROV_CANCELED 9

/**
 * GDRFAB_ETRUNC: the message was longer than the receive.
 */
#define GDRFAB_PROV_TRUNC 10

/**
 * ECONNREFUSED: the peer rejected the connection; err_data is its private data.
 */
#define GDRFAB_PROV_REJECTED 11

/**
 * From here on: this plus the `ibv_wc_status` of a failed work request.
 */
#define GDRFAB_PROV_VERBS 100

/**
 * No address: what gdrfab_cq_readfrom() gives on connected endpoints.
 */
#define GDRFAB_ADDR_UNSPEC UINT64_MAX

/**
 * Bytes that hold any address, its NUL included.
 */
#define GDRFAB_ADDR_MAX 256

/**
 * Bytes of private data with connect, accept and reject.
 */
#define GDRFAB_CM_DATA_MAX 256

/**
 * Changes when the ABI breaks; part of the SONAME.
 */
#define GDRFAB_VERSION_MAJOR 0

/**
 * Grows when functions or fields are added.
 */
#define GDRFAB_VERSION_MINOR 1

/**
 * Grows with corrections.
 */
#define GDRFAB_VERSION_PATCH 0

/**
 * gdrfab_tostr(): a gdrfab_info.
 */
#define GDRFAB_TYPE_INFO 0

/**
 * gdrfab_tostr(): a uint64_t of capabilities or completion flags.
 */
#define GDRFAB_TYPE_CAPS 1

/**
 * gdrfab_tostr(): a uint32_t of mr_mode bits.
 */
#define GDRFAB_TYPE_MR_MODE 2

/**
 * gdrfab_tostr(): a uint64_t of GDRFAB_PATH_* bits.
 */
#define GDRFAB_TYPE_PATHS 3

/**
 * gdrfab_tostr(): a uint64_t of operation flags.
 */
#define GDRFAB_TYPE_OP_FLAGS 4

/**
 * gdrfab_tostr(): a uint32_t event of an event queue.
 */
#define GDRFAB_TYPE_EQ_EVENT 5

/**
 * gdrfab_tostr(): a uint64_t of access rights.
 */
#define GDRFAB_TYPE_ACCESS 6

/**
 * Not known.
 */
#define GDRFAB_LINK_UNKNOWN 0

/**
 * Nothing can be sent.
 */
#define GDRFAB_LINK_DOWN 1

/**
 * The port is active.
 */
#define GDRFAB_LINK_UP 2

/**
 * Bits of gdrfab_nic_attr.odp: on-demand paging is possible at all.
 */
#define GDRFAB_ODP_SUPPORTED 1

/**
 * Of the whole address space as one region.
 */
#define GDRFAB_ODP_IMPLICIT 2

/**
 * Regions that are paged on demand can be sent from.
 */
#define GDRFAB_ODP_SEND 4

/**
 * They can be received into.
 */
#define GDRFAB_ODP_RECV 8

/**
 * They can be written to or from.
 */
#define GDRFAB_ODP_WRITE 16

/**
 * They can be read from or into.
 */
#define GDRFAB_ODP_READ 32

/**
 * They can be targets of atomics.
 */
#define GDRFAB_ODP_ATOMIC 64

/**
 * Not asked for: gdrfab_info.near_iface is 0.
 */
#define GDRFAB_NEAR_UNASKED 0

/**
 * Below the same PCIe switch.
 */
#define GDRFAB_NEAR_SWITCH 1

/**
 * Below the same PCIe root complex.
 */
#define GDRFAB_NEAR_ROOT 2

/**
 * In the same NUMA node.
 */
#define GDRFAB_NEAR_NODE 3

/**
 * In another NUMA node, or nobody knows.
 */
#define GDRFAB_NEAR_FAR 4

/**
 * Level of all options.
 */
#define GDRFAB_OPT_ENDPOINT 0

/**
 * size_t, read only: bytes of private data with connect and accept (FI_OPT_CM_DATA_SIZE).
 */
#define GDRFAB_OPT_CM_DATA_SIZE 1

/**
 * uint64_t nanoseconds: operations posted from now on end with ETIMEDOUT after it; 0 (the default) or UINT64_MAX = none.
 * Receives, which may wait idle, have GDRFAB_OPT_RECV_DEADLINE.
 */
#define GDRFAB_OPT_DEADLINE 256

/**
 * uint64_t nanoseconds: how long connecting may take; 0 or UINT64_MAX = no limit; default 10 s.
 */
#define GDRFAB_OPT_CONNECT_TIMEOUT 257

/**
 * uint64_t of GDRFAB_PATH_*: RMA that can take none of these fails with EOPNOTSUPP (an error entry, GDRFAB_PROV_PATH);
 * 0 = any. With verbs the path is that of this side's memory, or staged if either side's is; see gdrfab_ep_query().
 */
#define GDRFAB_OPT_REQUIRE_PATH 258

/**
 * uint64_t of GDRFAB_PATH_*: RMA never takes these, and fails likewise if nothing else is left.
 */
#define GDRFAB_OPT_FORBID_PATH 259

/**
 * uint32_t 0 or 1 (the default with shm): offer large copies to a polling target, and help with a peer's. Only shm does:
 * elsewhere it is 0, and 1 is refused with -EOPNOTSUPP.
 */
#define GDRFAB_OPT_COOP 260

/**
 * uint64_t, a stream of the caller's as a number (a CUstream, ...): copies that a device's driver carries out for
 * operations posted from now on begin after what that stream holds when they are posted; 0 (the default) = none.
 * -ENOSYS of the operation where the vendor has no such order. With verbs only 0, else -EOPNOTSUPP: an RDMA device reads
 * the memory itself and waits for no stream; synchronise with the stream before posting.
 */
#define GDRFAB_OPT_STREAM 261

/**
 * uint32_t 0 to 31, verbs only, set before connecting or accepting: 4.096 us << value is waited for an acknowledgement
 * before a packet is repeated; 0 = for ever. Default: GDRFAB_VERBS_TIMEOUT.
 */
#define GDRFAB_OPT_ACK_TIMEOUT 262

/**
 * uint32_t 0 to 7, verbs only, set before connecting or accepting: repeats of an unacknowledged packet before the
 * connection fails. Default: GDRFAB_VERBS_RETRIES.
 */
#define GDRFAB_OPT_RETRY_COUNT 263

/**
 * uint32_t 0 to 7, verbs only, set before connecting or accepting: repeats where the peer has posted no receive; 7 =
 * without end. Default: GDRFAB_VERBS_RNR_RETRIES.
 */
#define GDRFAB_OPT_RNR_RETRY 264

/**
 * uint32_t 0 to 31, verbs only, set before connecting or accepting: the verbs' code of the time that a peer is asked to
 * wait where this side has posted no receive (12 = 0.64 ms). Default: GDRFAB_VERBS_MIN_RNR_TIMER.
 */
#define GDRFAB_OPT_MIN_RNR_TIMER 265

/**
 * uint32_t 0 or 1 (the default), set before connecting or accepting: 0 = operations and progress of this endpoint call no
 * device driver in this process. shm's copies between device memory (the ipc path) are then made by a process of the
 * library's own, `gdrfab-copier`, which setting the option starts; what needs a driver here fails with EOPNOTSUPP: copies
 * between host and device memory, messages in device memory, a peer's staged access to it. For callers whose kernels wait
 * for such copies, because a driver's call may wait for the kernels. Registration still calls the driver. Default:
 * GDRFAB_HMEM_PROCESS. Mirrors FI_OPT_CUDA_API_PERMITTED.
 */
#define GDRFAB_OPT_DRIVER_CALLS 266

/**
 * uint64_t nanoseconds: receives posted from now on end with ETIMEDOUT after it, whether a message has begun to come or not;
 * 0 (the default) or UINT64_MAX = none. Over verbs a receive that is late ends the connection, as an operation does.
 */
#define GDRFAB_OPT_RECV_DEADLINE 267

/**
 * A counter.
 */
typedef struct gdrfab_cntr gdrfab_cntr;

/**
 * A connection request: in `info->handle` of a GDRFAB_CONNREQ event, consumed by gdrfab_ep_open() or
 * gdrfab_pep_reject(). It is a number, not memory: using one twice is an error (-EINVAL).
 */
typedef struct gdrfab_connreq gdrfab_connreq;

/**
 * A completion queue.
 */
typedef struct gdrfab_cq gdrfab_cq;

/**
 * A domain: regions, queues, counters and endpoints that work together.
 */
typedef struct gdrfab_domain gdrfab_domain;

/**
 * A connected endpoint.
 */
typedef struct gdrfab_ep gdrfab_ep;

/**
 * An event queue.
 */
typedef struct gdrfab_eq gdrfab_eq;

/**
 * A fabric: what processes that can reach each other share.
 */
typedef struct gdrfab_fabric gdrfab_fabric;

/**
 * A registered region.
 */
typedef struct gdrfab_mr gdrfab_mr;

/**
 * A passive endpoint: listens.
 */
typedef struct gdrfab_pep gdrfab_pep;

/**
 * What a provider offers, or as hints what a caller wishes (mirrors fi_info, flattened).
 *
 * gdrfab_getinfo() gives a list that gdrfab_freeinfo() frees. As hints: gdrfab_dupinfo(NULL), or zeroed
 * with `struct_size` set; a zero or NULL field is "no wish", except `mr_mode`, where a missing bit
 * means that the caller does without. Strings that a caller puts in stay the caller's.
 */
typedef struct gdrfab_info {
    /**
     * sizeof(gdrfab_info)
     */
    size_t struct_size;
    /**
     * Next candidate, NULL at the end.
     */
    struct gdrfab_info *next;
    /**
     * GDRFAB_MSG, GDRFAB_RMA and so on. Hint: all of these are needed.
     */
    uint64_t caps;
    /**
     * Flags that operations without a flags argument have (GDRFAB_DELIVERY_COMPLETE, ...).
     */
    uint64_t tx_op_flags;
    /**
     * GDRFAB_ORDER_*. Hint: all of these are needed.
     */
    uint64_t msg_order;
    /**
     * GDRFAB_PATH_* that the provider can take. Hint: one of these is needed.
     */
    uint64_t paths;
    /**
     * GDRFAB_MR_*. Hint: what the caller is able to do; result: what it must do.
     */
    uint32_t mr_mode;
    /**
     * GDRFAB_EP_MSG
     */
    uint32_t ep_type;
    /**
     * GDRFAB_THREAD_*
     */
    uint32_t threading;
    /**
     * GDRFAB_PROGRESS_*
     */
    uint32_t progress;
    /**
     * GDRFAB_ADDR_STR
     */
    uint32_t addr_format;
    /**
     * With GDRFAB_GETINFO_ALL: 0, or the errno for which the candidate was left out.
     */
    uint32_t reason_errno;
    /**
     * Bytes of remote CQ data.
     */
    size_t cq_data_size;
    /**
     * Bytes that inject calls take.
     */
    size_t inject_size;
    /**
     * Operations that can be outstanding on an endpoint.
     */
    size_t tx_size;
    /**
     * Receives that can be posted on an endpoint.
     */
    size_t rx_size;
    /**
     * Pieces of a send or of an RMA operation's local side.
     */
    size_t tx_iov_limit;
    /**
     * Pieces of a receive.
     */
    size_t rx_iov_limit;
    /**
     * Pieces of an RMA operation's remote side.
     */
    size_t rma_iov_limit;
    /**
     * Pieces of a region.
     */
    size_t mr_iov_limit;
    /**
     * Bytes of the largest operation.
     */
    size_t max_msg_size;
    /**
     * Bytes of a key.
     */
    size_t mr_key_size;
    /**
     * Regions that can be open at once in a domain.
     */
    size_t mr_cnt;
    /**
     * Bytes of private data with connect, accept and reject.
     */
    size_t cm_data_size;
    /**
     * Bytes of src_addr, its NUL included.
     */
    size_t src_addrlen;
    /**
     * Bytes of dest_addr, its NUL included.
     */
    size_t dest_addrlen;
    /**
     * Address to listen on, or NULL.
     */
    char *src_addr;
    /**
     * Address to connect to, or NULL. In a GDRFAB_CONNREQ event: who asks, as far as the provider knows ("shm://" alone: it
     * has no address).
     */
    char *dest_addr;
    /**
     * "shm", "tcp" or "verbs"
     */
    char *prov_name;
    /**
     * Name of the fabric.
     */
    char *fabric_name;
    /**
     * Name of the domain.
     */
    char *domain_name;
    /**
     * Words for reason_errno, or NULL.
     */
    char *reason;
    /**
     * In a GDRFAB_CONNREQ event: the request.
     */
    struct gdrfab_connreq *handle;
    /**
     * What the provider asks of its user beyond the common rules: GDRFAB_RX_CQ_DATA. Ignored in hints.
     */
    uint64_t mode;
    /**
     * GDRFAB_HMEM_* of an accelerator, 0 = none. Hint: of the candidates of a provider with NICs those come first that
     * are nearest to it (below the same PCIe switch, then the same root complex, then in the same NUMA node); its
     * driver is opened to learn where it is. Kept in results.
     */
    uint32_t near_iface;
    /**
     * Its number, as in gdrfab_mr_attr; used with near_iface only.
     */
    uint32_t near_device;
    /**
     * A secret that both sides of a tcp connection must know, or NULL: then that of GDRFAB_TCP_KEY_FILE, if there is one.
     * 16 to 1024 bytes, copied by the calls that take an info. Kept in results; other providers do not use it.
     */
    const void *auth_key;
    /**
     * Bytes of auth_key.
     */
    size_t auth_key_size;
    /**
     * GDRFAB_ORDER_STRICT: entries of what an endpoint initiates come in the order of posting; always so of verbs. 0: as
     * operations end. Hint: GDRFAB_ORDER_STRICT if it is needed; small operations then wait for large ones that were posted
     * before. Entries of what arrives are in the order of the messages either way.
     */
    uint64_t comp_order;
} gdrfab_info;

/**
 * What the device and the port behind an info say of themselves (mirrors fi_info->nic, flattened).
 */
typedef struct gdrfab_nic_attr {
    /**
     * sizeof(gdrfab_nic_attr), set by the caller
     */
    size_t struct_size;
    /**
     * Bits per second; 0: unknown.
     */
    uint64_t speed;
    /**
     * The node's GUID.
     */
    uint64_t guid;
    /**
     * Bytes of the largest region.
     */
    uint64_t max_mr_size;
    /**
     * Regions of the whole device.
     */
    uint64_t max_mr;
    /**
     * Bytes of the largest message.
     */
    uint64_t max_message;
    /**
     * GDRFAB_LINK_*
     */
    uint32_t state;
    /**
     * Number of the port, from 1.
     */
    uint32_t port;
    /**
     * Bytes of the largest packet.
     */
    uint32_t mtu;
    /**
     * Local identifier on InfiniBand; otherwise 0.
     */
    uint32_t lid;
    /**
     * Where the port's table has the GID.
     */
    uint32_t gid_index;
    /**
     * NUMA node; -1: unknown.
     */
    int32_t numa_node;
    /**
     * PCI vendor.
     */
    uint32_t vendor_id;
    /**
     * The vendor's number of the part.
     */
    uint32_t vendor_part_id;
    /**
     * The vendor's version of the hardware.
     */
    uint32_t hw_version;
    /**
     * Atomic operations: 0 none, 1 atomic among this device's, 2 with the CPUs' as well.
     */
    uint32_t atomics;
    /**
     * GDRFAB_ODP_*
     */
    uint32_t odp;
    /**
     * 0: dma-bufs can be registered, found by trying; else the negative errno that stands against it.
     */
    int dmabuf;
    /**
     * GDRFAB_NEAR_* to the accelerator that the info names.
     */
    uint32_t near;
    /**
     * Queue pairs (endpoints) of the device.
     */
    uint32_t max_qp;
    /**
     * Work requests of a queue.
     */
    uint32_t max_qp_wr;
    /**
     * Completion queues.
     */
    uint32_t max_cq;
    /**
     * Entries of a completion queue.
     */
    uint32_t max_cqe;
    /**
     * Pieces of a work request.
     */
    uint32_t max_sge;
    /**
     * Protection domains.
     */
    uint32_t max_pd;
    /**
     * Reads of a peer that one connection serves at once.
     */
    uint32_t max_reads_in;
    /**
     * Reads of its own that one connection has under way at once.
     */
    uint32_t max_reads_out;
    /**
     * 0
     */
    uint32_t reserved;
    /**
     * Name of the device, "mlx5_0".
     */
    char device[64];
    /**
     * Version of the firmware.
     */
    char firmware[64];
    /**
     * The GID, as an IPv6 address is written.
     */
    char gid[48];
    /**
     * "InfiniBand", "RoCE v1", "RoCE v2" or "iWARP".
     */
    char gid_type[16];
    /**
     * IP address by which rdma_cm finds the port; empty: none, connect by exchanged addresses.
     */
    char address[48];
    /**
     * Network interface; empty: none, or unknown.
     */
    char netdev[16];
    /**
     * "InfiniBand" or "Ethernet".
     */
    char link[16];
    /**
     * PCI address, "0000:3b:00.0"; empty: not on a PCI bus.
     */
    char pci[16];
} gdrfab_nic_attr;

/**
 * Attributes of a completion queue (mirrors fi_cq_attr).
 */
typedef struct gdrfab_cq_attr {
    /**
     * sizeof(gdrfab_cq_attr)
     */
    size_t struct_size;
    /**
     * Entries; 0 = 1024. Posting calls answer -EAGAIN rather than overrun it.
     */
    size_t size;
    /**
     * 0
     */
    uint64_t flags;
    /**
     * GDRFAB_CQ_FORMAT_*
     */
    uint32_t format;
    /**
     * GDRFAB_WAIT_*
     */
    uint32_t wait_obj;
} gdrfab_cq_attr;

/**
 * Attributes of an event queue (mirrors fi_eq_attr).
 */
typedef struct gdrfab_eq_attr {
    /**
     * sizeof(gdrfab_eq_attr)
     */
    size_t struct_size;
    /**
     * A hint; event queues grow.
     */
    size_t size;
    /**
     * 0
     */
    uint64_t flags;
    /**
     * GDRFAB_WAIT_*
     */
    uint32_t wait_obj;
    /**
     * 0
     */
    uint32_t reserved;
} gdrfab_eq_attr;

/**
 * Attributes of a counter (mirrors fi_cntr_attr).
 */
typedef struct gdrfab_cntr_attr {
    /**
     * sizeof(gdrfab_cntr_attr)
     */
    size_t struct_size;
    /**
     * 0
     */
    uint64_t flags;
    /**
     * GDRFAB_WAIT_*
     */
    uint32_t wait_obj;
    /**
     * 0
     */
    uint32_t reserved;
} gdrfab_cntr_attr;

/**
 * Memory behind a descriptor: a dma-buf, or any file that can be mapped, such as a memfd (mirrors fi_mr_dmabuf).
 *
 * The region is `[offset, offset+len)` of the file. Where addresses are virtual, its first byte has the
 * remote address `base_addr + offset`. The descriptor is duplicated; the caller may close its own. A memfd that
 * is not sealed yet gets F_SEAL_SHRINK, so that no truncation can kill a peer that maps it.
 */
typedef struct gdrfab_mr_dmabuf {
    /**
     * Descriptor.
     */
    int fd;
    /**
     * 0
     */
    uint32_t reserved;
    /**
     * First byte of the region in the file.
     */
    uint64_t offset;
    /**
     * Bytes of the region.
     */
    size_t len;
    /**
     * Address that stands for the start of the file, or NULL for 0.
     */
    void *base_addr;
} gdrfab_mr_dmabuf;

/**
 * What to register (mirrors fi_mr_attr).
 */
typedef struct gdrfab_mr_attr {
    /**
     * sizeof(gdrfab_mr_attr)
     */
    size_t struct_size;
    /**
     * Pieces that make up the region, in this order; unless GDRFAB_MR_DMABUF.
     */
    const struct iovec *mr_iov;
    /**
     * With GDRFAB_MR_DMABUF: the file.
     */
    const struct gdrfab_mr_dmabuf *dmabuf;
    /**
     * Number of pieces, up to mr_iov_limit; 1 with GDRFAB_MR_DMABUF.
     */
    size_t iov_count;
    /**
     * GDRFAB_SEND, RECV, READ, WRITE, REMOTE_READ, REMOTE_WRITE.
     */
    uint64_t access;
    /**
     * Remote address of the first byte where the domain has no GDRFAB_MR_VIRT_ADDR; 0 where it has.
     */
    uint64_t offset;
    /**
     * The key where the domain has no GDRFAB_MR_PROV_KEY; ignored where it has.
     */
    uint64_t requested_key;
    /**
     * The caller's; gdrfab_mr_context() gives it back.
     */
    void *context;
    /**
     * Number of the device in this process; 0 for GDRFAB_HMEM_SYSTEM, ignored with GDRFAB_HMEM_AUTO.
     */
    uint64_t device;
    /**
     * GDRFAB_HMEM_*; GDRFAB_HMEM_AUTO: what the first address is decides, asked of every driver that is here. A file says
     * nothing of whose memory it is: with GDRFAB_MR_DMABUF, AUTO counts as GDRFAB_HMEM_SYSTEM, and the CPU may read small
     * operations' bytes; name the device (gdrfab_hmem_detect()) where it must not.
     */
    uint32_t iface;
    /**
     * 0
     */
    uint32_t reserved;
    /**
     * GDRFAB_PATH_*: peers use only these, and at least one must be possible; 0 = any.
     */
    uint64_t require;
    /**
     * GDRFAB_PATH_*: peers never use these.
     */
    uint64_t forbid;
} gdrfab_mr_attr;

/**
 * What a region is.
 */
typedef struct gdrfab_mr_info {
    /**
     * sizeof(gdrfab_mr_info), set by the caller
     */
    size_t struct_size;
    /**
     * What peers name it by.
     */
    uint64_t key;
    /**
     * Remote address of the first byte.
     */
    uint64_t base;
    /**
     * Bytes.
     */
    uint64_t len;
    /**
     * Rights.
     */
    uint64_t access;
    /**
     * GDRFAB_PATH_* that it offers to peers.
     */
    uint64_t paths;
    /**
     * The fastest of them.
     */
    uint64_t path;
    /**
     * Number of the device.
     */
    uint64_t device;
    /**
     * GDRFAB_HMEM_*
     */
    uint32_t iface;
    /**
     * Pieces.
     */
    uint32_t iov_count;
} gdrfab_mr_info;

/**
 * An interface and one of its devices.
 */
typedef struct gdrfab_hmem_info {
    /**
     * sizeof(gdrfab_hmem_info), set by the caller
     */
    size_t struct_size;
    /**
     * GDRFAB_HMEM_*
     */
    uint32_t iface;
    /**
     * Number of the device in this process; UINT32_MAX if none was asked for.
     */
    uint32_t device;
    /**
     * Devices of the interface; 0 for GDRFAB_HMEM_SYSTEM.
     */
    uint32_t devices;
    /**
     * 0: dma-bufs of its memory can be exported; else the negative errno that stands against it.
     */
    int dmabuf;
    /**
     * 0: other processes can map its memory; else the negative errno that stands against it.
     */
    int ipc;
    /**
     * 1: this process uses the device already, so that work on it makes no new context. GDRFAB_HMEM_CUDA: the device's
     * primary context is active, whoever made it so, this library included; contexts of cuCtxCreate are not seen.
     * 0: it does not, or the interface cannot tell: always of the other interfaces, and if no device was asked for.
     */
    uint32_t active;
    /**
     * Bytes of memory; 0: unknown.
     */
    uint64_t memory;
    /**
     * Bit per number, below 64, of the devices that can copy to and from it without the host.
     */
    uint64_t peers;
    /**
     * Bytes per second of a copy from the host; 0: not measured.
     */
    uint64_t rate_to;
    /**
     * Bytes per second of a copy to the host; 0: not measured.
     */
    uint64_t rate_from;
    /**
     * Bytes per second of a copy to the first of its peers; 0: not measured.
     */
    uint64_t rate_peer;
    /**
     * Names the device in every process: a UUID, or the PCI address as text.
     */
    uint8_t id[16];
    /**
     * PCI address as text, "0000:4d:00.0"; empty: unknown.
     */
    char pci[16];
    /**
     * Name, cut to 63 bytes.
     */
    char name[64];
} gdrfab_hmem_info;

/**
 * What a pointer points into.
 */
typedef struct gdrfab_hmem_place {
    /**
     * sizeof(gdrfab_hmem_place), set by the caller
     */
    size_t struct_size;
    /**
     * GDRFAB_HMEM_*; GDRFAB_HMEM_SYSTEM: no vendor that is here knows the pointer.
     */
    uint32_t iface;
    /**
     * Number of the device in this process.
     */
    uint32_t device;
    /**
     * GDRFAB_HMEM_KIND_*
     */
    uint32_t kind;
    /**
     * 0
     */
    uint32_t reserved;
    /**
     * First byte of the allocation, or of the physical segment, that holds the pointer; 0 for host memory.
     */
    uint64_t base;
    /**
     * Its bytes; 0 for host memory, whose extent nobody knows.
     */
    uint64_t len;
    /**
     * Never given to another allocation of this process; 0: the vendor has no such number.
     */
    uint64_t id;
    /**
     * Bytes from the pointer on that lie in memory of this interface and device without a gap: to the end of the
     * allocation, and through its neighbours until the length that was asked for is covered. Of host memory: that length.
     */
    uint64_t covered;
} gdrfab_hmem_place;

/**
 * A piece of a peer's region (mirrors fi_rma_iov).
 */
typedef struct gdrfab_rma_iov {
    /**
     * Remote address.
     */
    uint64_t addr;
    /**
     * Bytes.
     */
    size_t len;
    /**
     * The region's key.
     */
    uint64_t key;
} gdrfab_rma_iov;

/**
 * An RMA operation with everything (mirrors fi_msg_rma).
 */
typedef struct gdrfab_msg_rma {
    /**
     * sizeof(gdrfab_msg_rma)
     */
    size_t struct_size;
    /**
     * Local pieces.
     */
    const struct iovec *msg_iov;
    /**
     * Their descriptors, or NULL.
     */
    void **desc;
    /**
     * Number of local pieces.
     */
    size_t iov_count;
    /**
     * Unused on connected endpoints.
     */
    uint64_t addr;
    /**
     * Remote pieces; their lengths sum to those of the local ones.
     */
    const struct gdrfab_rma_iov *rma_iov;
    /**
     * Number of remote pieces.
     */
    size_t rma_iov_count;
    /**
     * Handed out in the completion.
     */
    void *context;
    /**
     * Remote CQ data, with GDRFAB_REMOTE_CQ_DATA.
     */
    uint64_t data;
    /**
     * Nanoseconds after which the operation fails with ETIMEDOUT; UINT64_MAX = none; 0 = the endpoint's GDRFAB_OPT_DEADLINE.
     */
    uint64_t timeout_ns;
} gdrfab_msg_rma;

/**
 * A message operation with everything (mirrors fi_msg).
 */
typedef struct gdrfab_msg {
    /**
     * sizeof(gdrfab_msg)
     */
    size_t struct_size;
    /**
     * Pieces of the buffer.
     */
    const struct iovec *msg_iov;
    /**
     * Their descriptors, or NULL.
     */
    void **desc;
    /**
     * Number of pieces.
     */
    size_t iov_count;
    /**
     * Unused on connected endpoints.
     */
    uint64_t addr;
    /**
     * Handed out in the completion.
     */
    void *context;
    /**
     * Remote CQ data, with GDRFAB_REMOTE_CQ_DATA.
     */
    uint64_t data;
    /**
     * Nanoseconds after which the operation fails with ETIMEDOUT; UINT64_MAX = none; 0 = the endpoint's GDRFAB_OPT_DEADLINE, of
     * a receive its GDRFAB_OPT_RECV_DEADLINE.
     */
    uint64_t timeout_ns;
} gdrfab_msg;

/**
 * An operation that failed (mirrors fi_cq_err_entry).
 */
typedef struct gdrfab_cq_err_entry {
    /**
     * sizeof(gdrfab_cq_err_entry), set by the caller
     */
    size_t struct_size;
    /**
     * What the operation was posted with.
     */
    void *op_context;
    /**
     * Kind of operation.
     */
    uint64_t flags;
    /**
     * Bytes that are in place.
     */
    size_t len;
    /**
     * First byte of the operation's local buffer.
     */
    void *buf;
    /**
     * Remote CQ data.
     */
    uint64_t data;
    /**
     * Bytes of a message that did not fit.
     */
    size_t olen;
    /**
     * Errno, positive.
     */
    int err;
    /**
     * GDRFAB_PROV_*, for gdrfab_cq_strerror().
     */
    int prov_errno;
    /**
     * In: a buffer for words, or NULL.
     */
    void *err_data;
    /**
     * In: its bytes; out: bytes written, NUL included.
     */
    size_t err_data_size;
} gdrfab_cq_err_entry;

/**
 * A failed connection attempt, or why a connection broke (mirrors fi_eq_err_entry).
 */
typedef struct gdrfab_eq_err_entry {
    /**
     * sizeof(gdrfab_eq_err_entry), set by the caller
     */
    size_t struct_size;
    /**
     * The gdrfab_ep or gdrfab_pep that it concerns.
     */
    void *object;
    /**
     * That object's context.
     */
    void *context;
    /**
     * The event that failed: GDRFAB_CONNECTED or GDRFAB_SHUTDOWN; GDRFAB_NOTIFY where the connection goes on (the RDMA
     * port went down, or its address changed); GDRFAB_CONNREQ where a passive endpoint of shm or tcp cannot take callers
     * (err EMFILE, ENFILE, ENOMEM...), told once until it can again: it goes on listening, and refuses or holds them.
     */
    uint64_t data;
    /**
     * Errno, positive.
     */
    int err;
    /**
     * GDRFAB_PROV_*
     */
    int prov_errno;
    /**
     * In: a buffer, or NULL. Gets the rejecting peer's data with GDRFAB_PROV_REJECTED, otherwise words.
     */
    void *err_data;
    /**
     * In: its bytes; out: bytes written.
     */
    size_t err_data_size;
} gdrfab_eq_err_entry;

/**
 * Which path an operation takes, and why not another.
 */
typedef struct gdrfab_path_info {
    /**
     * sizeof(gdrfab_path_info), set by the caller
     */
    size_t struct_size;
    /**
     * The GDRFAB_PATH_* that operations take; 0 = none is possible and permitted.
     */
    uint64_t path;
    /**
     * Those that are possible and permitted.
     */
    uint64_t paths;
    /**
     * Those that the peer's region offers.
     */
    uint64_t offered;
    /**
     * Why not GDRFAB_PATH_DIRECT, as errno; 0 = possible.
     */
    int direct_errno;
    /**
     * Why not GDRFAB_PATH_CMA.
     */
    int cma_errno;
    /**
     * Why not GDRFAB_PATH_STAGED.
     */
    int staged_errno;
    /**
     * Why not GDRFAB_PATH_IPC.
     */
    int ipc_errno;
    /**
     * Why not GDRFAB_PATH_NIC.
     */
    int nic_errno;
    /**
     * Why not GDRFAB_PATH_DMABUF.
     */
    int dmabuf_errno;
    /**
     * Why not GDRFAB_PATH_PEER_MEM.
     */
    int peer_mem_errno;
    /**
     * Why not GDRFAB_PATH_SOCKET.
     */
    int socket_errno;
    /**
     * In: gdrfab_mr_desc() of the memory of this side that operations will name; NULL = host memory. tcp and verbs choose
     * by it too.
     */
    const void *desc;
} gdrfab_path_info;

/**
 * What an endpoint has done.
 */
typedef struct gdrfab_stats {
    /**
     * sizeof(gdrfab_stats), set by the caller
     */
    size_t struct_size;
    /**
     * RMA operations by GDRFAB_PATH_DIRECT.
     */
    uint64_t ops_direct;
    /**
     * RMA operations by GDRFAB_PATH_CMA.
     */
    uint64_t ops_cma;
    /**
     * RMA operations by GDRFAB_PATH_STAGED.
     */
    uint64_t ops_staged;
    /**
     * Bytes by GDRFAB_PATH_DIRECT.
     */
    uint64_t bytes_direct;
    /**
     * Bytes by GDRFAB_PATH_CMA.
     */
    uint64_t bytes_cma;
    /**
     * Bytes by GDRFAB_PATH_STAGED.
     */
    uint64_t bytes_staged;
    /**
     * Bytes of this side's operations that the peer's CPU carried.
     */
    uint64_t bytes_helped;
    /**
     * Messages sent.
     */
    uint64_t sends;
    /**
     * Messages received.
     */
    uint64_t recvs;
    /**
     * Operations and receives that failed.
     */
    uint64_t errors;
    /**
     * Messages that came before their receive.
     */
    uint64_t unexpected;
    /**
     * RMA operations by GDRFAB_PATH_IPC.
     */
    uint64_t ops_ipc;
    /**
     * Bytes by GDRFAB_PATH_IPC.
     */
    uint64_t bytes_ipc;
    /**
     * RMA operations by GDRFAB_PATH_NIC. An RDMA device's operation is counted by how it reaches this side's memory.
     */
    uint64_t ops_nic;
    /**
     * Bytes by GDRFAB_PATH_NIC.
     */
    uint64_t bytes_nic;
    /**
     * RMA operations by GDRFAB_PATH_SOCKET.
     */
    uint64_t ops_socket;
    /**
     * Bytes by GDRFAB_PATH_SOCKET.
     */
    uint64_t bytes_socket;
    /**
     * RMA operations by GDRFAB_PATH_DMABUF.
     */
    uint64_t ops_dmabuf;
    /**
     * Bytes by GDRFAB_PATH_DMABUF.
     */
    uint64_t bytes_dmabuf;
    /**
     * RMA operations by GDRFAB_PATH_PEER_MEM.
     */
    uint64_t ops_peer_mem;
    /**
     * Bytes by GDRFAB_PATH_PEER_MEM.
     */
    uint64_t bytes_peer_mem;
} gdrfab_stats;

/**
 * Receives a log line. May be called from any thread that is inside the library, with its locks held: it
 * must not call gdrfab, and a C++ exception must not leave it.
 */
typedef void (*gdrfab_log_fn)(void *arg, int level, const char *message);

/**
 * GDRFAB_CQ_FORMAT_CONTEXT (mirrors fi_cq_entry)
 */
typedef struct gdrfab_cq_entry {
    /**
     * What the operation was posted with; NULL for a peer's write with data.
     */
    void *op_context;
} gdrfab_cq_entry;

/**
 * GDRFAB_CQ_FORMAT_MSG (mirrors fi_cq_msg_entry)
 */
typedef struct gdrfab_cq_msg_entry {
    /**
     * What the operation was posted with.
     */
    void *op_context;
    /**
     * Kind of operation: GDRFAB_SEND | GDRFAB_MSG and so on.
     */
    uint64_t flags;
    /**
     * Bytes received, or of the operation.
     */
    size_t len;
} gdrfab_cq_msg_entry;

/**
 * GDRFAB_CQ_FORMAT_DATA (mirrors fi_cq_data_entry)
 */
typedef struct gdrfab_cq_data_entry {
    /**
     * What the operation was posted with.
     */
    void *op_context;
    /**
     * Kind of operation.
     */
    uint64_t flags;
    /**
     * Bytes received, or of the operation.
     */
    size_t len;
    /**
     * First byte of the operation's local buffer.
     */
    void *buf;
    /**
     * Remote CQ data, where flags has GDRFAB_REMOTE_CQ_DATA.
     */
    uint64_t data;
} gdrfab_cq_data_entry;

/**
 * A connection event; the peer's private data follows it (GDRFAB_EQ_CM_DATA). Mirrors fi_eq_cm_entry.
 */
typedef struct gdrfab_eq_cm_entry {
    /**
     * The gdrfab_ep or gdrfab_pep that it concerns.
     */
    void *object;
    /**
     * That object's context.
     */
    void *context;
    /**
     * GDRFAB_CONNREQ: what to open the endpoint with; the caller frees it with gdrfab_freeinfo(). Otherwise NULL.
     */
    struct gdrfab_info *info;
} gdrfab_eq_cm_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library at run time: `major << 16 | minor`. Mirrors fi_version.
 */
uint32_t gdrfab_version(void);

/**
 * The same as text, "0.1.0". Static; not to be freed.
 */
const char *gdrfab_version_string(void);

/**
 * Words for an errno, errno.h's or GDRFAB_E*, positive or negative. Mirrors fi_strerror.
 *
 * Static; not to be freed.
 */
const char *gdrfab_strerror(int err);

/**
 * Words of the last call that failed on this thread with anything but -EAGAIN: what was attempted, which
 * argument or step failed, and why each alternative was refused. "" if none has failed.
 *
 * Valid until the next failing call of the thread; not to be freed. A call that succeeds does not clear it.
 */
const char *gdrfab_last_error(void);

/**
 * Finds providers that fit. Mirrors fi_getinfo.
 *
 * Starts no thread; callable from any thread. Opens no accelerator but the one that hints->near_iface names. The
 * candidates of a provider come in the order of that hint, then of speed, then of names; an RDMA device is opened to
 * be asked, and closed again, unless hints name another provider or domain, or GDRFAB_PROVIDER another provider.
 *
 * @param version what the caller was compiled for: GDRFAB_VERSION_MAJOR << 16 | GDRFAB_VERSION_MINOR
 * @param node    host name, or NULL; a name of another host leaves shm out
 * @param service what to listen on (with GDRFAB_SOURCE) or to connect to: a name (shm), a port (tcp, verbs), or an address with
 *   its scheme; or NULL
 * @param flags   0, GDRFAB_SOURCE, GDRFAB_GETINFO_ALL
 * @param hints   wishes, or NULL for none
 * @param info    list of candidates, best first; free it with gdrfab_freeinfo()
 * @return 0, or
 *   -ENODATA nothing fits: gdrfab_last_error() names every candidate and why it was left out;
 *   -EINVAL a bad argument, or a GDRFAB_ variable of the environment with a value that it cannot have (the words name it and
 *   what is allowed; `gdrfab-info -e` lists all); -E2BIG hints of a newer version; -GDRFAB_EBADFLAGS unknown flags;
 *   -ENOSYS version is newer than this library, or the driver of hints->near_iface is not there;
 *   -ENODEV hints->near_device does not exist
 */
int gdrfab_getinfo(uint32_t version,
                   const char *node,
                   const char *service,
                   uint64_t flags,
                   const struct gdrfab_info *hints,
                   struct gdrfab_info **info);

/**
 * Frees a list of gdrfab_getinfo(), an info of an event, or a copy of gdrfab_dupinfo(). NULL is allowed.
 * Strings that the caller put in are not freed. Mirrors fi_freeinfo.
 */
void gdrfab_freeinfo(struct gdrfab_info *info);

/**
 * Copies one info (not the list), strings included. NULL gives empty hints. Mirrors fi_dupinfo and
 * fi_allocinfo.
 *
 * @return to be freed with gdrfab_freeinfo(); NULL if `info` is malformed (gdrfab_last_error() says how)
 */
struct gdrfab_info *gdrfab_dupinfo(const struct gdrfab_info *info);

/**
 * Describes a value in words. Mirrors fi_tostr_r.
 *
 * @param data the value: its type depends on `type`
 * @param type GDRFAB_TYPE_*
 * @param buf  gets the text, cut to `len` with its NUL; NULL with len 0 asks for the length
 * @return length of the whole text without NUL, or -EINVAL
 */
ssize_t gdrfab_tostr(const void *data, uint32_t type, char *buf, size_t len);

/**
 * Tells of the NIC behind an info: opens its device, asks, and closes it again. Mirrors fi_info->nic.
 *
 * The info may be one that was left out of a list (GDRFAB_GETINFO_ALL), as long as its domain_name is complete.
 *
 * @param info of a list of gdrfab_getinfo()
 * @param attr gets the answer; its struct_size is set by the caller
 * @return 0, or
 *   -ENODATA the provider has no NIC (shm); -EINVAL a bad argument, or an info without a whole domain_name;
 *   -ENODEV the device is not there any more; -EADDRNOTAVAIL the port has lost the address;
 *   what opening the device gives (-ENOSYS no libibverbs, -EACCES, -EMFILE)
 */
int gdrfab_info_nic(const struct gdrfab_info *info,
                    struct gdrfab_nic_attr *attr);

/**
 * Opens a fabric. Mirrors fi_fabric.
 *
 * @param info    a candidate of gdrfab_getinfo(); copied, not kept
 * @param context the caller's; gdrfab_fabric_context() gives it back
 * @param fabric  the handle; close it with gdrfab_fabric_close()
 * @return 0, -EINVAL (an argument; no provider name), -E2BIG (info of a newer version), -ENODEV (no such provider)
 */
int gdrfab_fabric_open(const struct gdrfab_info *info,
                       void *context,
                       struct gdrfab_fabric **fabric);

/**
 * Closes a fabric. Mirrors fi_close.
 *
 * @return 0; -EBUSY while domains, event queues or passive endpoints are open; -EINVAL for NULL;
 *   -EPERM in a process that did not open it
 */
int gdrfab_fabric_close(struct gdrfab_fabric *fabric);

/**
 * Opens a domain. Mirrors fi_domain.
 *
 * info->threading, progress and mr_mode decide how the domain behaves. With GDRFAB_PROGRESS_AUTO a thread
 * is started, and the domain locks whatever the threading level.
 *
 * @param fabric  open fabric
 * @param info    a candidate of gdrfab_getinfo(), or the info of a connection request; copied, not kept
 * @param context the caller's; gdrfab_domain_context() gives it back
 * @param domain  the handle; close it with gdrfab_domain_close()
 * @return 0, -EINVAL, -E2BIG, -EMFILE or -ENOMEM (shared memory cannot be made), -EAGAIN (no thread can be started)
 */
int gdrfab_domain_open(struct gdrfab_fabric *fabric,
                       const struct gdrfab_info *info,
                       void *context,
                       struct gdrfab_domain **domain);

/**
 * Closes a domain. Mirrors fi_close.
 *
 * @return 0; -EBUSY while endpoints, queues, counters, regions or allocations of it exist (the words count
 *   them); -EINVAL for NULL; -EPERM in a process that did not open it
 */
int gdrfab_domain_close(struct gdrfab_domain *domain);

/**
 * Opens a connected endpoint. Mirrors fi_endpoint.
 *
 * @param domain  open domain
 * @param info    a candidate, or a connection request's info, whose request the endpoint takes and
 *   gdrfab_ep_accept() answers
 * @param context handed out in events of the endpoint, and by gdrfab_ep_context()
 * @param ep      the handle; close it with gdrfab_ep_close()
 * @return 0, -EINVAL (an argument; the request was taken already), -E2BIG
 */
int gdrfab_ep_open(struct gdrfab_domain *domain,
                   const struct gdrfab_info *info,
                   void *context,
                   struct gdrfab_ep **ep);

/**
 * Closes an endpoint. Mirrors fi_close.
 *
 * The peer gets GDRFAB_SHUTDOWN. Outstanding operations and posted receives complete with ECANCELED in
 * their queues before the call returns 0, and no buffer of theirs is touched afterwards. Events of the endpoint that were
 * not read are dropped.
 *
 * @return 0;
 *   -EBUSY a peer (stopped, perhaps) or a device still has the buffer of an operation after GDRFAB_SHM_CLOSE_MS: the
 *   connection is over, the entry comes when the buffer is quiet, and the call is to be made again;
 *   -EINVAL for NULL, -EPERM in a process that did not open it
 */
int gdrfab_ep_close(struct gdrfab_ep *ep);

/**
 * Opens a passive endpoint. Mirrors fi_passive_ep.
 *
 * @param fabric  open fabric
 * @param info    its src_addr is where gdrfab_pep_listen() will listen; NULL there: a name of its own
 * @param context handed out in events of the passive endpoint, and by gdrfab_pep_context()
 * @param pep     the handle; close it with gdrfab_pep_close()
 * @return 0, -EINVAL (an argument; a malformed address), -E2BIG, -EHOSTUNREACH (another host's address)
 */
int gdrfab_pep_open(struct gdrfab_fabric *fabric,
                    const struct gdrfab_info *info,
                    void *context,
                    struct gdrfab_pep **pep);

/**
 * Closes a passive endpoint, whatever other threads wait on its event queue: its name is free, requests that nobody answered
 * are rejected, and no event names it from now on. Mirrors fi_close.
 *
 * @return 0, -EINVAL for NULL, -EPERM in a process that did not open it
 */
int gdrfab_pep_close(struct gdrfab_pep *pep);

/**
 * Opens a completion queue. Mirrors fi_cq_open.
 *
 * @param domain  open domain
 * @param attr    attributes, or NULL: 1024 entries of GDRFAB_CQ_FORMAT_CONTEXT, no descriptor
 * @param context the caller's; gdrfab_cq_context() gives it back
 * @param cq      the handle; close it with gdrfab_cq_close()
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE (no descriptor for GDRFAB_WAIT_FD)
 */
int gdrfab_cq_open(struct gdrfab_domain *domain,
                   const struct gdrfab_cq_attr *attr,
                   void *context,
                   struct gdrfab_cq **cq);

/**
 * Closes a completion queue; entries in it are lost. Mirrors fi_close.
 *
 * @return 0, -EBUSY while endpoints are bound to it, -EINVAL for NULL, -EPERM in a process that did not open it
 */
int gdrfab_cq_close(struct gdrfab_cq *cq);

/**
 * Opens an event queue. Mirrors fi_eq_open.
 *
 * @param fabric  open fabric
 * @param attr    attributes, or NULL for none
 * @param context the caller's; gdrfab_eq_context() gives it back
 * @param eq      the handle; close it with gdrfab_eq_close()
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE
 */
int gdrfab_eq_open(struct gdrfab_fabric *fabric,
                   const struct gdrfab_eq_attr *attr,
                   void *context,
                   struct gdrfab_eq **eq);

/**
 * Closes an event queue; events in it are lost. Mirrors fi_close.
 *
 * @return 0, -EBUSY while endpoints are bound to it, -EINVAL for NULL, -EPERM in a process that did not open it
 */
int gdrfab_eq_close(struct gdrfab_eq *eq);

/**
 * Opens a counter. Mirrors fi_cntr_open.
 *
 * @param domain  open domain
 * @param attr    attributes, or NULL for none
 * @param context the caller's; gdrfab_cntr_context() gives it back
 * @param cntr    the handle; close it with gdrfab_cntr_close()
 * @return 0, -EINVAL, -E2BIG, -GDRFAB_EBADFLAGS, -EMFILE
 */
int gdrfab_cntr_open(struct gdrfab_domain *domain,
                     const struct gdrfab_cntr_attr *attr,
                     void *context,
                     struct gdrfab_cntr **cntr);

/**
 * Closes a counter. Mirrors fi_close.
 *
 * @return 0, -EBUSY while endpoints or regions are bound to it, -EINVAL for NULL, -EPERM in a process that did
 *   not open it
 */
int gdrfab_cntr_close(struct gdrfab_cntr *cntr);

/**
 * The context that a fabric was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_fabric_context(struct gdrfab_fabric *fabric);

/**
 * The context that a domain was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_domain_context(struct gdrfab_domain *domain);

/**
 * The context that an endpoint was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_ep_context(struct gdrfab_ep *ep);

/**
 * The context that a passive endpoint was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_pep_context(struct gdrfab_pep *pep);

/**
 * The context that a completion queue was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_cq_context(struct gdrfab_cq *cq);

/**
 * The context that an event queue was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_eq_context(struct gdrfab_eq *eq);

/**
 * The context that a counter was opened with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_cntr_context(struct gdrfab_cntr *cntr);

/**
 * Binds a completion queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
 *
 * @param ep    endpoint
 * @param cq    queue of the same domain; it may serve many endpoints
 * @param flags GDRFAB_TRANSMIT, GDRFAB_RECV or both; GDRFAB_SELECTIVE_COMPLETION
 * @return 0, -EINVAL (an argument; another domain), -GDRFAB_EBADFLAGS, -EBUSY (bound already), -GDRFAB_EOPBADSTATE (enabled)
 */
int gdrfab_ep_bind_cq(struct gdrfab_ep *ep,
                      struct gdrfab_cq *cq,
                      uint64_t flags);

/**
 * Binds an event queue, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
 *
 * @param ep    endpoint
 * @param eq    queue of the same fabric; it may serve many endpoints
 * @param flags 0
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EBUSY (bound already), -GDRFAB_EOPBADSTATE (enabled)
 */
int gdrfab_ep_bind_eq(struct gdrfab_ep *ep, struct gdrfab_eq *eq, uint64_t flags);

/**
 * Binds a counter, before gdrfab_ep_enable(). Mirrors fi_ep_bind.
 *
 * @param ep    endpoint
 * @param cntr  counter of the same domain
 * @param flags which completions it counts: GDRFAB_SEND, GDRFAB_RECV, GDRFAB_READ, GDRFAB_WRITE of this endpoint's
 *   own, GDRFAB_REMOTE_WRITE for writes with data that arrive
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -GDRFAB_EOPBADSTATE (enabled)
 */
int gdrfab_ep_bind_cntr(struct gdrfab_ep *ep,
                        struct gdrfab_cntr *cntr,
                        uint64_t flags);

/**
 * Binds an event queue to a passive endpoint, before gdrfab_pep_listen(). Mirrors fi_pep_bind.
 *
 * @param pep   passive endpoint
 * @param eq    queue of the same fabric
 * @param flags 0
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -EBUSY (bound already)
 */
int gdrfab_pep_bind_eq(struct gdrfab_pep *pep, struct gdrfab_eq *eq, uint64_t flags);

/**
 * Makes an endpoint ready for receives and for connecting. Mirrors fi_enable.
 *
 * @return 0, -EINVAL, -GDRFAB_ENOCQ (neither a queue nor a counter for transmits is bound), -GDRFAB_EOPBADSTATE (enabled
 *   already), -EMFILE or -ENOMEM (shared memory cannot be made)
 */
int gdrfab_ep_enable(struct gdrfab_ep *ep);

/**
 * Starts to listen; requests come as GDRFAB_CONNREQ on the event queue. Mirrors fi_listen.
 *
 * @return 0, -EINVAL, -GDRFAB_ENOEQ, -EADDRINUSE (somebody listens under this name), -GDRFAB_EOPBADSTATE (listens
 *   already), -EMFILE
 */
int gdrfab_pep_listen(struct gdrfab_pep *pep);

/**
 * Begins to connect to a passive endpoint; never blocks. Mirrors fi_connect.
 *
 * The outcome is an event: GDRFAB_CONNECTED with the acceptor's data, or an error entry: ECONNREFUSED (nobody
 * listens; or rejected, prov_errno GDRFAB_PROV_REJECTED with the rejector's data), ETIMEDOUT (GDRFAB_OPT_CONNECT_TIMEOUT),
 * EACCES (the listener is another user), EPROTO (another version).
 *
 * @param ep       enabled endpoint with an event queue
 * @param addr     "shm://name", "tcp://host:port" or "verbs://host:port", as gdrfab_pep_getname() or info->dest_addr gives it
 * @param addrlen  its bytes, NUL included
 * @param param    private data for the peer's GDRFAB_CONNREQ, or NULL
 * @param paramlen its bytes, up to cm_data_size
 * @return 0, -EINVAL, -EHOSTUNREACH (the address was made on another host), -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE (not
 *   enabled; or was connected before), -EISCONN
 */
int gdrfab_ep_connect(struct gdrfab_ep *ep,
                      const void *addr,
                      size_t addrlen,
                      const void *param,
                      size_t paramlen);

/**
 * Accepts the connection request from which the endpoint was opened. Mirrors fi_accept.
 *
 * GDRFAB_CONNECTED follows on the event queue. If the asking peer is gone meanwhile, the request is lost.
 *
 * @param ep       enabled endpoint opened from a request's info, with an event queue
 * @param param    private data for the peer's GDRFAB_CONNECTED, or NULL
 * @param paramlen its bytes, up to cm_data_size
 * @return 0, -EINVAL, -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE (not enabled; no request, or answered), -ECONNRESET (the peer
 *   is gone), -EPROTO (what the peer handed over makes no sense), -EMFILE
 */
int gdrfab_ep_accept(struct gdrfab_ep *ep,
                     const void *param,
                     size_t paramlen);

/**
 * Rejects a connection request. Mirrors fi_reject.
 *
 * @param pep      passive endpoint
 * @param handle   info->handle of the event; used up by this call
 * @param param    private data for the peer's error entry, or NULL
 * @param paramlen its bytes, up to cm_data_size
 * @return 0 (also if the peer is gone), -EINVAL (an argument; the request was answered already)
 */
int gdrfab_pep_reject(struct gdrfab_pep *pep,
                      struct gdrfab_connreq *handle,
                      const void *param,
                      size_t paramlen);

/**
 * Ends a connection. Mirrors fi_shutdown.
 *
 * The peer gets GDRFAB_SHUTDOWN after everything that was written before. Here, outstanding operations and
 * posted receives complete with ECANCELED before the call returns.
 *
 * @param flags 0
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -ENOTCONN (not connected yet), -ESHUTDOWN (not any more)
 */
int gdrfab_ep_shutdown(struct gdrfab_ep *ep, uint64_t flags);

/**
 * Begins to connect to an endpoint whose address came by other means; never blocks.
 *
 * Both sides call it, each with what the other's gdrfab_ep_getname() gave, in any order. The outcome is an event, as
 * with gdrfab_ep_connect(), without private data.
 *
 * @param ep      enabled endpoint with an event queue, whose own address was asked for
 * @param addr    the peer's address
 * @param addrlen its bytes, NUL included
 * @return 0, -EINVAL (an argument; its own address), -EHOSTUNREACH, -GDRFAB_ENOEQ, -GDRFAB_EOPBADSTATE, -EISCONN
 */
int gdrfab_ep_connect_addr(struct gdrfab_ep *ep,
                           const void *addr,
                           size_t addrlen);

/**
 * Gives the endpoint's own address, for gdrfab_ep_connect_addr() of the peer. Mirrors fi_getname.
 *
 * @param ep      endpoint, not yet connected
 * @param addr    gets NUL-terminated text; GDRFAB_ADDR_MAX bytes suffice
 * @param addrlen in: bytes of addr; out: bytes used, NUL included. Also written with -GDRFAB_ETOOSMALL
 * @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -GDRFAB_EOPBADSTATE (connecting or over), -EMFILE
 */
int gdrfab_ep_getname(struct gdrfab_ep *ep, void *addr, size_t *addrlen);

/**
 * Gives the address of a passive endpoint. Mirrors fi_getname.
 *
 * @param pep     passive endpoint
 * @param addr    gets NUL-terminated text; GDRFAB_ADDR_MAX bytes suffice
 * @param addrlen in: bytes of addr; out: bytes used, NUL included. Also written with -GDRFAB_ETOOSMALL
 * @return 0, -GDRFAB_ETOOSMALL, -EINVAL
 */
int gdrfab_pep_getname(struct gdrfab_pep *pep, void *addr, size_t *addrlen);

/**
 * Gives the peer's address, or that of its listener; "shm://" alone if the peer that connected has none. Mirrors fi_getpeer.
 *
 * @param ep      connected endpoint
 * @param addr    gets NUL-terminated text; GDRFAB_ADDR_MAX bytes suffice
 * @param addrlen in: bytes of addr; out: bytes used, NUL included. Also written with -GDRFAB_ETOOSMALL
 * @return 0, -GDRFAB_ETOOSMALL, -EINVAL, -ENOTCONN (not connected yet), -ESHUTDOWN (not any more)
 */
int gdrfab_ep_getpeer(struct gdrfab_ep *ep,
                      void *addr,
                      size_t *addrlen);

/**
 * Registers one range of host memory. Mirrors fi_mr_reg.
 *
 * @param domain        open domain
 * @param buf           first byte; the memory must stay mapped until gdrfab_mr_close() returned
 * @param len           bytes, not 0
 * @param access        rights
 * @param offset        see gdrfab_mr_attr
 * @param requested_key see gdrfab_mr_attr
 * @param flags         0, GDRFAB_RMA_EVENT
 * @param context       the caller's; gdrfab_mr_context() gives it back
 * @param mr            the handle; close it with gdrfab_mr_close()
 * @return as gdrfab_mr_regattr()
 */
int gdrfab_mr_reg(struct gdrfab_domain *domain,
                  const void *buf,
                  size_t len,
                  uint64_t access,
                  uint64_t offset,
                  uint64_t requested_key,
                  uint64_t flags,
                  void *context,
                  struct gdrfab_mr **mr);

/**
 * Registers several ranges of host memory as one region. Mirrors fi_mr_regv.
 *
 * @param domain        open domain
 * @param iov           the pieces; peers see them joined, beginning at the first one's address
 * @param count         their number, up to mr_iov_limit
 * @param access        rights
 * @param offset        see gdrfab_mr_attr
 * @param requested_key see gdrfab_mr_attr
 * @param flags         0, GDRFAB_RMA_EVENT
 * @param context       the caller's; gdrfab_mr_context() gives it back
 * @param mr            the handle
 * @return as gdrfab_mr_regattr()
 */
int gdrfab_mr_regv(struct gdrfab_domain *domain,
                   const struct iovec *iov,
                   size_t count,
                   uint64_t access,
                   uint64_t offset,
                   uint64_t requested_key,
                   uint64_t flags,
                   void *context,
                   struct gdrfab_mr **mr);

/**
 * Registers memory of any kind. Mirrors fi_mr_regattr.
 *
 * shm and tcp pin nothing here and touch no page (shm lets a vendor's driver pin host memory when it is first copied to or
 * from a device); verbs pins host memory, unless GDRFAB_VERBS_ODP, and device memory with its dma-buf. Of device memory the
 * driver's handle for other processes is made, where the vendor has one; the range may span several allocations of one
 * device and kind. gdrfab_mr_query() and gdrfab_mr_explain() tell which paths
 * the region offers and why not the others. Callable from any thread (GDRFAB_THREAD_SAFE).
 *
 * @param domain open domain
 * @param attr   what and how
 * @param flags  0, GDRFAB_MR_DMABUF, GDRFAB_RMA_EVENT
 * @param mr     the handle; close it with gdrfab_mr_close()
 * @return 0, or
 *   -EINVAL a bad argument (NULL, length 0, overflow, count, unknown rights, offset beyond the file; memory that is
 *   not, or not to its end, of the iface and device asked for);
 *   -E2BIG attr of a newer version; -GDRFAB_EBADFLAGS unknown flags;
 *   -ENOSYS, -ENODEV the iface's driver, or its devices, are not here; -EPERM it was opened before a fork;
 *   -EOPNOTSUPP no path is left after require and forbid; gdrfab_last_error() tells why for each;
 *   -GDRFAB_ENOKEY requested_key is taken; -ENOSPC mr_cnt regions are open;
 *   -EBADF, -EACCES, -ENODEV the descriptor is none, lacks the mode for the access, or cannot be mapped; -EMFILE, -ENOMEM
 */
int gdrfab_mr_regattr(struct gdrfab_domain *domain,
                      const struct gdrfab_mr_attr *attr,
                      uint64_t flags,
                      struct gdrfab_mr **mr);

/**
 * Closes a region. When it returns 0, no peer that runs this library reaches the memory: copies in flight have ended, those
 * of connections that are over too, and every later operation on the key fails at its initiator with EKEYREJECTED. A
 * hostile process of the same user can keep what it has mapped. Mirrors fi_close.
 *
 * @return 0, or
 *   -EBUSY a peer (stopped, perhaps) is inside a copy for longer than GDRFAB_SHM_CLOSE_MS, and gdrfab_last_error() names it:
 *   the region stays shut for new operations, call again; -EINVAL for NULL
 */
int gdrfab_mr_close(struct gdrfab_mr *mr);

/**
 * The context that a region was registered with; NULL for NULL. Mirrors fid->context.
 */
void *gdrfab_mr_context(struct gdrfab_mr *mr);

/**
 * The key by which peers name the region; 0 for NULL. Mirrors fi_mr_key.
 *
 * Of the keys that shm and tcp choose 45 bits are random, of those of staged regions of verbs 43: whoever knows some keys of a
 * domain cannot compute others. The card's own keys over verbs have 32 bits, as random as the card makes them.
 */
uint64_t gdrfab_mr_key(struct gdrfab_mr *mr);

/**
 * The descriptor that operations take for local buffers inside the region; NULL for NULL. It is a number in a
 * pointer's clothes. For device memory it is required: without it an operation takes its buffer for host memory. For
 * host memory it is not, but lets a peer help with large copies, and a device's driver pin the memory. Pieces of one
 * operation are all host memory, or all inside the region of the first descriptor. Mirrors fi_mr_desc.
 */
void *gdrfab_mr_desc(struct gdrfab_mr *mr);

/**
 * Binds a counter that moves by one for each write of a peer into the region that is complete. Mirrors fi_mr_bind.
 *
 * @param mr    region registered with GDRFAB_RMA_EVENT, before its key is given to peers
 * @param cntr  counter; it must be closed after the region
 * @param flags GDRFAB_REMOTE_WRITE
 * @return 0, -EINVAL (an argument; registered without GDRFAB_RMA_EVENT), -GDRFAB_EBADFLAGS
 */
int gdrfab_mr_bind_cntr(struct gdrfab_mr *mr,
                        struct gdrfab_cntr *cntr,
                        uint64_t flags);

/**
 * Tells what a region is and which paths it offers.
 *
 * @param mr   region
 * @param info gets the facts; its struct_size is set by the caller
 * @return 0, -EINVAL
 */
int gdrfab_mr_query(struct gdrfab_mr *mr, struct gdrfab_mr_info *info);

/**
 * Tells in words which paths a region offers, and of each other one why not, with its errno.
 *
 * @param mr  region
 * @param buf gets the text, cut to `len` with its NUL; NULL with len 0 asks for the length
 * @return length of the whole text without NUL, or -EINVAL
 */
ssize_t gdrfab_mr_explain(struct gdrfab_mr *mr, char *buf, size_t len);

/**
 * Allocates zeroed host memory that peers can map, so that operations on it take GDRFAB_PATH_DIRECT.
 *
 * It is one memory file: a descriptor is held until gdrfab_mem_free(). It still has to be registered.
 *
 * @param domain open domain
 * @param len    bytes, rounded up to pages
 * @param flags  0
 * @param addr   gets the address, page aligned
 * @return 0, -EINVAL, -GDRFAB_EBADFLAGS, -ENOMEM, -EMFILE, -ENOSPC (too many memory files)
 */
int gdrfab_mem_alloc(struct gdrfab_domain *domain, size_t len, uint64_t flags, void **addr);

/**
 * Frees memory of gdrfab_mem_alloc() or gdrfab_mem_alloc_on().
 *
 * @param domain the domain that allocated it
 * @param addr   the address that was given
 * @return 0, -EBUSY while an open region covers it, -EINVAL if it is no such address; of device memory also an errno of
 *   the driver, and then it is still there
 */
int gdrfab_mem_free(struct gdrfab_domain *domain,
                    void *addr);

/**
 * Tells whether an interface can be used, how many devices it has, and what one of them can do. Libfabric has no such call.
 *
 * It loads and initialises the vendor's driver if nothing of the library has used it yet; GDRFAB_HMEM and
 * GDRFAB_HMEM_INIT restrict that. With CUDA it calls cuInit() and asks what needs no context, so it makes none on any device.
 * Callable from any thread; a child of fork() gets -EPERM for a driver that its parent opened.
 *
 * @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO
 * @param device number of the device; UINT32_MAX asks for the interface alone: iface and devices are set, the rest is 0
 * @param info   gets the facts; its struct_size is set by the caller
 * @return 0, or
 *   -EINVAL a bad argument;
 *   -ENOSYS the driver is not installed, is too old, or is ruled out by GDRFAB_HMEM;
 *   -ENODEV the driver finds no device, or has none of that number (host memory has none at all);
 *   -EPERM the driver was opened before this process was forked; gdrfab_last_error() has the reason in words;
 *   -EIO or another errno: the driver failed
 */
int gdrfab_hmem_query(uint32_t iface,
                      uint32_t device,
                      struct gdrfab_hmem_info *info);

/**
 * Tells in words whether an interface can be used or why not, and of each device what it is, the devices that it reaches
 * without the host, and whether its memory can be exported as dma-buf and mapped by other processes, with reasons.
 *
 * An interface that cannot be used is no error here: the text says so. As gdrfab_hmem_query() it may open the driver.
 *
 * @param iface GDRFAB_HMEM_*; GDRFAB_HMEM_AUTO: all of them
 * @param buf   gets the text, cut to `len` with its NUL; NULL with len 0 asks for the length
 * @param len   bytes of buf
 * @return length of the whole text without NUL, or -EINVAL
 */
ssize_t gdrfab_hmem_explain(uint32_t iface,
                            char *buf,
                            size_t len);

/**
 * Tells what a pointer points into, by asking the driver of every vendor that is here (ofi_get_hmem_iface is what libfabric's
 * providers do inside).
 *
 * A pointer that no vendor knows is host memory; whether it can be touched is not examined. The answer holds until the
 * memory is freed. As gdrfab_hmem_query() it may open drivers; callable from any thread.
 *
 * @param ptr   any address but NULL; it is never followed
 * @param len   bytes from it that `covered` is to look at; 0: only the allocation of ptr
 * @param place gets the answer; its struct_size is set by the caller
 * @return 0, -EINVAL (an argument; ptr plus len overflows), -EIO or another errno if a driver failed
 */
int gdrfab_hmem_detect(const void *ptr,
                       size_t len,
                       struct gdrfab_hmem_place *place);

/**
 * Exports device memory as a dma-buf that other drivers, and gdrfab_mr_regattr() with GDRFAB_MR_DMABUF, take as it is.
 *
 * The driver exports whole pages; `out` says where the range begins in them, and that its first byte has the address ptr.
 * The dma-buf keeps the memory alive, but not its address. Libfabric has no such call (ofi_hmem_get_dmabuf_fd is inside).
 * Callable from any thread.
 *
 * @param ptr   first byte, in memory of a device
 * @param len   bytes, not 0; they may span allocations where the vendor can export that
 * @param flags 0, GDRFAB_DMABUF_PCIE
 * @param out   gets descriptor (close-on-exec; the caller closes it), offset, len and base_addr
 * @return 0, or
 *   -EINVAL a bad argument, or the memory ends before the range does; -GDRFAB_EBADFLAGS unknown flags;
 *   -EOPNOTSUPP host memory, or memory whose vendor, device or allocation cannot be exported: gdrfab_last_error() tells which;
 *   -ENOSYS the driver lacks the function; -EMFILE, -ENOMEM, -EIO or another errno of the driver
 */
int gdrfab_hmem_export_dmabuf(const void *ptr,
                              size_t len,
                              uint64_t flags,
                              struct gdrfab_mr_dmabuf *out);

/**
 * Copies host memory into memory of a device; when it returns 0, the bytes are there. It orders itself after nothing that
 * the caller has put on a stream of its own, and leaves the caller's context as it was. Callable from any thread; two
 * copies that touch the same bytes are the callers' to order. Mirrors ofi_copy_to_hmem.
 *
 * @param iface  GDRFAB_HMEM_* of dest (GDRFAB_HMEM_SYSTEM: both sides are host memory); GDRFAB_HMEM_AUTO: asks the drivers
 * @param device number of the device of dest; 0 for GDRFAB_HMEM_SYSTEM, ignored with GDRFAB_HMEM_AUTO
 * @param dest   first byte in the device's memory
 * @param src    first byte in host memory; must not overlap dest
 * @param len    bytes; 0 checks iface and device and copies nothing
 * @return 0, or
 *   -EINVAL a bad argument: dest is not memory of that interface and device up to its end, or src is device memory;
 *   -ENOSYS, -ENODEV, -EPERM as gdrfab_hmem_query(); -EIO or another errno: the driver failed, and what dest holds is undefined
 */
int gdrfab_hmem_copy_to(uint32_t iface,
                        uint32_t device,
                        void *dest,
                        const void *src,
                        size_t len);

/**
 * Copies memory of a device into host memory; when it returns 0, the bytes are there. As gdrfab_hmem_copy_to() otherwise.
 * Mirrors ofi_copy_from_hmem.
 *
 * @param iface  GDRFAB_HMEM_* of src; GDRFAB_HMEM_AUTO: asks the drivers
 * @param device number of the device of src; 0 for GDRFAB_HMEM_SYSTEM, ignored with GDRFAB_HMEM_AUTO
 * @param dest   first byte in host memory; must not overlap src
 * @param src    first byte in the device's memory
 * @param len    bytes; 0 checks iface and device and copies nothing
 * @return as gdrfab_hmem_copy_to(), with the sides exchanged
 */
int gdrfab_hmem_copy_from(uint32_t iface,
                          uint32_t device,
                          void *dest,
                          const void *src,
                          size_t len);

/**
 * Makes what a NIC has written into memory of a device before this call visible to the device's kernels, those that run
 * already too. It concerns memory that a NIC reaches by itself (GDRFAB_PATH_DMABUF, GDRFAB_PATH_PEER_MEM of verbs): call it
 * after the completion that told of the bytes, and before a kernel is told. Libfabric has no such call.
 *
 * CUDA: returns at once where the device orders these writes itself (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
 * else the driver flushes, with the device's primary context current, which this makes if it is not there yet. That holds for
 * memory of this context and for mapped segments and pools, not for memory of contexts that the program made by cuCtxCreate:
 * there it calls cuFlushGPUDirectRDMAWrites itself. It waits for no stream, and is callable from any thread.
 *
 * @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO; GDRFAB_HMEM_SYSTEM needs no flush: 0
 * @param device number of the device; 0 for GDRFAB_HMEM_SYSTEM
 * @return 0, or
 *   -EINVAL iface; -ENOSYS, -ENODEV, -EPERM as gdrfab_hmem_query();
 *   -EOPNOTSUPP the device neither orders the writes nor has such a flush: of the other interfaces none has, and neither have
 *   CUDA drivers before 11.3; gdrfab_last_error() tells which;
 *   -EIO or another errno of the driver
 */
int gdrfab_hmem_flush(uint32_t iface,
                      uint32_t device);

/**
 * Allocates memory of a device that peers can be given: of the kind that the vendor lets other processes map, where it has
 * one. With GDRFAB_HMEM_SYSTEM it is gdrfab_mem_alloc(). Libfabric has no such call.
 *
 * Device memory is not zeroed. It still has to be registered, and belongs to the domain: gdrfab_mem_free() frees it, and the
 * domain does not close before. The memory may be used by the vendor's own functions as any other of that device.
 * Callable from any thread (GDRFAB_THREAD_SAFE).
 *
 * @param domain open domain
 * @param iface  GDRFAB_HMEM_*, not GDRFAB_HMEM_AUTO
 * @param device number of the device; 0 for GDRFAB_HMEM_SYSTEM
 * @param len    bytes, not 0; the driver rounds up to its granularity
 * @param flags  0
 * @param addr   gets the address
 * @return 0, or
 *   -EINVAL a bad argument; -GDRFAB_EBADFLAGS; -ENOSYS, -ENODEV, -EPERM as gdrfab_hmem_query();
 *   -EOPNOTSUPP the vendor's driver lets nobody allocate in its place; -ENOMEM; -EIO or another errno of the driver;
 *   with GDRFAB_HMEM_SYSTEM as gdrfab_mem_alloc()
 */
int gdrfab_mem_alloc_on(struct gdrfab_domain *domain,
                        uint32_t iface,
                        uint32_t device,
                        size_t len,
                        uint64_t flags,
                        void **addr);

/**
 * Writes local memory into a peer's region. Mirrors fi_write.
 *
 * Protection errors (unknown key, out of bounds, missing right, no permitted path) are error entries of the completion
 * queue, and the target is untouched; a post fails only for what is wrong on this side. Operations of an endpoint take
 * effect in the order of posting. With shm's path direct, and host memory on both sides, the last 8 bytes of a range become
 * visible last; no other path or provider promises that, so wait for a completion, or for a write with data.
 *
 * Thread rule of all posting calls: any thread with GDRFAB_THREAD_SAFE; one at a time per domain otherwise.
 *
 * @param ep        connected endpoint
 * @param buf       local bytes, unchanged until the completion
 * @param len       bytes; 0 checks the key and moves nothing
 * @param desc      gdrfab_mr_desc() of a region that holds buf, or NULL
 * @param dest_addr unused
 * @param addr      remote address
 * @param key       the peer's region
 * @param context   handed out in the completion
 * @return 0 posted, or
 *   -EAGAIN too many operations are outstanding, or the queue could overrun: read completions and call again;
 *   -ENOTCONN not connected yet, -ESHUTDOWN not any more; -EINVAL NULL; -EMSGSIZE longer than max_msg_size
 */
ssize_t gdrfab_write(struct gdrfab_ep *ep,
                     const void *buf,
                     size_t len,
                     void *desc,
                     uint64_t dest_addr,
                     uint64_t addr,
                     uint64_t key,
                     void *context);

/**
 * Writes several local ranges, joined, into a peer's region. Mirrors fi_writev.
 *
 * @param ep        connected endpoint
 * @param iov       local pieces, up to tx_iov_limit; the array is read during the call only
 * @param desc      their descriptors, or NULL
 * @param count     number of pieces
 * @param dest_addr unused
 * @param addr      remote address
 * @param key       the peer's region
 * @param context   handed out in the completion
 * @return as gdrfab_write()
 */
ssize_t gdrfab_writev(struct gdrfab_ep *ep,
                      const struct iovec *iov,
                      void **desc,
                      size_t count,
                      uint64_t dest_addr,
                      uint64_t addr,
                      uint64_t key,
                      void *context);

/**
 * Writes with everything: several pieces on both sides, flags, data, a deadline. Mirrors fi_writemsg.
 *
 * @param ep    connected endpoint
 * @param msg   the operation; read during the call only
 * @param flags GDRFAB_COMPLETION, DELIVERY_COMPLETE, TRANSMIT_COMPLETE, INJECT_COMPLETE, REMOTE_CQ_DATA, INJECT, FENCE, MORE; the
 *   endpoint's tx_op_flags do not apply
 * @return as gdrfab_write(); -E2BIG msg of a newer version; -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_writemsg(struct gdrfab_ep *ep,
                        const struct gdrfab_msg_rma *msg,
                        uint64_t flags);

/**
 * Writes, and then puts an entry with `data` into the peer's completion queue for receives. Mirrors fi_writedata.
 *
 * The entry (GDRFAB_REMOTE_WRITE | GDRFAB_RMA | GDRFAB_REMOTE_CQ_DATA) never overtakes the bytes. With shm and tcp it
 * takes no posted receive; with verbs it does, if info->mode has GDRFAB_RX_CQ_DATA.
 *
 * @param ep        connected endpoint
 * @param buf       local bytes, unchanged until the completion
 * @param len       bytes
 * @param desc      descriptor, or NULL
 * @param data      64 bits for the peer
 * @param dest_addr unused
 * @param addr      remote address
 * @param key       the peer's region
 * @param context   handed out in the completion
 * @return as gdrfab_write()
 */
ssize_t gdrfab_writedata(struct gdrfab_ep *ep,
                         const void *buf,
                         size_t len,
                         void *desc,
                         uint64_t data,
                         uint64_t dest_addr,
                         uint64_t addr,
                         uint64_t key,
                         void *context);

/**
 * Writes up to inject_size bytes; the buffer is the caller's again at once, and only a failure gives an entry (the loss of
 * the connection none).
 * Mirrors fi_inject_write.
 *
 * @param ep        connected endpoint
 * @param buf       local bytes
 * @param len       bytes, up to inject_size
 * @param dest_addr unused
 * @param addr      remote address
 * @param key       the peer's region
 * @return as gdrfab_write(); -EMSGSIZE longer than inject_size
 */
ssize_t gdrfab_inject_write(struct gdrfab_ep *ep,
                            const void *buf,
                            size_t len,
                            uint64_t dest_addr,
                            uint64_t addr,
                            uint64_t key);

/**
 * gdrfab_inject_write() with data for the peer's completion queue. Mirrors fi_inject_writedata.
 *
 * @param ep        connected endpoint
 * @param buf       local bytes
 * @param len       bytes, up to inject_size
 * @param data      64 bits for the peer
 * @param dest_addr unused
 * @param addr      remote address
 * @param key       the peer's region
 * @return as gdrfab_inject_write()
 */
ssize_t gdrfab_inject_writedata(struct gdrfab_ep *ep,
                                const void *buf,
                                size_t len,
                                uint64_t data,
                                uint64_t dest_addr,
                                uint64_t addr,
                                uint64_t key);

/**
 * Reads a peer's region into local memory. Mirrors fi_read.
 *
 * @param ep       connected endpoint
 * @param buf      gets the bytes; undefined until the completion
 * @param len      bytes; 0 checks the key and moves nothing
 * @param desc     descriptor, or NULL
 * @param src_addr unused
 * @param addr     remote address
 * @param key      the peer's region
 * @param context  handed out in the completion
 * @return as gdrfab_write()
 */
ssize_t gdrfab_read(struct gdrfab_ep *ep,
                    void *buf,
                    size_t len,
                    void *desc,
                    uint64_t src_addr,
                    uint64_t addr,
                    uint64_t key,
                    void *context);

/**
 * Reads one remote range into several local ones. Mirrors fi_readv.
 *
 * @param ep       connected endpoint
 * @param iov      local pieces, up to tx_iov_limit; the array is read during the call only
 * @param desc     their descriptors, or NULL
 * @param count    number of pieces
 * @param src_addr unused
 * @param addr     remote address
 * @param key      the peer's region
 * @param context  handed out in the completion
 * @return as gdrfab_write()
 */
ssize_t gdrfab_readv(struct gdrfab_ep *ep,
                     const struct iovec *iov,
                     void **desc,
                     size_t count,
                     uint64_t src_addr,
                     uint64_t addr,
                     uint64_t key,
                     void *context);

/**
 * Reads with everything. Mirrors fi_readmsg.
 *
 * @param ep    connected endpoint
 * @param msg   the operation; read during the call only
 * @param flags GDRFAB_COMPLETION, FENCE, MORE and the completion levels
 * @return as gdrfab_write(); -E2BIG msg of a newer version; -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_readmsg(struct gdrfab_ep *ep, const struct gdrfab_msg_rma *msg, uint64_t flags);

/**
 * Sends a message. Mirrors fi_send.
 *
 * The completion says that the buffer may be reused; with GDRFAB_DELIVERY_COMPLETE, that a receive of the peer has it.
 * Messages arrive in the order of posting.
 *
 * @param ep        connected endpoint
 * @param buf       bytes, unchanged until the completion
 * @param len       bytes; 0 is a message too
 * @param desc      gdrfab_mr_desc() of a region that holds buf, or NULL
 * @param dest_addr unused
 * @param context   handed out in the completion
 * @return 0 posted, or
 *   -EAGAIN too many operations are outstanding, or the queue could overrun: read completions and call again;
 *   -ENOTCONN not connected yet, -ESHUTDOWN not any more; -EINVAL NULL; -EMSGSIZE longer than max_msg_size
 */
ssize_t gdrfab_send(struct gdrfab_ep *ep,
                    const void *buf,
                    size_t len,
                    void *desc,
                    uint64_t dest_addr,
                    void *context);

/**
 * Sends several pieces as one message. Mirrors fi_sendv.
 *
 * @param ep        connected endpoint
 * @param iov       pieces, up to tx_iov_limit; the array is read during the call only
 * @param desc      their descriptors, or NULL
 * @param count     number of pieces
 * @param dest_addr unused
 * @param context   handed out in the completion
 * @return as gdrfab_send()
 */
ssize_t gdrfab_sendv(struct gdrfab_ep *ep,
                     const struct iovec *iov,
                     void **desc,
                     size_t count,
                     uint64_t dest_addr,
                     void *context);

/**
 * Sends with everything. Mirrors fi_sendmsg.
 *
 * @param ep    connected endpoint
 * @param msg   the operation; read during the call only
 * @param flags GDRFAB_COMPLETION, DELIVERY_COMPLETE, TRANSMIT_COMPLETE, INJECT_COMPLETE, REMOTE_CQ_DATA, INJECT, FENCE, MORE; the
 *   endpoint's tx_op_flags do not apply
 * @return as gdrfab_send(); -E2BIG msg of a newer version; -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_sendmsg(struct gdrfab_ep *ep,
                       const struct gdrfab_msg *msg,
                       uint64_t flags);

/**
 * Sends a message with 64 bits of data for the peer's completion entry. Mirrors fi_senddata.
 *
 * @param ep        connected endpoint
 * @param buf       bytes, unchanged until the completion
 * @param len       bytes
 * @param desc      descriptor, or NULL
 * @param data      64 bits for the peer
 * @param dest_addr unused
 * @param context   handed out in the completion
 * @return as gdrfab_send()
 */
ssize_t gdrfab_senddata(struct gdrfab_ep *ep,
                        const void *buf,
                        size_t len,
                        void *desc,
                        uint64_t data,
                        uint64_t dest_addr,
                        void *context);

/**
 * Sends up to inject_size bytes; the buffer is the caller's again at once, and only a failure gives an entry (the loss of
 * the connection none).
 * Mirrors fi_inject.
 *
 * @param ep        connected endpoint
 * @param buf       bytes
 * @param len       bytes, up to inject_size
 * @param dest_addr unused
 * @return as gdrfab_send(); -EMSGSIZE longer than inject_size
 */
ssize_t gdrfab_inject(struct gdrfab_ep *ep,
                      const void *buf,
                      size_t len,
                      uint64_t dest_addr);

/**
 * gdrfab_inject() with data for the peer's completion entry. Mirrors fi_injectdata.
 *
 * @param ep        connected endpoint
 * @param buf       bytes
 * @param len       bytes, up to inject_size
 * @param data      64 bits for the peer
 * @param dest_addr unused
 * @return as gdrfab_inject()
 */
ssize_t gdrfab_injectdata(struct gdrfab_ep *ep,
                          const void *buf,
                          size_t len,
                          uint64_t data,
                          uint64_t dest_addr);

/**
 * Posts a buffer for one message. Mirrors fi_recv.
 *
 * Allowed as soon as the endpoint is enabled. A longer message fills the buffer and gives an error entry,
 * GDRFAB_ETRUNC, with the lost bytes in olen. When the connection ends, the receive completes with ECONNRESET (the
 * peer's end) or ECANCELED (this side's).
 *
 * @param ep       enabled endpoint with a queue or counter for receives
 * @param buf      gets the bytes; undefined until the completion
 * @param len      bytes
 * @param desc     descriptor, or NULL
 * @param src_addr unused
 * @param context  handed out in the completion
 * @return 0, -EAGAIN (rx_size receives are posted), -EINVAL, -GDRFAB_ENOCQ, -GDRFAB_EOPBADSTATE (not enabled), -ESHUTDOWN (the
 *   connection is over)
 */
ssize_t gdrfab_recv(struct gdrfab_ep *ep,
                    void *buf,
                    size_t len,
                    void *desc,
                    uint64_t src_addr,
                    void *context);

/**
 * Posts several pieces for one message. Mirrors fi_recvv.
 *
 * @param ep       enabled endpoint
 * @param iov      pieces, up to rx_iov_limit; the array is read during the call only
 * @param desc     their descriptors, or NULL
 * @param count    number of pieces
 * @param src_addr unused
 * @param context  handed out in the completion
 * @return as gdrfab_recv()
 */
ssize_t gdrfab_recvv(struct gdrfab_ep *ep,
                     const struct iovec *iov,
                     void **desc,
                     size_t count,
                     uint64_t src_addr,
                     void *context);

/**
 * Posts a receive with everything. Mirrors fi_recvmsg.
 *
 * @param ep    enabled endpoint
 * @param msg   the receive; read during the call only
 * @param flags 0 or GDRFAB_COMPLETION
 * @return as gdrfab_recv(); -E2BIG msg of a newer version; -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_recvmsg(struct gdrfab_ep *ep, const struct gdrfab_msg *msg, uint64_t flags);

/**
 * Cancels an operation. Mirrors fi_cancel.
 *
 * The first receive, waiting operation or offered message with this context ends with an ECANCELED entry, and its
 * buffer is quiet when the call returns.
 *
 * @param ep      endpoint
 * @param context what the operation was posted with
 * @return 0, -ENOENT (none with that context can still be cancelled), -EINVAL, -EOPNOTSUPP (verbs: a queue pair takes back
 *   nothing alone; shut the endpoint down, or give operations a deadline, which ends the connection)
 */
ssize_t gdrfab_cancel(struct gdrfab_ep *ep,
                      void *context);

/**
 * Reads completions, and drives the endpoints bound to the queue if there are none. Mirrors fi_cq_read.
 *
 * @param cq    queue
 * @param buf   gets entries of the queue's format
 * @param count how many it holds; 0 only drives
 * @return entries read, at least 1 (0 if count is 0 and entries wait), or
 *   -EAGAIN none; -GDRFAB_EAVAIL an error entry is next: gdrfab_cq_readerr() takes it, gdrfab_last_error() has its words
 *   already; -EINVAL NULL
 */
ssize_t gdrfab_cq_read(struct gdrfab_cq *cq,
                       void *buf,
                       size_t count);

/**
 * gdrfab_cq_read() with source addresses. Mirrors fi_cq_readfrom.
 *
 * @param cq       queue
 * @param buf      gets entries
 * @param count    how many buf and src_addr hold
 * @param src_addr gets GDRFAB_ADDR_UNSPEC per entry on connected endpoints; may be NULL
 * @return as gdrfab_cq_read()
 */
ssize_t gdrfab_cq_readfrom(struct gdrfab_cq *cq, void *buf, size_t count, uint64_t *src_addr);

/**
 * Reads completions, waiting for the first. Mirrors fi_cq_sread.
 *
 * Polls for GDRFAB_SPIN_US, then sleeps; needs no wait object. Several threads may wait on one queue.
 *
 * @param cq         queue
 * @param buf        gets entries
 * @param count      how many it holds, not 0
 * @param cond       unused, NULL
 * @param timeout_ms milliseconds, -1 = no limit
 * @return as gdrfab_cq_read(); -EAGAIN after the timeout or gdrfab_cq_signal(); -EINTR by a signal; -EPERM in a process
 *   that did not open it; -EMFILE, -ENFILE, -ENOMEM or -ENOSPC nothing to sleep on
 */
ssize_t gdrfab_cq_sread(struct gdrfab_cq *cq,
                        void *buf,
                        size_t count,
                        const void *cond,
                        int timeout_ms);

/**
 * Reads the error entry that is next. Mirrors fi_cq_readerr.
 *
 * @param cq    queue
 * @param entry gets the entry; struct_size, err_data and err_data_size are set by the caller
 * @param flags 0
 * @return 1, or -EAGAIN (the next entry is no error), -EINVAL, -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_cq_readerr(struct gdrfab_cq *cq, struct gdrfab_cq_err_entry *entry, uint64_t flags);

/**
 * Lets one blocked gdrfab_cq_sread() return, or the next one at once. Mirrors fi_cq_signal.
 *
 * Each signal ends one wait: a thread that waits by gdrfab_cq_trywait() and poll takes it as well, by an -EAGAIN of
 * gdrfab_cq_trywait(). Any thread may call it, with GDRFAB_THREAD_DOMAIN too.
 *
 * @return 0, -EINVAL, -EPERM in a process that did not open it
 */
int gdrfab_cq_signal(struct gdrfab_cq *cq);

/**
 * Words for a provider code. Mirrors fi_cq_strerror.
 *
 * @param cq         queue
 * @param prov_errno of an error entry
 * @param err_data   of the entry: the words of that very failure; NULL for the code's general words
 * @param buf        gets a copy, or NULL
 * @param len        bytes of buf
 * @return buf, or if that is NULL static or err_data's text; not to be freed
 */
const char *gdrfab_cq_strerror(struct gdrfab_cq *cq,
                               int prov_errno,
                               const void *err_data,
                               char *buf,
                               size_t len);

/**
 * Gives the descriptor of a queue opened with GDRFAB_WAIT_FD: readable when the queue may have something. Mirrors
 * fi_control with FI_GETWAIT.
 *
 * Wait in this order, and no wake-up is lost: gdrfab_cq_read() until -EAGAIN, gdrfab_cq_trywait(), and poll if that
 * returned 0. Deadlines make it readable too, and so does another thread that reads the queue meanwhile; what it is
 * readable for is taken back by the next gdrfab_cq_trywait() only.
 *
 * @param cq queue
 * @param fd gets the descriptor, which the queue owns: it is closed with the queue
 * @return 0, -EINVAL, -ENOSYS (opened without GDRFAB_WAIT_FD), -EPERM in a process that did not open the queue
 */
int gdrfab_cq_fd(struct gdrfab_cq *cq,
                 int *fd);

/**
 * Prepares for blocking on the descriptor; before each poll. It opens no descriptor. Mirrors fi_trywait.
 *
 * @return 0 the caller may poll now; -EAGAIN something came, or may have, or gdrfab_cq_signal() was called: read first;
 *   -EINVAL; -ENOSYS opened without GDRFAB_WAIT_FD; -EPERM in a process that did not open the queue; -ENOMEM or -ENOSPC
 *   the kernel watches no more sockets for this user; with verbs, what the device's driver says when it cannot be armed
 */
int gdrfab_cq_trywait(struct gdrfab_cq *cq);

/**
 * The count of successes; drives the endpoints bound to the counter. 0 for NULL. Mirrors fi_cntr_read.
 */
uint64_t gdrfab_cntr_read(struct gdrfab_cntr *cntr);

/**
 * The count of failures; drives the endpoints bound to the counter. 0 for NULL. Mirrors fi_cntr_readerr.
 */
uint64_t gdrfab_cntr_readerr(struct gdrfab_cntr *cntr);

/**
 * Adds to the count of successes. Mirrors fi_cntr_add.
 *
 * @return 0, -EINVAL for NULL
 */
int gdrfab_cntr_add(struct gdrfab_cntr *cntr, uint64_t value);

/**
 * Sets the count of successes. Mirrors fi_cntr_set.
 *
 * @return 0, -EINVAL for NULL
 */
int gdrfab_cntr_set(struct gdrfab_cntr *cntr, uint64_t value);

/**
 * Adds to the count of failures. Mirrors fi_cntr_adderr.
 *
 * @return 0, -EINVAL for NULL
 */
int gdrfab_cntr_adderr(struct gdrfab_cntr *cntr, uint64_t value);

/**
 * Sets the count of failures. Mirrors fi_cntr_seterr.
 *
 * @return 0, -EINVAL for NULL
 */
int gdrfab_cntr_seterr(struct gdrfab_cntr *cntr, uint64_t value);

/**
 * Waits until the count of successes is at least `threshold`. Mirrors fi_cntr_wait.
 *
 * @param cntr       counter
 * @param threshold  count to wait for
 * @param timeout_ms milliseconds, -1 = no limit
 * @return 0, or -ETIMEDOUT; -GDRFAB_EAVAIL the count of failures changed meanwhile; -EINTR by a
 *   signal; -EINVAL; -EPERM in a process that did not open it; -EMFILE, -ENFILE, -ENOMEM or -ENOSPC nothing to sleep on
 */
int gdrfab_cntr_wait(struct gdrfab_cntr *cntr,
                     uint64_t threshold,
                     int timeout_ms);

/**
 * Gives the descriptor of a counter opened with GDRFAB_WAIT_FD: readable when the count may have changed. Wait in this
 * order, and no wake-up is lost: gdrfab_cntr_read(), gdrfab_cntr_trywait(), and poll if that returned 0. One thread at a
 * time does so.
 *
 * @param cntr counter
 * @param fd   gets the descriptor, which the counter owns: it is closed with the counter
 * @return 0, -EINVAL, -ENOSYS (opened without GDRFAB_WAIT_FD), -EPERM in a process that did not open the counter
 */
int gdrfab_cntr_fd(struct gdrfab_cntr *cntr,
                   int *fd);

/**
 * Prepares for blocking on the descriptor; before each poll. It opens no descriptor. Mirrors fi_trywait.
 *
 * @return 0 the caller may poll now; -EAGAIN the count is another than gdrfab_cntr_read() gave last (0 before the first),
 *   or failures came of which neither gdrfab_cntr_readerr() nor an earlier -EAGAIN told, or something may have come: read;
 *   else as gdrfab_cq_trywait()
 */
int gdrfab_cntr_trywait(struct gdrfab_cntr *cntr);

/**
 * Reads an event, and drives connecting, listening and the endpoints bound to the queue. Mirrors fi_eq_read.
 *
 * @param eq    queue
 * @param event gets GDRFAB_CONNREQ, GDRFAB_CONNECTED, GDRFAB_SHUTDOWN, GDRFAB_NOTIFY, or what gdrfab_eq_write() named
 * @param buf   gets a gdrfab_eq_cm_entry and private data, or what gdrfab_eq_write() wrote
 * @param len   its bytes; sizeof(gdrfab_eq_cm_entry) + GDRFAB_CM_DATA_MAX hold any connection event
 * @param flags 0, or GDRFAB_PEEK: the event stays, buf is left alone and may be NULL
 * @return bytes written (with GDRFAB_PEEK: that reading it takes), or
 *   -EAGAIN none; -GDRFAB_EAVAIL an error entry is next: gdrfab_eq_readerr() takes it, gdrfab_last_error() has its words already;
 *   -GDRFAB_ETOOSMALL the event stays;
 *   -EINVAL, -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_eq_read(struct gdrfab_eq *eq,
                       uint32_t *event,
                       void *buf,
                       size_t len,
                       uint64_t flags);

/**
 * Reads an event, waiting for it. Mirrors fi_eq_sread.
 *
 * @param eq         queue
 * @param event      as gdrfab_eq_read()
 * @param buf        as gdrfab_eq_read()
 * @param len        as gdrfab_eq_read()
 * @param timeout_ms milliseconds, -1 = no limit
 * @param flags      as gdrfab_eq_read(): with GDRFAB_PEEK it only waits
 * @return as gdrfab_eq_read(); -EAGAIN after the timeout, or because a passive endpoint of the queue was closed meanwhile;
 *   -EINTR by a signal; -EPERM in a process that did not open it; -EMFILE, -ENFILE, -ENOMEM or -ENOSPC nothing to sleep on
 */
ssize_t gdrfab_eq_sread(struct gdrfab_eq *eq,
                        uint32_t *event,
                        void *buf,
                        size_t len,
                        int timeout_ms,
                        uint64_t flags);

/**
 * Reads the error entry that is next. Mirrors fi_eq_readerr.
 *
 * @param eq    queue
 * @param entry gets the entry; struct_size, err_data and err_data_size are set by the caller
 * @param flags 0
 * @return 1, or -EAGAIN (the next event is no error), -EINVAL, -GDRFAB_EBADFLAGS
 */
ssize_t gdrfab_eq_readerr(struct gdrfab_eq *eq, struct gdrfab_eq_err_entry *entry, uint64_t flags);

/**
 * Puts an event of the caller's into the queue, and wakes who waits. Mirrors fi_eq_write.
 *
 * @param eq    queue
 * @param event any number, GDRFAB_NOTIFY for instance
 * @param buf   bytes that the reader gets, up to 4096
 * @param len   their number
 * @param flags 0
 * @return len, or -EINVAL, -GDRFAB_EBADFLAGS, -EPERM
 */
ssize_t gdrfab_eq_write(struct gdrfab_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags);

/**
 * Words for a provider code. Mirrors fi_eq_strerror.
 *
 * @param eq         queue
 * @param prov_errno of an error entry
 * @param err_data   words of the entry (not a rejecting peer's data), or NULL for the code's general words
 * @param buf        gets a copy, or NULL
 * @param len        bytes of buf
 * @return buf, or if that is NULL text of the calling thread, valid until its next call; not to be freed
 */
const char *gdrfab_eq_strerror(struct gdrfab_eq *eq,
                               int prov_errno,
                               const void *err_data,
                               char *buf,
                               size_t len);

/**
 * Gives the descriptor of a queue opened with GDRFAB_WAIT_FD: readable when an event may be there. As gdrfab_cq_fd(): read
 * until -EAGAIN, gdrfab_eq_trywait(), poll. Timeouts of connecting make it readable too.
 *
 * @param eq queue
 * @param fd gets the descriptor, which the queue owns: it is closed with the queue
 * @return 0, -EINVAL, -ENOSYS (opened without GDRFAB_WAIT_FD), -EPERM in a process that did not open the queue
 */
int gdrfab_eq_fd(struct gdrfab_eq *eq,
                 int *fd);

/**
 * Prepares for blocking on the descriptor; before each poll. It opens no descriptor. Mirrors fi_trywait.
 *
 * @return 0 the caller may poll now; -EAGAIN an event is there, or may be: read first; else as gdrfab_cq_trywait()
 */
int gdrfab_eq_trywait(struct gdrfab_eq *eq);

/**
 * Sets an option; it holds for operations posted from now on. Mirrors fi_setopt.
 *
 * @param ep      endpoint
 * @param level   GDRFAB_OPT_ENDPOINT
 * @param optname GDRFAB_OPT_*
 * @param optval  the value, of the option's type
 * @param optlen  its bytes
 * @return 0, -EINVAL (NULL, size, value), -ENOPROTOOPT (no such option, or not of this provider), -EOPNOTSUPP (a value that
 *   this provider cannot keep to), -GDRFAB_EOPBADSTATE (an option that is set before connecting, of an endpoint that has
 *   begun to); of GDRFAB_OPT_DRIVER_CALLS also -ENOENT (no gdrfab-copier where it is looked for), -EPROTO (it is of another
 *   build), -EIO (it has ended), -ETIMEDOUT (no answer for a minute), or what its driver answers (-EBUSY, -ENOMEM, ...)
 */
int gdrfab_ep_setopt(struct gdrfab_ep *ep,
                     int level,
                     int optname,
                     const void *optval,
                     size_t optlen);

/**
 * Reads an option. Mirrors fi_getopt.
 *
 * @param ep      endpoint
 * @param level   GDRFAB_OPT_ENDPOINT
 * @param optname GDRFAB_OPT_*
 * @param optval  gets the value
 * @param optlen  in: bytes of optval; out: bytes of the value. Also written with -GDRFAB_ETOOSMALL
 * @return 0, -EINVAL, -ENOPROTOOPT (no such option), -GDRFAB_ETOOSMALL
 */
int gdrfab_ep_getopt(struct gdrfab_ep *ep, int level, int optname, void *optval, size_t *optlen);

/**
 * Tells which path the next operation to a peer's region takes from this endpoint, and for each other path why not.
 *
 * Nothing is sent. shm looks the key up in the peer's table. tcp and verbs cannot: they tell what the key itself and this
 * side's memory say, and only an operation finds out whether the peer has such a region. With verbs a key of the peer's
 * device does not say by which of nic, dmabuf and peer-mem that device reaches the memory, so GDRFAB_OPT_REQUIRE_PATH,
 * GDRFAB_OPT_FORBID_PATH and the answer are about this side's memory, and about staged on either.
 * A path is reported with EAGAIN while it cannot be known: shm waits for the peer's memory file, where this process may
 * not fetch it; with tcp a key that its owner chose (no GDRFAB_MR_PROV_KEY there) does not say what memory it names.
 *
 * @param ep   connected endpoint
 * @param key  the peer's region
 * @param info gets the answer; struct_size and desc are set by the caller
 * @return 0, -EINVAL (an argument; desc is none of this domain), -ENOTCONN, -ESHUTDOWN (as gdrfab_write()), -EKEYREJECTED
 *   (shm: the peer has no such region; verbs: no verbs key), -EPROTO (shm: the peer's table makes no sense)
 */
int gdrfab_ep_query(struct gdrfab_ep *ep,
                    uint64_t key,
                    struct gdrfab_path_info *info);

/**
 * gdrfab_ep_query() in words, with host memory on this side.
 *
 * @param ep  connected endpoint
 * @param key the peer's region
 * @param buf gets the text, cut to `len` with its NUL; NULL with len 0 asks for the length
 * @return length of the whole text without NUL, or as gdrfab_ep_query()
 */
ssize_t gdrfab_ep_explain(struct gdrfab_ep *ep, uint64_t key, char *buf, size_t len);

/**
 * Tells what an endpoint has done so far.
 *
 * @param ep    endpoint
 * @param stats gets the counts; its struct_size is set by the caller
 * @return 0, -EINVAL
 */
int gdrfab_ep_stats(struct gdrfab_ep *ep, struct gdrfab_stats *stats);

/**
 * Chooses what is logged, and where to; overrides GDRFAB_LOG.
 *
 * Lines on stderr begin with the time (UTC), the process and the level. A line that cannot be written is lost.
 *
 * @param level 0 off, 1 error, 2 warn, 3 info, 4 debug
 * @param fn    receives the lines, without those; NULL: stderr
 * @param arg   handed to `fn`
 * @return 0, or -EINVAL for another level
 */
int gdrfab_log_set(int level,
                   gdrfab_log_fn fn,
                   void *arg);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GDRFAB_H */
