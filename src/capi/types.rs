// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Constants of the header. Literals, because cbindgen evaluates nothing; the assertions below hold
//! them to the values that the layers underneath use.

use libc::c_int;

// Capabilities, operation flags and completion flags; the bits are libfabric's.
/// Messages (FI_MSG); in completions: the operation was a message.
pub const GDRFAB_MSG: u64 = 1u64 << 1;
/// Remote memory access (FI_RMA); in completions: the operation was RMA.
pub const GDRFAB_RMA: u64 = 1u64 << 2;
/// Initiate reads; access right of a buffer that a read fills.
pub const GDRFAB_READ: u64 = 1u64 << 8;
/// Initiate writes; access right of a buffer that a write takes from.
pub const GDRFAB_WRITE: u64 = 1u64 << 9;
/// Receive; bind flag of a queue or counter for receives.
pub const GDRFAB_RECV: u64 = 1u64 << 10;
/// Send; bind flag of a counter for sends.
pub const GDRFAB_SEND: u64 = 1u64 << 11;
/// Bind flag of a queue for everything that an endpoint initiates (the same bit as GDRFAB_SEND).
pub const GDRFAB_TRANSMIT: u64 = 1u64 << 11;
/// Access right: peers may read the region.
pub const GDRFAB_REMOTE_READ: u64 = 1u64 << 12;
/// Access right: peers may write the region; in completions: a peer wrote with data.
pub const GDRFAB_REMOTE_WRITE: u64 = 1u64 << 13;
/// The operation carries 64 bits of data to the peer's completion queue.
pub const GDRFAB_REMOTE_CQ_DATA: u64 = 1u64 << 17;
/// More operations follow at once (a hint; shm has no doorbell to save).
pub const GDRFAB_MORE: u64 = 1u64 << 18;
/// Flag of gdrfab_eq_read() and gdrfab_eq_sread(): the event stays in the queue.
pub const GDRFAB_PEEK: u64 = 1u64 << 19;
/// Start only after all earlier operations of the endpoint have completed.
pub const GDRFAB_FENCE: u64 = 1u64 << 21;
/// Give an entry even where the queue is bound with GDRFAB_SELECTIVE_COMPLETION.
pub const GDRFAB_COMPLETION: u64 = 1u64 << 24;
/// The buffer is the caller's again when the call returns; up to inject_size bytes.
pub const GDRFAB_INJECT: u64 = 1u64 << 25;
/// Complete when the buffer may be reused. What fails afterwards gives an error entry besides.
pub const GDRFAB_INJECT_COMPLETE: u64 = 1u64 << 26;
/// Complete when the operation no longer depends on this side (the default).
pub const GDRFAB_TRANSMIT_COMPLETE: u64 = 1u64 << 27;
/// Complete when the bytes are in the target's memory, visible to it; a message: when a receive has it.
pub const GDRFAB_DELIVERY_COMPLETE: u64 = 1u64 << 28;
/// Flag of gdrfab_mr_regattr(): attr->dmabuf names the memory.
pub const GDRFAB_MR_DMABUF: u64 = 1u64 << 40;
/// Device memory (FI_HMEM).
pub const GDRFAB_HMEM: u64 = 1u64 << 47;
/// Reaches processes of this host.
pub const GDRFAB_LOCAL_COMM: u64 = 1u64 << 51;
/// Reaches other hosts.
pub const GDRFAB_REMOTE_COMM: u64 = 1u64 << 52;
/// Capability, and flag of registration: the region can be bound to a counter of remote writes.
pub const GDRFAB_RMA_EVENT: u64 = 1u64 << 56;
/// getinfo flag: node and service name the local address, to listen on.
pub const GDRFAB_SOURCE: u64 = 1u64 << 57;
/// Flag of gdrfab_ep_bind_cq(): successes give an entry only with GDRFAB_COMPLETION.
pub const GDRFAB_SELECTIVE_COMPLETION: u64 = 1u64 << 59;
/// getinfo flag: also return candidates that do not fit, with info->reason.
pub const GDRFAB_GETINFO_ALL: u64 = 1u64 << 60;

// mr_mode bits, libfabric's: what the caller takes upon itself.
/// gdrfab_info.mode: a write with data takes a posted receive of its target, whose context its entry carries; without a
/// posted receive the initiator waits. verbs, unless the endpoint is opened without GDRFAB_MSG and GDRFAB_RECV: then the
/// provider keeps receives of its own (FI_RX_CQ_DATA).
pub const GDRFAB_RX_CQ_DATA: u64 = 1u64 << 56;
/// Local buffers of operations lie in regions, and gdrfab_mr_desc() of those is passed, except to inject calls. Required by
/// verbs, never by shm.
pub const GDRFAB_MR_LOCAL: u32 = 1u32 << 2;
/// Remote addresses are the target's virtual addresses; without it they count from attr->offset.
pub const GDRFAB_MR_VIRT_ADDR: u32 = 1u32 << 4;
/// Memory has its pages when it is registered. Never required by shm.
pub const GDRFAB_MR_ALLOCATED: u32 = 1u32 << 5;
/// The provider chooses unguessable keys; without it requested_key is the key.
pub const GDRFAB_MR_PROV_KEY: u32 = 1u32 << 6;
/// Regions for counters are registered with GDRFAB_RMA_EVENT.
pub const GDRFAB_MR_RMA_EVENT: u32 = 1u32 << 8;
/// Regions belong to endpoints. Never required by shm.
pub const GDRFAB_MR_ENDPOINT: u32 = 1u32 << 9;
/// Device buffers are registered. Never required by shm.
pub const GDRFAB_MR_HMEM: u32 = 1u32 << 10;

// msg_order bits, libfabric's: which operations of an endpoint keep their order (R read, W write, S send; RAW: a read after a write).
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

// Paths that the bytes can take.
/// Both processes map the pages; the initiator's CPU copies. For memory of gdrfab_mem_alloc() and mappable descriptors.
pub const GDRFAB_PATH_DIRECT: u64 = 1u64 << 0;
/// The initiator's kernel copies (process_vm_readv, process_vm_writev). For any memory, where ptrace would be permitted.
pub const GDRFAB_PATH_CMA: u64 = 1u64 << 1;
/// Through buffers of the library (the shared ring, pinned slots), with the target's progress. For any memory, always
/// possible.
pub const GDRFAB_PATH_STAGED: u64 = 1u64 << 2;
/// The initiator's device driver copies through a mapping of the peer's device memory. For memory that the vendor lets
/// another process map.
pub const GDRFAB_PATH_IPC: u64 = 1u64 << 3;
/// The RDMA device reads and writes host pages that it has pinned (ibv_reg_mr).
pub const GDRFAB_PATH_NIC: u64 = 1u64 << 4;
/// The RDMA device reaches the memory through a dma-buf (ibv_reg_dmabuf_mr).
pub const GDRFAB_PATH_DMABUF: u64 = 1u64 << 5;
/// The RDMA device reaches device memory through the vendor's peer-memory module (ibv_reg_mr).
pub const GDRFAB_PATH_PEER_MEM: u64 = 1u64 << 6;
/// The kernel copies between the memory and a socket, with the target's progress. For memory that the CPU reaches.
pub const GDRFAB_PATH_SOCKET: u64 = 1u64 << 7;

// Memory interfaces, libfabric's fi_hmem_iface.
/// Host memory.
pub const GDRFAB_HMEM_SYSTEM: u32 = 0;
/// CUDA memory.
pub const GDRFAB_HMEM_CUDA: u32 = 1;
/// ROCm memory.
pub const GDRFAB_HMEM_ROCR: u32 = 2;
/// Level Zero memory.
pub const GDRFAB_HMEM_ZE: u32 = 3;
/// AWS Neuron memory.
pub const GDRFAB_HMEM_NEURON: u32 = 4;
/// Intel Gaudi memory.
pub const GDRFAB_HMEM_SYNAPSEAI: u32 = 5;
/// Whatever the pointer says: every vendor that is here is asked. Libfabric has no such number.
pub const GDRFAB_HMEM_AUTO: u32 = 0xffffffff;

// How an allocation came to be, as far as it decides what can be done with it.
/// Host memory that no vendor knows.
pub const GDRFAB_HMEM_KIND_HOST: u32 = 0;
/// Device memory of the vendor's plain allocator (cudaMalloc).
pub const GDRFAB_HMEM_KIND_PLAIN: u32 = 1;
/// Device memory of a stream-ordered pool (cudaMallocAsync).
pub const GDRFAB_HMEM_KIND_POOL: u32 = 2;
/// A physical segment of a mapped address range (CUDA's virtual memory management, expandable segments).
pub const GDRFAB_HMEM_KIND_SEGMENT: u32 = 3;
/// Memory that migrates between host and device.
pub const GDRFAB_HMEM_KIND_MANAGED: u32 = 4;
/// Host memory that the vendor allocated or pinned.
pub const GDRFAB_HMEM_KIND_PINNED: u32 = 5;
/// Device memory of another process, mapped here.
pub const GDRFAB_HMEM_KIND_IMPORTED: u32 = 6;

/// Flag of gdrfab_hmem_export_dmabuf(): the mapping that goes through the PCIe BAR, where the vendor has two.
pub const GDRFAB_DMABUF_PCIE: u64 = 1u64 << 0;

// Enumerations, with libfabric's values.
/// Any kind of endpoint.
pub const GDRFAB_EP_UNSPEC: u32 = 0;
/// Connected, reliable endpoint.
pub const GDRFAB_EP_MSG: u32 = 1;
/// Any threading level.
pub const GDRFAB_THREAD_UNSPEC: u32 = 0;
/// Any thread may call anything at any time.
pub const GDRFAB_THREAD_SAFE: u32 = 1;
/// The caller lets only one thread at a time into a domain and its objects; saves the locks.
pub const GDRFAB_THREAD_DOMAIN: u32 = 3;
/// Any progress model.
pub const GDRFAB_PROGRESS_UNSPEC: u32 = 0;
/// A thread of the domain drives its endpoints.
pub const GDRFAB_PROGRESS_AUTO: u32 = 1;
/// Reading or waiting on queues, event queues and counters drives the endpoints bound to them.
pub const GDRFAB_PROGRESS_MANUAL: u32 = 2;
/// GDRFAB_CQ_FORMAT_CONTEXT.
pub const GDRFAB_CQ_FORMAT_UNSPEC: u32 = 0;
/// Entries are gdrfab_cq_entry.
pub const GDRFAB_CQ_FORMAT_CONTEXT: u32 = 1;
/// Entries are gdrfab_cq_msg_entry.
pub const GDRFAB_CQ_FORMAT_MSG: u32 = 2;
/// Entries are gdrfab_cq_data_entry.
pub const GDRFAB_CQ_FORMAT_DATA: u32 = 3;
/// No descriptor is asked for; the blocking calls work all the same.
pub const GDRFAB_WAIT_NONE: u32 = 0;
/// As GDRFAB_WAIT_NONE.
pub const GDRFAB_WAIT_UNSPEC: u32 = 1;
/// A descriptor that poll() can wait on.
pub const GDRFAB_WAIT_FD: u32 = 3;
/// Addresses are NUL-terminated text: "shm://name", "tcp://host:port", "verbs://host:port", and what gdrfab_ep_getname() gives.
pub const GDRFAB_ADDR_STR: u32 = 9;
/// Event: written by gdrfab_eq_write(); or of an endpoint, whose RDMA port is active again: words, without NUL, follow the
/// gdrfab_eq_cm_entry.
pub const GDRFAB_NOTIFY: u32 = 0;
/// Event: a peer asks a passive endpoint for a connection.
pub const GDRFAB_CONNREQ: u32 = 1;
/// Event: an endpoint is connected.
pub const GDRFAB_CONNECTED: u32 = 2;
/// Event: the peer closed, shut down or died.
pub const GDRFAB_SHUTDOWN: u32 = 3;

// Errno values that errno.h lacks, libfabric's; results are their negatives.
/// The provided buffer is too small.
pub const GDRFAB_ETOOSMALL: c_int = 257;
/// Not permitted in the object's state.
pub const GDRFAB_EOPBADSTATE: c_int = 258;
/// An error entry is next: read it with the readerr call.
pub const GDRFAB_EAVAIL: c_int = 259;
/// Flags that are not supported.
pub const GDRFAB_EBADFLAGS: c_int = 260;
/// No event queue is bound.
pub const GDRFAB_ENOEQ: c_int = 261;
/// No completion queue is bound.
pub const GDRFAB_ENOCQ: c_int = 263;
/// A message was longer than its receive.
pub const GDRFAB_ETRUNC: c_int = 265;
/// The requested key is taken.
pub const GDRFAB_ENOKEY: c_int = 266;
/// A queue was overrun.
pub const GDRFAB_EOVERRUN: c_int = 268;
/// The peer posted no receive in time.
pub const GDRFAB_ENORX: c_int = 269;

// Provider codes in prov_errno of error entries.
/// EKEYREJECTED: the peer has no region with this key; it is stale, foreign or closed.
pub const GDRFAB_PROV_KEY: c_int = 1;
/// ERANGE: outside the peer's region.
pub const GDRFAB_PROV_BOUNDS: c_int = 2;
/// EACCES: the peer's region lacks the right.
pub const GDRFAB_PROV_ACCESS: c_int = 3;
/// EOPNOTSUPP: no path is both possible and permitted.
pub const GDRFAB_PROV_PATH: c_int = 4;
/// EFAULT: memory vanished under a copy.
pub const GDRFAB_PROV_FAULT: c_int = 5;
/// ECONNRESET: the peer closed or died.
pub const GDRFAB_PROV_PEER_GONE: c_int = 6;
/// EPROTO: the peer wrote nonsense into shared memory or its socket.
pub const GDRFAB_PROV_PEER_BROKE: c_int = 7;
/// ETIMEDOUT: the deadline passed.
pub const GDRFAB_PROV_DEADLINE: c_int = 8;
/// ECANCELED: by gdrfab_cancel(), or by close or shutdown of this side.
pub const GDRFAB_PROV_CANCELED: c_int = 9;
/// GDRFAB_ETRUNC: the message was longer than the receive.
pub const GDRFAB_PROV_TRUNC: c_int = 10;
/// ECONNREFUSED: the peer rejected the connection; err_data is its private data.
pub const GDRFAB_PROV_REJECTED: c_int = 11;
/// From here on: this plus the `ibv_wc_status` of a failed work request.
pub const GDRFAB_PROV_VERBS: c_int = 100;

// Limits.
/// No address: what gdrfab_cq_readfrom() gives on connected endpoints.
pub const GDRFAB_ADDR_UNSPEC: u64 = u64::MAX;
/// Bytes that hold any address, its NUL included.
pub const GDRFAB_ADDR_MAX: usize = 256;
/// Bytes of private data with connect, accept and reject.
pub const GDRFAB_CM_DATA_MAX: usize = 256;

// Version of this header.
/// Changes when the ABI breaks; part of the SONAME.
pub const GDRFAB_VERSION_MAJOR: u32 = 0;
/// Grows when functions or fields are added.
pub const GDRFAB_VERSION_MINOR: u32 = 1;
/// Grows with corrections.
pub const GDRFAB_VERSION_PATCH: u32 = 0;

use crate::error::{Code, errno};
use crate::fabric;
use crate::hmem::{Iface, Kind};
use crate::mr::Paths;
use crate::prov::{EventKind, flags, shm};

const _: () = {
    assert!(GDRFAB_MSG == flags::MSG && GDRFAB_RMA == flags::RMA && GDRFAB_READ == flags::READ && GDRFAB_WRITE == flags::WRITE);
    assert!(GDRFAB_RECV == flags::RECV && GDRFAB_SEND == flags::SEND && GDRFAB_TRANSMIT == flags::SEND);
    assert!(GDRFAB_REMOTE_READ == flags::REMOTE_READ && GDRFAB_REMOTE_WRITE == flags::REMOTE_WRITE);
    assert!(GDRFAB_REMOTE_CQ_DATA == flags::REMOTE_CQ_DATA && GDRFAB_MORE == flags::MORE && GDRFAB_FENCE == flags::FENCE);
    assert!(GDRFAB_COMPLETION == flags::COMPLETION && GDRFAB_INJECT == flags::INJECT);
    assert!(GDRFAB_INJECT_COMPLETE == flags::INJECT_COMPLETE && GDRFAB_TRANSMIT_COMPLETE == flags::TRANSMIT_COMPLETE);
    assert!(GDRFAB_DELIVERY_COMPLETE == flags::DELIVERY_COMPLETE && GDRFAB_MR_DMABUF == flags::MR_DMABUF && GDRFAB_HMEM == flags::HMEM);
    assert!(GDRFAB_LOCAL_COMM == flags::LOCAL_COMM && GDRFAB_REMOTE_COMM == flags::REMOTE_COMM && GDRFAB_RMA_EVENT == flags::RMA_EVENT);
    assert!(
        GDRFAB_SOURCE == flags::SOURCE
            && GDRFAB_SELECTIVE_COMPLETION == flags::SELECTIVE_COMPLETION
            && GDRFAB_GETINFO_ALL == flags::GETINFO_ALL
    );
    assert!(GDRFAB_MR_VIRT_ADDR == flags::MR_MODE_VIRT_ADDR && GDRFAB_MR_PROV_KEY == flags::MR_MODE_PROV_KEY);
    assert!(GDRFAB_PATH_DIRECT == Paths::DIRECT.bits() && GDRFAB_PATH_CMA == Paths::CMA.bits());
    assert!(GDRFAB_PATH_STAGED == Paths::STAGED.bits() && GDRFAB_PATH_IPC == Paths::IPC.bits());
    assert!(GDRFAB_PATH_NIC == Paths::NIC.bits() && GDRFAB_PATH_DMABUF == Paths::DMABUF.bits());
    assert!(GDRFAB_PATH_PEER_MEM == Paths::PEER_MEM.bits() && GDRFAB_RX_CQ_DATA == flags::RX_CQ_DATA);
    assert!(GDRFAB_PATH_SOCKET == Paths::SOCKET.bits() && GDRFAB_MR_LOCAL == flags::MR_MODE_LOCAL);
    assert!(GDRFAB_HMEM_SYSTEM == Iface::System as u32 && GDRFAB_HMEM_SYNAPSEAI == Iface::SynapseAi as u32);
    assert!(GDRFAB_HMEM_KIND_HOST == Kind::Host as u32 && GDRFAB_HMEM_KIND_PLAIN == Kind::Plain as u32);
    assert!(GDRFAB_HMEM_KIND_POOL == Kind::Pool as u32 && GDRFAB_HMEM_KIND_SEGMENT == Kind::Segment as u32);
    assert!(GDRFAB_HMEM_KIND_MANAGED == Kind::Managed as u32 && GDRFAB_HMEM_KIND_PINNED == Kind::Pinned as u32);
    assert!(GDRFAB_HMEM_KIND_IMPORTED == Kind::Imported as u32);
    assert!(GDRFAB_NOTIFY == EventKind::Notify as u32 && GDRFAB_SHUTDOWN == EventKind::Shutdown as u32);
    assert!(GDRFAB_ETOOSMALL == errno::ETOOSMALL && GDRFAB_EOPBADSTATE == errno::EOPBADSTATE && GDRFAB_EAVAIL == errno::EAVAIL);
    assert!(GDRFAB_EBADFLAGS == errno::EBADFLAGS && GDRFAB_ENOEQ == errno::ENOEQ && GDRFAB_ENOCQ == errno::ENOCQ);
    assert!(
        GDRFAB_ETRUNC == errno::ETRUNC
            && GDRFAB_ENOKEY == errno::ENOKEY
            && GDRFAB_EOVERRUN == errno::EOVERRUN
            && GDRFAB_ENORX == errno::ENORX
    );
    assert!(
        GDRFAB_PROV_KEY == Code::Key.0
            && GDRFAB_PROV_REJECTED == Code::Rejected.0
            && GDRFAB_PROV_DEADLINE == Code::Deadline.0
            && GDRFAB_PROV_VERBS == Code::verbs(0).0
    );
    assert!(GDRFAB_CM_DATA_MAX == shm::DATA_MAX && GDRFAB_ADDR_MAX > shm::NAME_MAX + shm::SCHEME.len());
    assert!(GDRFAB_EP_MSG == fabric::EP_MSG && GDRFAB_THREAD_SAFE == fabric::THREAD_SAFE && GDRFAB_THREAD_DOMAIN == fabric::THREAD_DOMAIN);
    assert!(
        GDRFAB_PROGRESS_AUTO == fabric::PROGRESS_AUTO
            && GDRFAB_PROGRESS_MANUAL == fabric::PROGRESS_MANUAL
            && GDRFAB_ADDR_STR == fabric::ADDR_STR
    );
};
