// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions of libibverbs and librdmacm that are called, as tables of entry points. `tests/verbs-layout` compiles
//! this file a second time with the types of the C headers, and so compares every signature.

use super::abi::*;
use crate::sys::dl::entry_points;
use std::ffi::{c_char, c_int, c_uint, c_void};

entry_points! {
    /// The functions of libibverbs. On failure a function that returns a pointer returns null and sets errno. A
    /// function that returns a number returns an errno, or -1 and sets errno; 0 means success.
    pub struct Verbs {
        #[hold_standard]
        fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device) -> ();
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
        #[hold_standard]
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
        #[hold_standard]
        fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
        fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        #[hold_standard]
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
        fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) -> ();
        fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event) -> ();
        fn ibv_wc_status_str(status: ibv_wc_status::Type) -> *const c_char;
        fn ibv_node_type_str(node: ibv_node_type::Type) -> *const c_char;
        fn ibv_is_fork_initialized() -> ibv_fork_status;
    }
}

entry_points! {
    /// The functions that only newer versions of libibverbs have. The headers define inline wrappers of them.
    pub struct Newer {
        #[hold_standard]
        fn _ibv_query_gid_ex(context: *mut ibv_context, port: u32, index: u32, entry: *mut GidEntry, flags: u32, size: usize) -> c_int;
        #[hold_standard]
        fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut GidEntry, max: usize, flags: u32, size: usize) -> isize;
    }
}

entry_points! {
    /// The functions of librdmacm. On failure a function returns -1 and sets errno.
    pub struct Cm {
        #[hold_standard]
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> ();
        #[hold_standard]
        fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, space: rdma_port_space::Type) -> c_int;
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        #[hold_standard]
        fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;
        #[hold_standard]
        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        #[hold_standard]
        fn rdma_resolve_addr(id: *mut rdma_cm_id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr, timeout_ms: c_int) -> c_int;
        #[hold_standard]
        fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
        #[hold_standard]
        fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
        #[hold_standard]
        fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
        fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
        fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        #[hold_standard]
        fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        #[hold_standard]
        fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
        fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
        fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int;
        fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
        fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16;
    }
}
