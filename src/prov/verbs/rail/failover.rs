// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failover of the first rail. The connection survives the loss of its first rail as long as another rail lives. The
//! first rail carries messages, notifications, small operations and the messages of the service queue pair.
//!
//! Both sides stop their queue pair of the first rail. Once its device has returned every work request, each side tells
//! the other, over the rails that are left, how many receives it has used (FIRST_LOST). A device executes the requests
//! of one queue pair in order, so each side knows from that number which of its own operations have arrived. The
//! operations that have arrived end with success. When the port is back, the others are posted again, in order, on a
//! new queue pair of the same port (RAIL_OFFER and RAIL_READY with the number 0). An atomic operation without an answer
//! fails instead, because it must not be executed twice.
//!
//! Until the port is back, new operations are stored in the `RetransmitQueue`. Long operations, and the parts that the
//! first rail had, go over the other rails. The connection ends if the first rail is not back within the connect
//! timeout.
//!
//! A write that had not ended when the rail was lost may become visible twice to a process that polls the memory: no
//! device tells how far a write has come.

use super::join::rail_message;
use super::striping::blames_operation;
use crate::error::{Code, Error, Result, errno};
use crate::prov::event::EventKind;
use crate::prov::verbs::cq::Cq;
use crate::prov::verbs::limits::ALIVE_NS;
use crate::prov::verbs::queue::qp::Qp;
use crate::prov::verbs::queue::retransmit::Delivery;
use crate::prov::verbs::queue::service::{Message, Service, kind};
use crate::prov::verbs::queue::tag::Tag;
use crate::prov::verbs::queue::work::TxOp;
use crate::prov::verbs::state::rail::{Rail, RailOffer, RailStage};
use crate::prov::verbs::state::rails::Outage;
use crate::prov::verbs::state::{Phase, State};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::status::{self, Failed};
use crate::sys::time::{deadline, now_ns};
use std::sync::Arc;

/// First packet sequence number of the service queue pair after a loss. The queue pair keeps its number, so every epoch
/// starts at another packet sequence number: a late packet of an earlier epoch must not be taken for a new one.
fn psn(number: u32, epoch: u32) -> u32 {
    Service::psn(number.wrapping_add(epoch << 16))
}

fn false_count() -> Error {
    Error::coded(
        errno::EPROTO,
        Code::PeerBroke,
        "the peer's count of received operations contradicts what this side sent and the peer acknowledged",
    )
}

impl State {
    /// True if the first rail is lost and not back yet.
    pub(in crate::prov::verbs) fn is_failing_over(&self) -> bool {
        self.rails.as_ref().is_some_and(|rails| rails.is_failing_over())
    }

    /// True if the connection would survive the loss of its first rail, because another rail can carry messages.
    pub(in crate::prov::verbs) fn can_fail_over(&self) -> bool {
        matches!(self.phase, Phase::Connected)
            && self.peer_end.is_none()
            && self.rails.as_ref().is_some_and(|rails| rails.can_send_messages())
    }

    /// True if the operation, and not the rail, is the cause of a failed completion.
    pub(in crate::prov::verbs) fn blames_operation(&mut self, status: u32, receive: bool, seq: Option<u32>) -> bool {
        let Some(rails) = &mut self.rails else { return true };
        if status != ibv_wc_status::IBV_WC_LOC_QP_OP_ERR || receive {
            return blames_operation(status) || status == ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR;
        }
        // Soft-RoCE reports this status for a link that is down, too. So the operation is blamed only at the second
        // report for the same operation, and only while the port is active.
        let before = rails.blamed.replace(seq);
        before == Some(seq) && rails.first.port.context().is_active(rails.first.port.number)
    }

    /// Handles a failed completion whose cause is the loss of the first rail. False: the cause is another one, or the
    /// connection cannot go on, and the caller ends the connection.
    #[cold]
    pub(in crate::prov::verbs) fn absorb_failure(&mut self, wc: &ibv_wc, receive: bool, seq: u32) -> bool {
        if self.is_failing_over() && matches!(self.phase, Phase::Draining) {
            // The connection began to end during the failover. The stored operations have failed already, and must not
            // be counted as operations that ended before this one.
            self.finish_if_drained();
            return true;
        }
        if !matches!(self.phase, Phase::Connected) || self.blames_operation(wc.status, receive, Some(seq)) {
            return false;
        }
        if self.rails.as_ref().is_some_and(|rails| !rails.is_failing_over() || rails.first.stage == RailStage::Ready) {
            if !self.can_fail_over() {
                return false;
            }
            let operation = if receive { "receive" } else { "operation" };
            let failed = Failed { operation, receive, status: wc.status, qpn: wc.qp_num, vendor_err: wc.vendor_err };
            self.fail_over(status::completion_error(&failed));
        }
        self.on_returned(receive, seq);
        self.advance_failover(None);
        true
    }

    /// Handles a work request that the stopped queue pair has returned.
    fn on_returned(&mut self, receive: bool, seq: u32) {
        let Some(outage) = self.rails.as_mut().and_then(|rails| rails.outage.as_mut()) else { return };
        if receive {
            outage.rx_returned = seq.wrapping_add(1);
            return;
        }
        outage.tx_drained |= seq == outage.end;
        if std::mem::replace(&mut outage.first_failure_seen, true) {
            return;
        }
        // Completions are in order: all operations before the first failed one have succeeded.
        let (end, first) = (outage.end, self.tx.first());
        while self.tx.first() != seq && seq.wrapping_sub(first) <= end.wrapping_sub(first) {
            let Some(op) = self.tx.pop() else { return };
            self.op_succeeded(op);
        }
    }

    /// `tx_succeeded` as a function of its own, for callers that are not on the fast path.
    #[inline(never)]
    pub(in crate::prov::verbs) fn op_succeeded(&mut self, op: TxOp) {
        self.tx_succeeded(op);
    }

    /// Begins the failover: stops the queue pair of the first rail, so that the device returns all its work requests.
    #[cold]
    pub(in crate::prov::verbs) fn fail_over(&mut self, why: Error) {
        if !self.can_fail_over() {
            return self.begin_teardown(why, false);
        }
        self.close_fast();
        let patience = deadline(self.options.connect_timeout_ns);
        let (end, rx) = (self.tx.next().wrapping_sub(self.batch.len as u32), (self.rx.first(), self.rx.next()));
        let State { rails: Some(rails), qp: Some(qp), tx, tx_tag, service, .. } = self else { return };
        let Some(mut queue) = qp.retransmit.as_ref().map(|queue| queue.lock()) else { return };
        (queue.suspended, queue.receives_suspended) = (true, true);
        rails.epoch = rails.epoch.wrapping_add(1);
        let (was_up, stage) = (!rails.is_failing_over(), rails.first.stage);
        let given = queue.messages();
        drop(queue);
        let patience = if rails.is_failing_over() { patience } else { rails.tried.until([tx.first(), rx.0], patience) };
        let outage = rails.outage.get_or_insert_with(|| {
            // If the device holds no operation, it will return none.
            let is_idle = tx.first() == end;
            let (nothing_left, announced) = (is_idle, Vec::new());
            let new = Outage {
                why: why.clone(),
                until: patience,
                alive_check_at: now_ns() + ALIVE_NS,
                end,
                messages_given: given,
                first_failure_seen: nothing_left,
                tx_drained: is_idle,
                rx_returned: rx.0,
                rx_given: rx.1,
                announced,
                peer: None,
                service: 0,
                baseline: (0, 0),
            };
            Box::new(new)
        });
        (outage.announced, outage.peer) = (Vec::new(), None);
        if !was_up {
            // The queue pair that was lost now is a replacement. A replacement holds receives at most, and only after
            // it was installed (`Ready`).
            (outage.rx_returned, outage.rx_given) = if stage == RailStage::Ready { rx } else { (outage.rx_given, outage.rx_given) };
        }
        rails.first.destroy();
        (rails.first.stage, rails.first.peer) = (RailStage::Lost { peer: rails.epoch }, None);
        let mut stopped = qp.fail();
        if !outage.tx_drained {
            let marked = qp.post_empty_write(tx_tag.send(end));
            stopped = stopped.and(status::returned(marked, "draining a stopped queue pair"));
        }
        let stopped = stopped.and(service.as_mut().map_or(Ok(()), Service::suspend));
        let notice = rails.first_lost_error(&why, "its unacknowledged operations are sent again when the port is back");
        crate::log!(Debug, "{notice}");
        if was_up {
            rails.first.losses += 1;
            self.stats.rails_lost += 1;
            self.event(EventKind::Notify, Vec::new(), Some(notice));
        }
        match stopped {
            Ok(()) => self.advance_failover(None),
            Err(e) => self.begin_teardown(e, false),
        }
    }

    /// Advances the failover. `cqs` gives the completion queues of the first rail.
    pub(in crate::prov::verbs) fn failover_turn(&mut self, cqs: impl FnOnce() -> Option<[Arc<Cq>; 2]>) {
        if self.is_failing_over() {
            self.ask_alive();
            self.advance_failover(cqs());
        }
    }

    /// Asks over the further rails whether the peer still exists. So this side notices that the peer has died or
    /// closed, whatever `GDRFAB_OPT_CONNECT_TIMEOUT` says.
    fn ask_alive(&mut self) {
        let now = now_ns();
        let Some(rails) = self.rails.as_mut().filter(|_| matches!(self.phase, Phase::Connected)) else { return };
        let Some(outage) = rails.outage.as_mut().filter(|outage| now >= outage.alive_check_at) else { return };
        outage.alive_check_at = now + ALIVE_NS;
        for number in 1..=rails.further.len() {
            if let Some(Err(e)) = self.rails.as_mut().and_then(|rails| rails.rail(number)).map(Rail::ask_alive) {
                self.lose_rail(number, e);
            }
        }
    }

    fn advance_failover(&mut self, cqs: Option<[Arc<Cq>; 2]>) {
        if !matches!(self.phase, Phase::Connected) {
            return;
        }
        match self.failover_step(cqs) {
            Ok(()) => {}
            Err(e) => {
                self.begin_teardown(e, false);
                self.finish_if_drained();
            }
        }
    }

    /// Takes the next step of the failover. An error ends the connection.
    fn failover_step(&mut self, cqs: Option<[Arc<Cq>; 2]>) -> Result<()> {
        let (now, patience, first_rx) = (now_ns(), self.retry_policy, self.rx.first());
        let service = self.service.as_ref().map_or((0, 0, 0), |s| (s.with_device, s.received, s.qp.number));
        let Some(rails) = &mut self.rails else { return Ok(()) };
        let (epoch, asked) = (rails.epoch, rails.asked);
        let Some(outage) = &rails.outage else { return Ok(()) };
        if outage.until != 0 && now >= outage.until {
            return Err(rails.first_lost_error(&outage.why, "the rail did not come back in time"));
        }
        let first = &mut rails.first;
        match first.stage {
            RailStage::Lost { .. } => {
                let received = outage.rx_returned == outage.rx_given || first_rx == outage.rx_given;
                if !(outage.tx_drained && received && service.0 == 0) {
                    return Ok(());
                }
                if outage.announced.is_empty() {
                    let mut message = rail_message(kind::FIRST_LOST, 0, epoch);
                    (message[1], message[2]) = (u64::from(first_rx), u64::from(service.1));
                    self.announce(message);
                }
                let used = self.rails.as_ref().and_then(|rails| rails.outage.as_ref()).and_then(|outage| outage.peer);
                used.map_or(Ok(()), |used| self.resolve_deliveries(used))
            }
            RailStage::Down { again } if again <= now && !first.port.context().is_active(first.port.number) => {
                first.stage = first.back_off(now);
                Ok(())
            }
            RailStage::Down { again } if again <= now => {
                let Some(cqs) = cqs else { return Ok(()) };
                // A replacement has the epoch as its generation; `create_qp_with` adds one.
                first.generation = epoch.wrapping_sub(1);
                match first.create_qp_with(&cqs, 0, asked) {
                    Ok(mut message) => {
                        message[5] = u64::from(service.2);
                        self.announce(message);
                    }
                    Err(e) => {
                        crate::log!(Info, "rail 0: {e}");
                        first.destroy();
                        first.stage = first.back_off(now);
                    }
                }
                Ok(())
            }
            RailStage::Offered if first.peer.is_some() => {
                let Some(cqs) = cqs else { return Ok(()) };
                if let Err(e) = first.connect(cqs, patience) {
                    self.fail_over(e);
                }
                Ok(())
            }
            RailStage::Connecting => match first.connect_result() {
                None => Ok(()),
                Some(Ok(())) => self.install_first(),
                Some(Err(e)) => {
                    // The peer may have a queue pair that waits for this one, so the peer has to hear of the failure.
                    self.fail_over(e);
                    Ok(())
                }
            },
            RailStage::Ready if first.peer_ready || outage.baseline != (first_rx, service.1) => self.resume_first(),
            _ => Ok(()),
        }
    }

    /// Tells the peer over every further rail, because any of these rails may be lost too.
    fn announce(&mut self, message: Message) {
        if let Some(outage) = self.rails.as_mut().and_then(|rails| rails.outage.as_mut()) {
            outage.announced.push(message);
        }
        let rails = self.rails.as_ref().map_or(0, |rails| rails.further.len());
        (1..=rails).for_each(|number| self.send_by_rail(number, &[message]));
    }

    fn send_by_rail(&mut self, number: usize, message: &[Message]) {
        let Some(rail) = self.rails.as_mut().and_then(|rails| rails.rail(number)) else { return };
        if let Err(e) = message.iter().try_for_each(|message| rail.send_message(message)) {
            self.lose_rail(number, e);
        }
    }

    /// A further rail has come up. This rail gets all announcements, because another rail may have lost them.
    pub(in crate::prov::verbs) fn repeat_announcements(&mut self, number: usize) {
        self.update_other_rail_up();
        let announced = self.rails.as_ref().and_then(|rails| rails.outage.as_ref()).map(|outage| outage.announced.clone());
        self.send_by_rail(number, &announced.unwrap_or_default());
    }

    /// The port of the first rail is active again, so the next attempt is made now.
    pub(in crate::prov::verbs) fn retry_first_now(&mut self) {
        if let Some(rails) = self.rails.as_mut().filter(|rails| rails.is_failing_over()) {
            rails.first.retry_now(now_ns());
        }
    }

    /// Tells the retransmit queue whether the connection would survive a loss of the first rail by fault injection.
    fn update_other_rail_up(&mut self) {
        let other_up = self.can_fail_over();
        if let Some(queue) = self.qp.as_ref().and_then(|qp| qp.retransmit.as_ref()) {
            queue.lock().other_rail_up = other_up;
        }
    }

    /// A further rail was lost. During a failover the connection ends unless another further rail is left.
    pub(in crate::prov::verbs) fn check_failover(&mut self, why: &Error) {
        self.update_other_rail_up();
        // The peer's RAIL_READY may have been lost with the rail.
        if self.rails.as_ref().is_some_and(|rails| rails.first.stage == RailStage::Ready) {
            self.advance_failover(None);
        }
        if !self.is_failing_over() || !matches!(self.phase, Phase::Connected) {
            return;
        }
        match self.rails.as_ref().filter(|rails| rails.can_send_messages()).map(|rails| rails.further.len()) {
            Some(count) => (1..=count).for_each(|number| self.repeat_announcements(number)),
            None => self.begin_teardown(Error::coded(why.errno, Code::PeerGone, format!("no rail is left: {}", why.words)), false),
        }
    }

    /// Handles the completion of a receive of a further rail.
    pub(in crate::prov::verbs) fn on_rail_receive(&mut self, number: usize, wc: &ibv_wc, seq: u32) {
        let Some(rail) = self.rails.as_mut().and_then(|rails| rails.rail(number)) else { return };
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS || (rail.generation as u8) != (seq >> 24) as u8 {
            return;
        }
        match rail.take_message(seq, wc.byte_len) {
            Ok(Some(message)) => self.on_failover_message(&message),
            Ok(None) => {}
            Err(e) => self.lose_rail(number, e),
        }
    }

    /// Handles a message of the peer about the first rail. A message about another loss than the current one is late or
    /// a lie, and changes nothing.
    fn on_failover_message(&mut self, message: &Message) {
        let (kind, epoch) = (message[0] as u8, (message[0] >> 32) as u32);
        let Some(rails) = &self.rails else { return };
        let is_next = {
            // FIRST_LOST of the next epoch begins a new failover. During a failover the message counts only after this
            // side has announced the current loss, because only then can the peer have gone on to the next one.
            let notice = rails.outage.as_ref().is_none_or(|outage| !outage.announced.is_empty());
            epoch == rails.epoch.wrapping_add(1) && notice
        };
        if kind == kind::FIRST_LOST && is_next {
            self.fail_over(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer reports the loss of this rail"));
        }
        let Some(rails) = self.rails.as_mut().filter(|rails| rails.epoch == epoch) else { return };
        let (Some(outage), first) = (&mut rails.outage, &mut rails.first) else { return };
        match kind {
            kind::FIRST_LOST => _ = outage.peer.get_or_insert([message[1] as u32, message[2] as u32]),
            kind::RAIL_OFFER if outage.peer.is_some() && first.peer.is_none() => {
                (first.peer, outage.service) = (Some(RailOffer::parse(epoch, message)), message[5] as u32 & 0xff_ffff);
            }
            kind::RAIL_READY => first.peer_ready = true,
            _ => {}
        }
        self.advance_failover(None);
    }

    /// Decides the fate of the operations, because both sides have stopped. Operations that arrived end with success,
    /// others are posted again when the rail is back, and parts of striped operations go to the other rails.
    fn resolve_deliveries(&mut self, used: [u32; 2]) -> Result<()> {
        let State { rails: Some(rails), qp: Some(qp), tx, service, .. } = self else { return Ok(()) };
        let (Some(outage), Some(queue)) = (&rails.outage, &qp.retransmit) else { return Ok(()) };
        let (mut queue, start) = (queue.lock(), tx.first());
        let deliveries = queue.resolve(start, outage.end, outage.messages_given, used[0]).ok_or_else(false_count)?;
        if service.as_mut().is_some_and(|service| !service.discard_received(used[1])) {
            return Err(false_count());
        }
        let unknown = rails.first_lost_error(&outage.why, "it is unknown whether the RDMA device executed the operation");
        for (i, delivery) in deliveries.iter().enumerate().rev() {
            let seq = start.wrapping_add(i as u32);
            match (delivery, tx.get_mut(seq)) {
                (Delivery::Unknown, Some(op)) => op.error = Some(Box::new(unknown.clone())),
                (Delivery::Repost, Some(op)) if op.striped => {
                    op.striped = false;
                    let part = op.run;
                    if let Some(stripe) = rails.stripe(op.end.context as u64) {
                        let requests = stripe.requests_of(part as usize) as u32;
                        // The requests before `start` have ended, and other operations use their slots.
                        (0..requests)
                            .filter(|i| *i <= seq.wrapping_sub(start))
                            .for_each(|i| queue.replace_by_empty_write(seq.wrapping_sub(i)));
                        stripe.todo.push_front(part);
                    }
                }
                _ => {}
            }
        }
        drop(queue);
        rails.first.speed.stop();
        rails.first.stage = rails.first.back_off(now_ns());
        self.dispatch_parts();
        Ok(())
    }

    /// Installs the connected replacement: it takes the place of the old queue pair and gets the stored receives, and
    /// the peer is told.
    fn install_first(&mut self) -> Result<()> {
        let State { rails: Some(rails), qp: Some(last), rx, rx_tag, service, retry_policy: patience, link, .. } = self else {
            return Ok(());
        };
        let (Some(outage), first) = (&mut rails.outage, &mut rails.first) else { return Ok(()) };
        let (Some(mut qp), Some(offer)) = (first.qp.take(), &first.peer) else { return Ok(()) };
        qp.retransmit = last.retransmit.take();
        let stopped = std::mem::replace(last, qp);
        if link.id.is_some() {
            link.stopped_qp.get_or_insert(stopped);
        }
        repost_receives(last, *rx_tag, rx.first(), rx.next())?;
        first.stage = RailStage::Ready;
        if let Some(service) = service.as_mut().filter(|service| service.up) {
            let config = &crate::config::get().verbs;
            let mut remote = offer.remote(&first.port, psn(outage.service, rails.epoch), config.service_level, config.traffic_class);
            remote.qpn = outage.service;
            let local = first.port.local(psn(service.qp.number, rails.epoch));
            if let Err(e) = service.reconnect(first.port.number, first.port.context(), &local, &remote, patience) {
                self.fail_over(e);
                return Ok(());
            }
        }
        outage.baseline = (rx.first(), service.as_ref().map_or(0, |service| service.received));
        let message = rail_message(kind::RAIL_READY, 0, rails.epoch);
        self.announce(message);
        self.failover_step(None)
    }

    /// Both sides are ready, so the stored operations are posted.
    fn resume_first(&mut self) -> Result<()> {
        // The requests of the batch are stored first, so that they are posted in order.
        self.flush_batch();
        let State { rails: Some(rails), qp: Some(qp), tx, rx, service, .. } = self else { return Ok(()) };
        let Some(outage) = rails.outage.take() else { return Ok(()) };
        rails.tried.record_return(!tx.is_empty(), [tx.first(), rx.first()], outage.until);
        if let Some(mut queue) = qp.retransmit.as_ref().map(|queue| queue.lock()) {
            queue.suspended = false;
            for seq in (0..tx.len()).map(|i| tx.first().wrapping_add(i)) {
                // SAFETY: the queue pair lives; the caller that posted the operation keeps its buffers until the operation completes.
                status::returned(unsafe { queue.repost_send(qp.raw(), seq) }, "posting the operations of the first rail again")?;
            }
        }
        rails.first.came_up(now_ns());
        service.as_mut().filter(|service| service.up).map_or(Ok(()), Service::resume)?;
        self.report_up(0, true);
        self.dispatch_parts();
        Ok(())
    }
}

/// Posts the stored receives from `first` up to `next`, and lets new receives go to the device again. The peer may send
/// as soon as it has RAIL_READY.
fn repost_receives(qp: &Qp, tag: Tag, first: u32, next: u32) -> Result<()> {
    let Some(mut queue) = qp.retransmit.as_ref().map(|queue| queue.lock()) else { return Ok(()) };
    queue.receives_suspended = false;
    (0..next.wrapping_sub(first)).try_for_each(|i| {
        // SAFETY: the queue pair lives; the caller that posted the receive keeps its buffers until the receive completes.
        status::returned(
            unsafe { queue.repost_recv(qp.raw(), tag.recv(first.wrapping_add(i))) },
            "posting the receives of the first rail again",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::verbs::state::rails::RecoveryLimit;

    #[test]
    fn a_way_back_that_carries_nothing_is_none() {
        let mut tried = RecoveryLimit::default();
        assert_eq!(tried.until([3, 5], 100), 100);
        tried.record_return(true, [3, 5], 100);
        assert_eq!(tried.until([3, 5], 200), 100);
        for first in [[4, 5], [3, 6]] {
            tried.record_return(true, [3, 5], 100);
            assert_eq!(tried.until(first, 200), 200);
        }
        tried.record_return(false, [3, 5], 100);
        assert_eq!(tried.until([3, 5], 200), 200);
    }

    #[test]
    fn packets_are_counted_from_another_number_after_each_loss() {
        for number in [0, 1, 0xff_ffff, 0x12_3456] {
            let all: std::collections::BTreeSet<u32> = (0..256).map(|epoch| psn(number, epoch)).collect();
            assert!(all.len() == 256 && all.iter().all(|psn| *psn <= 0xff_ffff));
            assert_eq!(psn(number, 0), Service::psn(number));
        }
    }
}
