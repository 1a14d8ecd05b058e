// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The structures of the ABI of libibverbs and librdmacm, under their names in C, and the functions that their headers define inline.
//!
//! The structures are written here so that the build needs neither those headers nor a C compiler's library. A
//! structure that the C libraries allocate ends here after the last field that is read; a structure that they fill or
//! read is complete. `tests/verbs-layout` compares every size and offset with the bindings that rdma-sys generates from
//! the headers.
#![allow(non_camel_case_types)]

pub use super::constants::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A slot in a table of functions that this library does not call.
type Unused = Option<unsafe extern "C" fn()>;

pub type ibv_fork_status = c_uint;

/// The structure that the plain function `ibv_query_port` fills: an older, shorter [`ibv_port_attr`].
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ibv_srq {
    _opaque: [u8; 0],
}

// ---- devices

#[repr(C)]
pub struct ibv_device {
    pub _ops: [Unused; 2],
    pub node_type: ibv_node_type::Type,
    pub transport_type: ibv_transport_type::Type,
    pub name: [c_char; 64],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    /// If all bits are set, the context is the end of a [`verbs_context`].
    pub abi_compat: *mut c_void,
}

/// The functions of a device's driver for posting and polling.
#[repr(C)]
pub struct ibv_context_ops {
    pub _until_poll_cq: [Unused; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _until_post_send: [Unused; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _rest: [Unused; 5],
}

/// The extended context, from the first function on that is called. The structure grows at its front; `sz` is its whole
/// size.
#[repr(C)]
pub struct verbs_context {
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub _until_query_device_ex: [Unused; 26],
    pub query_device_ex: Option<unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int>,
    pub _until_placeholder3: [Unused; 10],
    pub _placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}

#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    /// Capabilities that are not read. The size that drivers are told includes them.
    pub _rest: [u64; 17],
}

#[repr(C)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_transport_caps,
}

/// `per_transport_caps` of [`ibv_odp_caps`], which has no name in C.
#[repr(C)]
pub struct ibv_odp_transport_caps {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}

/// The structure of rdma-core 30. Newer versions append fields; they are told this size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_port_attr {
    pub state: ibv_port_state::Type,
    pub max_mtu: ibv_mtu::Type,
    pub active_mtu: ibv_mtu::Type,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: [u64; 2],
}

/// `struct ibv_gid_entry` of rdma-core 32 and later.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub index: u32,
    pub port: u32,
    /// `enum ibv_gid_type`: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub kind: u32,
    pub ifindex: u32,
}

/// The event, with integers instead of enumerations, because a newer kernel may send kinds that are unknown here.
#[repr(C)]
pub struct ibv_async_event {
    /// An address, or a port number in the low half.
    pub element: usize,
    pub event_type: c_int,
}

// ---- objects

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type::Type,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state::Type,
    pub cur_qp_state: ibv_qp_state::Type,
    pub path_mtu: ibv_mtu::Type,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

// ---- work requests and completions

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode::Type,
    pub send_flags: c_uint,
    /// In network byte order. In C the field is a union with the key that a request invalidates.
    pub imm_data: u32,
    pub wr: ibv_send_wr_to,
    pub _xrc: u32,
    pub _bind_mw: ibv_send_wr_bind_mw,
}

/// The union `wr` of [`ibv_send_wr`], without the part for datagrams, which is never written.
#[repr(C)]
pub union ibv_send_wr_to {
    pub rdma: ibv_send_wr_rdma,
    pub atomic: ibv_send_wr_atomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The longest member of the last union of [`ibv_send_wr`], which is not used.
#[repr(C)]
pub struct ibv_send_wr_bind_mw {
    pub mw: *mut c_void,
    pub rkey: u32,
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub access: c_uint,
}

#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order, valid with `IBV_WC_WITH_IMM`. In C the field is a union with an invalidated key.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

// ---- rdma_cm

#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space::Type,
    pub port_num: u8,
}

#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

#[repr(C)]
pub struct rdma_addr {
    pub src_storage: libc::sockaddr_storage,
    pub dst_storage: libc::sockaddr_storage,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type::Type,
    pub status: c_int,
    /// For events about connections. In C the field is a union with the part for datagrams.
    pub conn: rdma_conn_param,
}

// The sizes of structures that this library and the C libraries exchange whole, and offsets of fields that lie behind long ones.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ibv_wc>() == 48 && size_of::<ibv_send_wr>() == 128 && size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144 && size_of::<ibv_qp_init_attr>() == 64 && size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_device_attr>() == 232 && size_of::<ibv_device_attr_ex>() == 400 && size_of::<GidEntry>() == 32);
    assert!(size_of::<rdma_conn_param>() == 24 && size_of::<ibv_async_event>() == 16);
    assert!(std::mem::offset_of!(rdma_cm_id, port_num) == 348 && std::mem::offset_of!(rdma_cm_event, conn) == 24);
};

// ---- inlines of verbs.h

/// # Safety
/// The queue lives, and `wc` has room for `num_entries`.
#[inline(always)]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue lives, and its context does as long as the queue.
    unsafe { (*(*cq).context).ops.poll_cq.map_or(-1, |poll| poll(cq, num_entries, wc)) }
}

/// # Safety
/// The queue lives.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's queue lives, and its context does as long as the queue.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |notify| notify(cq, solicited_only)) }
}

/// # Safety
/// The queue pair and the chain of requests live, and the memory that they name.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's queue pair lives, its context does as long as the queue pair, and the caller keeps the chain.
    unsafe { (*(*qp).context).ops.post_send.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, bad)) }
}

/// # Safety
/// As for `ibv_post_send`.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller's queue pair lives, its context does as long as the queue pair, and the caller keeps the request.
    unsafe { (*(*qp).context).ops.post_recv.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, bad)) }
}
