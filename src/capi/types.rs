// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The constants of the header, and its table of contents: the header's sections come in the order of this file,
//! each with the rules that hold for all of it (tests/header/layout.rs). Constants are literals, because cbindgen
//! evaluates nothing; `values.rs` checks them against the values of the layers below.

use libc::c_int;

// == All calls ==
// Names, arguments, bits and errno values follow libfabric. "Mirrors" names the counterpart there; a comment
// without that word has none.
//
// Results of type int and ssize_t are 0 or a count, or a negative errno: one of <errno.h> or a GDRFAB_E*.
// gdrfab_last_error() has the reason in words. An errno that a call lists without a cause has this one:
//
//   -EINVAL            a required pointer is NULL; a size, count or number is out of range; a reserved field
//                      is not 0; struct_size is not set. Any call may return it
//   -E2BIG             a struct is longer than the library knows it, and the unknown part is not zero
//   -GDRFAB_EBADFLAGS  flags has a bit that the call does not define
//   -ENOMEM, -EMFILE, -ENFILE, -ENOSPC
//                      the kernel has no memory, no file descriptor, or no more of what it counts per user
//                      (memory files, watched sockets). Without memory any call that posts, opens, connects,
//                      registers, reads or waits may return -ENOMEM; nothing was done, and it can be made
//                      again. An operation under way may end with ENOMEM in its entry
//   -EPERM             the object was opened before this process was forked. Calls that open, close, connect,
//                      register or wait return it; other uses of an inherited object are undefined
//   -ENOTRECOVERABLE   a defect of the library, of any call; functions without an errno give NULL or 0
//
// Outputs are written on success only. A struct with struct_size grows in later versions: the caller sets it
// to the sizeof of the struct, also where the library fills the rest. Zeros, or NULL instead of a struct of
// attributes, are the defaults. Strings are UTF-8 and end with NUL. A call that writes text into buf writes
// at most len bytes, NUL included, and returns the length of the whole text without NUL; NULL with len 0 asks
// for that length. A call that gives an address reads the size of addr from *addrlen, and writes the bytes
// used, NUL included; with -GDRFAB_ETOOSMALL it writes the bytes needed.
//
// Arguments that a comment leaves out: flags is 0; timeout_ms counts milliseconds, -1: no limit, 0: does not
// sleep; context is a pointer of the caller's that the library only gives back.
//
// Units: waiting calls count milliseconds, as poll() does. Deadlines of operations and of connecting, in
// structs and options, count nanoseconds, because most operations take less than a millisecond.
//
// Threads: with GDRFAB_THREAD_SAFE, the default, any thread may call anything at any time. With
// GDRFAB_THREAD_DOMAIN the caller lets one thread at a time into a domain and what was opened from it. In
// both, no thread uses an object while another closes it. A function without an object may be called by any
// thread.
//
// Signals, cancellation, descriptors: the library changes no handler. Its threads take no signal of the
// program's, and no SIGPIPE or SIGXFSZ comes of its system calls: a call returns -EFBIG if RLIMIT_FSIZE
// leaves no room for memory files. gdrfab_cq_sread(), gdrfab_cq_sreadfrom(), gdrfab_eq_sread() and
// gdrfab_cntr_wait() are cancellation points while they sleep, and a signal handler may end the thread there,
// and nowhere else, by pthread_exit(); in any other call cancellation of the thread waits until it returns. A
// thread calls nothing while its cancel type is asynchronous. The library's descriptors are 3 and more, also
// where the program has closed 0, 1 or 2; calls that open, register or connect may use these numbers until
// they return. docs/abi.md describes the effect on other threads.
//
// Handles: an open call stores a handle, and the close call of its kind frees it. Close in the reverse order
// of opening; a close takes bounded time, and of an object that others still use it returns -EBUSY. Using a
// handle after its close is undefined. An info that an open call reads is copied.

// Errno values that errno.h lacks.
/// The buffer is too small.
pub const GDRFAB_ETOOSMALL: c_int = 257;
/// Not permitted in the object's state.
pub const GDRFAB_EOPBADSTATE: c_int = 258;
/// An error entry is next for readerr; gdrfab_last_error() has its words.
pub const GDRFAB_EAVAIL: c_int = 259;
/// A flag that the call does not define.
pub const GDRFAB_EBADFLAGS: c_int = 260;
/// No event queue is bound.
pub const GDRFAB_ENOEQ: c_int = 261;
/// No completion queue or counter is bound.
pub const GDRFAB_ENOCQ: c_int = 263;
/// A message was longer than its receive.
pub const GDRFAB_ETRUNC: c_int = 265;
/// The requested key is in use.
pub const GDRFAB_ENOKEY: c_int = 266;
/// A queue was overrun.
pub const GDRFAB_EOVERRUN: c_int = 268;
/// The peer posted no receive in time.
pub const GDRFAB_ENORX: c_int = 269;

// Version of this header.
/// Part of the SONAME. From 1 on: changes when the ABI breaks.
pub const GDRFAB_VERSION_MAJOR: u32 = 0;
/// Grows when functions or fields are added; while MAJOR is 0, also when the ABI breaks.
pub const GDRFAB_VERSION_MINOR: u32 = 2;
/// Grows with corrections.
pub const GDRFAB_VERSION_PATCH: u32 = 0;

// #define GDRFAB_VERSION

// == Discovery ==
// gdrfab_getinfo() lists the candidates of this host's providers; one of the list opens fabric, domain and
// endpoint.

// Capabilities (gdrfab_info.caps). The bits return as access rights of a region, as bind flags of queues and
// counters, and in the flags of a completion entry, where they tell the kind of operation: GDRFAB_SEND |
// GDRFAB_MSG, and so on.
/// Messages. Entry: the operation was a message.
pub const GDRFAB_MSG: u64 = 1u64 << 1;
/// Remote memory access. Entry: the operation was RMA.
pub const GDRFAB_RMA: u64 = 1u64 << 2;
/// Tagged messages. Entry: the operation was one.
pub const GDRFAB_TAGGED: u64 = 1u64 << 3;
/// Atomic operations. Entry: the operation was one.
pub const GDRFAB_ATOMIC: u64 = 1u64 << 4;
/// Initiate reads. Right: a read may fill the region.
pub const GDRFAB_READ: u64 = 1u64 << 8;
/// Initiate writes. Right: a write may read the region.
pub const GDRFAB_WRITE: u64 = 1u64 << 9;
/// Receive. Right: receives may fill it. Bind: receives.
pub const GDRFAB_RECV: u64 = 1u64 << 10;
/// Send. Right: sends may read it. Bind to a counter: sends.
pub const GDRFAB_SEND: u64 = 1u64 << 11;
/// Right: peers may read the region.
pub const GDRFAB_REMOTE_READ: u64 = 1u64 << 12;
/// Right: peers may write it. Entry: a peer wrote with data.
pub const GDRFAB_REMOTE_WRITE: u64 = 1u64 << 13;
/// Receive of several messages. Entry: it is used up.
pub const GDRFAB_MULTI_RECV: u64 = 1u64 << 16;
/// Device memory.
pub const GDRFAB_HMEM: u64 = 1u64 << 47;
/// Reaches processes of this host.
pub const GDRFAB_LOCAL_COMM: u64 = 1u64 << 51;
/// Reaches other hosts.
pub const GDRFAB_REMOTE_COMM: u64 = 1u64 << 52;
/// Counters of remote writes. Of registration: peers report theirs from the first on.
pub const GDRFAB_RMA_EVENT: u64 = 1u64 << 56;

/// src_addr of a receive may name the only peer.
pub const GDRFAB_DIRECTED_RECV: u64 = 1u64 << 59;

/// gdrfab_info.mode: a write with data consumes a posted receive of its target, whose context its entry
/// carries; without one the initiator waits. Set by verbs; an endpoint opened without GDRFAB_MSG and
/// GDRFAB_RECV has receives of the provider's own instead.
pub const GDRFAB_RX_CQ_DATA: u64 = 1u64 << 56;

// gdrfab_info.mr_mode: the caller's duties with memory. Only connected endpoints over verbs require some:
// GDRFAB_MR_LOCAL and GDRFAB_MR_PROV_KEY, iWARP also GDRFAB_MR_VIRT_ADDR. libfabric's other modes (FI_MR_*,
// bits 2 to 12) may be set in hints, and change nothing.
/// Local buffers need a gdrfab_mr_desc(), but for inject calls.
pub const GDRFAB_MR_LOCAL: u32 = 1u32 << 2;
/// Remote addresses are virtual; else they count from attr.offset.
pub const GDRFAB_MR_VIRT_ADDR: u32 = 1u32 << 4;
/// The provider chooses the keys; else requested_key is the key.
pub const GDRFAB_MR_PROV_KEY: u32 = 1u32 << 6;
/// Device buffers are registered, as any provider requires. No result has it; alone in hints: keys of the
/// caller's choice, offsets, no GDRFAB_MR_LOCAL.
pub const GDRFAB_MR_HMEM: u32 = 1u32 << 10;

// gdrfab_info.msg_order: which operations of an endpoint keep their order (RAW: a read after a write).
/// Read after read.
pub const GDRFAB_ORDER_RAR: u64 = 1u64 << 0;
/// Read after write.
pub const GDRFAB_ORDER_RAW: u64 = 1u64 << 1;
/// Read after send.
pub const GDRFAB_ORDER_RAS: u64 = 1u64 << 2;
/// Write after read.
pub const GDRFAB_ORDER_WAR: u64 = 1u64 << 3;
/// Write after write.
pub const GDRFAB_ORDER_WAW: u64 = 1u64 << 4;
/// Write after send.
pub const GDRFAB_ORDER_WAS: u64 = 1u64 << 5;
/// Send after read.
pub const GDRFAB_ORDER_SAR: u64 = 1u64 << 6;
/// Send after write.
pub const GDRFAB_ORDER_SAW: u64 = 1u64 << 7;
/// Send after send.
pub const GDRFAB_ORDER_SAS: u64 = 1u64 << 8;
/// Everything after everything.
pub const GDRFAB_ORDER_STRICT: u64 = 0x1ff;
/// The same among atomics: one that fetches or reads is a read, the others are writes.
pub const GDRFAB_ORDER_ATOMIC_RAR: u64 = 1u64 << 36;
/// Read after write.
pub const GDRFAB_ORDER_ATOMIC_RAW: u64 = 1u64 << 37;
/// Write after read.
pub const GDRFAB_ORDER_ATOMIC_WAR: u64 = 1u64 << 38;
/// Write after write.
pub const GDRFAB_ORDER_ATOMIC_WAW: u64 = 1u64 << 39;

// gdrfab_info.ep_type, threading, progress and addr_format.
/// Any kind of endpoint.
pub const GDRFAB_EP_UNSPEC: u32 = 0;
/// Connected, reliable endpoint.
pub const GDRFAB_EP_MSG: u32 = 1;
/// Connectionless, reliable: reaches all peers of its address vector.
pub const GDRFAB_EP_RDM: u32 = 3;
/// Any threading level.
pub const GDRFAB_THREAD_UNSPEC: u32 = 0;
/// Any thread may call anything at any time.
pub const GDRFAB_THREAD_SAFE: u32 = 1;
/// The caller lets one thread at a time into a domain, without locks.
pub const GDRFAB_THREAD_DOMAIN: u32 = 3;
/// Any progress model.
pub const GDRFAB_PROGRESS_UNSPEC: u32 = 0;
/// A thread of the domain drives its endpoints.
pub const GDRFAB_PROGRESS_AUTO: u32 = 1;
/// Reading and waiting drive the endpoints bound to queue or counter.
pub const GDRFAB_PROGRESS_MANUAL: u32 = 2;
/// Text: "shm://name", "tcp://host:port", "verbs://host:port".
pub const GDRFAB_ADDR_STR: u32 = 9;

// Flags of gdrfab_getinfo().
/// node and service name the local address, to listen on. As a capability: gdrfab_cq_readfrom() gives the
/// sender.
pub const GDRFAB_SOURCE: u64 = 1u64 << 57;
/// Candidates that do not fit come too, with their reason.
pub const GDRFAB_GETINFO_ALL: u64 = 1u64 << 60;

// == Fabric and domain ==
// A fabric stands for processes that reach each other through one provider; a domain holds regions, queues,
// counters and endpoints that work together.

// == Endpoints and connections ==
// One side listens on a passive endpoint, opens an endpoint from the info of each GDRFAB_CONNREQ event, and
// accepts; the other connects. Or both exchange the addresses of their endpoints by other means, and call
// gdrfab_ep_connect_addr(). Order: open, bind queues and counters, enable, connect or accept, wait for
// GDRFAB_CONNECTED on the event queue.

// Flags of gdrfab_ep_bind_cq(), besides GDRFAB_RECV.
/// All that the endpoint initiates (also GDRFAB_SEND).
pub const GDRFAB_TRANSMIT: u64 = 1u64 << 11;
/// Success gives an entry only with GDRFAB_COMPLETION.
pub const GDRFAB_SELECTIVE_COMPLETION: u64 = 1u64 << 59;

// Limits.
/// Bytes that hold any address, its NUL included.
pub const GDRFAB_ADDR_MAX: usize = 256;
/// Bytes of private data with connect, accept and reject.
pub const GDRFAB_CM_DATA_MAX: usize = 256;

// == Address vectors ==
// An endpoint of ep_type GDRFAB_EP_RDM reaches many peers. An address vector numbers them: its indexes are
// the dest_addr and src_addr of operations. Indexes count from 0 in the order of insertion, so that
// processes that insert and remove the same names in the same order have the same indexes. Insertion makes
// no connection; that happens when the peer is first used. Order: open, bind queues and one vector, enable,
// gdrfab_ep_getname(), exchange the names by other means, insert them.
//
// A name has GDRFAB_NAME_LEN bytes, is not text, and is good on every host. It holds the address at which
// the endpoint listens, and a number that tells this endpoint from others that listened there before or
// after it. An operation to the name of an endpoint that is gone fails, and never reaches an endpoint that
// listens there now. A name of gdrfab_av_insertsvc(), of node and service alone, means any endpoint that
// listens there.

// Limits.
/// Bytes of the name of a connectionless endpoint.
pub const GDRFAB_NAME_LEN: usize = 48;

// Values of fi_addr besides indexes.
/// No index. As src_addr of a receive: any peer.
pub const GDRFAB_ADDR_UNSPEC: u64 = u64::MAX;
/// The same, where an index was asked for and there is none.
pub const GDRFAB_ADDR_NOTAVAIL: u64 = u64::MAX;

// == Memory ==
// A region gives peers access to memory by key and address. It is registered with a domain, of host or device
// memory.

/// Flag of gdrfab_mr_regattr(): attr->dmabuf names the memory.
pub const GDRFAB_MR_DMABUF: u64 = 1u64 << 40;

// Paths that the bytes can take between local memory and a peer's region.
/// Both map the pages, and the initiator's CPU copies.
pub const GDRFAB_PATH_DIRECT: u64 = 1u64 << 0;
/// The initiator's kernel copies, where ptrace is permitted.
pub const GDRFAB_PATH_CMA: u64 = 1u64 << 1;
/// Bounce buffers, with the target's progress: for any memory.
pub const GDRFAB_PATH_STAGED: u64 = 1u64 << 2;
/// The initiator's device driver copies, through a mapping of the peer's device memory.
pub const GDRFAB_PATH_IPC: u64 = 1u64 << 3;
/// The RDMA device reaches pinned host pages (ibv_reg_mr).
pub const GDRFAB_PATH_NIC: u64 = 1u64 << 4;
/// The RDMA device reaches a dma-buf (ibv_reg_dmabuf_mr).
pub const GDRFAB_PATH_DMABUF: u64 = 1u64 << 5;
/// The RDMA device reaches device memory by peer-memory.
pub const GDRFAB_PATH_PEER_MEM: u64 = 1u64 << 6;
/// A socket's kernel copies, with the target's progress.
pub const GDRFAB_PATH_SOCKET: u64 = 1u64 << 7;

/// Entries of an array by path; those of indexes without a path are 0.
pub const GDRFAB_PATHS_MAX: usize = 16;

// #define GDRFAB_PATH_INDEX

// == Device memory ==
// Pointers to device memory are numbers here: the CPU never follows them. Drivers are loaded when their
// memory is first named or asked about. They do not survive fork(): a child gets -EPERM for a driver that its
// parent opened. A call leaves the thread's current device context as it was. All calls here may be made by
// any thread. device is the number of the device in this process; 0 with GDRFAB_HMEM_SYSTEM.
//
// Causes of errnos that a call lists without one:
//
//   -ENOSYS   the driver is not installed, is too old, or is ruled out by GDRFAB_HMEM
//   -ENODEV   the driver finds no device, or has none of that number
//   -ENOSYS, -ENODEV
//             also: GDRFAB_HMEM_DRIVER=adopt, and the process has not loaded and initialised the driver
//   -EIO      the driver failed; or another errno that stands for what the driver said

// Interfaces, with the numbers of libfabric's fi_hmem_iface.
/// Host memory.
pub const GDRFAB_HMEM_SYSTEM: u32 = 0;
/// CUDA.
pub const GDRFAB_HMEM_CUDA: u32 = 1;
/// ROCm.
pub const GDRFAB_HMEM_ROCR: u32 = 2;
/// Level Zero.
pub const GDRFAB_HMEM_ZE: u32 = 3;
/// AWS Neuron.
pub const GDRFAB_HMEM_NEURON: u32 = 4;
/// Intel Gaudi.
pub const GDRFAB_HMEM_SYNAPSEAI: u32 = 5;
/// Asks each driver of this host. Not in libfabric.
pub const GDRFAB_HMEM_AUTO: u32 = 0xffffffff;

// The way in which an allocation was made; it decides which paths the memory has.
/// Host memory that no vendor knows.
pub const GDRFAB_HMEM_KIND_HOST: u32 = 0;
/// The vendor's plain device allocator (cudaMalloc).
pub const GDRFAB_HMEM_KIND_PLAIN: u32 = 1;
/// A stream-ordered pool (cudaMallocAsync).
pub const GDRFAB_HMEM_KIND_POOL: u32 = 2;
/// A physical segment of a mapped range (CUDA VMM).
pub const GDRFAB_HMEM_KIND_SEGMENT: u32 = 3;
/// Memory that migrates between host and device.
pub const GDRFAB_HMEM_KIND_MANAGED: u32 = 4;
/// Host memory that the vendor allocated or pinned.
pub const GDRFAB_HMEM_KIND_PINNED: u32 = 5;
/// Device memory of another process, mapped here.
pub const GDRFAB_HMEM_KIND_IMPORTED: u32 = 6;

/// gdrfab_hmem_export_dmabuf(): map through the PCIe BAR.
pub const GDRFAB_DMABUF_PCIE: u64 = 1u64 << 0;

// == RMA ==
// One-sided writes and reads. The rules for all calls that post an operation, here and under Messages:
//
//   ep           an endpoint that is connected; for receives, and of ep_type GDRFAB_EP_RDM, enabled
//   buf, len     local memory and its bytes. It is not changed, and of a read or receive not used, until the
//                completion. RMA of 0 bytes checks the key and moves nothing; a message may have 0 bytes
//   iov, count   pieces of local memory, joined: up to info->tx_iov_limit, of receives rx_iov_limit. The
//                array is read during the call only
//   desc         gdrfab_mr_desc() of a region that holds the buffer, or NULL; with pieces an array of them,
//                or NULL. Required for device memory and if info->mr_mode has GDRFAB_MR_LOCAL, else a hint
//   addr, key    the remote address, and the key of the peer's region
//   data         64 bits for the peer's completion entry
//   dest_addr    the peer's index in the address vector; not used on connected endpoints
//   src_addr     of a read the same; of a receive, with GDRFAB_DIRECTED_RECV among the caps, the only peer
//                that it takes messages of, or GDRFAB_ADDR_UNSPEC
//   context      returned in the completion entry
//   msg, flags   the operation with all its parameters, read during the call only; its operation flags, in
//                place of tx_op_flags and rx_op_flags
//
// Inject calls take up to info->inject_size bytes. Their buffer is the caller's again at once, and only a
// failure gives an entry. If the connection of a connected endpoint is lost, operations that had left before
// give none.
//
// A result of 0 says that the operation is posted; it then gives one entry, error entry or count. Any other
// result says that nothing was posted, for a reason on this side:
//
//   -EAGAIN      too many operations are outstanding, or the queue could overrun: read completions and
//                repeat. Connectionless endpoints return it only if progress on this side frees what is
//                missing, never for something that a peer has to do
//   -ENOTCONN    not connected yet
//   -ESHUTDOWN   not connected any more
//   -EINVAL      also: dest_addr names no peer of the address vector
//   -EMSGSIZE    longer than info->max_msg_size, of inject calls than info->inject_size
//   -GDRFAB_EOPBADSTATE, -GDRFAB_ENOCQ
//                of ep_type GDRFAB_EP_RDM: not enabled; no queue or counter is bound for transmits
//   -E2BIG, -GDRFAB_EBADFLAGS   as for all calls
//
// Several threads may post on one endpoint (GDRFAB_THREAD_SAFE).
//
// An operation that the target refuses (key, bounds, right, path) gives an error entry, and leaves the
// target's memory untouched. info->msg_order names the operations of an endpoint that take effect in the
// order of posting. Over shm's path direct, between host memory, the last 8 bytes of a write become visible
// last; nothing else promises that: wait for a completion, or for a write with data.

// Flags of operations, in flags arguments and in gdrfab_info.tx_op_flags and rx_op_flags.
/// Carries data for the peer. Entry: data is valid.
pub const GDRFAB_REMOTE_CQ_DATA: u64 = 1u64 << 17;
/// A hint that more follow: the doorbell may ring later.
pub const GDRFAB_MORE: u64 = 1u64 << 18;
/// Starts when the endpoint's earlier operations have completed.
pub const GDRFAB_FENCE: u64 = 1u64 << 21;
/// Gives an entry with GDRFAB_SELECTIVE_COMPLETION too.
pub const GDRFAB_COMPLETION: u64 = 1u64 << 24;
/// As inject calls: the buffer is the caller's at once.
pub const GDRFAB_INJECT: u64 = 1u64 << 25;
/// Complete when the buffer is free; may fail after that.
pub const GDRFAB_INJECT_COMPLETE: u64 = 1u64 << 26;
/// Complete when it needs this side no more (default).
pub const GDRFAB_TRANSMIT_COMPLETE: u64 = 1u64 << 27;
/// Complete when the target, or a receive, has the bytes.
pub const GDRFAB_DELIVERY_COMPLETE: u64 = 1u64 << 28;

// == Atomics ==
// Operations on elements of a peer's region. No other atomic operation on an element comes between the steps
// of one. A CPU's instruction changes the element: this process's if the region is mapped
// (GDRFAB_PATH_DIRECT), else the target's, in its progress. So an operation is atomic with those of all
// peers over any provider, and with atomic instructions of the target's program, but not with RMA. In device
// memory, which the target's CPU copies out and back, it is atomic only with other atomics of the target's
// process. As RMA, but:
//
//   buf, compare  elements in host memory, read during the call
//   result        gets the elements' values before the operation; host memory, not used until the completion
//   count         up to the number that the queries give, 1024 bytes in all, else -EMSGSIZE; 0 checks the key
//   addr          a multiple of the element's size, else -EINVAL; if the memory there is misaligned, it fails
//   -EOPNOTSUPP   the datatype, call, provider or peer (tcp, before 0.2) lacks it; device memory on this side
//
// The region's rights are GDRFAB_REMOTE_WRITE and, to fetch, GDRFAB_REMOTE_READ; for GDRFAB_ATOMIC_READ only
// the latter. For orders and counters, an operation that fetches is a read, and any other is a write.
//
// Over verbs the card carries atomics out (IBV_WR_ATOMIC_*) on regions whose access has GDRFAB_ATOMIC. That
// is the only right they need, and no CPU carries out a peer's atomics on such a region. A card has
// GDRFAB_SUM, CSWAP and ATOMIC_READ of one GDRFAB_INT64 or GDRFAB_UINT64, and no count of 0: the rest is
// -EOPNOTSUPP. Its operations are atomic with others of the same card; with CPUs' instructions and with
// other cards only if gdrfab_nic_attr of the target's card has atomics 2. No domain without a card registers
// such a region, and none with keys of the caller's choice: -EOPNOTSUPP. By kind of endpoint:
//
//   connected, verbs   the card's only: other regions have none, as the queries and caps say
//   connected, other   the CPU's only
//   connectionless     the CPU's, and the queries are about those; over verbs also the card's, on such
//                      regions. Over shm or tcp, and to oneself, operations on them fail: EOPNOTSUPP

// == Messages ==
// Two-sided: each message goes into one posted receive of the peer, in the order of posting. Parameters,
// results and threads of all calls: see RMA.

// == Tagged messages ==
// Messages that a receive chooses by a tag of 64 bits. A receive takes a message whose tag is equal in all
// bits that are not set in ignore, and whose sender is src_addr, if that names one. Messages of one sender
// are matched in the order of sending, receives in the order of posting. Tagged and untagged messages never
// meet. They need an endpoint whose info->caps has GDRFAB_TAGGED; others answer -EOPNOTSUPP. Parameters,
// results and threads of all calls: see RMA; those of receives: gdrfab_recv().
//
//   tag, ignore  chosen by the caller; bits set in ignore are not compared, ~0: any message
//
// Messages of up to some KiB wait for their receive at the receiver, longer ones at the sender. A message
// that is longer than its receive fills it and gives an error entry there, GDRFAB_ETRUNC, with its whole
// length in len + olen; the sender succeeds.

// Flags of a gdrfab_trecvmsg() that looks for a message that has come, besides GDRFAB_PEEK.
/// With GDRFAB_PEEK: keep the found message; then: receive it.
pub const GDRFAB_CLAIM: u64 = 1u64 << 59;
/// With GDRFAB_PEEK or GDRFAB_CLAIM: drop the message.
pub const GDRFAB_DISCARD: u64 = 1u64 << 58;

// == Completion queue ==
// A post reserves its entry, so a queue cannot overrun: a full one makes posts return -EAGAIN. Reading drives
// the endpoints that are bound to the queue (GDRFAB_PROGRESS_MANUAL). Connectionless endpoints reserve
// nothing: the queue grows.

// gdrfab_cq_attr.format: the type of the entries.
/// GDRFAB_CQ_FORMAT_CONTEXT.
pub const GDRFAB_CQ_FORMAT_UNSPEC: u32 = 0;
/// gdrfab_cq_entry.
pub const GDRFAB_CQ_FORMAT_CONTEXT: u32 = 1;
/// gdrfab_cq_msg_entry.
pub const GDRFAB_CQ_FORMAT_MSG: u32 = 2;
/// gdrfab_cq_data_entry.
pub const GDRFAB_CQ_FORMAT_DATA: u32 = 3;
/// gdrfab_cq_tagged_entry.
pub const GDRFAB_CQ_FORMAT_TAGGED: u32 = 4;

// wait_obj of completion queues, event queues and counters; other values are -EINVAL (FI_WAIT_UNSPEC too).
// gdrfab_cq_sread(), gdrfab_eq_sread() and gdrfab_cntr_wait() work with both.
/// No descriptor to poll (default).
pub const GDRFAB_WAIT_NONE: u32 = 0;
/// A descriptor for poll(): gdrfab_cq_fd(), gdrfab_eq_fd(), gdrfab_cntr_fd().
pub const GDRFAB_WAIT_FD: u32 = 3;

// == Event queue ==
// Reports events of connections. Reading it drives connecting and listening.

// Events.
/// A port or rail of an endpoint is up again; words without NUL follow the gdrfab_eq_cm_entry. Or the
/// program's own (gdrfab_eq_write()).
pub const GDRFAB_NOTIFY: u32 = 0;
/// A peer asks a passive endpoint for a connection.
pub const GDRFAB_CONNREQ: u32 = 1;
/// An endpoint is connected.
pub const GDRFAB_CONNECTED: u32 = 2;
/// The peer closed, shut down or died.
pub const GDRFAB_SHUTDOWN: u32 = 3;

/// Flag of gdrfab_eq_read() and gdrfab_eq_sread(): the event stays. Of gdrfab_trecvmsg(): see there.
pub const GDRFAB_PEEK: u64 = 1u64 << 19;

// == Counter ==
// Counts completions of the endpoints, or remote writes into the regions, that it is bound to. Reading and
// waiting drive those endpoints.

// == Options, paths, statistics ==
// Options of an endpoint, the path that its operations take, the rails of its connections, and its counts.

// == Log, faults ==
// Nothing is logged unless GDRFAB_LOG or gdrfab_log_set() asks for it. GDRFAB_FAULT injects faults
// (docs/faults.md).
