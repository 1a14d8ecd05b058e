// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the bindings of `src/prov/verbs` with those that rdma-sys generates from the C headers: every constant, every signature,
//! every size and offset. A structure or field that is not compared does not compile, or fails by its count.

#[macro_use]
#[path = "../../src/prov/verbs/sys/constants.rs"]
mod constants;

#[path = "../../src/prov/verbs/sys/abi.rs"]
#[allow(dead_code)]
mod ours;

/// The tables of entry points are compiled with these types, and compared by the macro below.
mod abi {
    pub use rdma_sys::*;
}

#[path = "../../src/prov/verbs/sys/entry_points.rs"]
#[allow(unused_imports)]
mod entry_points;

mod sys {
    pub mod dl {
        macro_rules! entry_points {
            // The symbols behind inline functions of the header, which rdma-sys leaves out.
            ($(#[$doc:meta])* pub struct Newer { $($all:tt)* }) => {};
            ($(#[$doc:meta])* pub struct $table:ident { $($(#[$hold:ident])? fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)* }) => {
                $(const _: unsafe extern "C" fn($($type),*) -> $result = rdma_sys::$name;)*
            };
        }
        pub(crate) use entry_points;
    }
}

use std::mem::{align_of, offset_of, size_of};

/// A number in C, in either form that bindgen gives it.
trait Number {
    fn number(self) -> i64;
}
macro_rules! number {
    ($($type:ty: $self:ident => $number:expr;)*) => {
        $(impl Number for $type { fn number($self) -> i64 { i64::from($number) } })*
    };
}
number! {
    i32: self => self;
    u32: self => self;
    rdma_sys::ibv_event_type: self => self as u32;
    rdma_sys::ibv_access_flags: self => self.0;
    rdma_sys::ibv_qp_attr_mask: self => self.0;
    rdma_sys::ibv_send_flags: self => self.0;
    rdma_sys::ibv_wc_flags: self => self.0;
    rdma_sys::ibv_odp_general_caps: self => self.0;
    rdma_sys::ibv_odp_transport_cap_bits: self => self.0;
}

#[test]
fn constants_are_the_headers() {
    let mut compared = 0;
    macro_rules! compare {
        ($($name:ident: $type:ident { $($constant:ident = $value:expr,)* })*) => {
            $($({
                let (ours, theirs) = (constants::$name::$constant, rdma_sys::$name::$constant);
                assert_eq!(Number::number(ours), Number::number(theirs), stringify!($constant));
                compared += 1;
            })*)*
        };
    }
    each_enumeration!(compare);
    assert!(compared > 80, "{compared}");
}

/// The size of the field that a function selects.
fn size<T, F>(_: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

macro_rules! field {
    ($name:ident $theirs:ident $field:ident) => {
        field!($name $theirs $field $field)
    };
    ($name:ident $theirs:ident $field:ident $($path:ident).+) => {
        let at = (offset_of!(ours::$name, $field), offset_of!(rdma_sys::$theirs, $($path).+));
        assert_eq!(at.0, at.1, "offset of {}.{}", stringify!($name), stringify!($field));
        // SAFETY: the closure is never called.
        let mine = size(|at: *const ours::$name| unsafe { &raw const (*at).$field });
        // SAFETY: the closure is never called.
        let of_c = size(|at: *const rdma_sys::$theirs| unsafe { &raw const (*at).$($path).+ });
        assert_eq!(mine, of_c, "size of {}.{}", stringify!($name), stringify!($field));
    };
}

/// `whole`: the same size as in C. `part`: the beginning of the C structure. After the semicolon: padding here.
macro_rules! compare {
    ($compared:ident: $($how:ident $name:ident = $theirs:ident {
        $($field:ident $(= $($path:ident).+)?),* $(; $($pad:ident),+)?
    })*) => {
        $({
            #[allow(dead_code)]
            fn names_every_field(ours::$name { $($field: _,)* $($($pad: _,)+)? }: ours::$name) {}
            $(field!($name $theirs $field $($($path).+)?);)*
            let (mine, of_c) = (size_of::<ours::$name>(), size_of::<rdma_sys::$theirs>());
            match stringify!($how) {
                "whole" => assert_eq!(mine, of_c, "size of {}", stringify!($name)),
                _ => assert!(mine <= of_c, "size of {}", stringify!($name)),
            }
            assert_eq!(align_of::<ours::$name>(), align_of::<rdma_sys::$theirs>(), "alignment of {}", stringify!($name));
            $compared += 1;
        })*
    };
}

#[test]
fn structures_are_the_headers() {
    let mut compared = 0;
    compare! { compared:
        part ibv_device = ibv_device { _ops, node_type, transport_type, name }
        whole ibv_context = ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        whole ibv_context_ops = ibv_context_ops {
            poll_cq, req_notify_cq, post_send, post_recv; _until_poll_cq, _until_post_send, _rest
        }
        whole ibv_device_attr = ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr,
            device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
        }
        part ibv_device_attr_ex = ibv_device_attr_ex { orig_attr, comp_mask, odp_caps; _rest }
        whole ibv_odp_caps = ibv_odp_caps { general_caps, per_transport_caps }
        whole ibv_odp_transport_caps = ibv_odp_caps__bindgen_ty_1 { rc_odp_caps, uc_odp_caps, ud_odp_caps }
        part ibv_port_attr = ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid,
            sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
            flags, port_cap_flags2
        }
        whole GidEntry = ibv_gid_entry { gid, index = gid_index, port = port_num, kind = gid_type, ifindex = ndev_ifindex }
        whole ibv_async_event = ibv_async_event { element, event_type }
        part ibv_pd = ibv_pd { context }
        whole ibv_mr = ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        part ibv_comp_channel = ibv_comp_channel { context, fd }
        part ibv_cq = ibv_cq { context, channel, cq_context, handle, cqe }
        part ibv_qp = ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num }
        whole ibv_qp_cap = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        whole ibv_qp_init_attr = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        whole ibv_qp_attr = ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        }
        whole ibv_ah_attr = ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        whole ibv_global_route = ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        whole ibv_sge = ibv_sge { addr, length, lkey }
        whole ibv_send_wr = ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data = imm_data_invalidated_rkey_union, wr, _xrc = qp_type,
            _bind_mw = bind_mw_tso_union
        }
        whole ibv_send_wr_rdma = rdma_t { remote_addr, rkey }
        whole ibv_send_wr_atomic = atomic_t { remote_addr, compare_add, swap, rkey }
        whole ibv_send_wr_bind_mw = bind_mw_t {
            mw, rkey, mr = bind_info.mr, addr = bind_info.addr, length = bind_info.length, access = bind_info.mw_access_flags
        }
        whole ibv_recv_wr = ibv_recv_wr { wr_id, next, sg_list, num_sge }
        whole ibv_wc = ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data = imm_data_invalidated_rkey_union, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits
        }
        whole rdma_event_channel = rdma_event_channel { fd }
        part rdma_cm_id = rdma_cm_id { verbs, channel, context, qp, route, ps, port_num }
        whole rdma_route = rdma_route { addr, path_rec, num_paths }
        whole rdma_addr = rdma_addr {
            src_storage = src_addr_union.src_storage, dst_storage = dst_addr_union.dst_storage, sgid = addr.ibaddr.sgid,
            dgid = addr.ibaddr.dgid, pkey = addr.ibaddr.pkey
        }
        whole rdma_conn_param = rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq,
            qp_num
        }
        part rdma_cm_event = rdma_cm_event { id, listen_id, event, status, conn = param.conn }
    }
    // Not compared here: two unions, the extended context below, and two opaque structures.
    let written = include_str!("../../src/prov/verbs/sys/abi.rs");
    assert_eq!(written.matches("\npub struct ").count() + written.matches("\npub union ").count(), compared + 5);
}

#[test]
fn unions_are_the_headers() {
    assert_eq!(size_of::<ours::ibv_gid>(), size_of::<rdma_sys::ibv_gid>());
    assert_eq!(align_of::<ours::ibv_gid>(), align_of::<rdma_sys::ibv_gid>());
    assert_eq!(size_of::<ours::ibv_send_wr_to>(), size_of::<rdma_sys::wr_t>());
    assert_eq!(align_of::<ours::ibv_send_wr_to>(), align_of::<rdma_sys::wr_t>());
}

/// The structure grows at its front, so offsets in it are counted from its end.
#[test]
fn extended_context_is_the_headers() {
    macro_rules! from_the_end {
        ($($field:ident $(= $other:ident)?),*) => { $(from_the_end!(@ $field $field $($other)?);)* };
        (@ $ours:ident $same:ident) => { from_the_end!(@ $ours $same $same) };
        (@ $ours:ident $_same:ident $theirs:ident) => {
            let at = (size_of::<ours::verbs_context>() - offset_of!(ours::verbs_context, $ours),
                size_of::<rdma_sys::verbs_context>() - offset_of!(rdma_sys::verbs_context, $theirs));
            assert_eq!(at.0, at.1, stringify!($ours));
        };
    }
    from_the_end!(query_port, query_device_ex, _placeholder3 = _ABI_placeholder3, sz, context);
}
