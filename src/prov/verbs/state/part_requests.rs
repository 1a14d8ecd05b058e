// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work requests by which a rail carries a part of a striped operation. The work requests form one chain, which is
//! posted with one ring of the doorbell. Only the last request asks for a completion.

use super::stripe::Stripe;
use crate::error::errno;
use crate::prov::op::Dir;
use crate::prov::verbs::queue::qp::Qp;
use crate::prov::verbs::queue::work::SIGNALED;
use crate::prov::verbs::sys::abi::*;
use std::mem::zeroed;
use std::ptr::null_mut;

/// The work requests of one part.
pub struct PartRequests {
    pub wrs: Vec<ibv_send_wr>,
    pieces: Vec<ibv_sge>,
}

impl PartRequests {
    /// `number`: the rail; `wr_id`: gives the number of a work request from its index in the part.
    pub fn of(stripe: &Stripe, part: u16, number: usize, wr_id: impl Fn(u32) -> u64) -> PartRequests {
        let mut all = PartRequests { wrs: Vec::with_capacity(1), pieces: Vec::with_capacity(2) };
        let opcode = if stripe.dir == Dir::Read { ibv_wr_opcode::IBV_WR_RDMA_READ } else { ibv_wr_opcode::IBV_WR_RDMA_WRITE };
        stripe.for_each_request(part as usize, number, |addr, rkey, pieces| {
            let before = all.pieces.len();
            all.pieces.extend(pieces);
            // SAFETY: integers and pointers, for all of which zero is a valid value.
            let mut wr: ibv_send_wr = unsafe { zeroed() };
            wr.wr_id = wr_id(all.wrs.len() as u32);
            wr.num_sge = (all.pieces.len() - before) as i32;
            wr.opcode = opcode;
            wr.wr.rdma.remote_addr = addr;
            wr.wr.rdma.rkey = rkey;
            all.wrs.push(wr);
        });
        all
    }

    /// Posts the chain. The error is an errno. With EIO the device may have taken some of the requests, with any other
    /// error none.
    pub fn post(&mut self, qp: &Qp) -> std::result::Result<(), i32> {
        let (n, first, mut piece) = (self.wrs.len(), self.wrs.as_mut_ptr(), self.pieces.as_mut_ptr());
        for i in 0..n {
            // SAFETY: all elements lie in the two vectors, which do not grow any more; the requests' counts of pieces add up to the
            // length of `pieces`.
            unsafe {
                let wr = &mut *first.add(i);
                wr.sg_list = piece;
                piece = piece.add(wr.num_sge as usize);
                wr.next = if i + 1 < n { first.add(i + 1) } else { null_mut() };
                wr.send_flags = if i + 1 < n { 0 } else { SIGNALED };
            }
        }
        // SAFETY: requests and pieces live until the call returns; the caller keeps the buffers until the operation has ended (the
        // promise of `Iov::new`).
        match unsafe { qp.post_send(first) } {
            Ok(()) => Ok(()),
            Err((bad, err)) if bad == first => Err(err),
            // The device has taken some requests of the part only, though it had room for all.
            Err(_) => Err(errno::EIO),
        }
    }
}
