// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reliable connected (RC) queue pair and its states.

use super::retransmit::RetransmitHandle;
use crate::error::{Result, errno};
use crate::prov::verbs::device::context::{Atomics, Context};
use crate::prov::verbs::device::object::{Pd, RawCq};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::library::verbs;
use crate::prov::verbs::sys::status::{call_error, pointer, returned};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The wanted sizes of a queue pair. In [`Qp::capacity`], `inline` is the size that the device has granted.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub tx: u32,
    pub rx: u32,
    pub tx_pieces: u32,
    pub rx_pieces: u32,
    pub inline: u32,
}

/// The retries of a connection before an operation fails. The numbers are the codes of the verbs API.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The time to wait for an acknowledgement before a retry: 4.096 us << timeout.
    pub timeout: u8,
    pub retries: u8,
    /// Retries if the peer has posted no receive; 7: unlimited.
    pub rnr_retries: u8,
    /// The time that the peer has to wait before it sends again if this side has posted no receive (a code of the verbs
    /// API).
    pub min_rnr_timer: u8,
}

/// The address and parameters of the peer's queue pair.
#[derive(Clone, Copy, Debug)]
pub struct RemoteQp {
    pub gid: [u8; 16],
    pub lid: u16,
    pub qpn: u32,
    pub psn: u32,
    pub mtu: u32,
    pub service_level: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Reads and atomics that the peer serves at once.
    pub reads: u8,
}

/// The parameters of this side's port for the connection.
#[derive(Clone, Copy, Debug)]
pub struct LocalPort {
    pub port: u8,
    pub gid_index: u8,
    pub psn: u32,
    /// Packets carry a GID; always true on Ethernet.
    pub global: bool,
}

pub struct Qp {
    raw: NonNull<ibv_qp>,
    pub number: u32,
    pub capacity: Capacity,
    /// Copies of the posted requests; present where the connection has further rails.
    pub retransmit: Option<RetransmitHandle>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs allows any thread to use and destroy a queue pair.
unsafe impl Send for Qp {}
// SAFETY: the endpoint posts under its own lock; libibverbs locks the other calls.
unsafe impl Sync for Qp {}

const ACCESS: u32 =
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;

/// The verbs code of the largest MTU that is not above `bytes`.
fn mtu_code(bytes: u32) -> ibv_mtu::Type {
    match bytes {
        0..512 => ibv_mtu::IBV_MTU_256,
        512..1024 => ibv_mtu::IBV_MTU_512,
        1024..2048 => ibv_mtu::IBV_MTU_1024,
        2048..4096 => ibv_mtu::IBV_MTU_2048,
        _ => ibv_mtu::IBV_MTU_4096,
    }
}

impl Qp {
    pub fn new(pd: &Arc<Pd>, tx: &RawCq, rx: &RawCq, asked: Capacity) -> Result<Qp> {
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let mut attr: ibv_qp_init_attr = unsafe { zeroed() };
        attr.send_cq = tx.raw();
        attr.recv_cq = rx.raw();
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        attr.cap = ibv_qp_cap {
            max_send_wr: asked.tx,
            max_recv_wr: asked.rx,
            max_send_sge: asked.tx_pieces,
            max_recv_sge: asked.rx_pieces,
            max_inline_data: asked.inline,
        };
        // SAFETY: protection domain and completion queues live, and the owner keeps the queues as long as the queue pair.
        let raw = unsafe { verbs()?.ibv_create_qp(pd.raw(), &mut attr)? };
        let raw =
            pointer(raw, format_args!("creating a queue pair of {} sends and {} receives with {}", asked.tx, asked.rx, pd.context.name))?;
        // SAFETY: a queue pair that was just made.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        // A device may grant more inline bytes than were asked for; the additional ones are not used.
        let inline = attr.cap.max_inline_data.min(asked.inline);
        Ok(Qp { raw, number, capacity: Capacity { inline, ..asked }, retransmit: None, pd: pd.clone() })
    }

    #[inline(always)]
    pub fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub fn modify(&self, attr: &mut ibv_qp_attr, mask: i32, to: &str) -> Result<()> {
        // SAFETY: the queue pair lives, and the mask names fields that are set.
        returned(
            unsafe { verbs()?.ibv_modify_qp(self.raw(), attr, mask as c_int)? },
            format_args!("moving queue pair {:#x} to {to}", self.number),
        )
    }

    /// To RESET: the device forgets all work requests, posted receives too.
    pub fn reset(&self) -> Result<()> {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RESET;
        self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE as i32, "RESET")
    }

    /// RESET to INIT on `port`.
    pub fn init(&self, port: u8) -> Result<()> {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = port;
        let atomic = self.pd.context.atomics() != Atomics::None;
        attr.qp_access_flags = ACCESS | if atomic { ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask as i32, "INIT")
    }

    /// INIT to RTR: the queue pair can receive from `remote`.
    pub fn ready_to_receive(&self, context: &Context, local: &LocalPort, remote: &RemoteQp, patience: &RetryPolicy) -> Result<()> {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = mtu_code(remote.mtu);
        attr.dest_qp_num = remote.qpn;
        attr.rq_psn = remote.psn;
        attr.max_dest_rd_atomic = context.reads_in();
        attr.min_rnr_timer = patience.min_rnr_timer;
        attr.ah_attr.dlid = remote.lid;
        attr.ah_attr.sl = remote.service_level;
        attr.ah_attr.port_num = local.port;
        if local.global {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid.raw = remote.gid;
            attr.ah_attr.grh.sgid_index = local.gid_index;
            attr.ah_attr.grh.hop_limit = remote.hop_limit;
            attr.ah_attr.grh.traffic_class = remote.traffic_class;
        }
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask as i32, "RTR")
    }

    /// RTR to RTS: the queue pair can send, too.
    pub fn ready_to_send(&self, context: &Context, local: &LocalPort, remote: &RemoteQp, patience: &RetryPolicy) -> Result<()> {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = patience.timeout;
        attr.retry_cnt = patience.retries;
        attr.rnr_retry = patience.rnr_retries;
        attr.sq_psn = local.psn;
        // More reads in flight than the peer serves would be an invalid request.
        attr.max_rd_atomic = context.reads_out().min(remote.reads);
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask as i32, "RTS")
    }

    /// To ERR: all outstanding requests are flushed, and no new one starts.
    pub fn fail(&self) -> Result<()> {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE as i32, "ERR")
    }

    /// Posts a chain. On failure returns the first request that was refused, and an errno.
    ///
    /// # Safety
    /// The chain and its pieces are live for the call, and their buffers until they complete.
    #[inline(always)]
    pub unsafe fn post_send(&self, first: *mut ibv_send_wr) -> std::result::Result<(), (*mut ibv_send_wr, i32)> {
        let mut bad = null_mut();
        let rc = match &self.retransmit {
            // SAFETY: the queue pair lives; the caller promises the chain and pieces for the call, and the buffers until they complete.
            None => unsafe { ibv_post_send(self.raw(), first, &mut bad) },
            // SAFETY: the caller promises the chain and pieces for the call, and the buffers until they complete.
            Some(_) => unsafe { self.post_retained(first, &mut bad) },
        };
        match rc {
            0 => Ok(()),
            rc => Err((bad, rc.saturating_abs())),
        }
    }

    /// Posts a write of no bytes, of which the retransmit queue stores no copy. Returns 0 or an errno.
    pub fn post_empty_write(&self, wr_id: u64) -> c_int {
        // SAFETY: integers and pointers, for all of which zero is a valid value.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.wr_id, wr.opcode) = (wr_id, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED;
        let mut bad = null_mut();
        // SAFETY: the queue pair lives, and the request, which has no pieces, lives for the call.
        unsafe { ibv_post_send(self.raw(), &mut wr, &mut bad) }
    }

    /// # Safety
    /// As for `post_send`.
    #[cold]
    #[inline(never)]
    unsafe fn post_retained(&self, first: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
        let Some(mut queue) = self.retransmit.as_ref().map(|queue| queue.lock()) else { return errno::EINVAL };
        // SAFETY: the queue pair lives; the caller promises the chain and pieces for the call, and the buffers until they complete.
        let rc = unsafe { queue.send(self.raw(), first, bad) };
        if queue.is_fault_due()
            && let Err(e) = self.fail()
        {
            crate::log!(Warn, "{e}");
        }
        rc
    }

    /// # Safety
    /// As for `post_send`.
    #[inline(always)]
    pub unsafe fn post_recv(&self, one: *mut ibv_recv_wr) -> Result<()> {
        let mut bad = null_mut();
        let rc = match &self.retransmit {
            // SAFETY: the queue pair lives; the caller promises request and pieces for the call, and the buffers until they complete.
            None => unsafe { ibv_post_recv(self.raw(), one, &mut bad) },
            // SAFETY: the queue pair lives; the caller promises request and pieces for the call, and the buffers until they complete.
            Some(queue) => unsafe { queue.lock().receive(self.raw(), one, &mut bad) },
        };
        match rc {
            0 => Ok(()),
            rc if rc.saturating_abs() == errno::ENOMEM => Err(crate::error::Error::AGAIN),
            rc => Err(call_error("posting a receive", rc.saturating_abs())),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and destroyed once, here.
        if let Err(e) = verbs().and_then(|v| unsafe { v.ibv_destroy_qp(self.raw()) }).and_then(|rc| returned(rc, "destroying a queue pair"))
        {
            crate::log!(Warn, "{e}");
        }
    }
}
